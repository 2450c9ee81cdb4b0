/* hw/process/process_executor_private.h - the files that executor and shim share. */
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
#define HL_STOP_GRACE_MS  10000 /* of a spec that says none */

/* DIR/name by value, so that it can stand in a call. */
struct hl_path {
    char s[PATH_MAX];
};

struct hl_path hl_path_in(const char *dir, const char *name);
struct hl_path hl_path_of_log(const char *dir, int rank);
struct hl_path hl_path_of_rank_table(const char *dir);
struct hl_path hl_path_of_meeting(const char *dir);

/* Of its control group. The directory is in it: two clusters on one machine may use the same ids.
 */
#define HL_GROUP_NAME_MAX (HL_CONTAINER_ID_MAX + 32)
void hl_group_name(const char *dir, const char *id, char out[HL_GROUP_NAME_MAX]);

hl_status hl_spec_file_read(const char *dir, struct hl_container_spec *out) HL_CHECK;
hl_status hl_spec_file_write(const char *dir, const struct hl_container_spec *spec) HL_CHECK;

/* What the executor tells the shim beside the spec. */
struct hl_shim_options {
    bool foreign; /* the slots are another machine's */
    uint64_t log_max_bytes;
    enum hl_engine_kind engine; /* that runs the ranks */
};

hl_status hl_shim_file_read(const char *dir, struct hl_shim_options *out) HL_CHECK;
hl_status hl_shim_file_write(const char *dir, const struct hl_shim_options *options) HL_CHECK;
hl_status hl_status_file_read(const char *dir, struct hl_container_status *out) HL_CHECK;
/* On a full disk the space that hl_status_reserve set aside is used. */
hl_status hl_status_file_write(const char *dir, const struct hl_container_status *s) HL_CHECK;
/* Set space aside for a status of so many ranks, where there is none yet. */
void hl_status_reserve(const char *dir, size_t ranks);
/* Nothing happens when the file says the same already. */
hl_status hl_rank_table_write(const char *dir, const char *text) HL_CHECK;

