/* core/catalog/derived_id.h - ids that show which stored shards were cut from others and can be cut
 * again.
 *
 * Ids of shards are random. The upper half of a derived shard's id is HL_DERIVED_HI, so an eviction
 * can tell without a catalogue that the shard can be made again. The lower half is a random 40-bit
 * number that all shards of a cut share, followed by the number of the shard.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   none.
 * Limits:  a random id is mistaken for a derived one once in 2^64; 2^24 shards per cut. Two cuts
 *          with the same number can't be in a pool together: the later one fails and is retried.
 */
#ifndef HL_CORE_CATALOG_DERIVED_ID_H
#define HL_CORE_CATALOG_DERIVED_ID_H

#include <stdbool.h>

#include "base/id.h"

#define HL_DERIVED_HI UINT64_C(0x6465726976656421) /* "derived!" */

static inline bool hl_id_is_derived(struct hl_id id)
{
    return id.hi == HL_DERIVED_HI;
}

#define HL_DERIVED_SHARD_BITS 24

/* Shard `number` of the cut `cut`. */
static inline struct hl_id hl_id_derived(uint64_t cut, uint32_t number)
{
    return (struct hl_id){HL_DERIVED_HI, cut << HL_DERIVED_SHARD_BITS | number};
}

/* The number of the cut that it belongs to. */
static inline uint64_t hl_id_cut(struct hl_id id)
{
    return id.lo >> HL_DERIVED_SHARD_BITS;
}

/* A new random cut number, never 0. */
static inline uint64_t hl_cut_random(void)
{
    return hl_id_random().lo >> HL_DERIVED_SHARD_BITS | 1;
}

#endif
