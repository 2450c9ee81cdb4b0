/* core/catalog/manifest_id.h - which stored objects are manifests (core/catalog/manifest.h) and not
 * shards.
 *
 * Ids of shards are random. A manifest's upper half is HL_MANIFEST_HI.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   none.
 * Limits:  a random id is mistaken for a manifest's once in 2^64.
 */
#ifndef HL_CORE_CATALOG_MANIFEST_ID_H
#define HL_CORE_CATALOG_MANIFEST_ID_H

#include <stdbool.h>

#include "base/id.h"

#define HL_MANIFEST_HI UINT64_C(0x6d616e6966657374) /* "manifest" */

static inline bool hl_manifest_is(struct hl_id id)
{
    return id.hi == HL_MANIFEST_HI;
}

#endif
