/* hw/executor.h - a container engine as a table of functions: "process", "docker", "podman".
 *
 * A container is one or more ranks on one slot of this node. Its id is permanent: starting the same
 * id again returns the state of the existing container. Containers outlive their executor;
 * hl_executor_open on the same state directory finds them again.
 *
 * Owns:    specs and statuses are plain structs with their own memory: hl_*_fini.
 * Threads: every function may be called from any thread and may block on files or on the engine
 *          (start: until the ranks run, at most 15 s), so call them from worker threads. on_change
 *          is called on a thread of the executor and must not call the executor.
 * Errors:  HL_EINVAL names the field; HL_ENOENT an unknown id or rank; HL_EBUSY forget of a running
 *          container; HL_ENOSPC, HL_EPERM, HL_EIO name the path. A rank that can't start is not an
 *          error of start(): the status says "failed" and why.
 * Units:   milliseconds; times count from 1970.
 * Limits:  ids of 1..HL_CONTAINER_ID_MAX letters, digits, '.', '_', '-'; HL_CONTAINER_RANKS_MAX
 *          ranks.
 */
#ifndef HL_HW_EXECUTOR_H
#define HL_HW_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/buf.h"
#include "base/status.h"

#define HL_CONTAINER_ID_MAX    128
#define HL_CONTAINER_RANKS_MAX 1024

struct hl_env_var {
    char *key;
    char *value;
};

struct hl_env {
    struct hl_env_var *vars;
    size_t count;
};

struct hl_rank_spec {
    int rank, pp, tp, dp, cp, local_rank;
    struct hl_env env;
};

/* The schema's ContainerSpec. Texts are never NULL. */
struct hl_container_spec {
    char *id;
    char *job;
    int attempt, index;
    int numa_id;
    char *cpus; /* "0-3,8"; "" = all */
    uint64_t memory_bytes;
    char *image;
    char **command; /* NULL-terminated */
    size_t command_count;
    char *workdir; /* "" = an empty directory of the container */
    struct hl_env env;
    struct hl_rank_spec *ranks;
    size_t rank_count;
    char **gpus; /* NULL-terminated */
    size_t gpu_count;
    int stop_grace_ms;
    char **nics; /* RDMA devices of the slot, NULL-terminated */
    size_t nic_count;
    char **mounts; /* NULL-terminated */
    size_t mount_count;
    /* Which Python the ranks use; at most one is not "". */
    char *venv;                         /* directory of a virtual environment */
    char *conda;                        /* directory or name of a conda environment */
    char *python;                       /* path of the interpreter */
    struct hl_api_replace_rule replace; /* its text is on_failure's */
    char *on_failure;
    uint64_t epoch;   /* epoch of the Controller that ordered it; 0 = none */
    char *rank_table; /* initial content of the file that RANK_TABLE_FILE names; "" = no file */
};

/* The schema's states, without those that only the Controller knows: wanted and lost. */
enum hl_run_state {
    HL_RUN_STARTING = HL_API_CONTAINER_STATE_STARTING,
    HL_RUN_RUNNING = HL_API_CONTAINER_STATE_RUNNING,
    HL_RUN_SUCCEEDED = HL_API_CONTAINER_STATE_SUCCEEDED,
    HL_RUN_FAILED = HL_API_CONTAINER_STATE_FAILED,
    HL_RUN_STOPPED = HL_API_CONTAINER_STATE_STOPPED,
};

struct hl_rank_status {
    int rank;
    int pid;
    enum hl_run_state state;
    int exit_code;
    int signal;
    int64_t finished_ms; /* 0 = it runs */
    int replaced;        /* how often */
    int64_t lost_ms;     /* when it ended, before its last replacement; 0 = never */
    int lost_code, lost_signal;
};

/* The schema's ContainerStatus. Texts are never NULL after hl_container_status_init. */
struct hl_container_status {
    char *id;
    enum hl_run_state state;
    int exit_code; /* of the first rank that failed */
    int signal;
    char *message;
    char *warning; /* a problem of the running container; "" = none */
    char *binding; /* "cpuset-cgroup", "affinity", "none" */
    bool lost;     /* it failed, how its ranks ended is unknown, and none is left */
    int64_t started_ms;
    int64_t finished_ms;
    struct hl_rank_status *ranks;
    size_t rank_count;
};

