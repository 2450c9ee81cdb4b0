/* ranktabled/lease.h - elects the instance that writes: the one that holds the Lease.
 *
 * It works like client-go: the Lease is held for 15 s from the last renewal that was *seen*, so
 * clocks need not agree. The holder renews it every 2 s, gives it up if that failed for 10 s, and
 * releases it at the end.
 * Source: kubernetes.io, "Leases"; k8s.io/client-go/tools/leaderelection.
 *
 * Owns:    a thread.
 * Threads: start and stop on the loop's, which also calls `changed`; lease_is_held from any.
 * Errors:  logged; the lease then counts as not held.
 * Units:   seconds.
 * Limits:  none.
 */
#ifndef HL_RANKTABLED_LEASE_H
#define HL_RANKTABLED_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "kube/http.h"
#include "os/loop.h"

struct lease;

struct lease_opts {
    struct hl_kube *kube;
    struct hl_loop *loop;
    const char *ns, *name;
    const char *identity; /* unique among all instances */
    int hold_s;           /* silence after which another instance takes over */
    void (*changed)(void *arg);
    void *arg;
};

hl_status lease_start(const struct lease_opts *opts, struct lease **out) HL_CHECK;
bool lease_is_held(const struct lease *l);
/* Waits for the thread, then releases the Lease if it is held. The client must not be cancelled
 * yet. NULL is allowed. */
void lease_stop(struct lease *l);

/* The last renewal that was seen of a Lease, and when. Pure. */
struct lease_seen {
    char renewed[64]; /* renewTime; opaque */
    uint64_t since_ns;
};

/* True: `identity` may take or renew the Lease now. Records what it saw in `seen`. */
bool lease_may_take(const json_t *lease, const char *identity, struct lease_seen *seen,
                    uint64_t now_ns);

#endif
