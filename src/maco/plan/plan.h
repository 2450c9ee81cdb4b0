/* maco/plan/plan.h - what back ends and traces need from a compiled plan beyond maco_plan_read, the
 * records of a run, and a run on a virtual clock.
 *
 * Owns:    a plan owns everything it refers to; of the graph it keeps only the caller's pointers.
 * Threads: a plan is read-only, any thread; each worker writes its own records.
 * Errors:  HL_EINVAL for an index that the plan does not have; HL_ENOMEM; what `ask` returns.
 * Units:   tasks are the plan's (maco_plan_view.tasks), not the graph's ids; nanoseconds of any
 *          clock, the same one in all records of a run.
 * Limits:  worker and group numbers below 2^16.
 */
#ifndef HL_MACO_PLAN_PLAN_H
#define HL_MACO_PLAN_PLAN_H

#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"

/* Unique among all plans of this process, freed ones included. */
uint64_t hl_maco_plan_serial(const maco_plan *p);
/* The function that a CUSTOM_... task calls, by its task's `user`. */
hl_status hl_maco_plan_function(const maco_plan *p, uint64_t user, maco_function *f,
                                void **arg) HL_CHECK;
/* Tasks that must be done before `task`, with joins resolved. Borrowed. */
const uint32_t *hl_maco_plan_parents(const maco_plan *p, uint32_t task, uint32_t *n);
const char *hl_maco_plan_name(const maco_plan *p, uint32_t task);

/* Hash of the first n collectives of a group, without SEND and RECV; of all if n is UINT32_MAX. The
 * members of a group compare it: the lowest n at which they differ gives the task that differs. It
 * covers type, dtype, count, op, root, tag, ranks, the name that the caller gave, and how many
 * collectives equal in all of these were added before. */
uint64_t hl_maco_plan_order_hash(const maco_plan *p, uint32_t group, uint32_t n);
/* The nth collective (0..) of a group; MACO_NONE. */
uint32_t hl_maco_plan_collective(const maco_plan *p, uint32_t group, uint32_t n);
/* How many equal collectives were added before this one. */
uint32_t hl_maco_plan_alike(const maco_plan *p, uint32_t task);

/* ---- ranks compare the order of their collectives (agree.c) ----
 *
 * If a rank would call a different collective than the rest, this gives an error that names both,
 * instead of a hang: HL_ECONFLICT on all ranks names the first collective that differs, as rank 0
 * and another rank have it. Collective: all ranks call it at the same time. */

/* `all` receives what each rank says, by rank. */
typedef hl_status (*hl_maco_ask)(void *arg, const void *mine, size_t bytes, void *all);

hl_status hl_maco_agree_on_order(const maco_plan *p, uint32_t group, int world, hl_maco_ask ask,
                                 void *arg) HL_CHECK;

/* ---- what a real or simulated run records about its tasks ---- */

enum hl_maco_record_kind {
    HL_MACO_COMPUTE = 0, /* task ran on `worker`; joins need no record */
    HL_MACO_COMM = 1,    /* task ran; worker is its group */
    HL_MACO_WAIT = 2,    /* worker was idle; task it waited for or MACO_NONE, have, need */
    HL_MACO_SCHED = 3,   /* a scheduler's work for task; worker is the scheduler's number */
};

/* 32 bytes, because a worker writes one or two per task. */
struct hl_maco_record {
    uint64_t start_ns, end_ns;
    uint32_t task; /* the plan's */
    uint16_t worker, kind;
    uint32_t have, need; /* of the event it waited for; 0 in other kinds */
};

_Static_assert(sizeof(struct hl_maco_record) == 32, "half a cache line");

/* ---- running a plan on a virtual clock (simulate.c) ----
 *
 * Workers take tasks as the plan's policy says; each group has one link, on which transfers follow
 * each other and the latency of one overlaps the next. Everything that ends at a time is processed
 * before anything starts at that time, so the same plan and model always give the same records. */

struct hl_maco_model {
    maco_virtual clock;
    int policy, balance;
    /* MACO_DIRECT: order of ready tasks, as a rank per task; NULL = priority, then first ready */
    const uint32_t *rank;
};

/* HL_EINVAL: a task wants a worker that the model lacks, or a cost overflows the clock. records:
 * room for all tasks of the plan; *n of them, in the order of their start. */
hl_status hl_maco_simulate(const maco_plan *p, const struct hl_maco_model *m,
                           struct hl_maco_record *records, size_t *n) HL_CHECK;

#endif