const char *hl_run_state_text(enum hl_run_state s);
hl_status hl_run_state_of(enum hl_api_container_state said, enum hl_run_state *out) HL_CHECK;

static inline bool hl_run_state_ended(enum hl_run_state s)
{
    return s == HL_RUN_SUCCEEDED || s == HL_RUN_FAILED || s == HL_RUN_STOPPED;
}

/* Convert from and to the struct of the schema. The first checks the values: id, command, CPU list,
 * names of variables, ranks. The second borrows the spec's texts. */
hl_status hl_container_spec_from_api(const struct hl_api_container_spec *from,
                                     struct hl_container_spec *out) HL_CHECK;
struct hl_api_container_spec hl_container_spec_to_api(const struct hl_container_spec *spec,
                                                      struct hl_arena *arena);
void hl_container_spec_fini(struct hl_container_spec *spec);
hl_status hl_container_status_from_api(const struct hl_api_container_status *from,
                                       struct hl_container_status *out) HL_CHECK;
/* The result has copies of the texts. */
struct hl_api_container_status hl_container_status_to_api(const struct hl_container_status *status,
                                                          struct hl_arena *arena);
/* Initialises a status: "starting", with the ranks of the spec. */
hl_status hl_container_status_init(const struct hl_container_spec *spec,
                                   struct hl_container_status *out) HL_CHECK;
hl_status hl_container_status_copy(const struct hl_container_status *from,
                                   struct hl_container_status *out) HL_CHECK;
void hl_container_status_fini(struct hl_container_status *status);
/* Replaces a text of a status. */
hl_status hl_text_set(char **field, const char *fmt, ...) HL_PRINTF(2, 3) HL_CHECK;
/* Value of a variable, NULL if it is not set. */
const char *hl_env_get(const struct hl_env *env, const char *key);
hl_status hl_env_set(struct hl_env *env, const char *key, const char *value) HL_CHECK;
void hl_env_fini(struct hl_env *env);
/* Appends to a NULL-terminated list of a spec. */
hl_status hl_texts_add(char ***texts, size_t *count, const char *text) HL_CHECK;

struct hl_log_slice {
    int64_t offset; /* where `data` begins; later than requested when older output was dropped */
    int64_t size;   /* of the whole output so far */
    bool finished;  /* the rank has ended and this slice reaches the end */
    struct hl_buf data;
};

/* A container with Helios's marks that an executor has no record of. */
struct hl_stranger {
    const char *container; /* its id */
    const char *owner;     /* another state directory, or the mark of one */
    const char *handle;    /* the engine's, or the machine's, name for it */
    bool own;              /* it is of this executor's state directory, but its record was lost */
};

struct hl_stranger_list {
    struct hl_stranger *items;
    size_t count;
};

struct hl_executor;

struct hl_executor_ops {
    const char *name;
    bool image; /* ranks see the files of an image, not the node's */
    hl_status (*start)(struct hl_executor *ex, const struct hl_container_spec *spec,
                       struct hl_container_status *out);
    hl_status (*stop)(struct hl_executor *ex, const char *id, int grace_ms);
    hl_status (*list)(struct hl_executor *ex, struct hl_arena *arena,
                      struct hl_api_container_status_list *out);
    hl_status (*read_log)(struct hl_executor *ex, const char *id, int rank, int64_t offset,
                          size_t max_bytes, struct hl_log_slice *out);
    hl_status (*forget)(struct hl_executor *ex, const char *id);
    hl_status (*put_rank_table)(struct hl_executor *ex, const char *id, const char *text);
    hl_status (*put_meeting)(struct hl_executor *ex, const char *id, const char *text);
    hl_status (*strangers)(struct hl_executor *ex, struct hl_arena *arena,
                           struct hl_stranger_list *out);
    hl_status (*list_strays)(struct hl_executor *ex, const char *state_directory,
                             struct hl_arena *arena, struct hl_api_text_list *out);
    hl_status (*end_stray)(struct hl_executor *ex, const char *state_directory, const char *id,
                           bool *ended);
    hl_status (*memory_group)(struct hl_executor *ex, const char *id, int rank, char *out,
                              size_t size);
    void (*close)(struct hl_executor *ex);
};

/* Every engine's struct begins with this. */
struct hl_executor {
    const struct hl_executor_ops *ops;
};

