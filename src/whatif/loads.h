/* whatif/loads.h - carries a trace out: each read is found in some tier, takes its links, and
 * its load waits for the last of its shards.
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

/* What a policy does. */
struct hl_load_ops {
    /* Before the accesses of that time; NULL: nothing. */
    hl_status (*advance)(void *arg, double now_s);
    /* Where the read finds its shard, and what follows from it. Of a write `found` has no meaning.
     */
    hl_status (*access)(void *arg, const struct hl_access_row *row, enum hl_found *found);
};

struct hl_loads {
    const struct hl_access_trace *trace;
    struct hl_links links;
    double *waits; /* of each load */
    double *again; /* of those that read nothing for the first time */
    uint64_t again_count;
    bool *seen;         /* by shard */
    bool *node_first;   /* the load of this time reads something for the first time */
    double *node_waits; /* of the loads of this time; below 0: none */
    uint16_t *busy;     /* nodes with one */
    uint32_t busy_count;
    double access_sum;
    struct hl_whatif_result result;
};

hl_status hl_loads_init(struct hl_loads *l, const struct hl_access_trace *trace,
                        const struct hl_whatif_world *world) HL_CHECK;
void hl_loads_fini(struct hl_loads *l);
/* l->result is complete then, apart from moves. */
hl_status hl_loads_run(struct hl_loads *l, const struct hl_load_ops *ops, void *arg) HL_CHECK;
/* The 99th percentile of `count` waits, which it sorts; 0 of none. */
double hl_loads_p99(double *waits, uint64_t count);
double hl_loads_seconds(const struct hl_access_trace *trace, uint32_t row);

#endif
