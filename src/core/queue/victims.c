/* Selects the running gangs to stop for a gang that does not fit.
 *
 * Sets are tried by size, and within a size those that lose less work come first. The search ends
 * when the planner has been asked QUESTIONS_MAX times, or the pass has used up its budget. With up
 * to about a dozen gangs it finds the best set. With more, the large gangs are lent one after the
 * other until the gang fits. Then each that is not needed is left out, the smallest first, so that
 * none is stopped in vain. */
#include <float.h>
#include <stdlib.h>

#include "core/queue/queue_private.h"

#define QUESTIONS_MAX 512
#define NODES_MAX     4096 /* limit of the search, also for sets that need no question */

struct search {
    struct hl_queue_victims *v;
    int questions, nodes;
    int *picked;
    int picked_count;
    int most_slots; /* the largest candidate's slots */
    double best;    /* lost work of the chosen set */
    hl_status status;
};

double hl_queue_lost_work(const struct hl_queue_input *in, int gang)
{
    const struct hl_queue_gang *g = &in->gangs[gang];
    int64_t from = g->saved_ms > g->placed_ms ? g->saved_ms : g->placed_ms;
    return in->now_ms > from ? (double)g->slots * (double)(in->now_ms - from) : 0;
}

static void candidate_lend(struct hl_queue_victims *v, int candidate, bool lent)
{
    v->planner->lend(v->planner->ctx, v->candidates[candidate], lent);
}

static int slots_of(const struct hl_queue_victims *v, int candidate)
{
    return v->in->gangs[v->candidates[candidate]].slots;
}

static bool search_is_over(const struct search *s)
{
    return s->status != HL_OK || s->questions >= QUESTIONS_MAX || *s->v->questions <= 0 ||
           s->nodes >= NODES_MAX;
}

/* Chooses the set that is lent now if the gang fits and less work is lost than before. */
static void search_judge(struct search *s, int slots, double lost)
{
    struct hl_queue_victims *v = s->v;
    bool fits = false;
    if (slots < v->slots || lost >= s->best)
        return;
    s->questions++;
    --*v->questions;
    s->status = v->planner->fit(v->planner->ctx, v->gang, &fits);
    if (s->status != HL_OK || !fits)
        return;
    s->best = lost;
    for (int i = 0; i < s->picked_count; i++)
        v->chosen[i] = v->candidates[s->picked[i]];
    v->chosen_count = s->picked_count;
}

/* Tries every set of `more` further candidates from `from` on. */
static void search_sets(struct search *s, int from, int more, int slots, double lost)
{
    struct hl_queue_victims *v = s->v;
    s->nodes++;
    if (more == 0) {
        search_judge(s, slots, lost);
        return;
    }
    if (slots + more * s->most_slots < v->slots)
        return;
    for (int i = from; i + more <= v->count && !search_is_over(s); i++) {
        double with = lost + hl_queue_lost_work(v->in, v->candidates[i]);
        if (with >= s->best)
            return; /* later candidates lose more */
        candidate_lend(v, i, true);
        s->picked[s->picked_count++] = i;
        search_sets(s, i + 1, more - 1, slots + slots_of(v, i), with);
        s->picked_count--;
        candidate_lend(v, i, false);
    }
}

