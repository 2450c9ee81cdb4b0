/* core/planner/plan_private.h - the parts of planning: the gang's shape, what the cluster has for
 * it, and words. */
#ifndef HL_CORE_PLANNER_PLAN_PRIVATE_H
#define HL_CORE_PLANNER_PLAN_PRIVATE_H

#include "core/planner/gang.h"
#include "core/planner/plan.h"

/* How a job's ranks become containers on this cluster. */
struct hl_plan_shape {
    const struct hl_job *job;
    const struct hl_cluster *cluster;
    int world;
    bool use_gpus;
    int most_gpus; /* of any slot of a ready server */
    int per_container;
    struct hl_gang_shape gang;
    struct hl_slot_needs needs;
};

HL_CHECK static inline hl_status hl_plan_no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

/* Before a shape is made. */
HL_CHECK static inline hl_status hl_plan_refresh_index(const struct hl_cluster *cluster)
{
    return cluster->index != NULL ? hl_place_index_refresh(cluster->index, cluster) : HL_OK;
}

/* plan_nics.c: *io is where the gang is; it stays, or becomes a place that is as good and nearer to
 * NICs. */
hl_status hl_plan_prefer_nics(const struct hl_plan_shape *s, uint32_t *io) HL_CHECK;
bool hl_plan_slot_fits(const struct hl_plan_shape *s, const struct hl_cluster_slot *slot);
/* The cluster's index is fresh. */
struct hl_plan_shape hl_plan_shape_of(const struct hl_job *job, const struct hl_cluster *cluster);
/* Unit u as gang.h lists them (stage by stage) in the order of ranks. */
int hl_plan_unit_rank(const struct hl_plan_shape *s, int listed);

/* What the cluster has. */
struct hl_plan_tally {
    struct hl_plan_why why; /* without a reason */
    int total;              /* slots of ready servers */
    int too_small;          /* free ones of them that don't fit */
    int ready_nodes, draining_nodes, reserved_nodes, lost_nodes;
    int but_memory, but_nic; /* slots that fit but for the GPUs' memory, but for the NIC or that */
};

struct hl_plan_tally hl_plan_tally_of(const struct hl_plan_shape *s);
/* When enough reservations have ended; the reason is SERVER_RESERVED. */
int64_t hl_plan_reserved_until(const struct hl_plan_shape *s, const struct hl_plan_tally *t);

/* Words: each adds lines to the plan, or says why it can't be. */
hl_status hl_plan_explain_shape(const struct hl_plan_shape *s, struct hl_plan *plan) HL_CHECK;
hl_status hl_plan_explain_refusal(const struct hl_plan_shape *s, const struct hl_plan_tally *t,
                                  struct hl_plan *plan) HL_CHECK;
hl_status hl_plan_add_warning(struct hl_plan *plan, const char *fmt, ...) HL_PRINTF(2, 3) HL_CHECK;
/* where[i]: node of container i. */
hl_status hl_plan_warn(const struct hl_plan_shape *s, const uint32_t *where,
                       struct hl_plan *plan) HL_CHECK;

#endif
