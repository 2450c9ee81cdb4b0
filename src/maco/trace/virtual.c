/* A virtual run: the plan's tasks on the workers and links of a model, on a virtual clock. Its
 * records become a trace like those of a real run, so the same tools can show both.
 *
 * Policy and balance come from the plan and not from the model, because the simulation shows how
 * the plan would run. */
#include <stdlib.h>

#include "base/abi.h"
#include "maco/plan/plan.h"
#include "maco/trace/trace.h"

int maco_run_virtual(const maco_plan *p, const maco_virtual *model, maco_trace **out)
{
    if (p == NULL || model == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "maco_run_virtual: the plan, the model or out is NULL");
    const maco_plan_view view = *maco_plan_read(p);
    struct hl_maco_model m = {.policy = view.policy, .balance = view.balance};
    HL_TRY(HL_ABI_READ(maco_virtual, model, &m.clock));
    if (m.clock.workers < 1 || m.clock.workers > UINT16_MAX)
        return hl_fail(HL_EINVAL, "a virtual run with %d workers. Hint: 1 to %d", m.clock.workers,
                       UINT16_MAX);
    if (view.policy == MACO_STATIC && view.n_lists != (uint32_t)m.clock.workers)
        return hl_fail(HL_EINVAL,
                       "the plan has lists for %u workers, the model %d. Hint: compile it for as "
                       "many",
                       view.n_lists, m.clock.workers);
    /* Each task runs once, so there are no more records than tasks. */
    struct hl_maco_record *records = malloc(view.n_tasks * sizeof(*records));
    size_t n = 0;
    if (records == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a virtual run");
    hl_status st = hl_maco_simulate(p, &m, records, &n);
    if (st == HL_OK)
        st = hl_maco_trace_new(p, records, n, out);
    free(records);
    return st;
}
