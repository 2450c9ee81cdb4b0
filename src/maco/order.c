/* Before a plan's first run its ranks compare the order of their collectives, group by group: a
 * rank that would call another one than the rest is an error that names it, not a hang.
 *
 * The comparison is a run of its own, of one task for each group on the group's proxy, so the
 * deadline holds and a rank that does not come is named like any other wait. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "helios/hybridps.h"
#include "maco/plan.h"
#include "maco/runtime_private.h"

#define TOLD 96

/* What every rank says, one after the other; `mine` of `bytes`. */
static hl_status ask(const struct hl_maco_question *q, const void *mine, size_t bytes, void **all)
{
    char what[64];
    snprintf(what, sizeof(what), "the order of group %u's collectives", q->index);
    *all = malloc(bytes * (size_t)hybridps_group_world(q->group));
    if (*all == NULL)
        return hl_fail(HL_ENOMEM, "memory is short to compare the order of collectives");
    HL_TRY((hl_status)hybridps_group_allgather(q->group, what, mine, *all, bytes));
    /* Nobody waits for this any more: the plan may be gone. */
    return __atomic_load_n(&q->rt->run, __ATOMIC_SEQ_CST) & 1 ? HL_OK : HL_ECANCELED;
}

/* The first rank that differs from rank 0 in its first n collectives; -1. */
static hl_status differs(const struct hl_maco_question *q, uint32_t n, int *rank)
{
    uint64_t mine = hl_maco_plan_order_hash(q->plan, q->index, n);
    void *all = NULL;
    hl_status st = ask(q, &mine, sizeof(mine), &all);
    *rank = -1;
    for (int r = 1; st == HL_OK && *rank < 0 && r < hybridps_group_world(q->group); r++)
        if (((uint64_t *)all)[r] != ((uint64_t *)all)[0])
            *rank = r;
    free(all);
    return st;
}

static void describe(const struct hl_maco_question *q, uint32_t n, char out[TOLD])
{
    uint32_t i = hl_maco_plan_collective(q->plan, q->index, n);
    maco_plan_view v;
    maco_plan_read(q->plan, &v);
    if (i == MACO_NONE) {
        snprintf(out, TOLD, "none");
        return;
    }
    const maco_task *t = &v.tasks[i];
    snprintf(out, TOLD, "\"%.40s\" (%s of %" PRIu64 " %s)", hl_maco_plan_name(q->plan, i),
             hl_maco_type_name(t->type), hl_maco_count(t), hl_maco_dtype_name(hl_maco_dtype(t)));
}

static hl_status most(const struct hl_maco_question *q, uint32_t *n)
{
    uint32_t mine = 0;
    void *all = NULL;
    while (hl_maco_plan_collective(q->plan, q->index, mine) != MACO_NONE)
        mine++;
    hl_status st = ask(q, &mine, sizeof(mine), &all);
    *n = 0;
    for (int r = 0; st == HL_OK && r < hybridps_group_world(q->group); r++)
        *n = ((uint32_t *)all)[r] > *n ? ((uint32_t *)all)[r] : *n;
    free(all);
    return st;
}

/* All ranks see the same answers, so they search the same way. */
static hl_status name_first(const struct hl_maco_question *q, int rank)
{
    uint32_t same = 0, other;
    HL_TRY(most(q, &other));
    while (other - same > 1) {
        uint32_t mid = same + (other - same) / 2;
        int who;
        HL_TRY(differs(q, mid, &who));
        if (who >= 0) {
            other = mid;
            rank = who;
        } else {
            same = mid;
        }
    }
    char mine[TOLD] = "";
    void *all = NULL;
    describe(q, same, mine);
    hl_status st = ask(q, mine, sizeof(mine), &all);
    if (st == HL_OK)
        st = hl_fail(HL_ECONFLICT,
                     "group %u: collective %u is %s on rank 0 and %s on rank %d. Hint: all ranks "
                     "add the same collectives in the same order",
                     q->index, same, (char *)all, (char *)all + (size_t)rank * TOLD, rank);
    free(all);
    return st;
}

static int compare(void *arg, const maco_task *task)
{
    const struct hl_maco_question *q = arg;
    int rank;
    (void)task;
    HL_TRY(differs(q, UINT32_MAX, &rank));
    return rank < 0 ? HL_OK : name_first(q, rank);
}

static int is_known(const maco_runtime *rt, uint64_t serial)
{
    for (size_t i = 0; i < rt->n_agreed; i++)
        if (rt->agreed[i] == serial)
            return 1;
    return 0;
}

static hl_status learn(maco_runtime *rt, uint64_t serial)
{
    uint64_t *more = realloc(rt->agreed, (rt->n_agreed + 1) * sizeof(*more));
    if (more == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for one more plan");
    rt->agreed = more;
    rt->agreed[rt->n_agreed++] = serial;
    return HL_OK;
}

static uint32_t questions(maco_runtime *rt, const struct hl_maco_source *source)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < rt->n_groups; g++)
        if (rt->groups[g] != NULL && hybridps_group_world(rt->groups[g]) > 1 &&
            hl_maco_plan_collective(source->plan, g, 0) != MACO_NONE)
            rt->questions[n++] = (struct hl_maco_question){rt, source->plan, rt->groups[g], g};
    return n;
}

hl_status hl_maco_agree(maco_runtime *rt, const struct hl_maco_source *source, uint64_t deadline)
{
    static const char name[] = "comparison of the order of collectives";
    struct hl_maco_function *f = rt->question_functions;
    maco_task *tasks = rt->question_tasks;
    uint32_t n;
    if (source->plan == NULL || is_known(rt, source->serial))
        return HL_OK;
    n = questions(rt, source);
    maco_event end = {.needed = n, .kind = MACO_EVENT_END, .target_worker = -1};
    struct hl_maco_source own = {.view = {.tasks = tasks,
                                          .events = &end,
                                          .n_tasks = n,
                                          .n_events = 1,
                                          .n_roots = n,
                                          .policy = rt->policy,
                                          .names = name,
                                          .names_bytes = sizeof(name)},
                                 .serial = HL_MACO_OWN_SERIALS | source->serial,
                                 .functions = f,
                                 .n_functions = n};
    for (uint32_t i = 0; i < n; i++) {
        f[i] = (struct hl_maco_function){compare, &rt->questions[i]};
        tasks[i] = (maco_task){.type = MACO_TASK_CUSTOM_COMM,
                               .dependent_event = MACO_NONE,
                               .group = rt->questions[i].index,
                               .user = i};
    }
    hl_status st = n > 0 ? hl_maco_run_once(rt, &own, deadline) : HL_OK;
    if (n > 0)
        hl_maco_forget(rt, own.serial);
    HL_TRY(st);
    return learn(rt, source->serial);
}
