/* core/planner/plan_private.h - the parts of planning: the gang's shape, what the cluster offers
 * for it, and the explanations.
 *
 * Threads: any; a search has its own state, and the cluster must not change meanwhile.
 */
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
    int most_gpus; /* the most GPUs of any slot on a ready server */
    int per_container;
    struct hl_gang_shape gang;
    struct hl_slot_needs needs;
};

HL_CHECK static inline hl_status hl_plan_no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

/* Call it before a shape is made. */
HL_CHECK static inline hl_status hl_plan_refresh_index(const struct hl_cluster *cluster)
{
    return cluster->index != NULL ? hl_place_index_refresh(cluster->index, cluster) : HL_OK;
}

/* plan_nics.c: io holds the gang's place. It is kept, or replaced by an equally good place that is
 * closer to NICs. */
hl_status hl_plan_prefer_nics(const struct hl_plan_shape *s, uint32_t *io) HL_CHECK;
bool hl_plan_slot_fits(const struct hl_plan_shape *s, const struct hl_cluster_slot *slot);
/* Requires a fresh index of the cluster. */
struct hl_plan_shape hl_plan_shape_of(const struct hl_job *job, const struct hl_cluster *cluster);
/* Converts the number of a unit in gang.h's order (stage by stage) to its number in rank order. */
int hl_plan_unit_rank(const struct hl_plan_shape *s, int listed);

/* What the cluster offers. */
struct hl_plan_tally {
    struct hl_plan_why why; /* its reason is not set */
    int total;              /* slots of ready servers */
    int too_small;          /* free slots of ready servers that don't fit */
    int ready_nodes, draining_nodes, reserved_nodes, lost_nodes;
    /* slots that fit except for the GPUs' memory; except for the NIC or that memory */
    int but_memory, but_nic;
};

struct hl_plan_tally hl_plan_tally_of(const struct hl_plan_shape *s);
/* When enough reservations will have ended; only if the reason is SERVER_RESERVED. */
int64_t hl_plan_reserved_until(const struct hl_plan_shape *s, const struct hl_plan_tally *t);

/* Explanations: each adds lines to the plan, or says why there is no plan. */
hl_status hl_plan_explain_shape(const struct hl_plan_shape *s, struct hl_plan *plan) HL_CHECK;
hl_status hl_plan_explain_refusal(const struct hl_plan_shape *s, const struct hl_plan_tally *t,
                                  struct hl_plan *plan) HL_CHECK;
hl_status hl_plan_add_warning(struct hl_plan *plan, const char *fmt, ...) HL_PRINTF(2, 3) HL_CHECK;
/* where[i]: node of container i. */
hl_status hl_plan_warn(const struct hl_plan_shape *s, const uint32_t *where,
                       struct hl_plan *plan) HL_CHECK;

#endif
