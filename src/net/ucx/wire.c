/* net/ucx/wire.c - encoding and decoding; all decoded bytes are untrusted. */
#include "net/ucx/wire.h"

#include <string.h>

#include "base/status.h"

static bool is_of(enum hl_wire_direction direction, unsigned type)
{
    switch (type) {
    case HL_WIRE_HELLO:
    case HL_WIRE_PAUSE:
    case HL_WIRE_ASK:
    case HL_WIRE_PUT:
        return direction == HL_WIRE_TO_SERVER;
    default:
        return direction == HL_WIRE_TO_CLIENT;
    }
}

static bool message_fits(const struct hl_wire *w, size_t payload_len)
{
    switch (w->type) {
    case HL_WIRE_WELCOME:
        return payload_len <= HL_WIRE_TEXT_MAX && w->op > 0 && w->op < 1u << HL_WIRE_SESSION_BITS;
    case HL_WIRE_REFUSED:
        return payload_len <= HL_WIRE_TEXT_MAX && w->status < 0 && w->status >= HL_EINTERNAL;
    case HL_WIRE_DATA:
        return payload_len > 0 && payload_len == w->len;
    case HL_WIRE_RESULTS:
        return payload_len > 0 && payload_len <= HL_WIRE_LIST_MAX;
    case HL_WIRE_READY:
        return payload_len == 0 && w->len <= HL_WIRE_PIECES_MAX;
    default:
        return payload_len == 0;
    }
}

bool hl_wire_decode(enum hl_wire_direction direction, const void *header, size_t header_len,
                    size_t payload_len, struct hl_wire *out)
{
    struct hl_wire w;
    if (header_len != sizeof(w))
        return false;
    memcpy(&w, header, sizeof(w));
    if (w.magic != HL_WIRE_MAGIC || w.version != HL_WIRE_VERSION || w.zero != 0 ||
        w.type < HL_WIRE_HELLO || w.type >= HL_WIRE_TYPE_END || !is_of(direction, w.type) ||
        !message_fits(&w, payload_len))
        return false;
    *out = w;
    return true;
}

/* Bits: 63..62 kind, 61..36 session, 35..28 put, 27..0 number. */
uint64_t hl_wire_tag(const struct hl_wire_tag *t)
{
    return (uint64_t)t->kind << 62 | (uint64_t)t->session << 36 | (uint64_t)t->put << 28 |
           (t->number & (HL_WIRE_PIECES_MAX - 1));
}

bool hl_wire_tag_decode(uint64_t tag, struct hl_wire_tag *out)
{
    struct hl_wire_tag t = {
        .kind = (enum hl_wire_kind)(tag >> 62),
        .session = (uint32_t)(tag >> 36) & ((1u << HL_WIRE_SESSION_BITS) - 1),
        .put = (uint8_t)(tag >> 28),
        .number = (uint32_t)tag & (HL_WIRE_PIECES_MAX - 1),
    };
    if ((t.kind != HL_WIRE_BATCH && t.kind != HL_WIRE_PIECE) || t.session == 0)
        return false;
    *out = t;
    return true;
}