/* What a container is bound to: the CPUs it asked for that exist here. */
struct hl_binding {
    bool wanted;
    struct hl_cpuset cpus; /* empty = nothing of what was wanted exists */
    struct hl_cpuset mems;
    char note[256]; /* what differs from the wish; "" = nothing */
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
    int pidfd;              /* -1 = none, or a kernel without */
    int watch;              /* inotify; -1 = none */
    int busy;               /* somebody works on it without the lock: keep it */
    bool gone;              /* the shim has ended and the status is final */
    enum hl_engine_kind engine;
    int revived;      /* shims that took the place of one that was killed */
    bool stop_wanted; /* stop came while it was being started */
    int wanted_grace_ms;
    uint64_t kill_at_ns; /* a shim that does not stop is killed; 0 = none */
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

/* HL_EBUSY when a shim holds the lock of the directory; else *fd holds it. */
hl_status hl_px_lock_shim(const char *dir, int *fd) HL_CHECK;
/* Until the shim of a container's directory has written its first status, has died, or
 * HL_SHIM_START_MS are over. Without the lock. */
hl_status hl_px_launch_shim(const struct hl_px *px, const char *dir,
                            struct hl_process *out) HL_CHECK;
/* End what an engine or this machine still runs of containers whose record is gone. */
void hl_px_sweep(struct hl_px *px);
/* Find the containers that are there, before the watcher runs. HL_ENOMEM, HL_EIO: the record of one
 * can't be read for the moment. */
hl_status hl_px_adopt(struct hl_px *px) HL_CHECK;
/* Watch a shim that runs. With the lock. */
void hl_px_watch(struct hl_px *px, struct hl_px_entry *e);
/* The shim has ended: make its status final. Called with the lock, lets go of it in between. */
void hl_px_settle(struct hl_px *px, struct hl_px_entry *e);
/* Take over status.json; 1 when it differs from what we had. With the lock. */
bool hl_px_refresh(struct hl_px_entry *e);
void hl_px_signal(const struct hl_px_entry *e, int signum);
/* Body of the watcher thread. */
void *hl_px_watcher(void *arg);

/* What a rank writes, on its way into its log. */
struct hl_shim_output {
    int pipe; /* end that the shim reads; -1 = nobody writes any more */
    int log;
    bool midline;         /* the log ends inside a line */
    uint64_t lost;        /* bytes for which there was no room since the log last had some */
    uint64_t lost_before; /* and in gaps that the log tells of */
    int error;            /* errno of the last failure */
    uint64_t retry_ns;    /* when room is looked for again */
    uint64_t untrimmed;   /* bytes since trimming was last thought of */
    uint64_t skip;        /* bytes that come again and are in the log: a log of the engine's */
};

struct hl_engine_ranks;
struct hl_shim;

/* How the ranks are run: as the shim's own processes, or by a container engine. */
struct hl_shim_way {
    void (*start)(struct hl_shim *shim);              /* a failure is in the status afterwards */
    void (*signal)(struct hl_shim *shim, int signum); /* to all ranks that run */
    void (*kill)(struct hl_shim *shim);               /* with all that they have started */
    void (*reap)(struct hl_shim *shim);               /* hl_shim_rank_ended of each that has */
    uint64_t (*oom)(const struct hl_shim *shim);      /* how many were killed for want of memory */
    void (*finish)(struct hl_shim *shim);             /* no process of theirs is left */
    void (*clear)(struct hl_shim *shim); /* the result is on disk; NULL: nothing is kept */
};

extern const struct hl_shim_way hl_process_way, hl_engine_way;
/* Group, binding and ranks; a failure is in the status afterwards. */
void hl_process_start_ranks(struct hl_shim *shim);

/* A process that is parked; process_executor_replace.c. */
struct hl_shim_spare {
    pid_t pid;       /* 0 = there is none */
    int role;        /* pipe that it learns its rank from */
    int output;      /* pipe of what it writes */
    uint64_t due_ns; /* when one is started in its place */
};

/* The parts of the shim. */
struct hl_shim {
    const char *dir;
    const struct hl_shim_way *way;
    struct hl_shim_options options;
    struct hl_engine_ranks *engine; /* NULL: none */
    int signals;                    /* signalfd */
    int wake_fd;                    /* what else the ranks' way waits for; -1 = nothing */
    uint64_t look_ns;               /* when it wants to look at the latest; 0 = never */
    bool ready;                     /* who started us knows that the status is there */
    struct hl_container_spec spec;
    struct hl_container_status status;
    struct hl_cgroup cgroup;
    struct hl_binding binding;
    struct hl_shim_output *outputs; /* one to a rank */
    struct pollfd *polls;           /* two more */
    size_t live;                    /* ranks that run, or wait for their replacement */
    struct hl_replace_count lost;
    uint64_t *due_ns; /* per rank: when it is replaced, 0 = it is not waiting; NULL: none ever is */
    struct hl_shim_spare *spares;
    size_t spare_count;
    uint64_t oom_seen;   /* processes killed for want of memory, that are explained */
    bool requested;      /* stop was asked for */
    bool failed;         /* a rank failed, the message says which */
    uint64_t kill_at_ns; /* 0 = not stopping */
    bool killed;
    bool dirty; /* status.json is behind */
};

/* Containers with Helios' marks that this machine, or its engine, runs: of all owners. */
hl_status hl_strangers_find(enum hl_engine_kind engine, const char *containers_dir,
                            struct hl_arena *arena, struct hl_stranger_list *out) HL_CHECK;
/* What an engine has of one container of this directory's (`only`), or, NULL, of all without a
 * record. */
hl_status hl_labelled_find(enum hl_engine_kind engine, const char *containers_dir, const char *only,
                           struct hl_arena *arena, struct hl_stranger_list *out) HL_CHECK;
/* End it, whatever it is doing. */
hl_status hl_stranger_end(enum hl_engine_kind engine, const struct hl_stranger *stranger) HL_CHECK;

/* A container that another Agent of this machine has started, and that nobody wants any more. */
struct hl_stray {
    const char *state_directory; /* its identity */
    const char *container;
};

/* All of that state directory. */
hl_status hl_strays_list(const char *state_directory, const char *containers_dir,
                         struct hl_arena *arena, struct hl_api_text_list *out) HL_CHECK;
hl_status hl_stray_end(enum hl_engine_kind engine, const struct hl_stray *stray,
                       const char *containers_dir, bool *ended) HL_CHECK;

/* One output to a rank of the status. */
hl_status hl_shim_outputs_init(struct hl_shim *shim) HL_CHECK;
/* *out is where the rank writes; the caller closes it. */
hl_status hl_shim_output_open(struct hl_shim *shim, size_t i, int *out) HL_CHECK;
/* Into the log what is in the pipe: one block; how many bytes. Never waits for a writer. */
size_t hl_shim_output_take(struct hl_shim *shim, size_t i);
/* All that was in the pipe when this was called. */
void hl_shim_output_drain(struct hl_shim *shim, size_t i);
/* The rank writes into a pipe whose other end is `pipe`, which is taken over on HL_OK. */
hl_status hl_shim_output_adopt(struct hl_shim *shim, size_t i, int pipe) HL_CHECK;
/* The rank has ended: what is in the pipe is kept, and what children of it still write is not. */
void hl_shim_output_end(struct hl_shim *shim, size_t i);
/* The ranks have ended: drain and close. */
void hl_shim_outputs_fini(struct hl_shim *shim);

/* Complete a rank's environment so that `python` is what the spec's venv, conda or python names.
 * HL_ENOENT, HL_EINVAL: it is not on this machine. */
hl_status hl_shim_set_python(const struct hl_shim *shim, struct hl_env *env) HL_CHECK;
/* What the rank sees: of the Agent's own environment only where it is a process of its. */
hl_status hl_shim_rank_env(const struct hl_shim *shim, const struct hl_rank_spec *rank,
                           struct hl_env *out) HL_CHECK;
/* Believe the kernel, not our intention. */
bool hl_shim_is_bound(const struct hl_shim *shim, pid_t pid);
/* One that ran; signal 0: it exited. Its log is whole before its status says so. */
void hl_shim_rank_ended(struct hl_shim *shim, size_t i, int exit_code, int signal);
/* Write the status; who started us hears of the first. */
void hl_shim_tell(struct hl_shim *shim);
/* Stops that have come, or come within so many ms. */
void hl_shim_take_signals(struct hl_shim *shim);
void hl_shim_await_signals(struct hl_shim *shim, int timeout_ms);
/* A stop has come: the file `stop` says how. */
void hl_shim_stop_asked(struct hl_shim *shim);
hl_status hl_shim_start_rank(struct hl_shim *shim, size_t i) HL_CHECK;
/* The program with that environment, writing to `output`; *pass becomes its descriptor 3, NULL:
 * there is none. */
hl_status hl_shim_spawn(struct hl_shim *shim, const struct hl_env *env, int output, const int *pass,
                        pid_t *out) HL_CHECK;

/* process_executor_replace.c */
hl_status hl_shim_replace_init(struct hl_shim *shim) HL_CHECK;
void hl_shim_replace_fini(struct hl_shim *shim);
/* The executor has given ranks to a container that had none. */
void hl_shim_take_ranks(struct hl_shim *shim);
/* It has no ranks yet, and is not stopping. */
bool hl_shim_is_parked(const struct hl_shim *shim);
/* Rank i has failed, as its status says. True: it is going to be replaced. */
bool hl_shim_replace(struct hl_shim *shim, size_t i);
/* Start what is due: ranks, and spares. On failure *failed is the rank that can't be started. */
hl_status hl_shim_replace_due(struct hl_shim *shim, size_t *failed) HL_CHECK;
/* When something is; UINT64_MAX = never. */
uint64_t hl_shim_replace_next_ns(const struct hl_shim *shim);
/* The container stops: nothing is replaced any more. */
void hl_shim_replace_stop(struct hl_shim *shim);
/* True: that process was a spare. */
bool hl_shim_spare_ended(struct hl_shim *shim, pid_t pid);

#endif
