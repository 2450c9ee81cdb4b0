/* whatif/tiers.h - runs a trace through tiers of textbook caches: one in each L1 and L2, and one in
 * L3. Each cache sees the misses of the one above it. A read leaves a copy in every tier that it
 * passed, and so does a write.
 *
 * Owns:    nothing.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   as whatif.h.
 * Limits:  none of its own.
 */
#ifndef HL_WHATIF_TIERS_H
#define HL_WHATIF_TIERS_H

#include "core/cache/cache.h"
#include "whatif/whatif.h"

hl_status hl_tiers_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                       enum hl_cache_kind kind, struct hl_whatif_result *out) HL_CHECK;
/* Mean size of the trace's shards. */
uint64_t hl_tiers_typical_bytes(const struct hl_access_trace *trace);

#endif
