/* core/place/plan.h - from a job and the cluster's free slots to a plan: which rank runs where, and
 * why.
 *
 * One container takes one slot and holds k consecutive ranks. Rules, in order: a slot is never
 * shared; all containers or none; a tensor-parallel group on the fewest servers; stages of one
 * replica on different servers; few half-used servers; lowest name. The result depends on nothing
 * but the input.
 *
 * Owns:    a plan owns all it points to; hl_cluster owns copies of the nodes.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM, HL_EINVAL for malformed JSON. A job that doesn't fit is not an error: the
 *          plan says feasible = 0 and why.
 * Units:   bytes.
 * Limits:  node names <= 63 bytes.
 */
#ifndef HL_CORE_PLACE_PLAN_H
#define HL_CORE_PLACE_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "core/job.h"
#include "core/place/topo.h"

#define HL_NODE_NAME_MAX 63

/* ---- what the planner sees of the cluster --------------------------------------------------- */

struct hl_cluster_slot {
    int numa_id;
    bool busy;
    int cpu_count;
    int gpu_count;
    char *cpus;  /* "0-3,8" */
    char **gpus; /* ids */
    uint64_t memory_bytes;
};

struct hl_cluster_node {
    char name[HL_NODE_NAME_MAX + 1];
    char *host_id;
    char *rank_address;
    char *host_address; /* IP address of rank_address, "" = unknown */
    bool ready;
    struct hl_cluster_slot *slots;
    int slot_count;
};

/* Zero-initialise. Nodes are kept in order of name ("node-2" before "node-10"). */
struct hl_cluster {
    struct hl_cluster_node *nodes;
    size_t count, cap;
};

void hl_cluster_fini(struct hl_cluster *c);
/* Adds or replaces a node; slots held there stay held. host_address NULL: its rank_address. */
hl_status hl_cluster_put(struct hl_cluster *c, const struct hl_api_node_info *node) HL_CHECK;
/* Absent name: fine. */
void hl_cluster_remove(struct hl_cluster *c, const char *name);
/* NULL when there is none. Borrowed until the next put or remove. */
struct hl_cluster_node *hl_cluster_find(const struct hl_cluster *c, const char *name);
/* 0 = lost or draining: its slots are neither free nor counted. Unknown name: fine. */
void hl_cluster_set_ready(struct hl_cluster *c, const char *name, bool ready);
/* Mark a slot held or free. Unknown: fine. */
void hl_cluster_set_busy(struct hl_cluster *c, const char *name, int numa_id, bool busy);

/* ---- the plan ------------------------------------------------------------------------------- */

struct hl_plan_rank {
    int rank;
    struct hl_rank at; /* pp, tp, dp */
    int local_rank;
    char *gpu; /* id, "" = none */
};

struct hl_plan_container {
    int index;
    char node[HL_NODE_NAME_MAX + 1];
    int numa_id;
    char *cpus;
    struct hl_plan_rank *ranks;
    int rank_count;
};

struct hl_plan {
    bool feasible;
    bool never;   /* not feasible even if every slot were free */
    char *reason; /* why not; "" when feasible */
    int world_size;
    int ranks_per_container; /* the last container may hold fewer */
    int container_count;     /* needed; containers[] has them only when feasible */
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
/* Hold (busy = 1) or free the slots of a feasible plan. */
void hl_plan_mark(const struct hl_plan *plan, struct hl_cluster *cluster, bool busy);

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
