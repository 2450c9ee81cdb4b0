/* core/planner/spares.h - slots that a gang holds beside those of its ranks: what is parked there
 * takes the place of a container that is lost with its server.
 *
 * Such a slot is on another server: one that has none of the gang's containers where there is one,
 * else one that has as few as possible, but never all. It is no condition of the gang's start.
 *
 * Owns:    nothing; the plan owns what is added to it.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  it looks at every server once for each slot.
 */
#ifndef HL_CORE_PLANNER_SPARES_H
#define HL_CORE_PLANNER_SPARES_H

#include "core/planner/plan.h"

struct hl_plan_shape;

/* Behind the gang's containers, as many as the job asks for and the cluster has; a warning says
 * where there are fewer. */
hl_status hl_plan_add_spares(const struct hl_plan_shape *s, struct hl_plan *plan) HL_CHECK;

/* The same of a gang that runs: behind its containers, `count` at most; how many were found. */
hl_status hl_plan_refill_spares(struct hl_plan *plan, const struct hl_job *job,
                                const struct hl_cluster *cluster, int count, int *found) HL_CHECK;

/* It was added as a spare, whether it has ranks by now or not. */
bool hl_plan_is_spare(const struct hl_plan_container *c);
/* Containers with ranks. */
int hl_plan_gang_count(const struct hl_plan *plan);
/* The ranks of one container, and where they meet if rank 0 is one of them, are now the spare's. On
 * failure nothing has changed. */
hl_status hl_plan_move_ranks(struct hl_plan *plan, int from, int spare) HL_CHECK;

#endif
