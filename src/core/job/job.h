/* core/job/job.h - a training job as the user wrote it, after validation.
 *
 * Accepts the spec's job file unchanged (jobName, model, dataset, parallelism, dockerImage), and
 * the further keys that a real job needs. The keys are the table in job.c; docs/job.md explains
 * them.
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
/* Defaults for keys that the file leaves out: how often a container's ranks are replaced, and after
 * what time without a loss that count restarts at 0. */
#define HL_JOB_REPLACEMENTS 10
#define HL_JOB_STABLE_MS    600000
#define HL_JOB_GROW_MS      60000
/* How long a node may be silent if lost ranks are replaced and a gang that lost a node is
 * restarted: such a job should resume soon. */
#define HL_JOB_REPLACE_LOST_MS 10000

struct hl_job_var {
    char *name;
    char *value;
    bool exported; /* exported by the submitter; hl_job_to_json leaves it out */
};

struct hl_job {
    char *name;            /* jobName: [a-z0-9][-a-z0-9._]* */
    char *model;           /* model.name; "" = the job brings its own */
    char *model_size;      /* model.size, as written ("175B"), for people */
    int64_t model_version; /* model.version; -1 = newest visible */
    char *dataset;         /* dataset.path; "" = none */
    struct hl_grid grid;   /* parallelism.{pipeline,tensor,data,context}_parallel_size, .order */
    int dp_min,
        dp_max; /* data_parallel_size: {min, max}; equal = one size. grid.dp is the current size */
    int virtual_stages; /* parallelism.virtual_pipeline_parallel_size; 1 = none */
    int ep;             /* parallelism.expert_model_parallel_size */
    int etp;            /* parallelism.expert_tensor_parallel_size; default: tp */
    char *image;        /* dockerImage; "" = none */
    char **command;     /* list; a string becomes /bin/sh -c STRING; empty = the image's own */
    size_t command_count;
    char *workdir; /* as written, may be relative; "" = executor's choice */
    char *venv;    /* directory of a Python virtual environment; "" = none */
    char *conda;   /* conda environment, a directory or a name; "" = none */
    char *python;  /* the interpreter for python and python3; "" = whatever PATH finds */
    struct hl_job_var *env;
    size_t env_count;
    char **mounts; /* HOST:CONTAINER[:ro] */
    size_t mount_count;
    int ranks_per_slot;    /* resources.ranks_per_slot; 0 = one per GPU of the slot */
    int gpus_per_rank;     /* resources.gpus_per_rank: 0, 1; -1 = 1 where the cluster has GPUs */
    int cpus_per_rank;     /* resources.cpus_per_rank; 0 = any */
    uint64_t memory_bytes; /* resources.memory of one container; 0 = no limit */
    uint64_t gpu_memory_bytes;       /* resources.gpu_memory: minimum of each GPU; 0 = any */
    enum hl_nic_class nic_class;     /* resources.nic_class: the minimum; HL_NIC_OTHER = any */
    struct hl_place_rules placement; /* placement.{tensor,pipeline,data,gang} */
    int restarts;                    /* how often the whole gang is restarted after a failure */
    int64_t node_lost_ms;            /* nodeLostAfter; -1 = the Controller's */
    char *on_node_lost;       /* onNodeLost: "restart", "fail"; "" = restart if restarts > 0 */
    int64_t start_timeout_ms; /* timeouts.start; -1 = the Controller's */
    int64_t run_timeout_ms;   /* timeouts.run; 0 = none */
    int64_t stop_grace_ms;    /* stopGrace; -1 = the Controller's */
    int64_t checkpoint_every; /* checkpoint.every, steps; 0 = the program's own */
    char *recovery;           /* recovery.mode: "restart", "replace" */
    int replacements;         /* recovery.replacements: per container, within stable_ms */
    int64_t stable_ms;        /* recovery.stableAfter */
    int64_t backoff_ms;       /* recovery.backoff */
    int64_t backoff_max_ms;   /* recovery.backoffMax */
    /* recovery.growAfter: minimum time between two changes of a gang's size */
    int64_t grow_after_ms;
    struct hl_failure_rules on_failure;
    char *on_hang;      /* recovery.onHang: "end", "name"; "" = end if ranks are replaced */
    char *on_slow;      /* recovery.onSlow: the same values; "" = name */
    int spares;         /* standby processes parked in each container */
    int spare_slots;    /* spareSlots: slots on other servers, to replace lost containers */
    char *rank_table;   /* rankTable: format of RANK_TABLE_FILE, "v1", "v2" or "1.2" */
    char *queue;        /* "" = the cluster's first */
    int priority;       /* higher comes first, HL_PRIORITY_MAX at most */
    json_t *kubernetes; /* in the form that core/job/podspec.h accepts; NULL = absent */
};

