/* core/planner/spares.h - spare slots, which a gang holds in addition to those of its ranks: a
 * container parked there replaces one that is lost with its server.
 *
 * A spare slot is on another server: if possible one that has none of the gang's containers, else
 * one that has as few as possible, but never all of them. A gang also starts without its spares.
 *
 * Owns:    nothing; the plan owns the containers that are added to it.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  every spare slot costs one look at every server.
 */
#ifndef HL_CORE_PLANNER_SPARES_H
#define HL_CORE_PLANNER_SPARES_H

#include "core/planner/plan.h"

struct hl_plan_shape;

/* Appends spares to the gang's containers: as many as the job asks for, if the cluster has them.
 * The plan gets a warning if there are fewer. */
hl_status hl_plan_add_spares(const struct hl_plan_shape *s, struct hl_plan *plan) HL_CHECK;

/* The same for a running gang: appends at most `count`; *found is how many. */
hl_status hl_plan_refill_spares(struct hl_plan *plan, const struct hl_job *job,
                                const struct hl_cluster *cluster, int count, int *found) HL_CHECK;

/* The container was added as a spare, whether or not it has ranks by now. */
bool hl_plan_is_spare(const struct hl_plan_container *c);
/* Number of containers with ranks. */
int hl_plan_gang_count(const struct hl_plan *plan);
/* Moves the ranks of one container to the spare, and the rendezvous too if rank 0 is among them. On
 * failure nothing has changed. */
hl_status hl_plan_move_ranks(struct hl_plan *plan, int from, int spare) HL_CHECK;

#endif