struct hl_executor_opts {
    const char *name;      /* "process", "docker", "podman" */
    const char *state_dir; /* containers live below state_dir/containers */
    /* The slots describe another machine: bind to what exists here instead of failing. */
    bool foreign_topology;
    uint64_t log_max_bytes; /* how much of a rank's output is kept; 0 = all */
    /* Command that starts a shim: program and leading arguments, NULL-terminated; the container's
     * directory is appended. NULL = this program with "shim". */
    const char *const *shim;
    void (*on_change)(void *arg, const char *id); /* a status has changed; may be NULL */
    void *arg;
};

/* Locks the state directory (HL_EBUSY when another executor has it) and finds the containers in
 * it. */
hl_status hl_executor_open(const struct hl_executor_opts *opts, struct hl_executor **out) HL_CHECK;

/* Starts a container, or finds it by id. A container without ranks, whose processes are parked,
 * takes the ranks of the spec. `out` is the status from before that; the caller owns it. */
static inline hl_status hl_executor_start(struct hl_executor *ex,
                                          const struct hl_container_spec *spec,
                                          struct hl_container_status *out)
{
    return ex->ops->start(ex, spec, out);
}

/* Asks a container to stop: SIGTERM, then SIGKILL after the grace period, or after the spec's if
 * that is shorter or grace_ms is negative. Returns at once; an unknown id and an ended container
 * are fine. */
static inline hl_status hl_executor_stop(struct hl_executor *ex, const char *id, int grace_ms)
{
    return ex->ops->stop(ex, id, grace_ms);
}

static inline hl_status hl_executor_list(struct hl_executor *ex, struct hl_arena *arena,
                                         struct hl_api_container_status_list *out)
{
    return ex->ops->list(ex, arena, out);
}

/* A slice of a rank's stdout and stderr; offset < 0 counts from the end. slice->data belongs to the
 * caller, who initialises it to zero with its maximum. */
static inline hl_status hl_executor_read_log(struct hl_executor *ex, const char *id, int rank,
                                             int64_t offset, size_t max_bytes,
                                             struct hl_log_slice *out)
{
    return ex->ops->read_log(ex, id, rank, offset, max_bytes, out);
}

/* Drops record and logs of an ended container; an unknown id is fine. */
static inline hl_status hl_executor_forget(struct hl_executor *ex, const char *id)
{
    return ex->ops->forget(ex, id);
}

/* Replaces the file at RANK_TABLE_FILE atomically: readers see the old table or the new one. */
static inline hl_status hl_executor_put_rank_table(struct hl_executor *ex, const char *id,
                                                   const char *text)
{
    return ex->ops->put_rank_table(ex, id, text);
}

/* The same for HELIOS_MEETING: where the ranks meet now, and which servers are lost. */
static inline hl_status hl_executor_put_meeting(struct hl_executor *ex, const char *id,
                                                const char *text)
{
    return ex->ops->put_meeting(ex, id, text);
}

/* Lists containers of other state directories on this machine (in this engine): they hold CPUs,
 * devices and ports that this Agent did not assign. Containers of this state directory without a
 * record were ended by open. */
static inline hl_status hl_executor_strangers(struct hl_executor *ex, struct hl_arena *arena,
                                              struct hl_stranger_list *out)
{
    return ex->ops->strangers(ex, arena, out);
}

/* Lists the containers that run on this machine for another state directory, given by its identity
 * (hl_dir_identity). */
static inline hl_status hl_executor_list_strays(struct hl_executor *ex, const char *state_directory,
                                                struct hl_arena *arena,
                                                struct hl_api_text_list *out)
{
    return ex->ops->list_strays(ex, state_directory, arena, out);
}

/* Kills one of them; *ended is false if it is not running. */
static inline hl_status hl_executor_end_stray(struct hl_executor *ex, const char *state_directory,
                                              const char *id, bool *ended)
{
    return ex->ops->end_stray(ex, state_directory, id, ended);
}

/* The name that the kernel's log uses for the control group that limits a rank's memory; "" = it
 * has none. Works for ended containers, too. */
static inline hl_status hl_executor_memory_group(struct hl_executor *ex, const char *id, int rank,
                                                 char *out, size_t size)
{
    return ex->ops->memory_group(ex, id, rank, out, size);
}

/* Containers keep running. NULL is fine. */
static inline void hl_executor_close(struct hl_executor *ex)
{
    if (ex != NULL)
        ex->ops->close(ex);
}

#endif
