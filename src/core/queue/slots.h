/* core/queue/slots.h - implements struct hl_queue_planner on a cluster's slots: finds where a gang
 * fits while slots of other gangs are lent or reserved.
 *
 * Slots are marked busy or free in the cluster itself, because that is what the planner looks at. A
 * gang takes its place with hl_plan_commit: it gets exactly the place that was found, or none.
 *
 * Owns:    the plans of gangs that start, until the caller takes them; the cluster belongs to the
 *          caller.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM; HL_EBUSY: the cluster changed between the search and the start.
 * Units:   none.
 * Limits:  no nodes may be added or removed between init and fini.
 */
#ifndef HL_CORE_QUEUE_SLOTS_H
#define HL_CORE_QUEUE_SLOTS_H

#include "core/planner/plan.h"
#include "core/queue/queue.h"

struct hl_queue_slots_opts {
    struct hl_cluster *cluster;
    int count; /* gangs */
    void *arg;
    /* Plans where a gang would run now. */
    hl_status (*plan)(void *arg, int gang, struct hl_plan **out);
    /* The slots that the gang holds or, if it waits, held last; NULL: none. Borrowed. */
    const struct hl_plan *(*held)(void *arg, int gang);
    /* The gang starts by this plan. NULL: the caller does not need to know. */
    void (*taken)(void *arg, int gang, const struct hl_plan *plan);
};

struct hl_queue_kept;

struct hl_queue_slots {
    struct hl_queue_slots_opts opts;
    struct hl_plan **plans; /* the plans of gangs that start */
    struct hl_plan *found;  /* the last answer */
    size_t *base;           /* index of each node's first slot in `kept` */
    bool *kept;
    struct hl_queue_kept *reserved;
    size_t reserved_count, reserved_cap;
};

hl_status hl_queue_slots_init(struct hl_queue_slots *s, const struct hl_queue_slots_opts *opts,
                              struct hl_queue_planner *out) HL_CHECK;
/* Drops all reservations; slots that were taken stay taken. */
void hl_queue_slots_end(struct hl_queue_slots *s);
/* The plan of a gang that starts, with its slots held; the caller frees it. NULL: the gang does not
 * start. */
struct hl_plan *hl_queue_slots_plan(struct hl_queue_slots *s, int gang);
/* Restores the cluster, except for the plans that the caller took. A zeroed struct is fine. */
void hl_queue_slots_fini(struct hl_queue_slots *s);

#endif
