/* net/ucx/wire.h - encoding of the messages between client and server.
 *
 * Control messages are UCX active messages: a fixed header, then a payload that depends on the
 * type. The bytes of puts are UCX tagged messages, whose 64-bit tag names the connection, the put
 * and the piece. A batch of small objects is one message; a large object is a series of pieces that
 * the server has made room for.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  a decoder returns 0 on malformed input.
 * Units:   bytes; little endian. Payloads may lie at any address.
 * Limits:  a text or key is at most HL_WIRE_TEXT_MAX bytes.
 */
#ifndef HL_NET_UCX_WIRE_H
#define HL_NET_UCX_WIRE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/put_list.h"

#define HL_WIRE_AM_ID    0x48
#define HL_WIRE_MAGIC    0x314e4c48u /* "HLN1" */
#define HL_WIRE_VERSION  2
#define HL_WIRE_TEXT_MAX 1024

enum hl_wire_type {
    HL_WIRE_HELLO = 1, /* c->s  first message of a connection */
    HL_WIRE_WELCOME,   /* s->c  op = session, offset, len = pool, id = server; key */
    HL_WIRE_PAUSE,     /* c->s the server answers PAUSED, then pauses */
    HL_WIRE_PAUSED,    /* s->c len = ms of the pause, 0 = not now */
    HL_WIRE_ASK,       /* c->s  op, offset, len */
    HL_WIRE_DATA,      /* s->c  op, offset, len; the bytes */
    HL_WIRE_REFUSED,   /* s->c  op, status; text */
    HL_WIRE_PUT,       /* c->s  op, offset = bytes of a piece, len, crc, id it wants (0 = any) */
    HL_WIRE_READY,     /* s->c  op, len = pieces that have room so far */
    HL_WIRE_WAIT,      /* s->c the server is still working on this client's puts */
    HL_WIRE_STORED,    /* s->c  op, id */
    HL_WIRE_RESULTS,   /* s->c  op = number of the batch; a list of results */
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

enum hl_wire_direction { HL_WIRE_TO_SERVER, HL_WIRE_TO_CLIENT };

/* True, and sets *out, when header and payload length are those of a message in this direction. */
bool hl_wire_decode(enum hl_wire_direction direction, const void *header, size_t header_len,
                    size_t payload_len, struct hl_wire *out);

/* ---- tags ---- */

enum hl_wire_kind { HL_WIRE_BATCH = 1, HL_WIRE_PIECE };

#define HL_WIRE_SESSION_BITS 26
#define HL_WIRE_PIECES_MAX   (1u << 28)

struct hl_wire_tag {
    enum hl_wire_kind kind;
    uint32_t session; /* of the connection, never 0 */
    uint8_t put;      /* low bits of the PUT's op */
    uint32_t number;  /* of the piece, or of the batch modulo HL_WIRE_PIECES_MAX */
};

uint64_t hl_wire_tag(const struct hl_wire_tag *t);
bool hl_wire_tag_decode(uint64_t tag, struct hl_wire_tag *out);

#endif
