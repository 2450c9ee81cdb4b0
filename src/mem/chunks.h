/* mem/chunks.h - the CRCs of a shard's pieces, one per started MiB: checks that they add up to the
 * shard's CRC, and that copied bytes match them.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL (wrong count, range outside the shard), HL_ECORRUPT.
 * Units:   bytes; CRC-32 as in base/crc32.h.
 * Limits:  none.
 */
#ifndef HL_MEM_CHUNKS_H
#define HL_MEM_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/id.h"
#include "base/status.h"

struct hl_chunks {
    uint64_t size;        /* of the shard */
    uint32_t crc32;       /* of the shard; used instead of the table when there is one chunk */
    const uint32_t *crcs; /* one per started MiB */
};

static inline uint32_t hl_chunk_crc(const struct hl_chunks *c, uint64_t i)
{
    return c->size <= HL_CHUNK ? c->crc32 : c->crcs[i];
}

/* HL_ECORRUPT when the chunk CRCs do not add up to crc32. */
hl_status hl_chunks_check(struct hl_id id, uint64_t size, uint32_t crc32, const uint32_t *crcs,
                          size_t count) HL_CHECK;
/* [offset, offset + len) lies in the shard. */
hl_status hl_chunks_range(struct hl_id id, uint64_t size, uint64_t offset, size_t len) HL_CHECK;
/* Copies a range of the shard whose bytes begin at `data`, and checks each chunk that it touches as
 * a whole. False: *bad is the number of the first bad chunk. */
bool hl_chunks_copy(const struct hl_chunks *c, const void *data, uint64_t offset, void *dst,
                    size_t len, uint64_t *bad);

#endif
