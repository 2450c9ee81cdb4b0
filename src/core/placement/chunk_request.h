/* core/placement/chunk_request.h - when the HybridPS processes of a node are asked for memory of a
 * tier, and how much their chunks may keep.
 *
 * Shards leave first, because one that is missed is loaded again, while chunks belong to a training
 * that runs:
 *
 *     above the high watermark    the chunks are asked, if the tier would still be above its goal
 *                                 after all shards that may leave it have left
 *     below the low watermark     they are no longer asked; nor are they if there are no chunks
 *     between them                nothing begins or ends; the request follows the shards that stay
 *
 * The goal is halfway between the watermarks. If the goal were the low watermark, meeting the
 * request would end it: the chunks would grow and be asked again.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none; sums stop at the maximum.
 */
#ifndef HL_CORE_PLACEMENT_CHUNK_REQUEST_H
#define HL_CORE_PLACEMENT_CHUNK_REQUEST_H

#include <stdint.h>

#include "core/placement/params.h"

struct hl_chunk_tier {
    uint64_t capacity; /* 0: unknown, nothing is asked */
    uint64_t shards;   /* use without chunks */
    uint64_t stay;     /* the part of `shards` that may not leave */
    uint64_t chunks;
};

/* What the chunks may keep; 0: nothing is asked of them. before: the last result, 0 at first. */
uint64_t hl_chunk_request_decide(const struct hl_chunk_tier *t,
                                 const struct hl_placement_params *params, uint64_t before);

/* The part of the request for chunks of one device among others of the tier. */
uint64_t hl_chunk_request_part(uint64_t request, uint64_t chunks, uint64_t chunks_of_all);

#endif
