/* hw/process/process_executor_private.h - the files that executor and shim share.
 *
 * Threads: any; the executor's `lock` guards its containers. A shim has a single thread.
 */
#ifndef HL_HW_PROCESS_PROCESS_EXECUTOR_PRIVATE_H
#define HL_HW_PROCESS_PROCESS_EXECUTOR_PRIVATE_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <uthash.h>

#include "core/replace/replacing.h"
#include "hw/engine/engine.h"
#include "hw/executor.h"
#include "os/cgroup.h"
#include "os/process.h"

#define HL_SPEC_BYTES_MAX (16u << 20)
#define HL_SHIM_START_MS  15000
#define HL_SHIM_REMOVE_MS 5000
#define HL_STOP_GRACE_MS  10000 /* for a spec that sets none */

/* DIR/name by value, so that it can be used inside a call. */
struct hl_path {
    char s[PATH_MAX];
};

struct hl_path hl_path_in(const char *dir, const char *name);
struct hl_path hl_path_of_log(const char *dir, int rank);
struct hl_path hl_path_of_rank_table(const char *dir);
struct hl_path hl_path_of_meeting(const char *dir);

/* Name of the container's control group. It contains the directory, because two clusters on one
 * machine may use the same ids. */
#define HL_GROUP_NAME_MAX (HL_CONTAINER_ID_MAX + 32)
void hl_group_name(const char *dir, const char *id, char out[HL_GROUP_NAME_MAX]);

hl_status hl_spec_file_read(const char *dir, struct hl_container_spec *out) HL_CHECK;
hl_status hl_spec_file_write(const char *dir, const struct hl_container_spec *spec) HL_CHECK;

/* What the executor tells the shim in addition to the spec. */
struct hl_shim_options {
    bool foreign; /* the slots describe another machine */
    uint64_t log_max_bytes;
    enum hl_engine_kind engine; /* the engine that runs the ranks */
};

hl_status hl_shim_file_read(const char *dir, struct hl_shim_options *out) HL_CHECK;
hl_status hl_shim_file_write(const char *dir, const struct hl_shim_options *options) HL_CHECK;
hl_status hl_status_file_read(const char *dir, struct hl_container_status *out) HL_CHECK;
/* On a full disk this uses the space that hl_status_reserve set aside. */
hl_status hl_status_file_write(const char *dir, const struct hl_container_status *s) HL_CHECK;
/* Reserves disk space for a status of this many ranks, unless that is already done. */
void hl_status_reserve(const char *dir, size_t ranks);
/* Does nothing when the file already has this content. */
hl_status hl_rank_table_write(const char *dir, const char *text) HL_CHECK;

/* What a container is bound to: those requested CPUs that exist here. */
struct hl_binding {
    bool wanted;
    struct hl_cpuset cpus; /* empty = none of the requested CPUs exists */
    struct hl_cpuset mems;
    char note[256]; /* how this differs from the request; "" = not at all */
};

/* HL_EINVAL with the valid range when a wanted CPU does not exist, unless foreign. */
hl_status hl_binding_choose(const struct hl_container_spec *spec, bool foreign,
                            struct hl_binding *out) HL_CHECK;

/* One container as the executor sees it. Guarded by the executor's lock. */
struct hl_px_entry {
    char id[HL_CONTAINER_ID_MAX + 1];
    struct hl_path dir;
    struct hl_container_status status;
    int stop_grace_ms;
    struct hl_process shim; /* pid 0 = not known yet */
    int pidfd;              /* -1 = none, or not supported by the kernel */
    int watch;              /* inotify; -1 = none */
    int busy;               /* in use without the lock: don't free it */
    bool gone;              /* the shim has ended and the status is final */
    enum hl_engine_kind engine;
    int revived;      /* number of shims that replaced a killed one */
    bool stop_wanted; /* stop was requested while it was being started */
    int wanted_grace_ms;
    uint64_t kill_at_ns; /* when to kill a shim that does not stop; 0 = never */
    UT_hash_handle hh;
};

struct hl_px {
    struct hl_executor base;
    struct hl_path containers;
    const char *const *shim;
    struct hl_shim_options options;
    void (*on_change)(void *arg, const char *id);
    void *arg;
    int lock_fd;
    int epoll, inotify, wake;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows; never held over a call of on_change */
    pthread_cond_t changed;
    bool closing;
    struct hl_px_entry *entries;
};

/* HL_EBUSY when a shim holds the lock of the directory; otherwise *fd holds it. */
hl_status hl_px_lock_shim(const char *dir, int *fd) HL_CHECK;
/* Starts the shim of a container's directory and waits until it has written its first status, has
 * died, or HL_SHIM_START_MS have passed. Call without the lock. */
