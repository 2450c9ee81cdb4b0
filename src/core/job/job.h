/* core/job/job.h - a training job as the user wrote it, checked.
 *
 * Accepts the spec's file unchanged (jobName, model, dataset, parallelism, dockerImage) and what a
 * real job needs besides. The keys are the table in job.c; docs/job.md explains them.
 *
 * Owns:    everything in struct hl_job; end with hl_job_fini.
 * Threads: one at a time. Pure.
 * Errors:  HL_EINVAL, one sentence: FILE:LINE:COL, the field, what is allowed, "did you mean".
 * Units:   bytes, milliseconds.
 * Limits:  world <= HL_JOB_WORLD_MAX, names <= 63, 4096 arguments, variables or mounts.
 */
#ifndef HL_CORE_JOB_JOB_H
#define HL_CORE_JOB_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "core/job/podspec.h"
#include "core/job/rank.h"
#include "core/planner/level.h"
#include "core/planner/topo.h"
#include "core/replace/exits.h"

#define HL_JOB_WORLD_MAX 1000000
#define HL_JOB_NAME_MAX  63
#define HL_JOB_LIST_MAX  4096
#define HL_JOB_VALUE_MAX 65536 /* bytes of a variable's value */
/* Where the file does not say: how often a container's ranks are replaced, and after how long
 * without a loss that counts from 0 again. */
#define HL_JOB_REPLACEMENTS 10
#define HL_JOB_STABLE_MS    600000
#define HL_JOB_GROW_MS      60000
/* How long a node may be silent where its ranks are replaced and a gang that lost it is restarted:
 * such a job wants to go on soon. */
#define HL_JOB_REPLACE_LOST_MS 10000

struct hl_job_var {
    char *name;
    char *value;
    bool exported; /* by the submitter; not kept by hl_job_to_json */
};

struct hl_job {
    char *name;            /* jobName: [a-z0-9][-a-z0-9._]* */
    char *model;           /* model.name; "" = the job brings its own */
    char *model_size;      /* model.size, as written ("175B"), for people */
    int64_t model_version; /* model.version; -1 = newest visible */
    char *dataset;         /* dataset.path; "" = none */
    struct hl_grid grid;   /* parallelism.{pipeline,tensor,data,context}_parallel_size, .order */
    int dp_min,
        dp_max; /* data_parallel_size: {min, max}; equal = one size. grid.dp is that of now */
    int virtual_stages; /* parallelism.virtual_pipeline_parallel_size; 1 = none */
    int ep;             /* parallelism.expert_model_parallel_size */
    int etp;            /* parallelism.expert_tensor_parallel_size; unsaid = tp */
    char *image;        /* dockerImage; "" = none */
    char **command;     /* list; a text becomes /bin/sh -c TEXT; empty = the image's own */
    size_t command_count;
    char *workdir; /* as written, may be relative; "" = executor\'s choice */
    char *venv;    /* directory of a Python virtual environment; "" = none */
    char *conda;   /* conda environment, a directory or a name; "" = none */
    char *python;  /* the interpreter that python and python3 mean; "" = as PATH has them */
    struct hl_job_var *env;
    size_t env_count;
    char **mounts; /* HOST:CONTAINER[:ro] */
    size_t mount_count;
    int ranks_per_slot;    /* resources.ranks_per_slot; 0 = one per GPU of the slot */
    int gpus_per_rank;     /* resources.gpus_per_rank: 0, 1; -1 = 1 where the cluster has GPUs */
    int cpus_per_rank;     /* resources.cpus_per_rank; 0 = any */
    uint64_t memory_bytes; /* resources.memory of one container; 0 = no limit */
    uint64_t gpu_memory_bytes;       /* resources.gpu_memory, of each GPU at least; 0 = any */
    enum hl_nic_class nic_class;     /* resources.nic_class at least; HL_NIC_OTHER = any */
    struct hl_place_rules placement; /* placement.{tensor,pipeline,data,gang} */
    int restarts;                    /* of the whole gang, after a failure */
    int64_t node_lost_ms;            /* nodeLostAfter; -1 = the Controller's */
    char *on_node_lost;       /* onNodeLost: "restart", "fail"; "" = restart if restarts > 0 */
    int64_t start_timeout_ms; /* timeouts.start; -1 = the Controller's */
    int64_t run_timeout_ms;   /* timeouts.run; 0 = none */
    int64_t stop_grace_ms;    /* stopGrace; -1 = the Controller's */
    int64_t checkpoint_every; /* checkpoint.every, steps; 0 = the program's own */
    char *recovery;           /* recovery.mode: "restart", "replace" */
    int replacements;         /* recovery.replacements: of a container, within stable_ms */
    int64_t stable_ms;        /* recovery.stableAfter */
    int64_t backoff_ms;       /* recovery.backoff */
    int64_t backoff_max_ms;   /* recovery.backoffMax */
    int64_t grow_after_ms;    /* recovery.growAfter: the least time between two sizes of a gang */
    struct hl_failure_rules on_failure;
    char *on_hang;      /* recovery.onHang: "end", "name"; "" = end if ranks are replaced */
    char *on_slow;      /* recovery.onSlow: the same words; "" = name */
    int spares;         /* processes that are parked in each container */
    int spare_slots;    /* spareSlots: on other servers, for containers that are lost */
    char *rank_table;   /* rankTable: format of RANK_TABLE_FILE, "v1", "v2" or "1.2" */
    char *queue;        /* "" = the cluster's first */
    int priority;       /* higher comes first, HL_PRIORITY_MAX at most */
    json_t *kubernetes; /* as core/job/podspec.h takes it; NULL = not said */
};

