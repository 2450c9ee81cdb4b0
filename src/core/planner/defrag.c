/* Tries sets of one, two, then three gangs, smaller gangs first. Their slots are freed for a
 * moment; if the job then fits, the job and the gangs are planned one after the other. */
#include "core/planner/defrag.h"

#include <stdlib.h>
#include <string.h>

struct search {
    const struct hl_job *job;
    struct hl_cluster *cluster;
    const struct hl_defrag_gang *gangs;
    size_t *order; /* of gangs, by their containers */
    size_t count;
    size_t chosen[HL_DEFRAG_MOVES_MAX]; /* places in order */
    size_t wanted;
    int tries;
    struct hl_defrag *out;
};

static int by_size(const void *x, const void *y, void *arg)
{
    const struct hl_defrag_gang *gangs = arg;
    size_t a = *(const size_t *)x, b = *(const size_t *)y;
    int d = gangs[a].plan->container_count - gangs[b].plan->container_count;
    return d != 0 ? d : (a > b) - (a < b);
}

static void moves_clear(struct hl_defrag *d)
{
    hl_plan_free(d->plan);
    d->plan = NULL;
    for (size_t i = 0; i < d->count; i++)
        hl_plan_free(d->moves[i].to);
    d->count = 0;
}

void hl_defrag_fini(struct hl_defrag *d)
{
    moves_clear(d);
    *d = (struct hl_defrag){0};
}

/* Plans the job and takes the slots; NULL: it doesn't fit. */
static hl_status plan_held(struct search *s, const struct hl_job *job, struct hl_plan **out)
{
    struct hl_plan *plan = NULL;
    HL_TRY(hl_plan_make(job, s->cluster, &plan));
    if (!plan->feasible) {
        hl_plan_free(plan);
        plan = NULL;
    } else {
        hl_plan_mark(plan, s->cluster, true);
    }
    *out = plan;
    return HL_OK;
}

/* Places the job and then the gangs that made room. Their old slots must be free. */
static hl_status place_all(struct search *s)
{
    struct hl_defrag *d = s->out;
    HL_TRY(plan_held(s, s->job, &d->plan));
    while (d->plan != NULL && d->count < s->wanted) {
        struct hl_defrag_move *m = &d->moves[d->count];
        m->gang = s->order[s->chosen[s->wanted - 1 - d->count]]; /* largest first */
        HL_TRY(plan_held(s, s->gangs[m->gang].job, &m->to));
        if (m->to == NULL)
            return HL_OK;
        d->count++;
    }
    d->found = d->plan != NULL;
    return HL_OK;
}

static hl_status try_set(struct search *s)
{
    struct hl_defrag *d = s->out;
    struct hl_plan_why why;
    s->tries++;
    hl_status st = hl_plan_check(s->job, s->cluster, &why);
    if (st == HL_OK && why.reason == HL_PLAN_FITS)
        st = place_all(s);
    for (size_t i = 0; i < d->count; i++)
        hl_plan_mark(d->moves[i].to, s->cluster, false);
    if (d->plan != NULL)
        hl_plan_mark(d->plan, s->cluster, false);
    if (!d->found)
        moves_clear(d);
    return st;
}

/* Chooses the gangs from `depth` on, after those already chosen. */
static hl_status search_sets(struct search *s, size_t depth)
{
    size_t from = depth > 0 ? s->chosen[depth - 1] + 1 : 0;
    if (depth == s->wanted)
        return try_set(s);
    for (size_t i = from; i < s->count && !s->out->found; i++) {
        const struct hl_plan *held = s->gangs[s->order[i]].plan;
        if (s->tries >= HL_DEFRAG_TRIES_MAX) {
            s->out->all_tried = false;
            return HL_OK;
        }
        s->chosen[depth] = i;
        hl_plan_mark(held, s->cluster, false);
        hl_status st = search_sets(s, depth + 1);
        hl_plan_mark(held, s->cluster, true);
        HL_TRY(st);
    }
    return HL_OK;
}

hl_status hl_defrag_find(const struct hl_job *job, struct hl_cluster *cluster,
                         const struct hl_defrag_gang *gangs, size_t count, struct hl_defrag *out)
{
    struct hl_defrag found = {.all_tried = true};
    struct search s = {
        .job = job, .cluster = cluster, .gangs = gangs, .count = count, .out = &found};
    hl_status st = HL_OK;
    s.order = calloc(count + 1, sizeof(*s.order));
    if (s.order == NULL)
        return hl_fail(HL_ENOMEM, "out of memory looking for gangs to move");
    for (size_t i = 0; i < count; i++)
        s.order[i] = i;
    qsort_r(s.order, count, sizeof(*s.order), by_size, (void *)gangs);
    for (s.wanted = 1; s.wanted <= HL_DEFRAG_MOVES_MAX && st == HL_OK && !found.found; s.wanted++)
        st = search_sets(&s, 0);
    free(s.order);
    if (st != HL_OK) {
        hl_defrag_fini(&found);
        return st;
    }
    *out = found;
    return HL_OK;
}
