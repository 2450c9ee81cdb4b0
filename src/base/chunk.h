/* base/chunk.h - the pieces of a shard, each of which has its own checksum.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_BASE_CHUNK_H
#define HL_BASE_CHUNK_H

#include <stdint.h>

/* Size of every chunk of a shard except the last. */
#define HL_CHUNK ((uint64_t)1 << 20)

static inline uint64_t hl_chunk_count(uint64_t size)
{
    return size / HL_CHUNK + (size % HL_CHUNK != 0);
}

/* Bytes of chunk i. */
static inline uint64_t hl_chunk_len(uint64_t size, uint64_t i)
{
    return size - i * HL_CHUNK < HL_CHUNK ? size - i * HL_CHUNK : HL_CHUNK;
}

#endif
