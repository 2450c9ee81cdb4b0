/* ranktabled/ranktabled.h - keeps the rank tables of a cluster's jobs: watches jobs, pods and
 * ConfigMaps, and writes data["hccl.json"] where it is not what it should be.
 *
 * Owns:    the client, the watchers, the cache, the lease. Config and loop are borrowed.
 * Threads: the loop's.
 * Errors:  at start only; later ones are logged, counted, tried again, and told to the user by an
 *          event on the job when only the user can mend them.
 * Units:   ms, seconds where a name ends in _s.
 * Limits:  those of ranktable/pods.h.
 */
#ifndef HL_RANKTABLED_RANKTABLED_H
#define HL_RANKTABLED_RANKTABLED_H

#include <stdbool.h>

#include "base/buf.h"
#include "kube/config.h"
#include "os/loop.h"
#include "ranktable/pods.h"

struct hl_ranktabled;

struct hl_ranktabled_opts {
    struct hl_loop *loop;
    const struct hl_kube_config *config;
    struct hl_ranktable_rules rules;
    const char *ns;       /* whose jobs; "" = of all namespaces. Borrowed until start is back */
    int batch_ms;         /* how long changes are gathered; 0 = 100 */
    int window_s;         /* of one watch; 0 = 300 to 600 by chance */
    const char *lease_ns; /* "" = no lease: this is the only instance */
    int lease_s;          /* silence of the writing instance after which another one writes */
    const char *identity;
    bool dry_run; /* tables are made and not written */
};

hl_status hl_ranktabled_start(const struct hl_ranktabled_opts *opts,
                              struct hl_ranktabled **out) HL_CHECK;
/* Prometheus families. */
hl_status hl_ranktabled_gauges(struct hl_ranktabled *d, struct hl_buf *out);
/* Ends what is under way; within 10 s. NULL is fine. */
void hl_ranktabled_stop(struct hl_ranktabled *d);

#endif