/* Finds line and column of the value that a JSON pointer names, or of its key; line 0 = unknown. */
typedef void (*hl_job_where_fn)(const void *ctx, const char *pointer, bool of_key, int *line,
                                int *column);

/* What runs the containers. A key that the executor cannot honour is an error. */
enum hl_job_executor {
    HL_JOB_EXECUTOR_ANY,     /* not checked: the job was accepted before */
    HL_JOB_EXECUTOR_PROCESS, /* the Agents, as plain processes */
    HL_JOB_EXECUTOR_DOCKER,  /* the Agents, with that engine */
    HL_JOB_EXECUTOR_PODMAN,
    HL_JOB_EXECUTOR_KUBERNETES,
};

/* "process", "docker", "podman", "kubernetes": the names that Agents use for their executors. */
const char *hl_job_executor_name(enum hl_job_executor executor);

struct hl_job_source {
    const char *name;      /* file name for messages; NULL = "job" */
    hl_job_where_fn where; /* may be NULL */
    const void *ctx;
    enum hl_job_executor executor;
    int64_t node_lost_min_ms;            /* the smallest nodeLostAfter that can be honoured */
    const struct hl_podspec_rules *pods; /* for Kubernetes; NULL = not Kubernetes */
};

/* src = NULL: the job is stored, so it was checked before. *out is overwritten on success only. */
hl_status hl_job_parse(const json_t *doc, const struct hl_job_source *src,
                       struct hl_job *out) HL_CHECK;
void hl_job_fini(struct hl_job *job);

/* job_env.c: the environment in which the ranks are started. */

/* Who sets a variable; this decides which names Helios reserves for itself. */
enum hl_job_var_origin {
    HL_JOB_VAR_ANY,    /* only the name is checked */
    HL_JOB_VAR_FILE,   /* env of the job file: may not set what identifies a rank */
    HL_JOB_VAR_EXPORT, /* --export NAME: nor Helios's own variables */
    HL_JOB_VAR_ALL,    /* --export ALL: nor those that describe the submitter's shell and devices */
};

/* Why a job may not set that variable; NULL = it may. The text is static. */
const char *hl_job_var_problem(const char *name, enum hl_job_var_origin origin);
/* Passes a variable of the submitter to the ranks. With EXPORT it replaces a variable of the job
 * file; with ALL the job file's one takes precedence. HL_EINVAL names the variable. */
hl_status hl_job_export(struct hl_job *job, const char *name, const char *value,
                        enum hl_job_var_origin origin) HL_CHECK;
/* Makes workdir, venv, conda and python absolute, relative to cwd; an absent workdir becomes cwd.
 * HL_EINVAL: a path is too long. */
hl_status hl_job_resolve(struct hl_job *job, const char *cwd) HL_CHECK;
/* The job wants another attempt after a node was lost. */
bool hl_job_restarts_lost(const struct hl_job *job);
/* A lost rank is replaced while the other ranks keep running. */
bool hl_job_replaces(const struct hl_job *job);
/* The process of a rank that hangs, or that is slow, is killed rather than only reported. */
bool hl_job_ends_hung(const struct hl_job *job);
bool hl_job_ends_slow(const struct hl_job *job);
/* onFailure, as the job file has it. */
struct hl_api_key_value_list hl_job_failure_rules(const struct hl_job *job, struct hl_arena *arena);
/* New reference; hl_job_parse reads it back to the same job. NULL when out of memory. */
json_t *hl_job_to_json(const struct hl_job *job);
/* Everything that the planner looks at, as text: jobs with equal keys get equal plans. The caller
 * frees it. NULL when out of memory. */
char *hl_job_shape_key(const struct hl_job *job);

#endif
