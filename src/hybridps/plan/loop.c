/* An endless plan. Its first iterations lead from where the chunks are into a cycle that can be
 * replayed without end; its last iteration has nothing after it. The one before that is replayed
 * cyclically: what is planned there has uses before and after it, and the rules only ask for the
 * next use, so no other iteration would do better. If that iteration does not end exactly where it
 * began, following the plan settles into a course that can't be predicted without running it. So
 * each rule is simulated for long enough, and the one that moves least is taken. */
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan_private.h"

struct choice {
    enum plan_rule rule;
    uint64_t total; /* 0 = the plan does not take the end into account */
    uint64_t moved;
    int tried;
};

const uint8_t *hl_chunk_plan_places(const struct hl_chunk_plan *p, uint64_t i)
{
    if (p->again_end > 0 && i >= p->again_end)
        i = p->again + (i - p->again) % (p->again_end - p->again);
    return p->places != NULL && i <= p->cost_count ? p->places + i * p->chunk_count : NULL;
}

static void adopt_choice(struct hl_chunk_plan *p, const struct choice *c)
{
    p->rule = c->rule;
    p->loop_first = p->iterations - 2;
    p->loop_end = p->iterations - 1;
    p->total = c->total;
}

static hl_status try_choice(const struct plan_model *m, struct hl_chunk_plan *p, struct choice *c)
{
    adopt_choice(p, c);
    HL_TRY(plan_simulate(m, p, c->rule, p->cost_count, p->costs, NULL));
    c->tried = 1;
    c->moved = 0;
    for (uint64_t i = 0; i < p->cost_count; i++)
        c->moved += p->costs[i].h2d + p->costs[i].d2h;
    return HL_OK;
}

/* Of equally good choices the first one is kept. */
static hl_status keep_better(const struct plan_model *m, struct hl_chunk_plan *p,
                             struct choice next, struct choice *best)
{
    HL_TRY(try_choice(m, p, &next));
    if (!best->tried || next.moved < best->moved)
        *best = next;
    return HL_OK;
}

static hl_status try_rules(const struct plan_model *m, struct hl_chunk_plan *p, uint64_t total,
                           struct choice *best)
{
    for (int rule = 0; rule < PLAN_RULES; rule++)
        HL_TRY(
            keep_better(m, p, (struct choice){.rule = (enum plan_rule)rule, .total = total}, best));
    return HL_OK;
}

/* Finds two iterations that begin in the same state, at the same place of the plan. */
static void find_again(struct hl_chunk_plan *p)
{
    for (uint64_t b = 1; b <= p->cost_count; b++)
        for (uint64_t a = 0; a < b; a++)
            if (plan_moment(p, a * p->moments) == plan_moment(p, b * p->moments) &&
                memcmp(p->places + a * p->chunk_count, p->places + b * p->chunk_count,
                       p->chunk_count) == 0) {
                p->again = a;
                p->again_end = b;
                return;
            }
}

static hl_status settle_choice(const struct plan_model *m, struct hl_chunk_plan *p,
                               const struct choice *c)
{
    adopt_choice(p, c);
    return plan_simulate(m, p, p->rule, p->cost_count, p->costs, p->places);
}

hl_status plan_choose_loop(const struct plan_model *m, struct hl_chunk_plan *p)
{
    struct choice best = {0};
    uint64_t count = p->iterations * HL_CHUNK_PLAN_TRIAL;
    struct plan_cost *costs = realloc(p->costs, (count + 1) * sizeof(*costs));
    p->costs = costs != NULL ? costs : p->costs;
    p->places = calloc((count + 1) * p->chunk_count + 1, 1);
    if (costs == NULL || p->places == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    p->cost_count = count;
    HL_TRY(try_rules(m, p, 0, &best));
    HL_TRY(settle_choice(m, p, &best));
    find_again(p);
    return HL_OK;
}

hl_status hl_chunk_plan_end(struct hl_chunk_plan *p, const struct hl_trace *t,
                            const struct hl_chunk_plan_options *o, uint64_t total)
{
    struct plan_model m = {.t = t, .o = *o};
    struct choice best = {.rule = p->rule};
    if (p->loop_end == 0 || total < p->iterations || total > UINT32_MAX)
        return hl_fail(HL_EINVAL, "a plan of %llu iterations can't end after %llu",
                       (unsigned long long)p->iterations, (unsigned long long)total);
    struct plan_cost *costs = realloc(p->costs, (total + 1) * sizeof(*costs));
    if (costs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    free(p->places);
    p->places = NULL;
    p->again = p->again_end = 0;
    p->costs = costs;
    p->cost_count = total;
    HL_TRY(try_choice(&m, p, &best));
    HL_TRY(try_rules(&m, p, total, &best));
    HL_TRY(settle_choice(&m, p, &best));
    hl_chunk_plan_seek(p, 0);
    return HL_OK;
}
