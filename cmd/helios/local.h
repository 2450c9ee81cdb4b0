/* cmd/helios/local.h - a whole cluster on this machine: start its daemons, find them again, stop
 * them.
 *
 * Everything lives under one state directory: cluster.json (what runs, where), log/, controller/,
 * agents/, l3.sock; and one pool file in /dev/shm that is named after the directory.
 *
 * Owns:    the results handed out (new references).
 * Threads: one; the state directory is locked while it changes.
 * Errors:  HL_EBUSY (another up or down is at work, a port in use), HL_ETIMEDOUT and HL_EIO with
 * the last line of the daemon's log. Units:   bytes, ms. Limits:  256 nodes.
 */
#ifndef HELIOS_LOCAL_H
#define HELIOS_LOCAL_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct hl_rpc;

/* Empty texts and 0: as the Controller's own options say. */
struct local_kube {
    const char *config, *master, *ns, *device;
    int slot_devices;
};

struct local_opts {
    struct hl_rpc *rpc;
    const char *state; /* absolute */
    int nodes;
    int slots; /* per node; 0 = what the machine or topology has */
    const char
        *topology; /* hwloc XML that every node takes its slots from; "" = shares of this machine */
    const char *address;           /* of this machine: where the daemons serve */
    const struct local_kube *kube; /* NULL = Agents run the containers */
    uint64_t l3_size;
    uint64_t l2_size;    /* of each node; 0 = none */
    const char *devices; /* of each node, as agent.devices */
    uint64_t ready_ms;   /* deadline of each daemon, and of all nodes together */
    const char *metrics; /* metrics.listen of the first daemon; the others have the next ports */
};

/* Start what is not running. Result: cluster.json plus "started": [names]. */
hl_status local_up(const struct local_opts *opts, json_t **out) HL_CHECK;
/* Stop containers and daemons; without `keep` the pool, metadata, logs and gangs on Kubernetes go
 * too.
 * Result: {"stopped": [names], "removed": bool}. Nothing running: fine. */
hl_status local_down(struct hl_rpc *rpc, const char *state, int keep, json_t **out) HL_CHECK;
/* cluster.json of a state directory; HL_ENOENT says to run `helios up`. */
hl_status local_find(const char *state, json_t **out) HL_CHECK;

/* Last line of a log; "no message" when there is none. */
void local_last_line(const char *path, char *out, size_t cap);

#endif
