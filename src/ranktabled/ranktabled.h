/* ranktabled/ranktabled.h - keeps the rank tables of a cluster's jobs: watches jobs, pods and
 * ConfigMaps, and writes data["hccl.json"] if it is missing or outdated.
 *
 * Owns:    the client, the watchers, the cache, the lease. Config and loop are borrowed.
 * Threads: the loop's.
 * Errors:  only at the start. Later ones are logged, counted and tried again; an event on the job
 *          reports those that only the user can fix.
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
    const char *ns;       /* jobs of this namespace; "" = of all. Borrowed until start returns */
    int batch_ms;         /* how long changes are collected; 0 = 100 */
    int window_s;         /* of one watch; 0 = random, 300 to 600 */
    const char *lease_ns; /* "" = no lease: this is the only instance */
    int lease_s;          /* silence of the writing instance after which another one takes over */
    const char *identity;
    bool dry_run; /* tables are made but not written */
};

hl_status hl_ranktabled_start(const struct hl_ranktabled_opts *opts,
                              struct hl_ranktabled **out) HL_CHECK;
/* Writes Prometheus families. */
hl_status hl_ranktabled_gauges(struct hl_ranktabled *d, struct hl_buf *out);
/* Ends running requests, within 10 s. NULL is allowed. */
void hl_ranktabled_stop(struct hl_ranktabled *d);

#endif
