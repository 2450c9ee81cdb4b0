/* core/planner/resize.h - the plan of a gang that loses data parallel replicas, or gets some.
 *
 * Containers keep their place and their index, whatever becomes of their ranks: a *member* holds
 * ranks of the gang, one that *joins* holds ranks that will be, one that *leaves* holds none. A
 * replica that has lost a rank is lost with all of its ranks, and so is each that shares a
 * container with it. The ones that stay keep their order, and their ranks are counted anew.
 *
 * Owns:    the plan is the caller's: a copy of the one in force, which takes its place at once.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM: the plan is not to be used.
 * Units:   replicas.
 * Limits:  as the plan's.
 */
#ifndef HL_CORE_PLANNER_RESIZE_H
#define HL_CORE_PLANNER_RESIZE_H

#include "core/planner/plan.h"

/* It joins or leaves. */
static inline bool hl_plan_is_guest(const struct hl_plan_container *c)
{
    return c->joining > 0 || c->leaves;
}

hl_status hl_plan_copy(const struct hl_plan *plan, struct hl_plan **out) HL_CHECK;
/* Where the container of that index is, -1 = nowhere. */
int hl_plan_position(const struct hl_plan *plan, int index);
/* The replicas go that have ranks in `lost` containers (by position), and more of them until the
 * job may have as many as are left. Containers without ranks leave; so do those that join. *dp: how
 * many are left; 0 = none may be, and nothing was changed. job: its grid has the size of now. */
hl_status hl_plan_shrink(struct hl_plan *plan, const struct hl_job *job, const bool *lost,
                         int *dp) HL_CHECK;
/* The containers of `more`, a plan of further replicas alone, join; it is left without any. */
hl_status hl_plan_grow(struct hl_plan *plan, const struct hl_job *job,
                       struct hl_plan *more) HL_CHECK;
/* Those that join are members, and the ranks are counted anew; how many replicas it has then. */
int hl_plan_admit(struct hl_plan *plan, const struct hl_job *job);
/* The container at that position leaves. */
void hl_plan_leave(struct hl_plan *plan, int position);
/* Those that join leave. */
void hl_plan_dismiss(struct hl_plan *plan);
/* Take the container at that position out. */
void hl_plan_remove(struct hl_plan *plan, int position);
/* Rank 0 is where its container is. */
hl_status hl_plan_find_master(struct hl_plan *plan, const struct hl_cluster *cluster) HL_CHECK;

#endif
