/* net/tcp/wire.h - encoding of the messages of the data protocol over TCP.
 *
 * Every message is a header of HL_TCP_HEAD bytes and a payload whose length the header gives. The
 * bytes of a large object are the one exception: they follow READY without headers of their own.
 * docs/formats.md defines the protocol for other implementations.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  the decoder returns false for anything that is not exactly one of these messages.
 * Units:   bytes; little endian on every host.
 * Limits:  payloads: HL_TCP_TEXT_MAX for text, HL_WIRE_LIST_MAX for lists, HL_CHUNK for DATA.
 */
#ifndef HL_NET_TCP_WIRE_H
#define HL_NET_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/net.h"

#define HL_TCP_HEAD     64
#define HL_TCP_MAGIC    0x31544c48u /* "HLT1" */
#define HL_TCP_VERSION  1
#define HL_TCP_HELLO    (HL_TCP_HEAD + HL_NET_KEY)
#define HL_TCP_TEXT_MAX 1024
/* Flags of WELCOME: the server has RDMA, and MEET is answered. */
#define HL_TCP_HAS_RDMA 1u

enum hl_tcp_type {
    HL_TCP_TYPE_HELLO = 1, /* c->s  first message of a connection; payload: the key */
    HL_TCP_TYPE_WELCOME,   /* s->c  offset = flags, len = pool, id = server */
    HL_TCP_TYPE_ASK,       /* c->s  op, offset, len: 1 to HL_CHUNK bytes of the pool */
    HL_TCP_TYPE_DATA,      /* s->c  op, offset, len; payload: the bytes */
    HL_TCP_TYPE_REFUSED,   /* s->c  op, status; payload: text */
    HL_TCP_TYPE_PUT,       /* c->s  op, len, crc, id it wants (none = any) */
    HL_TCP_TYPE_READY,     /* s->c  op: the client sends the len bytes of the PUT */
    HL_TCP_TYPE_WAIT,      /* s->c the server is alive and working on a put of this connection */
    HL_TCP_TYPE_STORED,    /* s->c  op, id */
    HL_TCP_TYPE_BATCH,     /* c->s  op; payload: a list of items (net/put_list.h) */
    HL_TCP_TYPE_RESULTS,   /* s->c  op; payload: a list of results */
    HL_TCP_TYPE_MEET,      /* c->s  op: the client has RDMA too */
    HL_TCP_TYPE_MET,       /* s->c  op, offset = port of UCX, id = ticket for its HELLO */
    HL_TCP_TYPE_END
};

struct hl_tcp_msg {
    enum hl_tcp_type type;
    uint64_t op; /* number of the request, chosen by the client, never 0 */
    uint64_t offset;
    uint64_t len;
    struct hl_id id;
    uint32_t crc;
    int32_t status;
    uint32_t payload; /* bytes that follow the header */
};

enum hl_tcp_direction { HL_TCP_TO_SERVER, HL_TCP_TO_CLIENT };

void hl_tcp_encode(const struct hl_tcp_msg *msg, uint8_t head[HL_TCP_HEAD]);
bool hl_tcp_decode(enum hl_tcp_direction direction, const uint8_t head[HL_TCP_HEAD],
                   struct hl_tcp_msg *out);
/* The version that a header names, regardless of its other fields; 0 when it does not start with
 * the magic. */
unsigned hl_tcp_version(const uint8_t head[HL_TCP_HEAD]);
/* Whether the first `len` bytes of a connection can become a message of ours. */
bool hl_tcp_begins(const uint8_t *bytes, size_t len);
/* Constant-time comparison. */
bool hl_tcp_key_equal(const uint8_t a[HL_NET_KEY], const uint8_t b[HL_NET_KEY]);

#endif
