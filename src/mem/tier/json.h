/* mem/tier/json.h - a tier as TierInfo of the RPC schema.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  NULL when out of memory.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MEM_TIER_JSON_H
#define HL_MEM_TIER_JSON_H

#include <jansson.h>

#include "mem/tier/tier.h"

/* New reference. */
json_t *hl_tier_json(struct hl_tier_store *t);

#endif
