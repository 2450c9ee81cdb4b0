/* maco/plan/plan.h - what back ends and traces ask of a compiled plan, beside maco_plan_read; what
 * a run of it notes; and a run on a virtual clock.
 *
 * Owns:    a plan all it names; it keeps nothing of the graph but the caller's pointers.
 * Threads: a plan is read only, any; each worker writes records of its own.
 * Errors:  HL_EINVAL where an index is none of the plan's; HL_ENOMEM; what `ask` returns.
 * Units:   tasks are the plan's (maco_plan_view.tasks), not the graph's ids; nanoseconds of any
 *          clock, the same one in all records of a run.
 * Limits:  worker and group numbers below 2^16.
 */
#ifndef HL_MACO_PLAN_PLAN_H
#define HL_MACO_PLAN_PLAN_H

#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"

/* Never that of another plan of this process, freed ones included. */
uint64_t hl_maco_plan_serial(const maco_plan *p);
/* What CUSTOM_... calls: `user` of its task. */
hl_status hl_maco_plan_function(const maco_plan *p, uint64_t user, maco_function *f,
                                void **arg) HL_CHECK;
/* Tasks that must be done before `task`, joins looked through. Borrowed. */
const uint32_t *hl_maco_plan_parents(const maco_plan *p, uint32_t task, uint32_t *n);
const char *hl_maco_plan_name(const maco_plan *p, uint32_t task);

/* Hash of the first n collectives of a group, SEND and RECV left out; of all where n is UINT32_MAX.
 * What the members of a group compare; the least n where they differ is the task that differs. In
 * it goes of each: type, dtype, count, op, root, tag, ranks, the name that the caller gave, and how
 * many that are alike in all this were added before it. */
uint64_t hl_maco_plan_order_hash(const maco_plan *p, uint32_t group, uint32_t n);
/* The nth collective (0..) of a group; MACO_NONE. */
uint32_t hl_maco_plan_collective(const maco_plan *p, uint32_t group, uint32_t n);
/* How many that are alike were added before this collective. */
uint32_t hl_maco_plan_alike(const maco_plan *p, uint32_t task);

/* ---- ranks compare the order of their collectives (agree.c) ----
 *
 * A rank that would call another one than the rest is an error that names both, not a hang:
 * HL_ECONFLICT on all ranks names the first collective that differs, as rank 0 and another one have
 * it. All ranks call it at one time. */

/* `all` gets what each rank says, by rank. */
typedef hl_status (*hl_maco_ask)(void *arg, const void *mine, size_t bytes, void *all);

hl_status hl_maco_agree_on_order(const maco_plan *p, uint32_t group, int world, hl_maco_ask ask,
                                 void *arg) HL_CHECK;

/* ---- what a run, real or simulated, notes of its tasks ---- */

enum hl_maco_record_kind {
    HL_MACO_COMPUTE = 0, /* task ran on `worker`; joins need no record */
    HL_MACO_COMM = 1,    /* task ran; worker is its group */
    HL_MACO_WAIT = 2,    /* worker had nothing to do; task it waited for or MACO_NONE, have, need */
    HL_MACO_SCHED = 3,   /* a scheduler's work for task; worker numbers the scheduler */
};

/* 32 bytes: a worker writes one or two a task. */
struct hl_maco_record {
    uint64_t start_ns, end_ns;
    uint32_t task; /* the plan's */
    uint16_t worker, kind;
    uint32_t have, need; /* of the event waited for; 0 in other kinds */
};

_Static_assert(sizeof(struct hl_maco_record) == 32, "half a cache line");

/* ---- running a plan on a clock that only counts (simulate.c) ----
 *
 * Workers take tasks as the plan's policy says; each group has one link, on which transfers follow
 * each other and the latency of one overlaps the next. All that happens at one time is done before
 * anything starts at that time, so the same plan and model give the same records. */

struct hl_maco_model {
    maco_virtual clock;
    int policy, balance;
    /* MACO_DIRECT: ready tasks go in this order, by place; NULL = priority, then first ready */
    const uint32_t *rank;
};

/* HL_EINVAL: a task wants a worker that the model has not, a cost passes the clock.
 * records: room for all tasks of the plan; *n of them, in the order of their start. */
hl_status hl_maco_simulate(const maco_plan *p, const struct hl_maco_model *m,
                           struct hl_maco_record *records, size_t *n) HL_CHECK;

#endif
