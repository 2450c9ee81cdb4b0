/* core/planner/plan.h - from a job and the cluster's free slots to a plan: which rank runs where,
 * and why.
 *
 * One container takes one slot and holds k consecutive ranks. Rules, in order: a slot is never
 * shared; all containers or none; what the job's placement requires; a tensor-parallel group on the
 * fewest servers and of those in the fewest leaves; stages of one replica on different servers; all
 * in one spine; few half-used servers; servers whose free slots have NICs of their own
 * (plan_nics.c); lowest name; on a server slots with a NIC of their own. The result depends on
 * nothing but the input.
 *
 * A plan is of one version of the cluster. hl_plan_commit holds its slots if nothing has changed
 * since; to ask "what if", mark what would leave, plan, and mark it back.
 *
 * Owns:    a plan owns all it points to.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM, HL_EINVAL for malformed JSON. A job that doesn't fit is not an error: the
 *          plan says feasible = 0 and why.
 * Units:   bytes.
 * Limits:  node names <= 63 bytes.
 */
#ifndef HL_CORE_PLANNER_PLAN_H
#define HL_CORE_PLANNER_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "core/job/job.h"
#include "core/planner/cluster.h"
#include "core/planner/level.h"

/* ---- the plan ------------------------------------------------------------------------------- */

struct hl_plan_rank {
    int rank;
    struct hl_rank at; /* pp, tp, dp */
    int local_rank;
    char *gpu;    /* id, "" = none */
    int known_as; /* on its node: the number with which its container was started */
};

struct hl_plan_container {
    int index;
    char node[HL_NODE_NAME_MAX + 1];
    int numa_id;
    char *cpus;
    struct hl_plan_rank *ranks;
    int rank_count; /* 0: a spare, or it was lost and its ranks are on one; joins or leaves */
    int joining;    /* ranks that are none of the gang yet; rank_count is 0 then (resize.h) */
    bool leaves;    /* it has lost its ranks, and goes */
    /* Of a spare (core/planner/spares.h); NULL and none of others. */
    char *address; /* its node's rankAddress */
    char **gpus;   /* of its slot */
    int gpu_count;
    size_t node_at; /* where the node probably is in the cluster; not in the record */
};

/* Why a gang can't be placed: the first that holds. */
enum hl_plan_reason {
    HL_PLAN_FITS,
    HL_PLAN_NOT_ENOUGH_SLOTS_EVER, /* also with every slot free */
    HL_PLAN_GPU_MEMORY_TOO_SMALL,  /* ... but for the GPUs' memory */
    HL_PLAN_NIC_CLASS_MISSING,     /* ... but for the NICs */
    HL_PLAN_SERVER_RESERVED,       /* slots of servers that are reserved would do */
    HL_PLAN_SERVER_DRAINING,       /* slots of draining servers would do */
    HL_PLAN_NOT_ENOUGH_FREE_SLOTS,
    HL_PLAN_TOPOLOGY_UNSATISFIABLE, /* enough slots, but not within the required level */
    HL_PLAN_REASONS,
};

/* "NotEnoughFreeSlots" and so on; "" of FITS. */
const char *hl_plan_reason_name(enum hl_plan_reason reason);

/* What each server has for the job; it counts for the first that holds. */
enum hl_server_offer {
    HL_OFFER_LOST,
    HL_OFFER_DRAINING,
    HL_OFFER_RESERVED, /* at the time in which it would run there */
    HL_OFFER_FREE,     /* at least one slot that fits */
    HL_OFFER_HELD,     /* slots that fit, none is free */
    HL_OFFER_NIC,      /* they would fit, but for the NIC */
    HL_OFFER_GPU_MEMORY,
    HL_OFFER_TOO_SMALL,
    HL_OFFERS,
};

/* "lost", "draining", "reserved", "free", "held", "nic", "gpu memory", "too small". */
const char *hl_server_offer_name(enum hl_server_offer offer);

