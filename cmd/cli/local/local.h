/* cmd/cli/local/local.h - a whole cluster on this machine: starts its daemons, finds them again,
 * and stops them.
 *
 * Everything is in one state directory: cluster.json (what was requested, what runs, where), log/,
 * controller/, agents/, run/ (sockets); plus one pool file in /dev/shm that is named after the
 * directory.
 *
 * Owns:    struct local_cluster owns its texts (local_cluster_fini); other results are in the
 *          caller's arena.
 * Threads: one; the state directory is locked while it changes. It waits for the lock for two
 *          seconds at most, because the supervisor holds it only briefly.
 * Errors:  HL_EBUSY (another up or down is running, a port is in use), HL_EINVAL (the request
 *          differs from what runs), HL_ETIMEDOUT, HL_ECANCELED (a signal), HL_EIO with the last
 *          line of the daemon's log. A failed start stops what it has started and removes what it
 *          has made; in a cluster that ran before, daemons that serve keep running. HL_ETIMEDOUT
 *          names the daemons that a signal has stopped.
 * Units:   bytes, ms.
 * Limits:  256 nodes.
 */
#ifndef HL_CMD_CLI_LOCAL_LOCAL_H
#define HL_CMD_CLI_LOCAL_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

struct hl_rpc;

struct local_opts {
    struct hl_rpc *rpc;
    const char *state; /* absolute */
    /* Flags given to `helios up`, "nodes": "2"; paths are absolute. */
    const struct hl_api_key_value_list *given;
    uint64_t ready_ms; /* longest wait without progress of any daemon */
    bool *supervises;  /* set: this process is now the cluster's supervisor and continues as
                        * local_supervise, also after a failure. NULL: not allowed */
};

enum local_down {
    LOCAL_DOWN,       /* removes a running cluster, keeps a kept one */
    LOCAL_DOWN_KEEP,  /* keeps pool, metadata and logs */
    LOCAL_DOWN_PURGE, /* removes them, whether or not anything runs */
};

/* cluster.json. A zeroed struct is an empty one. */
struct local_cluster {
    struct hl_arena arena;
    struct hl_api_local_cluster doc;
};

void local_cluster_fini(struct local_cluster *c);

/* Starts what is not running. Settings that this call does not give are those of earlier calls. The
 * texts of *start belong to *out. */
hl_status local_up(const struct local_opts *opts, struct local_cluster *out,
                   struct hl_api_local_start *start) HL_CHECK;
/* Stops containers and daemons. What is removed includes gangs on Kubernetes. HL_OK also if nothing
 * is there. */
hl_status local_down(struct hl_rpc *rpc, const char *state, enum local_down mode,
                     struct hl_arena *arena, struct hl_api_local_stop *out) HL_CHECK;
/* Restarts daemons that end, until SIGTERM or until cluster.json names another supervisor. Daemons
 * that this process has not started are watched too, but how they ended is not known. */
hl_status local_supervise(const char *state) HL_CHECK;
/* Which daemons have ended since `up`, and how. If the arena is out of memory, it records that. */
struct hl_api_local_ends local_ends(const struct hl_api_local_cluster *doc, struct hl_arena *arena);
/* Reads cluster.json of a state directory. HL_ENOENT: there is none. HL_ECORRUPT names the file and
 * what is wrong in it. */
hl_status local_read(const char *state, struct local_cluster *out) HL_CHECK;
/* The same; HL_ENOENT says to run `helios up`. */
hl_status local_find(const char *state, struct local_cluster *out) HL_CHECK;
/* NULL: there is no daemon with that name. */
struct hl_api_local_daemon *local_daemon_find(const struct hl_api_local_cluster *doc,
                                              const char *key);
/* NULL counts as not running. */
bool local_daemon_runs(const struct hl_api_local_daemon *daemon);
/* Whether the process that restarts daemons is running. */
bool local_supervisor_runs(const struct hl_api_local_cluster *doc);
/* Whether any daemon of the cluster, or its supervisor, is running. */
bool local_runs(const struct hl_api_local_cluster *doc);

/* Reads a JSON file into a struct of `type`. HL_ECORRUPT names the file, and the line or the
 * field. */
hl_status local_read_file(const char *path, const struct hl_api_type *type, struct hl_arena *arena,
                          void *out) HL_CHECK;
/* The last line of a log; "no message" if there is none. */
void local_last_line(const char *path, char *out, size_t cap);

#endif
