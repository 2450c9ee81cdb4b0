/* mem/shard_sums.h - the checksums of a shard while it is written: those of every tensor, every MiB
 * and the whole shard, from one pass over bytes that are still in the cache.
 *
 * The header contains the tensors' CRCs, so it is known, and summed, only at the end.
 *
 * Owns:    nothing; dst and chunks are borrowed.
 * Threads: one at a time.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MEM_SHARD_SUMS_H
#define HL_MEM_SHARD_SUMS_H

#include <stdint.h>

/* Initialise dst, at (the size of the header) and chunks (zeroed); set the rest to 0. */
struct hl_shard_sums {
    uint8_t *dst;
    uint64_t at;        /* dst[0, at) is written, CRCs cover [header's end, at) */
    uint32_t piece_crc; /* since the last tensor or chunk boundary */
    uint64_t piece_len;
    uint32_t tensor_crc;
    uint32_t *chunks; /* one per started MiB */
};

/* dst[at, at + len) has just been written. */
void hl_shard_sums_add(struct hl_shard_sums *s, uint64_t len);
/* A tensor ends here: returns the CRC of what was added since the last call. */
uint32_t hl_shard_sums_tensor(struct hl_shard_sums *s);
/* The header in dst[0, header_size) is final: completes the chunk CRCs and returns the CRC of
 * dst[0, at). */
uint32_t hl_shard_sums_finish(struct hl_shard_sums *s, uint64_t header_size);

#endif
