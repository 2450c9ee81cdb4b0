/* core/queue/slots.h - a cluster's slots as a pass over the line asks for them (struct
 * hl_queue_planner): where a gang fits, with slots of others lent or kept.
 *
 * Slots are marked in the cluster itself, for it is what the planner sees. What a gang takes is
 * committed (hl_plan_commit): it gets the place that was found, or none.
 *
 * Owns:    the plans of gangs that start, until they are taken out; the cluster is the caller's.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM; HL_EBUSY: the cluster has changed between question and start.
 * Units:   none.
 * Limits:  nodes neither come nor go from init to fini.
 */
#ifndef HL_CORE_QUEUE_SLOTS_H
#define HL_CORE_QUEUE_SLOTS_H

#include "core/planner/plan.h"
#include "core/queue/queue.h"

struct hl_queue_slots_opts {
    struct hl_cluster *cluster;
    int count; /* gangs */
    void *arg;
    /* Where a gang would run now. */
    hl_status (*plan)(void *arg, int gang, struct hl_plan **out);
    /* Slots that it holds or, if it waits, had before; NULL: none. Borrowed. */
    const struct hl_plan *(*held)(void *arg, int gang);
};

struct hl_queue_kept;

struct hl_queue_slots {
    struct hl_queue_slots_opts opts;
    struct hl_plan **plans; /* of gangs that start */
    struct hl_plan *found;  /* the last answer */
    size_t *base;           /* of each node's slots in `kept` */
    bool *kept;
    struct hl_queue_kept *reserved;
    size_t reserved_count, reserved_cap;
};

hl_status hl_queue_slots_init(struct hl_queue_slots *s, const struct hl_queue_slots_opts *opts,
                              struct hl_queue_planner *out) HL_CHECK;
/* Nothing is reserved any more; what was taken is. */
void hl_queue_slots_end(struct hl_queue_slots *s);
/* The plan of a gang that starts, whose slots are held; the caller frees it. NULL: it does not. */
struct hl_plan *hl_queue_slots_plan(struct hl_queue_slots *s, int gang);
/* The cluster is as before, but for plans that were taken out. Zeroed is fine. */
void hl_queue_slots_fini(struct hl_queue_slots *s);

#endif
