/* core/planner/resize.h - changes the plan of a gang that loses or gains data parallel replicas.
 *
 * Containers keep their place and their index, whatever happens to their ranks: a *member* holds
 * ranks of the gang, one that *joins* holds ranks that will belong to it, one that *leaves* holds
 * none. If a replica loses one rank, the whole replica is lost, and so is every replica that shares
 * a container with it. The remaining replicas keep their order, and their ranks are renumbered.
 *
 * Owns:    the plan belongs to the caller: work on a copy of the plan in force and replace that one
 *          at once.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM: the plan must not be used any more.
 * Units:   replicas.
 * Limits:  those of the plan.
 */
#ifndef HL_CORE_PLANNER_RESIZE_H
#define HL_CORE_PLANNER_RESIZE_H

#include "core/planner/plan.h"

/* The container joins or leaves, so it is not a member. */
static inline bool hl_plan_is_guest(const struct hl_plan_container *c)
{
    return c->joining > 0 || c->leaves;
}

hl_status hl_plan_copy(const struct hl_plan *plan, struct hl_plan **out) HL_CHECK;
/* Position of the container with that index; -1 = there is none. */
int hl_plan_position(const struct hl_plan *plan, int index);
/* Removes the replicas that have ranks in `lost` containers (by position), and further ones until
 * the job allows the remaining number. Containers without ranks leave, and so do those that join.
 * *dp: how many replicas are left; 0 = no allowed size remains, and nothing was changed. job: its
 * grid must have the current size. */
hl_status hl_plan_shrink(struct hl_plan *plan, const struct hl_job *job, const bool *lost,
                         int *dp) HL_CHECK;
/* The containers of `more` join; it is a plan of the additional replicas only, and is left
 * empty. */
hl_status hl_plan_grow(struct hl_plan *plan, const struct hl_job *job,
                       struct hl_plan *more) HL_CHECK;
/* Makes the joining containers members and renumbers the ranks; returns the new number of
 * replicas. */
int hl_plan_admit(struct hl_plan *plan, const struct hl_job *job);
/* Marks the container at that position as leaving. */
void hl_plan_leave(struct hl_plan *plan, int position);
/* Marks all joining containers as leaving. */
void hl_plan_dismiss(struct hl_plan *plan);
/* Removes the container at that position from the plan. */
void hl_plan_remove(struct hl_plan *plan, int position);
/* Sets the master node and address to those of rank 0's container. */
hl_status hl_plan_find_master(struct hl_plan *plan, const struct hl_cluster *cluster) HL_CHECK;

#endif
