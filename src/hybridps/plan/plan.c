#include "hybridps/plan/plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan_private.h"

void hl_chunk_plan_free(struct hl_chunk_plan *p)
{
    if (p == NULL)
        return;
    free(p->segs);
    free(p->first);
    free(p->current);
    free(p->costs);
    free(p->places);
    free(p);
}

double hl_chunk_plan_rank(const struct hl_chunk_plan *p, uint32_t chunk, bool dirty)
{
    static const struct plan_seg nothing = {.start = -1, .far = PLAN_NEVER};
    if (chunk >= p->chunk_count || p->current[chunk] == p->first[chunk + 1])
        return plan_seg_rank(p, p->rule, &nothing, dirty);
    return plan_seg_rank(p, p->rule, &p->segs[p->current[chunk]], dirty);
}

void hl_chunk_plan_facts(const struct hl_chunk_plan *p, struct hl_chunk_plan_facts *out)
{
    static const char *const names[] = {"belady, free first", "belady", "belady, clean first"};
    struct hl_chunk_plan_facts f = {.rule = names[p->rule]};
    for (uint64_t i = 0; i < p->cost_count; i++)
        f.moved += p->costs[i].h2d + p->costs[i].d2h;
    *out = f;
}

void hl_chunk_plan_cost(const struct hl_chunk_plan *p, uint64_t i, uint64_t *h2d, uint64_t *d2h)
{
    *h2d = p->costs[i].h2d;
    *d2h = p->costs[i].d2h;
}

static uint64_t total_bytes(const struct plan_cost *costs, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += costs[i].h2d + costs[i].d2h;
    return sum;
}

/* Simulates every rule on the record, and takes the first of the cheapest. */
static hl_status choose_rule(const struct plan_model *m, struct hl_chunk_plan *p)
{
    struct plan_cost *costs = calloc(p->iterations + 1, sizeof(*costs));
    uint64_t least = 0;
    hl_status st = costs != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    for (int rule = 0; rule < PLAN_RULES && st == HL_OK; rule++) {
        st = plan_simulate(m, p, (enum plan_rule)rule, p->iterations, costs, NULL);
        uint64_t sum = total_bytes(costs, p->iterations);
        if (st == HL_OK && (rule == 0 || sum < least)) {
            least = sum;
            p->rule = (enum plan_rule)rule;
            memcpy(p->costs, costs, p->iterations * sizeof(*costs));
        }
    }
    free(costs);
    return st;
}

static hl_status plan_fill(const struct plan_model *m, struct hl_chunk_plan *p)
{
    size_t chunks = m->t->chunk_count;
    p->first = calloc(chunks + 1, sizeof(*p->first));
    p->current = calloc(chunks + 1, sizeof(*p->current));
    p->costs = calloc(p->iterations + 1, sizeof(*p->costs));
    if (p->first == NULL || p->current == NULL || p->costs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    HL_TRY(plan_walk(m, p));
    p->cost_count = p->iterations;
    HL_TRY(m->o.endless ? plan_choose_loop(m, p) : choose_rule(m, p));
    hl_chunk_plan_seek(p, 0);
    return HL_OK;
}

hl_status hl_chunk_plan_make(const struct hl_trace *t, const struct hl_chunk_plan_options *options,
                             struct hl_chunk_plan **out)
{
    size_t needs = 0;
    for (size_t i = 0; i < t->moment_count; i++)
        needs += t->moments[i].need_count + t->moments[i].free_count;
    size_t most = needs > t->moment_count ? needs : t->moment_count;
    struct hl_chunk_plan_options o = *options;
    if (o.endless && o.iterations == 0)
        o.iterations = HL_CHUNK_PLAN_AHEAD;
    if (o.iterations < (o.endless ? 3 : 1) || most == 0 || o.iterations > HL_CHUNK_PLAN_MAX / most)
        return hl_fail(HL_EINVAL, "%llu iterations of %zu moments and %zu needs can't be planned",
                       (unsigned long long)o.iterations, t->moment_count, needs);
    struct hl_chunk_plan *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    struct plan_model m = {.t = t, .o = o, .end = (int64_t)(o.iterations * t->moment_count)};
    p->copy = o.copy;
    p->chunk_count = t->chunk_count;
    p->iterations = o.iterations;
    p->moments = t->moment_count;
    hl_status st = plan_fill(&m, p);
    if (st != HL_OK)
        hl_chunk_plan_free(p);
    else
        *out = p;
    return st;
}
