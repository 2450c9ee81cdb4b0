/* net/ucx_wire.h - the messages between hl_net client and server: one fixed header per UCX active
 * message, then a payload that depends on the type.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  hl_wire_check says 0 for a header that is not ours.
 * Units:   bytes; little endian.
 * Limits:  a text or key payload is at most HL_WIRE_TEXT_MAX bytes.
 */
#ifndef HL_NET_UCX_WIRE_H
#define HL_NET_UCX_WIRE_H

#include <assert.h>
#include <stdint.h>

#define HL_WIRE_AM_ID    0x48
#define HL_WIRE_MAGIC    0x314e4c48u /* "HLN1" */
#define HL_WIRE_VERSION  1
#define HL_WIRE_TEXT_MAX 1024

enum hl_wire_type {
    HL_WIRE_HELLO = 1, /* c->s  first message of a connection */
    HL_WIRE_WELCOME,   /* s->c  offset = pool address, len = pool length, id = server; key */
    HL_WIRE_PAUSE,     /* c->s  len = ms; the server answers PAUSED, then stands still */
    HL_WIRE_PAUSED,    /* s->c  len = ms it stands still, 0 = not now */
    HL_WIRE_ASK,       /* c->s  op, offset, len */
    HL_WIRE_DATA,      /* s->c  op, offset, len; the bytes */
    HL_WIRE_REFUSED,   /* s->c  op, status; text */
    HL_WIRE_PUT,       /* c->s  op, len, crc, id it wants (0 = any) */
    HL_WIRE_READY,     /* s->c  op */
    HL_WIRE_PIECE,     /* c->s  op, offset, len; the bytes */
    HL_WIRE_STORED,    /* s->c  op, id */
    HL_WIRE_TYPE_END
};

struct hl_wire {
    uint32_t magic;
    uint8_t version;
    uint8_t type;
    uint16_t zero;
    uint64_t op; /* number of the request, chosen by the client */
    uint64_t offset;
    uint64_t len;
    uint64_t id_hi;
    uint64_t id_lo;
    uint32_t crc;
    int32_t status;
};

static_assert(sizeof(struct hl_wire) == 56, "the wire header has no padding");

static inline int hl_wire_check(const void *header, size_t header_len)
{
    const struct hl_wire *w = header;
    return header_len == sizeof(*w) && w->magic == HL_WIRE_MAGIC && w->version == HL_WIRE_VERSION &&
           w->type >= HL_WIRE_HELLO && w->type < HL_WIRE_TYPE_END && w->zero == 0;
}

#endif
