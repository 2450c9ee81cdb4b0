/* Before a plan's first run the ranks compare the order of their collectives, group by group
 * (maco/plan/agree.c). The comparison is a run of its own, with one task per group on the group's
 * proxy. So the deadline applies, and a rank that does not come is reported like any other wait. */
#include <stdio.h>
#include <stdlib.h>

#include "helios/hybridps.h"
#include "maco/cpu/runtime_private.h"
#include "maco/plan/plan.h"

/* Gathers what every rank says, in the order of ranks. */
static hl_status ask_group(void *arg, const void *mine, size_t bytes, void *all)
{
    const struct hl_maco_question *q = arg;
    char what[64];
    snprintf(what, sizeof(what), "the order of group %u's collectives", q->index);
    HL_TRY((hl_status)hybridps_group_allgather(q->group, what, mine, all, bytes));
    /* If the run has ended, no thread waits for this any more, and the plan may be freed. */
    return __atomic_load_n(&q->rt->run, __ATOMIC_SEQ_CST) & 1 ? HL_OK : HL_ECANCELED;
}

static int compare_order(void *arg, const maco_task *task)
{
    struct hl_maco_question *q = arg;
    (void)task;
    return hl_maco_agree_on_order(q->plan, q->index, hybridps_group_world(q->group), ask_group, q);
}

static bool is_known(const maco_runtime *rt, uint64_t serial)
{
    for (size_t i = 0; i < rt->n_agreed; i++)
        if (rt->agreed[i] == serial)
            return true;
    return false;
}

static hl_status remember_plan(maco_runtime *rt, uint64_t serial)
{
    uint64_t *more = realloc(rt->agreed, (rt->n_agreed + 1) * sizeof(*more));
    if (more == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating one more plan");
    rt->agreed = more;
    rt->agreed[rt->n_agreed++] = serial;
    return HL_OK;
}

static uint32_t make_questions(maco_runtime *rt, const struct hl_maco_source *source)
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
    n = make_questions(rt, source);
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
        f[i] = (struct hl_maco_function){compare_order, &rt->questions[i]};
        tasks[i] = (maco_task){.type = MACO_TASK_CUSTOM_COMM,
                               .dependent_event = MACO_NONE,
                               .group = rt->questions[i].index,
                               .user = i};
    }
    hl_status st = n > 0 ? hl_maco_run_once(rt, &own, deadline) : HL_OK;
    if (n > 0)
        hl_maco_forget(rt, own.serial);
    HL_TRY(st);
    return remember_plan(rt, source->serial);
}
