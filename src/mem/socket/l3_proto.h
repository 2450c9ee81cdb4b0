/* mem/socket/l3_proto.h - the messages on the pool's Unix socket (SOCK_SEQPACKET).
 *
 * One request, one answer, in order. HELLO comes first; its answer carries a read-only descriptor
 * of the pool. PUT carries a memfd sealed against shrinking. Pins belong to the connection and are
 * dropped when it closes.
 *
 * Owns:    nothing.
 * Threads: none.
 * Errors:  a message of wrong length, magic or version closes the connection; every other error is
 *          answered with a status and a sentence.
 * Units:   bytes, all little endian.
 * Limits:  fixed sizes; one descriptor per message.
 */
#ifndef HL_MEM_L3_PROTO_H
#define HL_MEM_L3_PROTO_H

#include <stdint.h>

#define HL_L3_MAGIC   UINT32_C(0x334c4c48) /* "HLL3" */
#define HL_L3_VERSION 1

enum hl_l3_type {
    HL_L3_HELLO = 1, /* -> uuid, incarnation, offset = file size, size = capacity, text = RPC
                        address or "", slot = number of words for pins that may rest, descriptor */
    HL_L3_PIN = 2,   /* id, offset (0 = sealed shards only), size = 1: it may rest -> id, offset,
                        size, crc32, gen, slot, incarnation = number of its word, 0 = none */
    HL_L3_UNPIN = 3, /* id, offset, size = number of its word -> */
    HL_L3_PUT = 4,   /* id (0 = a fresh one), size, memfd -> id, offset, size, crc32, gen, slot */
    HL_L3_MAP = 6,   /* id -> id, offset in the descriptor, incarnation = bytes to map, size, crc32,
                        gen, slot = token, text = device, or device and PCI address separated by a
                        blank; descriptor of device memory */
    HL_L3_UNMAP = 7, /* offset = token -> */
    HL_L3_DROP = 5,  /* id of the shard that this connection put last -> */
    HL_L3_LEASE = 8, /* as PUT with id 0, but private to this connection: pinned once, never found,
                        and freed with the last UNPIN */
    HL_L3_REST = 9,  /* -> descriptor of the words (mem/socket/l3_rests.h), which both sides write;
                        sent once, if HELLO's answer offers words */
};

struct hl_l3_request {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t seq;
    uint32_t spare;
    uint64_t id_hi;
    uint64_t id_lo;
    uint64_t offset;
    uint64_t size;
};

struct hl_l3_answer {
    uint32_t magic;
    uint16_t version;
    uint16_t type;  /* of the request */
    uint32_t seq;   /* of the request */
    int32_t status; /* hl_status */
    uint64_t id_hi;
    uint64_t id_lo;
    uint64_t uuid_hi;
    uint64_t uuid_lo;
    uint64_t incarnation;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t table_crc;
    uint32_t gen;
    uint32_t slot;
    char text[256]; /* NUL-terminated; the reason when status is not HL_OK, else depends on type */
};

_Static_assert(sizeof(struct hl_l3_request) == 48, "wire size");
_Static_assert(sizeof(struct hl_l3_answer) == 344, "wire size");

#endif
