/* ranktabled/lease.h - of several instances the one that holds the Lease writes.
 *
 * As client-go does it: held for 15 s from the last renewal that was *seen*, so clocks need not
 * agree; renewed every 2 s; given up by its holder when that failed for 10 s; set free at the end.
 * Source: kubernetes.io, "Leases"; k8s.io/client-go/tools/leaderelection.
 *
 * Owns:    a thread.
 * Threads: start and stop on the loop's, where `changed` is called; hl_lease_is_held from any.
 * Errors:  logged; until it is got, it is not held.
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
    const char *identity; /* of this instance among all */
    int hold_s;           /* silence after which another one takes over */
    void (*changed)(void *arg);
    void *arg;
};

hl_status lease_start(const struct lease_opts *opts, struct lease **out) HL_CHECK;
int lease_is_held(const struct lease *l);
/* Sets it free, then waits for the thread. The client must not be cancelled yet. NULL is fine. */
void lease_stop(struct lease *l);

/* What was seen of a lease, and when. Pure. */
struct lease_seen {
    char renewed[64]; /* renewTime; opaque */
    uint64_t since_ns;
};

/* True: it may be taken or renewed now by `identity`. Remembers what it saw. */
bool lease_may_take(const json_t *lease, const char *identity, struct lease_seen *seen,
                    uint64_t now_ns);

#endif