hl_status hl_px_launch_shim(const struct hl_px *px, const char *dir,
                            struct hl_process *out) HL_CHECK;
/* Ends whatever an engine or this machine still runs of containers whose record is gone. */
void hl_px_sweep(struct hl_px *px);
/* Finds the existing containers, before the watcher runs. HL_ENOMEM, HL_EIO: the record of one
 * can't be read at the moment. */
hl_status hl_px_adopt(struct hl_px *px) HL_CHECK;
/* Watches a running shim. Call with the lock. */
void hl_px_watch(struct hl_px *px, struct hl_px_entry *e);
/* Makes the status of an ended shim final. Call with the lock, which is released in between. */
void hl_px_settle(struct hl_px *px, struct hl_px_entry *e);
/* Reads status.json into the entry; true when it has changed. Call with the lock. */
bool hl_px_refresh(struct hl_px_entry *e);
void hl_px_signal(const struct hl_px_entry *e, int signum);
/* Body of the watcher thread. */
void *hl_px_watcher(void *arg);

/* The output of a rank on its way into its log. */
struct hl_shim_output {
    int pipe; /* the end that the shim reads; -1 = no writer is left */
    int log;
    bool midline;         /* the log ends inside a line */
    uint64_t lost;        /* bytes dropped since the log last had room */
    uint64_t lost_before; /* bytes dropped in gaps that the log already mentions */
    int error;            /* errno of the last failure */
    uint64_t retry_ns;    /* when to check for room again */
    uint64_t untrimmed;   /* bytes since the last check for trimming */
    uint64_t skip;        /* engine logs: bytes that come again but are already in the log */
};

struct hl_engine_ranks;
struct hl_shim;

/* How ranks are run: as the shim's own processes, or by a container engine. */
struct hl_shim_way {
    void (*start)(struct hl_shim *shim);              /* a failure is in the status afterwards */
    void (*signal)(struct hl_shim *shim, int signum); /* to all running ranks */
    void (*kill)(struct hl_shim *shim);               /* with everything that they have started */
    void (*reap)(struct hl_shim *shim);          /* calls hl_shim_rank_ended for each ended rank */
    uint64_t (*oom)(const struct hl_shim *shim); /* number of OOM-killed processes */
    void (*finish)(struct hl_shim *shim);        /* afterwards no process of theirs is left */
    /* call when the result is on disk; NULL: nothing to clear */
    void (*clear)(struct hl_shim *shim);
};

extern const struct hl_shim_way hl_process_way, hl_engine_way;
/* Creates control group, binding and ranks; a failure is in the status afterwards. */
void hl_process_start_ranks(struct hl_shim *shim);

/* A parked process; see process_executor_replace.c. */
struct hl_shim_spare {
    pid_t pid;       /* 0 = there is none */
    int role;        /* pipe from which it learns its rank */
    int output;      /* pipe for its output */
    uint64_t due_ns; /* when a new one is started in its place */
};

/* The parts of the shim. */
struct hl_shim {
    const char *dir;
    const struct hl_shim_way *way;
    struct hl_shim_options options;
    struct hl_engine_ranks *engine; /* NULL: none */
    int signals;                    /* signalfd */
    int wake_fd;                    /* another descriptor that `way` waits for; -1 = none */
    uint64_t look_ns;               /* latest time at which `way` wants to check; 0 = never */
    bool ready;                     /* the process that started us knows that the status exists */
    struct hl_container_spec spec;
    struct hl_container_status status;
    struct hl_cgroup cgroup;
    struct hl_binding binding;
    struct hl_shim_output *outputs; /* one per rank */
    struct pollfd *polls;           /* two more than ranks */
    size_t live;                    /* ranks that are running, or wait for their replacement */
    struct hl_replace_count lost;
    /* per rank: when it is replaced, 0 = not waiting; NULL: ranks are never replaced */
    uint64_t *due_ns;
    struct hl_shim_spare *spares;
    size_t spare_count;
    uint64_t oom_seen;   /* OOM-killed processes that are already explained */
    bool requested;      /* stop was asked for */
    bool failed;         /* a rank failed, the message says which */
    uint64_t kill_at_ns; /* 0 = not stopping */
    bool killed;
    bool dirty; /* status.json is out of date */
};

/* Finds containers with Helios's marks that this machine, or its engine, runs, of all owners. */
hl_status hl_strangers_find(enum hl_engine_kind engine, const char *containers_dir,
                            struct hl_arena *arena, struct hl_stranger_list *out) HL_CHECK;
/* Finds what an engine has of one container of this directory (`only`), or if NULL, of all
 * containers without a record. */
hl_status hl_labelled_find(enum hl_engine_kind engine, const char *containers_dir, const char *only,
                           struct hl_arena *arena, struct hl_stranger_list *out) HL_CHECK;
