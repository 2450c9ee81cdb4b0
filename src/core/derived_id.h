/* core/derived_id.h - which stored shards were cut from others and can be cut again.
 *
 * Ids of shards are random. The upper half of a derived one is HL_DERIVED_HI: whoever needs room
 * sees without a catalogue that nothing is lost with it.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   none.
 * Limits:  a random id is taken for a derived one once in 2^64.
 */
#ifndef HL_CORE_DERIVED_ID_H
#define HL_CORE_DERIVED_ID_H

#include <stdbool.h>

#include "base/id.h"

#define HL_DERIVED_HI UINT64_C(0x6465726976656421) /* "derived!" */

static inline bool hl_id_is_derived(struct hl_id id)
{
    return id.hi == HL_DERIVED_HI;
}

/* A fresh one. */
static inline struct hl_id hl_id_derived(void)
{
    return (struct hl_id){HL_DERIVED_HI, hl_id_random().lo};
}

#endif
