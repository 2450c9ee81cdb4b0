/* net/tcp/wire.c - encoding and decoding; all decoded bytes are untrusted.
 *
 * Offsets: 0 magic, 4 version, 5 type, 6 zero, 8 op, 16 offset, 24 len, 32 id, 48 crc, 52 status,
 * 56 payload, 60 CRC-32 of the 60 bytes before it. */
#include "net/tcp/wire.h"

#include <endian.h>
#include <string.h>

#include "base/crc32.h"
#include "base/status.h"
#include "net/net.h"
#include "net/put_list.h"

#define SUMMED 60

static void wire_put16(uint8_t *at, uint16_t v)
{
    v = htole16(v);
    memcpy(at, &v, sizeof(v));
}

static void wire_put32(uint8_t *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, sizeof(v));
}

static void wire_put64(uint8_t *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof(v));
}

static uint32_t wire_get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof(v));
    return le32toh(v);
}

static uint64_t wire_get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof(v));
    return le64toh(v);
}

void hl_tcp_encode(const struct hl_tcp_msg *msg, uint8_t head[HL_TCP_HEAD])
{
    wire_put32(head, HL_TCP_MAGIC);
    head[4] = HL_TCP_VERSION;
    head[5] = (uint8_t)msg->type;
    wire_put16(head + 6, 0);
    wire_put64(head + 8, msg->op);
    wire_put64(head + 16, msg->offset);
    wire_put64(head + 24, msg->len);
    wire_put64(head + 32, msg->id.hi);
    wire_put64(head + 40, msg->id.lo);
    wire_put32(head + 48, msg->crc);
    wire_put32(head + 52, (uint32_t)msg->status);
    wire_put32(head + 56, msg->payload);
    wire_put32(head + SUMMED, hl_crc32(0, head, SUMMED));
}

static bool is_for_server(enum hl_tcp_type type)
{
    return type == HL_TCP_TYPE_HELLO || type == HL_TCP_TYPE_ASK || type == HL_TCP_TYPE_PUT ||
           type == HL_TCP_TYPE_BATCH || type == HL_TCP_TYPE_MEET;
}

/* Checks that the fields that a type does not use are 0. */
static bool fields_fit(const struct hl_tcp_msg *m)
{
    bool plain = m->offset == 0 && m->crc == 0 && m->status == 0 && hl_id_is_none(m->id);
    switch (m->type) {
    case HL_TCP_TYPE_HELLO:
        return plain && m->op == 0 && m->len == 0 && m->payload == HL_NET_KEY;
    case HL_TCP_TYPE_WELCOME:
        return m->op == 0 && m->offset <= HL_TCP_HAS_RDMA && m->len > 0 && !hl_id_is_none(m->id) &&
               m->crc == 0 && m->status == 0 && m->payload == 0;
    case HL_TCP_TYPE_ASK:
        return m->op > 0 && m->len > 0 && m->len <= HL_CHUNK && hl_id_is_none(m->id) &&
               m->crc == 0 && m->status == 0 && m->payload == 0;
    case HL_TCP_TYPE_DATA:
        return m->op > 0 && m->len > 0 && m->len <= HL_CHUNK && hl_id_is_none(m->id) &&
               m->crc == 0 && m->status == 0 && m->payload == m->len;
    case HL_TCP_TYPE_REFUSED: /* op 0 refers to the connection itself */
        return m->offset == 0 && m->len == 0 && hl_id_is_none(m->id) && m->crc == 0 &&
               m->status < 0 && m->status >= HL_EINTERNAL && m->payload <= HL_TCP_TEXT_MAX;
    case HL_TCP_TYPE_PUT:
        return m->op > 0 && m->offset == 0 && m->len > 0 && m->status == 0 && m->payload == 0;
    case HL_TCP_TYPE_READY:
        return plain && m->op > 0 && m->len == 0 && m->payload == 0;
    case HL_TCP_TYPE_WAIT:
        return plain && m->op == 0 && m->len == 0 && m->payload == 0;
    case HL_TCP_TYPE_STORED:
        return m->op > 0 && m->offset == 0 && m->len == 0 && m->crc == 0 && m->status == 0 &&
               m->payload == 0;
    case HL_TCP_TYPE_BATCH:
    case HL_TCP_TYPE_RESULTS:
        return plain && m->op > 0 && m->len == 0 && m->payload > 0 &&
               m->payload <= HL_WIRE_LIST_MAX;
    case HL_TCP_TYPE_MEET:
        return plain && m->op > 0 && m->len == 0 && m->payload == 0;
    case HL_TCP_TYPE_MET:
        return m->op > 0 && m->offset > 0 && m->offset <= UINT16_MAX && m->len == 0 &&
               !hl_id_is_none(m->id) && m->crc == 0 && m->status == 0 && m->payload == 0;
    default:
        return false;
    }
}

bool hl_tcp_decode(enum hl_tcp_direction direction, const uint8_t head[HL_TCP_HEAD],
                   struct hl_tcp_msg *out)
{
    if (wire_get32(head) != HL_TCP_MAGIC || head[4] != HL_TCP_VERSION || head[6] != 0 ||
        head[7] != 0 || wire_get32(head + SUMMED) != hl_crc32(0, head, SUMMED))
        return false;
    struct hl_tcp_msg m = {
        .type = (enum hl_tcp_type)head[5],
        .op = wire_get64(head + 8),
        .offset = wire_get64(head + 16),
        .len = wire_get64(head + 24),
        .id = {wire_get64(head + 32), wire_get64(head + 40)},
        .crc = wire_get32(head + 48),
        .status = (int32_t)wire_get32(head + 52),
        .payload = wire_get32(head + 56),
    };
    if (is_for_server(m.type) != (direction == HL_TCP_TO_SERVER) || !fields_fit(&m))
        return false;
    *out = m;
    return true;
}

unsigned hl_tcp_version(const uint8_t head[HL_TCP_HEAD])
{
    return wire_get32(head) == HL_TCP_MAGIC ? head[4] : 0;
}

bool hl_tcp_begins(const uint8_t *bytes, size_t len)
{
    uint8_t magic[4];
    wire_put32(magic, HL_TCP_MAGIC);
    return memcmp(bytes, magic, len < sizeof(magic) ? len : sizeof(magic)) == 0;
}

bool hl_tcp_key_equal(const uint8_t a[HL_NET_KEY], const uint8_t b[HL_NET_KEY])
{
    volatile uint8_t differs = 0;
    for (size_t i = 0; i < HL_NET_KEY; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}
