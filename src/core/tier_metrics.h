/* core/tier_metrics.h - tiers as Prometheus gauges: helios_tier_bytes, helios_shards.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOMEM when the text grows beyond the buffer's maximum.
 * Units:   bytes.
 * Limits:  none of its own.
 */
#ifndef HL_CORE_TIER_METRICS_H
#define HL_CORE_TIER_METRICS_H

#include <jansson.h>

#include "base/buf.h"

/* `tiers`: List(TierInfo) of helios.capnp; NULL = none. */
hl_status hl_tier_gauges(const json_t *tiers, struct hl_buf *out) HL_CHECK;

#endif
