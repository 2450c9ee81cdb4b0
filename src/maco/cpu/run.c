/* The public calls around a run: prepares a compiled plan for the runtime, and runs it. */
#include <stdlib.h>

#include "maco/cpu/runtime_private.h"
#include "maco/plan/plan.h"

int maco_run(maco_runtime *rt, const maco_plan *p)
{
    if (rt == NULL || p == NULL)
        return hl_fail(HL_EINVAL, "maco_run: the runtime or the plan is NULL");
    struct hl_maco_source source = {.plan = p,
                                    .view = *maco_plan_read(p),
                                    .serial = hl_maco_plan_serial(p),
                                    .function = hl_maco_plan_function};
    return hl_maco_run_source(rt, &source);
}

int maco_run_order(const maco_runtime *rt, uint32_t *ids, uint32_t capacity, uint32_t *n)
{
    if (rt == NULL || n == NULL || (ids == NULL && capacity > 0))
        return hl_fail(HL_EINVAL, "maco_run_order: the runtime or a place for the result is NULL");
    uint32_t *tasks = NULL, total = 0;
    HL_TRY(hl_maco_run_tasks(rt, &tasks, &total));
    const uint32_t *id = rt->state->view.id;
    for (uint32_t i = 0; i < total && i < capacity; i++)
        ids[i] = id != NULL ? id[tasks[i]] : tasks[i];
    free(tasks);
    *n = total;
    return HL_OK;
}

int maco_run_trace(const maco_runtime *rt, maco_trace **out)
{
    if (rt == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "maco_run_trace: the runtime or out is NULL");
    *out = NULL;
    if (!rt->tracing)
        return HL_OK;
    if (rt->plan == NULL)
        return hl_fail(HL_ENOENT, "no plan was run yet");
    struct hl_maco_record *records = NULL;
    size_t n = 0;
    HL_TRY(hl_maco_run_records(rt, &records, &n));
    hl_status st = hl_maco_trace_new(rt->plan, records, n, out);
    free(records);
    return st;
}
