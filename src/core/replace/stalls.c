#include "core/replace/stalls.h"

#include <stdlib.h>

#define STEPS_MIN 2 /* needed before a rank is judged */

/* The shortest known median: a step takes all ranks of a gang equally long, except those that have
 * made few steps. */
static int64_t gang_median_ms(const struct hl_stall_rank *ranks, size_t count)
{
    int64_t least = 0;
    for (size_t i = 0; i < count; i++)
        if (ranks[i].median_ms > 0 && (least == 0 || ranks[i].median_ms < least))
            least = ranks[i].median_ms;
    return least;
}

static bool may_be_judged(const struct hl_stall_rank *ranks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ranks[i].activity != HL_API_RANK_ACTIVITY_TRAINING || ranks[i].steps < STEPS_MIN)
            return false;
    return count > 0;
}

static bool is_silent(const struct hl_stall_rank *r, int64_t limit_ms)
{
    return r->since_ms > limit_ms;
}

/* Reports of several nodes are not of the same moment. While one rank is not silent, the others may
 * seem so only because they were asked later, so the limit is doubled. */
static int64_t limit_for(const struct hl_stall_rank *ranks, size_t count, int64_t limit_ms)
{
    for (size_t i = 0; i < count; i++)
        if (!is_silent(&ranks[i], limit_ms))
            return 2 * limit_ms;
    return limit_ms;
}

/* The silent rank at the lowest step, unless another silent rank is at the same step. */
static const struct hl_stall_rank *find_behind(const struct hl_stall_rank *ranks, size_t count,
                                               int64_t limit_ms)
{
    const struct hl_stall_rank *last = NULL;
    size_t beside = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_silent(&ranks[i], limit_ms))
            continue;
        if (last == NULL || ranks[i].step < last->step) {
            last = &ranks[i];
            beside = 0;
        } else if (ranks[i].step == last->step) {
            beside++;
        }
    }
    return last != NULL && beside == 0 ? last : NULL;
}

/* A rank that makes no steps and does not run. A rank that is only stopped now and then still makes
 * some. */
static const struct hl_stall_rank *find_stopped(const struct hl_stall_rank *ranks, size_t count,
                                                int64_t floor_ms)
{
    const struct hl_stall_rank *longest = NULL;
    for (size_t i = 0; i < count; i++)
        if (ranks[i].stopped_ms > floor_ms &&
            (ranks[i].since_ms < 0 || ranks[i].since_ms > floor_ms) &&
            (longest == NULL || ranks[i].stopped_ms > longest->stopped_ms))
            longest = &ranks[i];
    return longest;
}

/* It waits for the others, and has done so for long. */
static bool comes_together(const struct hl_stall_rank *r, int64_t limit_ms)
{
    return r->activity == HL_API_RANK_ACTIVITY_JOINING && r->joining_ms > limit_ms;
}

/* The silent rank that is still training while all others have come together. */
static const struct hl_stall_rank *find_left(const struct hl_stall_rank *ranks, size_t count,
                                             int64_t limit_ms)
{
    const struct hl_stall_rank *left = NULL;
    size_t joining = 0;
    for (size_t i = 0; i < count; i++) {
        if (comes_together(&ranks[i], limit_ms))
            joining++;
        else if (may_be_judged(&ranks[i], 1) && is_silent(&ranks[i], limit_ms))
            left = &ranks[i];
    }
    return joining > 0 && joining + 1 == count ? left : NULL;
}

/* No silence shorter than this is a stall. */
static int64_t limit_of(const struct hl_stall_rank *ranks, size_t count,
                        const struct hl_stall_rule *rule)
{
    int64_t limit = gang_median_ms(ranks, count) * rule->factor;
    return limit > rule->floor_ms ? limit : rule->floor_ms;
}

struct hl_stall hl_stall_find(const struct hl_stall_rank *ranks, size_t count,
                              const struct hl_stall_rule *rule)
{
    struct hl_stall out = {.rank = -1};
    const int64_t limit = limit_of(ranks, count, rule);
    const struct hl_stall_rank *still = find_stopped(ranks, count, rule->floor_ms);
    if (still != NULL)
        return (struct hl_stall){HL_STALL_STOPPED, still->rank, still->stopped_ms, rule->floor_ms};
    const struct hl_stall_rank *left = find_left(ranks, count, limit);
    if (left != NULL)
        return (struct hl_stall){HL_STALL_LEFT, left->rank, left->since_ms, limit};
    if (!may_be_judged(ranks, count))
        return out;
    out.limit_ms = limit_for(ranks, count, limit);
    const struct hl_stall_rank *stopped = NULL, *any = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!is_silent(&ranks[i], out.limit_ms))
            continue;
        if (ranks[i].stopped && (stopped == NULL || ranks[i].since_ms > stopped->since_ms))
            stopped = &ranks[i];
        if (any == NULL || ranks[i].since_ms > any->since_ms)
            any = &ranks[i];
    }
    if (any == NULL)
        return out;
    const struct hl_stall_rank *behind = find_behind(ranks, count, out.limit_ms);
    const struct hl_stall_rank *who = stopped != NULL ? stopped : behind;
    out.kind = stopped != NULL ? HL_STALL_STOPPED : behind != NULL ? HL_STALL_BEHIND : HL_STALL_ALL;
    out.rank = who != NULL ? who->rank : -1;
    out.since_ms = who != NULL ? who->since_ms : any->since_ms;
    return out;
}
