/* maco/plan/plan_private.h - the internals of a plan, for plan*.c, compile*.c, describe.c,
 * simulate.c and virtual.c.
 *
 * Threads: one while a plan is compiled; a finished plan is read-only.
 */
#ifndef HL_MACO_PLAN_PLAN_PRIVATE_H
#define HL_MACO_PLAN_PLAN_PRIVATE_H

#include "maco/graph/graph.h"
#include "maco/plan/plan.h"

/* A collective as ranks compare it. */
struct hl_maco_turn {
    uint64_t like; /* hash of what it does, and of its name if the caller gave one */
    uint32_t nth;  /* its number among equal ones, in the order of adding */
};

struct maco_plan {
    uint64_t serial;
    maco_plan_view view;
    maco_task *tasks;
    maco_event *events;
    uint32_t *id, *worker;
    int32_t *priority;
    uint32_t *list, *first_of_list;
    uint32_t *comm;
    struct hl_maco_turn *turns; /* of each in comm */
    char *names;
    struct hl_maco_call *calls;
    size_t n_calls;
    struct hl_maco_csr parents; /* of the plan's tasks, with joins resolved */
};

/* Estimated cost of a task that has none, for balance only. */
uint64_t hl_maco_cost(const maco_task *t);
/* Longest chain of costs from each task to the end, its own included; n_tasks of them. */
void hl_maco_plan_heights(const maco_plan *p, uint64_t *height);

/* Numbers the tasks of a graph and makes events, so that each task waits for its parents
 * (compile_events.c). */
hl_status hl_maco_plan_build(const maco_graph *g, const struct hl_maco_csr *parents,
                             maco_plan *p) HL_CHECK;
/* Sets the static lists, the caller's or made from costs, and checks that they can run
 * (compile_lists.c). */
hl_status hl_maco_plan_lists(maco_plan *p, const maco_compile_options *o) HL_CHECK;

#endif