struct hl_plan_why {
    enum hl_plan_reason reason;
    enum hl_level level; /* of TOPOLOGY_UNSATISFIABLE */
    int needed;          /* slots */
    int free;            /* that fit, of ready servers */
    int draining;        /* that fit and would be free, of draining servers */
    int reserved;        /* likewise, of reserved ones */
    int fitting;         /* that fit, held or not, on whatever server */
    int servers[HL_OFFERS];
};

struct hl_plan {
    bool feasible;
    bool never;                /* not feasible even if every slot were free */
    char *reason;              /* why not; "" when feasible */
    struct hl_plan_why why;    /* the same as numbers; not in the record */
    int64_t reserved_until_ms; /* of SERVER_RESERVED: enough reservations have ended then */
    uint64_t cluster_version;  /* of which it is; not in the record */
    int world_size;
    int ranks_per_container; /* the last container may hold fewer */
    int container_count;     /* needed; containers[] has them only when feasible */
    int next_index;          /* of a container that joins: none is given twice in an attempt */
    struct hl_plan_container *containers;
    char **arithmetic;    /* NULL-terminated */
    char **warnings;      /* NULL-terminated */
    char *master_node;    /* node of rank 0; "" when not feasible */
    char *master_address; /* its rankAddress */
};

/* Zero cost on the cluster: nothing is held; the caller marks the slots busy. */
hl_status hl_plan_make(const struct hl_job *job, const struct hl_cluster *cluster,
                       struct hl_plan **out) HL_CHECK;
void hl_plan_free(struct hl_plan *plan);
void hl_plan_freep(struct hl_plan **plan);
/* Whether it would fit, without the plan: a fraction of the cost. */
hl_status hl_plan_check(const struct hl_job *job, const struct hl_cluster *cluster,
                        struct hl_plan_why *out) HL_CHECK;
/* Hold (busy = 1) or free the slots of a feasible plan. */
void hl_plan_mark(const struct hl_plan *plan, struct hl_cluster *cluster, bool busy);
/* Hold them if the cluster is as it was planned on. HL_EBUSY: it has changed, plan again. */
hl_status hl_plan_commit(const struct hl_plan *plan, struct hl_cluster *cluster) HL_CHECK;

/* It borrows the plan's texts. */
struct hl_api_plan hl_plan_info(const struct hl_plan *plan, struct hl_arena *arena);
/* PlanRecord, for a job's record; new reference, NULL when out of memory. */
json_t *hl_plan_to_json(const struct hl_plan *plan);
/* HL_EINVAL names the member that is wrong. */
hl_status hl_plan_from_json(const json_t *doc, struct hl_plan **out) HL_CHECK;

/* What a container needs to know besides job and plan. */
struct hl_plan_spec_opts {
    const char *job_id;
    int attempt;
    const char *controller_address; /* HELIOS_CONTROLLER */
    const char *l3_address;         /* CONTROLLER_L3_CACHE_ADDRESS */
    int64_t model_version;          /* to load; -1 = newest */
    int master_port;
    int64_t stop_grace_ms;
    const char *rank_table; /* the first content of RANK_TABLE_FILE; NULL = there is none */
};

/* Of containers[index], with the whole rank environment. It borrows from all that is given; whether
 * memory was short says hl_arena_failed. */
struct hl_api_container_spec hl_plan_container_spec(const struct hl_job *job,
                                                    const struct hl_plan *plan, int index,
                                                    const struct hl_plan_spec_opts *opts,
                                                    struct hl_arena *arena);
/* "JOB.ATTEMPT.INDEX" into buf, and back (JOB may hold dots). */
const char *hl_container_id(const char *job_id, int attempt, int index, char *buf, size_t cap);
hl_status hl_container_id_parse(const char *id, char *job_id, size_t cap, int *attempt,
                                int *index) HL_CHECK;

#endif