/* Place of a value (or of the key before it) given by a JSON pointer; line 0 = unknown. */
typedef void (*hl_job_where_fn)(const void *ctx, const char *pointer, bool of_key, int *line,
                                int *column);

/* What runs the containers. A key that it cannot honour is an error. */
enum hl_job_executor {
    HL_JOB_EXECUTOR_ANY,     /* not checked: the job was accepted before */
    HL_JOB_EXECUTOR_PROCESS, /* the Agents, as plain processes */
    HL_JOB_EXECUTOR_DOCKER,  /* the Agents, by that engine */
    HL_JOB_EXECUTOR_PODMAN,
    HL_JOB_EXECUTOR_KUBERNETES,
};

/* "process", "docker", "podman", "kubernetes"; as an Agent calls its executor. */
const char *hl_job_executor_name(enum hl_job_executor executor);

struct hl_job_source {
    const char *name;      /* file name for messages; NULL = "job" */
    hl_job_where_fn where; /* may be NULL */
    const void *ctx;
    enum hl_job_executor executor;
    int64_t node_lost_min_ms;            /* the least nodeLostAfter that can be kept */
    const struct hl_podspec_rules *pods; /* of Kubernetes; NULL = it is not Kubernetes */
};

/* src may be NULL. *out is overwritten on success only. */
hl_status hl_job_parse(const json_t *doc, const struct hl_job_source *src,
                       struct hl_job *out) HL_CHECK;
void hl_job_fini(struct hl_job *job);

/* job_env.c: what the ranks are started with. */

/* Who sets a variable, and what Helios therefore keeps for itself. */
enum hl_job_var_origin {
    HL_JOB_VAR_ANY,    /* only the name is checked */
    HL_JOB_VAR_FILE,   /* env of the job file: not what tells a rank who it is */
    HL_JOB_VAR_EXPORT, /* --export NAME: nor what belongs to Helios */
    HL_JOB_VAR_ALL,    /* --export ALL: nor what describes the submitter's shell and its devices */
};

/* Why a job may not have that variable; NULL = it may. Static. */
const char *hl_job_var_problem(const char *name, enum hl_job_var_origin origin);
/* Give the ranks a variable of the submitter. EXPORT replaces one of the job file, ALL gives way
 * to it. HL_EINVAL names the variable. */
hl_status hl_job_export(struct hl_job *job, const char *name, const char *value,
                        enum hl_job_var_origin origin) HL_CHECK;
/* Relative paths of workdir, venv, conda and python are meant from cwd, as is an absent workdir.
 * HL_EINVAL: one is too long. */
hl_status hl_job_resolve(struct hl_job *job, const char *cwd) HL_CHECK;
/* True when another attempt is wanted after a node was lost. */
bool hl_job_restarts_lost(const struct hl_job *job);
/* A lost rank is replaced while the others go on. */
bool hl_job_replaces(const struct hl_job *job);
/* The process of a rank that hangs, or that is slow, is ended and not only named. */
bool hl_job_ends_hung(const struct hl_job *job);
bool hl_job_ends_slow(const struct hl_job *job);
/* onFailure as it was said. */
struct hl_api_key_value_list hl_job_failure_rules(const struct hl_job *job, struct hl_arena *arena);
/* New reference; hl_job_parse reads it back to the same job. NULL when out of memory. */
json_t *hl_job_to_json(const struct hl_job *job);
/* What the planner looks at, as text: jobs with equal keys have equal plans. Free it. NULL when out
 * of memory. */
char *hl_job_shape_key(const struct hl_job *job);

#endif
