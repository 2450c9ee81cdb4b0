/* mem/tier/info.h - a tier as TierInfo of the RPC schema.
 *
 * Owns:    nothing; lists and texts live in the arena.
 * Threads: any.
 * Errors:  the arena remembers HL_ENOMEM.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MEM_TIER_INFO_H
#define HL_MEM_TIER_INFO_H

#include "api/types.h"
#include "mem/tier/tier.h"

struct hl_api_tier_info hl_tier_info(struct hl_tier_store *t, struct hl_arena *arena);

#endif