/* Ends it, whatever it is doing. */
hl_status hl_stranger_end(enum hl_engine_kind engine, const struct hl_stranger *stranger) HL_CHECK;

/* A container that another Agent on this machine has started and that is no longer wanted. */
struct hl_stray {
    const char *state_directory; /* identity of that Agent's state directory */
    const char *container;
};

/* All of that state directory; an engine's containers also after their shim's death. */
hl_status hl_strays_list(enum hl_engine_kind engine, const char *state_directory,
                         const char *containers_dir, struct hl_arena *arena,
                         struct hl_api_text_list *out) HL_CHECK;
hl_status hl_stray_end(enum hl_engine_kind engine, const struct hl_stray *stray,
                       const char *containers_dir, bool *ended) HL_CHECK;

/* Initialises one output per rank of the status. */
hl_status hl_shim_outputs_init(struct hl_shim *shim) HL_CHECK;
/* Opens a rank's output. *out is the end that the rank writes to; the caller closes it. */
hl_status hl_shim_output_open(struct hl_shim *shim, size_t i, int *out) HL_CHECK;
/* Moves one block from the pipe to the log; returns the number of bytes. Never waits for a
 * writer. */
size_t hl_shim_output_take(struct hl_shim *shim, size_t i);
/* Moves everything that was in the pipe at the time of the call. */
void hl_shim_output_drain(struct hl_shim *shim, size_t i);
/* Uses a pipe that the rank already writes to, whose other end is `pipe`; takes ownership of it on
 * HL_OK. */
hl_status hl_shim_output_adopt(struct hl_shim *shim, size_t i, int pipe) HL_CHECK;
/* The rank has ended: keeps what is in the pipe, but not what its children write later. */
void hl_shim_output_end(struct hl_shim *shim, size_t i);
/* The ranks have ended: drains and closes all outputs. */
void hl_shim_outputs_fini(struct hl_shim *shim);

/* Completes a rank's environment so that `python` is the interpreter that the spec's venv, conda or
 * python names. HL_ENOENT, HL_EINVAL: it is not on this machine. */
hl_status hl_shim_set_python(const struct hl_shim *shim, struct hl_env *env) HL_CHECK;
/* The environment that the rank sees. It inherits from the Agent's own only if it is a plain
 * process. */
hl_status hl_shim_rank_env(const struct hl_shim *shim, const struct hl_rank_spec *rank,
                           struct hl_env *out) HL_CHECK;
/* Asks the kernel instead of trusting what we requested. */
bool hl_shim_is_bound(const struct hl_shim *shim, pid_t pid);
/* A running rank has ended; signal 0: it exited. Its log is complete before its status says so. */
void hl_shim_rank_ended(struct hl_shim *shim, size_t i, int exit_code, int signal);
/* Writes the status; after the first time also tells the process that started us. */
void hl_shim_tell(struct hl_shim *shim);
/* Handle stop requests that have arrived, or that arrive within timeout_ms. */
void hl_shim_take_signals(struct hl_shim *shim);
void hl_shim_await_signals(struct hl_shim *shim, int timeout_ms);
/* A stop was requested; the file `stop` says how. */
void hl_shim_stop_asked(struct hl_shim *shim);
hl_status hl_shim_start_rank(struct hl_shim *shim, size_t i) HL_CHECK;
/* Starts the program with that environment, writing to `output`. *pass becomes its descriptor 3;
 * NULL: none. */
hl_status hl_shim_spawn(struct hl_shim *shim, const struct hl_env *env, int output, const int *pass,
                        pid_t *out) HL_CHECK;

/* process_executor_replace.c */
hl_status hl_shim_replace_init(struct hl_shim *shim) HL_CHECK;
void hl_shim_replace_fini(struct hl_shim *shim);
/* Takes the ranks that the executor has given to a container without ranks. */
void hl_shim_take_ranks(struct hl_shim *shim);
/* Whether the container has no ranks yet and is not stopping. */
bool hl_shim_is_parked(const struct hl_shim *shim);
/* Rank i has failed, as its status says. True: it will be replaced. */
bool hl_shim_replace(struct hl_shim *shim, size_t i);
/* Starts the ranks and spares that are due. On failure *failed is the rank that can't be
 * started. */
hl_status hl_shim_replace_due(struct hl_shim *shim, size_t *failed) HL_CHECK;
/* When the next one is due; UINT64_MAX = never. */
uint64_t hl_shim_replace_next_ns(const struct hl_shim *shim);
/* The container is stopping: replaces nothing any more. */
void hl_shim_replace_stop(struct hl_shim *shim);
/* A process has ended. True: it was a spare. */
bool hl_shim_spare_ended(struct hl_shim *shim, pid_t pid);

#endif
