/* whatif/loads.h - runs a trace: each read finds its shard in some tier and uses the links from
 * there, and its load waits for the last of its shards.
 *
 * Owns:    its links and the waiting times; end with hl_loads_fini.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, and what the policy returns.
 * Units:   seconds since the first access.
 * Limits:  none of its own.
 */
#ifndef HL_WHATIF_LOADS_H
#define HL_WHATIF_LOADS_H

#include "whatif/links.h"
#include "whatif/whatif.h"

/* The functions of a policy. */
struct hl_load_ops {
    /* Called before the accesses of that time; NULL: nothing to do. */
    hl_status (*advance)(void *arg, double now_s);
    /* Sets where a read finds its shard, and applies the consequences. `found` is not used for a
     * write. */
    hl_status (*access)(void *arg, const struct hl_access_row *row, enum hl_found *found);
};

struct hl_loads {
    const struct hl_access_trace *trace;
    struct hl_links links;
    double *waits; /* one per load */
    double *again; /* the same, only of loads that read nothing for the first time */
    uint64_t again_count;
    bool *seen;         /* by shard */
    bool *node_first;   /* by node: its load of this time reads something for the first time */
    double *node_waits; /* by node: wait of its load of this time; below 0: none */
    uint16_t *busy;     /* nodes that have a load at this time */
    uint32_t busy_count;
    double access_sum;
    struct hl_whatif_result result;
};

hl_status hl_loads_init(struct hl_loads *l, const struct hl_access_trace *trace,
                        const struct hl_whatif_world *world) HL_CHECK;
void hl_loads_fini(struct hl_loads *l);
/* Runs the trace. Afterwards l->result is complete, apart from moves. */
hl_status hl_loads_run(struct hl_loads *l, const struct hl_load_ops *ops, void *arg) HL_CHECK;
/* Returns the 99th percentile of `count` waits, and sorts them; 0 if there are none. */
double hl_loads_p99(double *waits, uint64_t count);
double hl_loads_seconds(const struct hl_access_trace *trace, uint32_t row);

#endif
