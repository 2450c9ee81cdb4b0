/* maco/plan/simulate.h - running a plan on a clock that only counts.
 *
 * Workers take tasks as the plan's policy says; each group has one link, on which transfers follow
 * each other and the latency of one overlaps the next. All that happens at one time is done before
 * anything starts at that time, so the same plan and model give the same records.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL: a task wants a worker that the model has not, a cost passes the clock;
 *          HL_ENOMEM.
 * Units:   nanoseconds from the start.
 * Limits:  workers below 2^16.
 */
#ifndef HL_MACO_PLAN_SIMULATE_H
#define HL_MACO_PLAN_SIMULATE_H

#include "base/status.h"
#include "helios/maco.h"
#include "maco/plan/record.h"

struct hl_maco_model {
    maco_virtual clock;
    int policy, balance;
    /* MACO_DIRECT: ready tasks go in this order, by place; NULL = priority, then first ready */
    const uint32_t *rank;
};

/* records: room for all tasks of the plan; *n of them, in the order of their start. */
hl_status hl_maco_simulate(const maco_plan *p, const struct hl_maco_model *m,
                           struct hl_maco_record *records, size_t *n) HL_CHECK;

#endif
