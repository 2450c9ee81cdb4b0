/* hw/engine/engine_ranks.h - runs the ranks of a container as containers of docker or podman, for
 * the shim.
 *
 *     start   image there? else pull --> find by label what an earlier shim left --> create, start
 *     watch   a `logs --follow` per rank writes into its log; one `events` wakes; every
 *             HL_ENGINE_LOOK_MS the engine is asked in any case
 *     end     exit code and OOMKilled from inspect; removed once the result is on disk
 *
 * The containers do not depend on the shim: a new shim finds them by their labels, and continues
 * each log where the file ends.
 *
 * Owns:    the `logs` and `events` commands, and the containers until the result is on disk.
 * Threads: the shim's only thread.
 * Errors:  in the container's status. An engine that does not answer is only a warning in the
 *          status, because the ranks may still run; its text quotes the engine.
 * Units:   milliseconds.
 * Limits:  see hw/executor.h.
 */
#ifndef HL_HW_ENGINE_ENGINE_RANKS_H
#define HL_HW_ENGINE_ENGINE_RANKS_H

#include "hw/engine/engine.h"
#include "hw/engine/pull_progress.h"
#include "hw/process/process_executor_private.h"
#include "os/command.h"

#define HL_ENGINE_LOOK_MS 5000
#define HL_ENGINE_CALL_MS 30000
/* For create and start, which copy and mount, and take long on a busy machine. */
#define HL_ENGINE_START_MS 120000

struct hl_engine_rank {
    char id[80];            /* id of the engine's container; "" = none */
    struct hl_process init; /* its first process; pid 0 = not known */
    pid_t follower;         /* 0 = none */
    bool broken;            /* the last follower failed, so the log is incomplete */
    uint64_t followed_ns;   /* when it was started */
    uint64_t ended_ns;      /* when it was first seen to have ended; 0 = still running */
};

struct hl_engine_ranks {
    enum hl_engine_kind kind;
    char program[PATH_MAX];
    char owner[16], state[64];
    char image[128]; /* id of the spec's image on this node */
    struct hl_engine_devices devices;
    struct hl_engine_rank *ranks; /* one per rank of the spec */
    pid_t events;                 /* 0 = none */
    int events_fd;
    bool memlock;     /* the host grants unlimited locked memory */
    bool down;        /* the engine did not answer the last time */
    uint64_t down_ns; /* since when it has been down */
    uint64_t oom;     /* ranks with an OOM-killed process */
    struct hl_pull_progress pull;
    char progress[256]; /* of the pull, as last reported */
};

/* Makes one call of the engine: HL_EUNAVAIL when it can't be reached or its client can't be
 * started, HL_ENOENT when it does not know the container or image; the text is what it printed.
 * `env`: in addition to the caller's; NULL = none. */
hl_status hl_engine_call(const struct hl_engine_ranks *e, struct hl_args *args,
                         const struct hl_args *env, int timeout_ms,
                         struct hl_command_result *out) HL_CHECK;
/* The same; `command` gives the time limit, and what is polled meanwhile. */
hl_status hl_engine_run(const struct hl_engine_ranks *e, struct hl_args *args,
                        const struct hl_args *env, struct hl_command command,
                        struct hl_command_result *out) HL_CHECK;
struct hl_args hl_engine_args(const struct hl_engine_ranks *e, struct hl_arena *arena);

/* Finds the client of that engine in the Agent's PATH. */
hl_status hl_engine_client(enum hl_engine_kind kind, struct hl_engine_ranks *out) HL_CHECK;
/* engine_image.c. HL_ENOENT: the image is not on this node. */
hl_status hl_engine_image_find(const struct hl_engine_ranks *e, const char *image,
                               struct hl_engine_image *out) HL_CHECK;
/* Pulls the image and returns when it is here; `command` says what is polled meanwhile. HL_ENOENT:
 * no registry has it. */
hl_status hl_engine_image_pull(const struct hl_engine_ranks *e, const char *image,
                               struct hl_command command) HL_CHECK;
/* The progress output of a pull; docker and podman print it on different streams. */
const char *hl_engine_pull_printed(const struct hl_engine_ranks *e, const struct hl_buf *out,
                                   const struct hl_buf *err);
/* Sets the error's text to the reason why an image is not on this node. */
hl_status hl_engine_image_lacks(const char *image, hl_status st) HL_CHECK;
/* Brings the image to this node and sets e->image to its id. HL_ECANCELED: stopped. */
hl_status hl_engine_image_get(struct hl_shim *s) HL_CHECK;
/* engine_watch.c */
void hl_engine_follow(struct hl_shim *s, size_t rank);
void hl_engine_listen(struct hl_shim *s);
void hl_engine_reap(struct hl_shim *s);
/* Sets, or clears, the status's warning about limits that the host did not grant. */
hl_status hl_engine_warn_of_limits(struct hl_shim *s) HL_CHECK;
/* Note in the status that the engine does not answer (the error's text says why), or that it
 * answers again. */
void hl_engine_tell_down(struct hl_shim *s);
void hl_engine_tell_up(struct hl_shim *s);
/* Asks the engine for the state of all ranks; one that it does not know has id "". */
hl_status hl_engine_look(struct hl_shim *s, struct hl_arena *arena,
                         struct hl_engine_state *out) HL_CHECK;

#endif