/* *done: a set is chosen; it is the best one if the search was complete. */
static hl_status search_exactly(struct hl_queue_victims *v, bool *done)
{
    struct search s = {.v = v, .picked = calloc((size_t)v->count, sizeof(int))};
    if (s.picked == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %d victims", v->count);
    for (int i = 0; i < v->count; i++)
        s.most_slots = slots_of(v, i) > s.most_slots ? slots_of(v, i) : s.most_slots;
    s.best = DBL_MAX;
    for (int size = 1; size <= v->count && v->chosen_count == 0 && !search_is_over(&s); size++)
        search_sets(&s, 0, size, 0, 0);
    *done = v->chosen_count > 0;
    free(s.picked);
    return s.status;
}

struct weighed {
    int gang, slots;
    double lost;
    int64_t seq;
};

static int compare_lost(const struct weighed *a, const struct weighed *b)
{
    if (a->lost != b->lost)
        return a->lost < b->lost ? -1 : 1;
    return (a->seq < b->seq) - (a->seq > b->seq); /* newest first */
}

static int by_lost(const void *x, const void *y)
{
    return compare_lost(x, y);
}

static int by_slots(const void *x, const void *y)
{
    const struct weighed *a = x, *b = y;
    return a->slots != b->slots ? b->slots - a->slots : compare_lost(a, b);
}

static hl_status sort_candidates(struct hl_queue_victims *v,
                                 int (*order)(const void *, const void *))
{
    struct weighed *list = calloc((size_t)v->count, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %d victims", v->count);
    for (int i = 0; i < v->count; i++)
        list[i] = (struct weighed){v->candidates[i], slots_of(v, i),
                                   hl_queue_lost_work(v->in, v->candidates[i]),
                                   v->in->gangs[v->candidates[i]].seq};
    qsort(list, (size_t)v->count, sizeof(*list), order);
    for (int i = 0; i < v->count; i++)
        v->candidates[i] = list[i].gang;
    free(list);
    return HL_OK;
}

static int lend_first(struct hl_queue_victims *v, int lent, int wanted)
{
    for (; lent < wanted; lent++)
        candidate_lend(v, lent, true);
    for (; lent > wanted; lent--)
        candidate_lend(v, lent - 1, false);
    return lent;
}

/* All are lent and the gang fits: finds the shortest prefix with which it still fits. These stay
 * lent. */
static hl_status shorten_lent(struct hl_queue_victims *v, int *count, int *slots)
{
    int low = 1, high = v->count, lent = v->count;
    hl_status st = HL_OK;
    while (st == HL_OK && low < high) {
        bool fits = false;
        int middle = low + (high - low) / 2, sum = 0;
        lent = lend_first(v, lent, middle);
        for (int i = 0; i < middle; i++)
            sum += slots_of(v, i);
        if (sum >= v->slots)
            st = v->planner->fit(v->planner->ctx, v->gang, &fits);
        if (fits)
            high = middle;
        else
            low = middle + 1;
    }
    *count = lend_first(v, lent, low);
    for (int i = 0; i < *count; i++)
        *slots += slots_of(v, i);
    return st;
}

/* `count` gangs are lent and the gang fits; leaves out those not needed. None stays lent. */
static hl_status leave_out(struct hl_queue_victims *v, int count, int slots)
{
    hl_status st = HL_OK;
    bool *out = calloc((size_t)count + 1, sizeof(*out));
    if (out == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for %d victims", count);
    for (int i = count - 1; st == HL_OK && i >= 0; i--) {
        bool fits = false;
        if (slots - slots_of(v, i) < v->slots)
            continue;
        candidate_lend(v, i, false);
        st = v->planner->fit(v->planner->ctx, v->gang, &fits);
        out[i] = st == HL_OK && fits;
        slots -= out[i] ? slots_of(v, i) : 0;
        if (!out[i])
            candidate_lend(v, i, true);
    }
    v->chosen_count = 0;
    for (int i = 0; i < count; i++) {
        if (out != NULL && out[i])
            continue;
        candidate_lend(v, i, false);
        v->chosen[v->chosen_count++] = v->candidates[i];
    }
    free(out);
    if (st != HL_OK)
        v->chosen_count = 0;
    return st;
}

hl_status hl_queue_choose(struct hl_queue_victims *v)
{
    bool fits = false, done = false;
    int slots = 0, count = 0;
    v->chosen_count = 0;
    for (int i = 0; i < v->count; i++)
        slots += slots_of(v, i);
    if (slots < v->slots)
        return HL_OK;
    int lent = lend_first(v, 0, v->count);
    hl_status st = v->planner->fit(v->planner->ctx, v->gang, &fits);
    (void)lend_first(v, lent, 0);
    if (st != HL_OK || !fits)
        return st;
    HL_TRY(sort_candidates(v, by_lost));
    HL_TRY(search_exactly(v, &done));
    if (done)
        return HL_OK;
    HL_TRY(sort_candidates(v, by_slots));
    (void)lend_first(v, 0, v->count);
    slots = 0;
    st = shorten_lent(v, &count, &slots);
    hl_status ended = leave_out(v, count, slots);
    return st != HL_OK ? st : ended;
}
