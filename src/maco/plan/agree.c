/* Compares the collectives of all ranks by hash, and names the first one that differs. */
#include "maco/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "maco/graph/graph.h"

#define TOLD 128

struct question {
    const maco_plan *plan;
    uint32_t group;
    int world;
    hl_maco_ask ask;
    void *arg;
};

static hl_status ask_ranks(const struct question *q, const void *mine, size_t bytes, void **all)
{
    *all = malloc(bytes * (size_t)q->world);
    if (*all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory comparing the order of collectives");
    return q->ask(q->arg, mine, bytes, *all);
}

/* Finds the first rank that differs from rank 0 in its first n collectives; -1: none. */
static hl_status find_different(const struct question *q, uint32_t n, int *rank)
{
    uint64_t mine = hl_maco_plan_order_hash(q->plan, q->group, n);
    void *all = NULL;
    hl_status st = ask_ranks(q, &mine, sizeof(mine), &all);
    *rank = -1;
    for (int r = 1; st == HL_OK && *rank < 0 && r < q->world; r++)
        if (((uint64_t *)all)[r] != ((uint64_t *)all)[0])
            *rank = r;
    free(all);
    return st;
}

/* What else distinguishes two collectives of the same size. */
static void describe_detail(const maco_task *t, char out[16])
{
    static const char *const ops[] = {"", ", avg", ", min", ", max", ", prod"};
    out[0] = '\0';
    if (t->type == MACO_TASK_BROADCAST)
        snprintf(out, 16, ", root %d", t->dims[3]);
    else if (t->type == MACO_TASK_ALLREDUCE || t->type == MACO_TASK_REDUCE_SCATTER)
        snprintf(out, 16, "%s", ops[t->dims[2]]);
}

static void describe_collective(const struct question *q, uint32_t n, char out[TOLD])
{
    uint32_t i = hl_maco_plan_collective(q->plan, q->group, n);
    const maco_plan_view v = *maco_plan_read(q->plan);
    if (i == MACO_NONE) {
        snprintf(out, TOLD, "none");
        return;
    }
    const maco_task *t = &v.tasks[i];
    uint32_t alike = hl_maco_plan_alike(q->plan, i);
    char more[16], which[40] = "";
    describe_detail(t, more);
    if (alike > 0)
        snprintf(which, sizeof(which), ", number %" PRIu64 " of its like", (uint64_t)alike + 1);
    snprintf(out, TOLD, "\"%.40s\" (%s of %" PRIu64 " %s%s%s)", hl_maco_plan_name(q->plan, i),
             hl_maco_type_name(t->type), hl_maco_count(t), hl_maco_dtype_name(hl_maco_dtype(t)),
             more, which);
}

static hl_status most_collectives(const struct question *q, uint32_t *n)
{
    uint32_t mine = 0;
    void *all = NULL;
    while (hl_maco_plan_collective(q->plan, q->group, mine) != MACO_NONE)
        mine++;
    hl_status st = ask_ranks(q, &mine, sizeof(mine), &all);
    *n = 0;
    for (int r = 0; st == HL_OK && r < q->world; r++)
        *n = ((uint32_t *)all)[r] > *n ? ((uint32_t *)all)[r] : *n;
    free(all);
    return st;
}

/* All ranks get the same answers, so their binary searches take the same steps. */
static hl_status name_first(const struct question *q, int rank)
{
    uint32_t same = 0, other;
    HL_TRY(most_collectives(q, &other));
    while (other - same > 1) {
        uint32_t mid = same + (other - same) / 2;
        int who;
        HL_TRY(find_different(q, mid, &who));
        if (who >= 0) {
            other = mid;
            rank = who;
        } else {
            same = mid;
        }
    }
    char mine[TOLD] = "";
    void *all = NULL;
    describe_collective(q, same, mine);
    hl_status st = ask_ranks(q, mine, sizeof(mine), &all);
    if (st == HL_OK)
        st = hl_fail(HL_ECONFLICT,
                     "group %u: collective %u is %s on rank 0 and %s on rank %d. Hint: all ranks "
                     "add the same collectives in the same order, by the same names or none, and "
                     "with the same dependencies and priorities",
                     q->group, same, (char *)all, (char *)all + (size_t)rank * TOLD, rank);
    free(all);
    return st;
}

hl_status hl_maco_agree_on_order(const maco_plan *p, uint32_t group, int world, hl_maco_ask asks,
                                 void *arg)
{
    const struct question q = {p, group, world, asks, arg};
    int rank;
    HL_TRY(find_different(&q, UINT32_MAX, &rank));
    return rank < 0 ? HL_OK : name_first(&q, rank);
}
