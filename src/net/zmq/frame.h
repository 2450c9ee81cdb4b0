/* net/zmq/frame.h - the header in front of every frame of the migration channel.
 *
 * Owns:    nothing; pure functions over bytes.
 * Threads: any.
 * Errors:  HL_EPROTO for bytes that are not a valid frame; the text names the wrong field.
 * Units:   bytes, chunk numbers from 0. All integers little endian on the wire.
 * Limits:  the chunk size is a power of two in HL_MIG_CHUNK_MIN..HL_MIG_CHUNK_MAX (the last chunk
 *          of an object may be shorter); at most HL_MIG_CHUNKS_MAX chunks per object.
 */
#ifndef HL_NET_ZMQ_FRAME_H
#define HL_NET_ZMQ_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"

#define HL_MIG_HEADER     96
#define HL_MIG_CHUNK_MIN  (256u << 10)
#define HL_MIG_CHUNK_MAX  (8u << 20)
#define HL_MIG_CHUNKS_MAX (1u << 22)

/* One ZMQ message: the header is one part; the payload, if the type has one, is the next. */
enum hl_mig_type {
    HL_MIG_OPEN = 1, /* sender: a new object: total, chunk size, CRC of the whole */
    HL_MIG_RESUME,   /* sender: resumes an object: what has arrived? */
    HL_MIG_DATA,     /* sender: one chunk; crc is that of the chunk's bytes */
    HL_MIG_PING,     /* sender: is the receiver alive? */
    HL_MIG_STATE,    /* receiver: payload = bitmap of the chunks it has; carries the first credit */
    HL_MIG_CREDIT,   /* receiver: number of chunks allowed since the last STATE */
    HL_MIG_NACK,     /* receiver: this chunk arrived damaged; also carries credit */
    HL_MIG_DONE,     /* receiver: stored under `result` */
    HL_MIG_REFUSED,  /* receiver: status; payload = the error text */
    HL_MIG_PONG,     /* receiver */
    HL_MIG_CANCEL,   /* sender: gives this id up; the answer is REFUSED or DONE */
    HL_MIG_TYPE_END,
};

#define HL_MIG_F_ZSTD 1u /* of DATA: the payload is a single zstd frame, smaller than its chunk */

struct hl_mig_frame {
    enum hl_mig_type type;
    uint32_t flags;
    uint32_t epoch; /* grows with every OPEN and RESUME; answers repeat it */
    struct hl_id id;
    uint64_t total;
    uint32_t chunk_size;
    uint32_t chunk_count;
    uint32_t chunk;
    uint32_t length; /* payload bytes */
    uint32_t crc;    /* of the uncompressed bytes */
    int32_t status;
    uint32_t credit;
    struct hl_id result; /* OPEN, RESUME: id that the sender wants (none = any); DONE: its id */
};

void hl_mig_encode(const struct hl_mig_frame *frame, uint8_t out[HL_MIG_HEADER]);
/* Checks everything that can be checked from the header alone, its own CRC included. */
hl_status hl_mig_decode(const void *buf, size_t len, struct hl_mig_frame *out) HL_CHECK;

/* Checks that size, chunk size and count of an object agree and are within the limits. */
hl_status hl_mig_geometry(uint64_t total, uint32_t chunk_size, uint32_t chunk_count) HL_CHECK;
/* Bytes of chunk number `chunk`; the geometry is valid and chunk < count. */
uint32_t hl_mig_chunk_len(uint64_t total, uint32_t chunk_size, uint32_t chunk);

static inline uint32_t hl_mig_chunk_count(uint64_t total, uint32_t chunk_size)
{
    return (uint32_t)((total + chunk_size - 1) / chunk_size);
}

static inline size_t hl_mig_bitmap_len(uint32_t chunk_count)
{
    return ((size_t)chunk_count + 7) / 8;
}

static inline bool hl_mig_bit(const uint8_t *bitmap, uint32_t chunk)
{
    return bitmap[chunk / 8] >> (chunk % 8) & 1;
}

static inline void hl_mig_bit_set(uint8_t *bitmap, uint32_t chunk)
{
    bitmap[chunk / 8] |= (uint8_t)(1u << (chunk % 8));
}

static inline void hl_mig_bit_clear(uint8_t *bitmap, uint32_t chunk)
{
    bitmap[chunk / 8] &= (uint8_t) ~(1u << (chunk % 8));
}

#endif
