/* hybridps/layout/layout.h - how tensors fill chunks of one size, and which size fills them best.
 *
 * The rule is that of tensors.h: in their order, each at a multiple of 64 bytes in the first chunk
 * of its kind with room, else in a new one; a longer tensor gets a chunk of its own length, which
 * it shares with nobody: what is small would keep what is huge on the device.
 *
 * Owns:    nothing; a pure calculation.
 * Threads: any.
 * Errors:  HL_EINVAL (no items, sizes that overflow), HL_ENOMEM.
 * Units:   bytes.
 * Limits:  2^32 - 1 items; the sizes tried are at most HL_LAYOUT_TRIES.
 */
#ifndef HL_HYBRIDPS_LAYOUT_LAYOUT_H
#define HL_HYBRIDPS_LAYOUT_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_LAYOUT_TRIES 1024
#define HL_LAYOUT_GOOD  0.99 /* of the chunks' bytes are in use */
#define HL_LAYOUT_NEAR  0.03 /* below the best there is */

struct hl_layout_item {
    uint64_t bytes;
    uint32_t kind; /* below HL_LAYOUT_KINDS */
};

#define HL_LAYOUT_KINDS 8

struct hl_layout {
    uint64_t chunk_bytes;
    uint64_t chunks;
    uint64_t used, allocated; /* bytes of items; of chunks */
    uint64_t longest;         /* chunk */
};

struct hl_layout_options {
    uint64_t least, most; /* of a chunk; least 0 = the longest item, most 0 = no limit */
    int largest;          /* the largest good size, not the smallest; `most` must be given */
    uint64_t granule;     /* chunks are multiples of it; 0 = 64 */
};

static inline double hl_layout_utilisation(const struct hl_layout *l)
{
    return l->allocated > 0 ? (double)l->used / (double)l->allocated : 0;
}

/* chunk_of (may be NULL): n numbers, the chunk of each item. */
hl_status hl_layout_fill(const struct hl_layout_item *items, size_t n, uint64_t chunk_bytes,
                         uint64_t granule, uint32_t *chunk_of, struct hl_layout *out) HL_CHECK;
/* The smallest size in [least, most] with a good utilisation; where there is none, the smallest
 * near the best. Tried are `least` (`most` for the largest) and the sizes that a run of items of a
 * kind fills exactly. */
hl_status hl_layout_search(const struct hl_layout_item *items, size_t n,
                           const struct hl_layout_options *o, struct hl_layout *out) HL_CHECK;

#endif
