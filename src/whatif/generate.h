/* whatif/generate.h - makes synthetic traces from a seed. With integers only, they are the same on
 * every machine.
 *
 *     training    epochs over a data set, each in a different order, and every node reads its part;
 *                 every 20 steps all nodes write their parts of a checkpoint at once; now
 *                 and then all nodes start again from the newest one
 *     inference   tenants with one model each: a node loads a whole model at once; popularity is
 *                 1 / rank, and now and then two tenants swap their ranks
 *     scan        a hot set that all nodes read by popularity, and scans of a large cold one
 *
 * Owns:    nothing; rows are appended to the caller's trace.
 * Threads: any.
 * Errors:  HL_ENOMEM; HL_EINVAL, HL_ENOSPC beyond the limits of a trace.
 * Units:   as access_trace.h.
 * Limits:  1 to 1,000 nodes.
 */
#ifndef HL_WHATIF_GENERATE_H
#define HL_WHATIF_GENERATE_H

#include "whatif/access_trace.h"

#define HL_GENERATE_NODES_MAX 1000

enum hl_generate_kind { HL_GENERATE_TRAINING, HL_GENERATE_INFERENCE, HL_GENERATE_SCAN };

struct hl_generate_opts {
    enum hl_generate_kind kind;
    uint64_t seed;
    uint32_t nodes;
};

/* False: no generator has that name. */
bool hl_generate_find(const char *name, enum hl_generate_kind *out);
/* The trace must be empty. */
hl_status hl_generate(const struct hl_generate_opts *opts, struct hl_access_trace *trace) HL_CHECK;

#endif
