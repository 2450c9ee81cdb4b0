/* hw/engine/engine_ranks.h - the ranks of a container as containers of docker or podman, for the
 * shim.
 *
 *     start   image there? else pull --> find by label what an earlier shim left --> create, start
 *     watch   a `logs --follow` per rank writes into its log; one `events` wakes; every
 *             HL_ENGINE_LOOK_MS the engine is asked in any case
 *     end     exit code and OOMKilled from inspect; removed once the result is on disk
 *
 * The containers do not depend on the shim: one that takes its place finds them by their labels,
 * and goes on with the log where the file ends.
 *
 * Owns:    the commands that follow, the containers until hl_engine_ranks_remove.
 * Threads: the shim's only one.
 * Errors:  in the container's status. An engine that does not answer is a warning of the status,
 *          for the ranks may run on; the text says what it says.
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
/* Of create and start, which copy and mount: on a busy machine they take their time. */
#define HL_ENGINE_START_MS 120000

struct hl_engine_rank {
    char id[80];            /* of the engine's container; "" = none */
    struct hl_process init; /* its first process; pid 0 = not known */
    pid_t follower;         /* 0 = none */
    bool broken;            /* the last one failed: the log lacks something */
    uint64_t followed_ns;   /* when it was started */
    uint64_t ended_ns;      /* when it was first seen to have ended; 0 = it runs */
};

struct hl_engine_ranks {
    enum hl_engine_kind kind;
    char program[PATH_MAX];
    char owner[16];
    char image[128]; /* id of what the spec's image is here */
    struct hl_engine_devices devices;
    struct hl_engine_rank *ranks; /* as the spec's */
    pid_t events;                 /* 0 = none */
    int events_fd;
    bool memlock;     /* the host grants what is asked for */
    bool down;        /* the engine did not answer the last time */
    uint64_t down_ns; /* since when */
    uint64_t oom;     /* ranks of which something was killed for want of memory */
    struct hl_pull_progress pull;
    char progress[256]; /* of the pull, as last told */
};

/* One call of the engine: HL_EUNAVAIL when it can't be reached or its client can't be started,
 * HL_ENOENT when it does not know the container or image; the text is what it printed. `env`:
 * beside the caller's; NULL = none. */
hl_status hl_engine_call(const struct hl_engine_ranks *e, struct hl_args *args,
                         const struct hl_args *env, int timeout_ms,
                         struct hl_command_result *out) HL_CHECK;
/* The same; `command` says for how long, and who is asked meanwhile. */
hl_status hl_engine_run(const struct hl_engine_ranks *e, struct hl_args *args,
                        const struct hl_args *env, struct hl_command command,
                        struct hl_command_result *out) HL_CHECK;
struct hl_args hl_engine_args(const struct hl_engine_ranks *e, struct hl_arena *arena);

/* The client of that engine, as the Agent's PATH has it. */
hl_status hl_engine_client(enum hl_engine_kind kind, struct hl_engine_ranks *out) HL_CHECK;
/* engine_image.c. HL_ENOENT: it is not here. */
hl_status hl_engine_image_find(const struct hl_engine_ranks *e, const char *image,
                               struct hl_engine_image *out) HL_CHECK;
/* Until it is here; `command` says who is asked meanwhile. HL_ENOENT: it is in no registry. */
hl_status hl_engine_image_pull(const struct hl_engine_ranks *e, const char *image,
                               struct hl_command command) HL_CHECK;
/* What one of the two prints of how far it is. */
const char *hl_engine_pull_printed(const struct hl_engine_ranks *e, const struct hl_buf *out,
                                   const struct hl_buf *err);
/* The reason, in the error's text, that an image is not on this node. */
hl_status hl_engine_image_lacks(const char *image, hl_status st) HL_CHECK;
/* The image is here afterwards, e->image is its id. HL_ECANCELED: stop came. */
hl_status hl_engine_image_get(struct hl_shim *s) HL_CHECK;
/* engine_watch.c */
void hl_engine_follow(struct hl_shim *s, size_t rank);
void hl_engine_listen(struct hl_shim *s);
void hl_engine_reap(struct hl_shim *s);
/* The status warns of the limits that the host did not grant, or of none. */
hl_status hl_engine_warn_of_limits(struct hl_shim *s) HL_CHECK;
/* The status says that the engine does not answer (the error's text says why), or no longer. */
void hl_engine_tell_down(struct hl_shim *s);
void hl_engine_tell_up(struct hl_shim *s);
/* The state of all ranks, as the engine says it; one that it does not know has id "". */
hl_status hl_engine_look(struct hl_shim *s, struct hl_arena *arena,
                         struct hl_engine_state *out) HL_CHECK;

#endif
