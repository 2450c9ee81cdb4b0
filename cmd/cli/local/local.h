/* cmd/cli/local/local.h - a whole cluster on this machine: start its daemons, find them again, stop
 * them.
 *
 * Everything lives under one state directory: cluster.json (what was asked for, what runs, where),
 * log/, controller/, agents/, run/ (sockets); and one pool file in /dev/shm that is named after the
 * directory.
 *
 * Owns:    the results handed out (new references).
 * Threads: one; the state directory is locked while it changes. A lock that is held is waited for,
 *          two seconds at most: the supervisor holds it for moments.
 * Errors:  HL_EBUSY (another up or down is at work, a port in use), HL_EINVAL (what is asked for
 *          is not what runs), HL_ETIMEDOUT, HL_ECANCELED (a signal), HL_EIO with the last line of
 *          the daemon's log. A start that fails stops what it had started and removes what it had
 *          made.
 * Units:   bytes, ms.
 * Limits:  256 nodes.
 */
#ifndef HL_CMD_CLI_LOCAL_LOCAL_H
#define HL_CMD_CLI_LOCAL_LOCAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hl_rpc;

struct local_opts {
    struct hl_rpc *rpc;
    const char *state;   /* absolute */
    const json_t *given; /* flags of `helios up` that were given: {"nodes": "2"}; paths absolute */
    uint64_t ready_ms;   /* longest wait in which no daemon makes any progress */
    bool *supervises; /* set when this process is the cluster's supervisor from now on and goes on
                       * as local_supervise, also after a failure; NULL: it can't be */
};

enum local_down {
    LOCAL_DOWN,       /* a running cluster is removed, a kept one stays */
    LOCAL_DOWN_KEEP,  /* pool, metadata and logs stay */
    LOCAL_DOWN_PURGE, /* they go, whether anything runs or not */
};

/* Start what is not running, with what earlier calls were given where this one says nothing.
 * Result: cluster.json plus "started": [names] and "restarted": bool. */
hl_status local_up(const struct local_opts *opts, json_t **out) HL_CHECK;
/* Stop containers and daemons. What is removed includes gangs on Kubernetes.
 * Result: {"stopped": [names], "removed": bool, "kept": bool, "state", "pool", "poolBytes", and
 * where they are known "models", "versions", "jobs"}. Nothing there: fine. */
hl_status local_down(struct hl_rpc *rpc, const char *state, enum local_down mode,
                     json_t **out) HL_CHECK;
/* Start daemons that end again, until SIGTERM or until cluster.json names another supervisor. What
 * this process has not started itself is watched too, but how it ended is not known then. */
hl_status local_supervise(const char *state) HL_CHECK;
/* What became of the daemons since `up`, of those that have ended: [{"name", "runs", "restarts",
 * "end": {"how", "at"}}]. New reference. */
json_t *local_ends(const json_t *doc);
/* cluster.json of a state directory; HL_ENOENT says to run `helios up`. */
hl_status local_find(const char *state, json_t **out) HL_CHECK;
/* The daemon of an entry of cluster.json runs; any daemon of the cluster does. */
bool local_daemon_runs(const json_t *entry);
bool local_runs(const json_t *doc);

/* Last line of a log; "no message" when there is none. */
void local_last_line(const char *path, char *out, size_t cap);

#endif
