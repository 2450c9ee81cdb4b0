/* cmd/cli/local/local.h - a whole cluster on this machine: start its daemons, find them again, stop
 * them.
 *
 * Everything lives under one state directory: cluster.json (what was asked for, what runs, where),
 * log/, controller/, agents/, run/ (sockets); and one pool file in /dev/shm that is named after the
 * directory.
 *
 * Owns:    struct local_cluster owns its texts (local_cluster_fini); other results lie in an arena
 *          of the caller's.
 * Threads: one; the state directory is locked while it changes. A lock that is held is waited for,
 *          two seconds at most: the supervisor holds it for moments.
 * Errors:  HL_EBUSY (another up or down is at work, a port in use), HL_EINVAL (what is asked for
 *          is not what runs), HL_ETIMEDOUT, HL_ECANCELED (a signal), HL_EIO with the last line of
 *          the daemon's log. A start that fails stops what it had started and removes what it had
 *          made; in a cluster that ran before, daemons that serve keep running. HL_ETIMEDOUT names
 *          the daemons that a signal has stopped.
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
    /* Flags of `helios up` that were given, "nodes": "2"; paths absolute. */
    const struct hl_api_key_value_list *given;
    uint64_t ready_ms; /* longest wait in which no daemon makes any progress */
    bool *supervises;  /* set when this process is the cluster's supervisor from now on and goes on
                        * as local_supervise, also after a failure; NULL: it can't be */
};

enum local_down {
    LOCAL_DOWN,       /* a running cluster is removed, a kept one stays */
    LOCAL_DOWN_KEEP,  /* pool, metadata and logs stay */
    LOCAL_DOWN_PURGE, /* they go, whether anything runs or not */
};

/* cluster.json. All zero is an empty one. */
struct local_cluster {
    struct hl_arena arena;
    struct hl_api_local_cluster doc;
};

void local_cluster_fini(struct local_cluster *c);

/* Start what is not running, with what earlier calls were given where this one says nothing. The
 * texts of *start are those of *out. */
hl_status local_up(const struct local_opts *opts, struct local_cluster *out,
                   struct hl_api_local_start *start) HL_CHECK;
/* Stop containers and daemons. What is removed includes gangs on Kubernetes. Nothing there: fine.
 */
hl_status local_down(struct hl_rpc *rpc, const char *state, enum local_down mode,
                     struct hl_arena *arena, struct hl_api_local_stop *out) HL_CHECK;
/* Start daemons that end again, until SIGTERM or until cluster.json names another supervisor. What
 * this process has not started itself is watched too, but how it ended is not known then. */
hl_status local_supervise(const char *state) HL_CHECK;
/* What became of the daemons since `up`, of those that have ended. The arena remembers when it is
 * out of memory. */
struct hl_api_local_ends local_ends(const struct hl_api_local_cluster *doc, struct hl_arena *arena);
/* cluster.json of a state directory. HL_ENOENT: there is none. HL_ECORRUPT names the file and what
 * is wrong in it. */
hl_status local_read(const char *state, struct local_cluster *out) HL_CHECK;
/* The same; HL_ENOENT says to run `helios up`. */
hl_status local_find(const char *state, struct local_cluster *out) HL_CHECK;
/* NULL: there is none of that name. */
struct hl_api_local_daemon *local_daemon_find(const struct hl_api_local_cluster *doc,
                                              const char *key);
/* NULL does not run. */
bool local_daemon_runs(const struct hl_api_local_daemon *daemon);
/* What starts daemons that end again. */
bool local_supervisor_runs(const struct hl_api_local_cluster *doc);
/* Any daemon of the cluster, or its supervisor. */
bool local_runs(const struct hl_api_local_cluster *doc);

/* A JSON file as a struct of `type`. HL_ECORRUPT: it names the file, and the line or the field. */
hl_status local_read_file(const char *path, const struct hl_api_type *type, struct hl_arena *arena,
                          void *out) HL_CHECK;
/* Last line of a log; "no message" when there is none. */
void local_last_line(const char *path, char *out, size_t cap);

#endif
