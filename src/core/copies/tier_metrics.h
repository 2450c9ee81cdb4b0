/* core/copies/tier_metrics.h - exports tiers as Prometheus gauges: helios_tier_bytes,
 * helios_shards, helios_chunk_bytes, helios_chunks_asked_bytes.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOMEM when the text grows beyond the buffer's maximum.
 * Units:   bytes.
 * Limits:  none of its own.
 */
#ifndef HL_CORE_COPIES_TIER_METRICS_H
#define HL_CORE_COPIES_TIER_METRICS_H

#include "api/types.h"
#include "base/buf.h"

hl_status hl_tier_gauges(const struct hl_api_tier_info_list *tiers, struct hl_buf *out) HL_CHECK;

#endif
