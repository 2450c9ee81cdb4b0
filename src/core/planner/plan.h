/* core/planner/plan.h - makes a plan from a job and the cluster's free slots: which rank runs
 * where, and why.
 *
 * One container takes one slot and holds k consecutive ranks. Rules, in order: a slot is never
 * shared; all containers are placed or none; the job's required placement rules; a tensor-parallel
 * group uses the fewest servers, and then the fewest leaves; stages of one replica are on different
 * servers; everything is in one spine; few half-used servers; servers whose free slots have NICs of
 * their own (plan_nics.c); lowest name; on a server, slots with a NIC of their own. The result
 * depends only on the input.
 *
 * A plan is made for one version of the cluster. hl_plan_commit takes its slots if nothing has
 * changed since. For a "what if" question, mark the slots that would become free, plan, and mark
 * them back.
 *
 * Owns:    a plan owns everything it points to.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM, HL_EINVAL for malformed JSON. A job that doesn't fit is not an error: the
 *          plan says feasible = false and why.
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
    int known_as; /* its number on the node: the one with which its container was started */
};

struct hl_plan_container {
    int index;
    char node[HL_NODE_NAME_MAX + 1];
    int numa_id;
    char *cpus;
    struct hl_plan_rank *ranks;
    /* 0: a spare, a lost container whose ranks are on a spare now, or one that joins or leaves */
    int rank_count;
    int joining; /* ranks that do not belong to the gang yet; rank_count is 0 then (resize.h) */
    bool leaves; /* it has given up its ranks and is about to go */
    /* Only of a spare (core/planner/spares.h); NULL and 0 for other containers. */
    char *address; /* its node's rankAddress */
    char **gpus;   /* the GPUs of its slot */
    int gpu_count;
    size_t node_at; /* a guess of the node's place in the cluster; not in the record */
};

/* Why a gang can't be placed: the first reason that applies. */
enum hl_plan_reason {
    HL_PLAN_FITS,
    HL_PLAN_NOT_ENOUGH_SLOTS_EVER, /* not even if every slot were free */
    HL_PLAN_GPU_MEMORY_TOO_SMALL,  /* ... because of the GPUs' memory */
    HL_PLAN_NIC_CLASS_MISSING,     /* ... because of the NICs */
    HL_PLAN_SERVER_RESERVED,       /* with the slots of reserved servers it would fit */
    HL_PLAN_SERVER_DRAINING,       /* with the slots of draining servers it would fit */
    HL_PLAN_NOT_ENOUGH_FREE_SLOTS,
    HL_PLAN_TOPOLOGY_UNSATISFIABLE, /* enough slots, but not within the required level */
    HL_PLAN_REASONS,
};

/* "NotEnoughFreeSlots" and so on; "" for FITS. */
const char *hl_plan_reason_name(enum hl_plan_reason reason);

/* What a server offers to the job. A server counts under the first that applies. */
enum hl_server_offer {
    HL_OFFER_LOST,
    HL_OFFER_DRAINING,
    HL_OFFER_RESERVED, /* for the time in which the job would run there */
    HL_OFFER_FREE,     /* at least one slot that fits */
    HL_OFFER_HELD,     /* it has slots that fit, but none is free */
    HL_OFFER_NIC,      /* its slots would fit with a better NIC */
    HL_OFFER_GPU_MEMORY,
    HL_OFFER_TOO_SMALL,
    HL_OFFERS,
};

/* "lost", "draining", "reserved", "free", "held", "nic", "gpu memory", "too small". */
const char *hl_server_offer_name(enum hl_server_offer offer);

struct hl_plan_why {
    enum hl_plan_reason reason;
    enum hl_level level; /* for TOPOLOGY_UNSATISFIABLE */
    int needed;          /* slots */
    int free;            /* free slots that fit, on ready servers */
    int draining;        /* slots that fit and would be free, on draining servers */
    int reserved;        /* likewise, on reserved servers */
    int fitting;         /* slots that fit, held or not, on any server */
    int servers[HL_OFFERS];
};

struct hl_plan {
    bool feasible;
    bool never;                /* not feasible even if every slot were free */
    char *reason;              /* why not; "" when feasible */
    struct hl_plan_why why;    /* the same as numbers; not in the record */
    int64_t reserved_until_ms; /* for SERVER_RESERVED: when enough reservations have ended */
    uint64_t cluster_version;  /* version it was made for; not in the record */
    int world_size;
    int ranks_per_container; /* the last container may hold fewer */
    int container_count;     /* number needed; containers[] is filled only when feasible */
    int next_index; /* for the next container that joins: an attempt never reuses an index */
    struct hl_plan_container *containers;
    char **arithmetic;    /* NULL-terminated */
    char **warnings;      /* NULL-terminated */
    char *master_node;    /* node of rank 0; "" when not feasible */
    char *master_address; /* its rankAddress */
};

/* Leaves the cluster alone: it holds no slots; the caller marks them busy. */
hl_status hl_plan_make(const struct hl_job *job, const struct hl_cluster *cluster,
                       struct hl_plan **out) HL_CHECK;
void hl_plan_free(struct hl_plan *plan);
void hl_plan_freep(struct hl_plan **plan);
/* Checks whether the job would fit, without making a plan: a fraction of the cost. */
hl_status hl_plan_check(const struct hl_job *job, const struct hl_cluster *cluster,
                        struct hl_plan_why *out) HL_CHECK;
/* Holds (busy = true) or frees the slots of a feasible plan. */
void hl_plan_mark(const struct hl_plan *plan, struct hl_cluster *cluster, bool busy);
/* Holds the slots if the cluster has not changed since the plan was made. HL_EBUSY: it has; plan
 * again. */
hl_status hl_plan_commit(const struct hl_plan *plan, struct hl_cluster *cluster) HL_CHECK;

/* The plan for the API; borrows the plan's texts. */
struct hl_api_plan hl_plan_info(const struct hl_plan *plan, struct hl_arena *arena);
/* The PlanRecord for a job's record; a new reference, NULL when out of memory. */
json_t *hl_plan_to_json(const struct hl_plan *plan);
/* HL_EINVAL names the member that is wrong. */
hl_status hl_plan_from_json(const json_t *doc, struct hl_plan **out) HL_CHECK;

/* What a container's spec needs besides job and plan. */
struct hl_plan_spec_opts {
    const char *job_id;
    int attempt;
    const char *controller_address; /* HELIOS_CONTROLLER */
    const char *l3_address;         /* CONTROLLER_L3_CACHE_ADDRESS */
    int64_t model_version;          /* to load; -1 = newest */
    const char *master_address;     /* where rank 0 is now; NULL: where the plan says */
    int master_port;
    int64_t stop_grace_ms;
    const char *rank_table; /* the first content of RANK_TABLE_FILE; NULL = there is none */
};

/* The spec of containers[index], with the complete environment of its ranks. It borrows from all
 * arguments; hl_arena_failed tells whether memory ran out. */
struct hl_api_container_spec hl_plan_container_spec(const struct hl_job *job,
                                                    const struct hl_plan *plan, int index,
                                                    const struct hl_plan_spec_opts *opts,
                                                    struct hl_arena *arena);
/* Formats "JOB.ATTEMPT.INDEX" into buf; the other one parses it (JOB may contain dots). */
const char *hl_container_id(const char *job_id, int attempt, int index, char *buf, size_t cap);
hl_status hl_container_id_parse(const char *id, char *job_id, size_t cap, int *attempt,
                                int *index) HL_CHECK;

#endif
