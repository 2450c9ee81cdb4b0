#include "core/replace/slow.h"

#include <stdlib.h>

#define LOOKS_FIRST 8
#define ALONE       1.5 /* a rank's usual time is of another moment, so the limit is higher */

/* One rank's value, for sorting. */
struct rated {
    int stage;
    double value;
    size_t rank;
};

static int by_stage_and_value(const void *a, const void *b)
{
    const struct rated *left = a, *right = b;
    if (left->stage != right->stage)
        return (left->stage > right->stage) - (left->stage < right->stage);
    return (left->value > right->value) - (left->value < right->value);
}

/* The median of sorted values without the one at `place`. Of two values in the middle it takes the
 * higher: if three ranks share two cores, two of them need twice as long as the third, and none is
 * slow. */
static double median_without(const struct rated *sorted, size_t count, size_t place)
{
    size_t middle = (count - 1) / 2;
    return sorted[place > middle ? middle : middle + 1].value;
}

/* The time the rank usually needs. */
static double usual_of(const struct hl_slow_seen *s)
{
    struct rated looks[HL_SLOW_LOOKS];
    size_t count = s->looks < HL_SLOW_LOOKS ? (size_t)s->looks : HL_SLOW_LOOKS;
    for (size_t i = 0; i < count; i++)
        looks[i] = (struct rated){.value = s->looks_ms[i]};
    qsort(looks, count, sizeof(*looks), by_stage_and_value);
    return looks[count / 4].value;
}

/* The time each rank should need, by index: the median of the others of its stage, or its own usual
 * time if it is alone. */
static void find_due(const struct hl_slow_seen *seen, struct rated *own, size_t count, double *due)
{
    qsort(own, count, sizeof(*own), by_stage_and_value);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && own[to].stage == own[from].stage;)
            to++;
        for (size_t i = from; i < to; i++)
            due[own[i].rank] = to - from > 1 ? median_without(own + from, to - from, i - from)
                                             : ALONE * usual_of(&seen[own[i].rank]);
    }
}

/* After the first few, a value far above the usual one does not change what is usual. */
static void seen_take(struct hl_slow_seen *s, const struct hl_slow_rank *r)
{
    s->news = r->reported - s->reported;
    s->reported = r->reported;
    if (s->looks < LOOKS_FIRST || r->own_ms < ALONE * usual_of(s))
        s->looks_ms[s->looks++ % HL_SLOW_LOOKS] = r->own_ms;
}

/* False: some rank has reported no new step or no time of its own. */
static bool take_ranks(struct hl_slow_seen *seen, const struct hl_slow_rank *ranks, size_t count)
{
    bool news = count > 1;
    for (size_t i = 0; i < count; i++) {
        struct hl_slow_seen *s = &seen[i];
        if (s->process != ranks[i].process) {
            *s = (struct hl_slow_seen){.process = ranks[i].process};
            news = false;
        }
        news &= ranks[i].own_ms > 0 && ranks[i].reported != s->reported;
    }
    for (size_t i = 0; news && i < count; i++)
        seen_take(&seen[i], &ranks[i]);
    return news;
}

/* Time above the limit adds up; time below it subtracts twice as much, because a machine shared
 * with others makes every figure jump. */
static void seen_judge(struct hl_slow_seen *s, double over_ms, double step_ms,
                       const struct hl_slow_rule *rule, int64_t now_ms)
{
    int64_t passed = s->at_ms > 0 && now_ms > s->at_ms ? now_ms - s->at_ms : 0;
    bool matters = over_ms >= rule->floor_ms && over_ms >= rule->floor_share * step_ms;
    s->at_ms = now_ms;
    if (s->factor >= rule->enter && matters) {
        s->slow_ms += passed;
        s->slow_steps += s->news;
    } else if (s->factor < rule->leave || !matters) {
        s->slow_ms -= 2 * passed;
    }
    s->slow_ms = s->slow_ms < 0 ? 0 : s->slow_ms < rule->hold_ms ? s->slow_ms : rule->hold_ms;
    if (s->slow_ms == 0)
        s->slow_steps = 0;
    bool held = s->slow_ms >= rule->hold_ms && s->slow_steps >= rule->hold_steps;
    s->slow = s->slow ? s->slow_ms > 0 : held;
}

hl_status hl_slow_look(struct hl_slow_seen *seen, const struct hl_slow_rank *ranks, size_t count,
                       const struct hl_slow_rule *rule, int64_t now_ms, int *worst)
{
    *worst = -1;
    if (take_ranks(seen, ranks, count)) {
        struct rated *rated = calloc(count, sizeof(*rated));
        double *due = calloc(count, sizeof(*due));
        if (rated == NULL || due == NULL) {
            free(rated);
            free(due);
            return hl_fail(HL_ENOMEM, "out of memory for the times of %zu ranks", count);
        }
        for (size_t i = 0; i < count; i++)
            rated[i] = (struct rated){ranks[i].stage, ranks[i].own_ms, i};
        find_due(seen, rated, count, due);
        for (size_t i = 0; i < count; i++)
            rated[i] = (struct rated){0, ranks[i].own_ms / due[i], i};
        qsort(rated, count, sizeof(*rated), by_stage_and_value);
        for (size_t i = 0; i < count; i++) {
            size_t rank = rated[i].rank;
            double others = median_without(rated, count, i);
            seen[rank].factor = rated[i].value / (others > 1 ? others : 1);
            seen_judge(&seen[rank], ranks[rank].own_ms - due[rank], ranks[rank].step_ms, rule,
                       now_ms);
        }
        free(rated);
        free(due);
    }
    for (size_t i = 0; i < count; i++)
        if (seen[i].slow && (*worst < 0 || seen[i].factor > seen[*worst].factor))
            *worst = (int)i;
    return HL_OK;
}
