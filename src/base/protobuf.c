#include "base/protobuf.h"

#define NUMBER_MAX ((1u << 29) - 1) /* of a field */

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };

static bool take_varint(struct hl_protobuf *p, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        unsigned char byte = (unsigned char)*p->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool take_fixed(struct hl_protobuf *p, size_t len, uint64_t *out)
{
    *out = 0;
    if ((size_t)(p->end - p->at) < len)
        return false;
    for (size_t i = 0; i < len; i++)
        *out |= (uint64_t)(unsigned char)*p->at++ << 8 * i;
    return true;
}

static bool take_bytes(struct hl_protobuf *p, struct hl_protobuf_field *out)
{
    uint64_t len;
    if (!take_varint(p, &len) || len > (size_t)(p->end - p->at))
        return false;
    out->is_bytes = true;
    out->bytes = p->at;
    out->len = (size_t)len;
    p->at += len;
    return true;
}

static bool take_field(struct hl_protobuf *p, struct hl_protobuf_field *out)
{
    uint64_t key;
    if (!take_varint(p, &key) || key >> 3 == 0 || key >> 3 > NUMBER_MAX)
        return false;
    *out = (struct hl_protobuf_field){.number = (uint32_t)(key >> 3)};
    switch (key & 7) {
    case VARINT:
        return take_varint(p, &out->value);
    case FIXED64:
        return take_fixed(p, 8, &out->value);
    case FIXED32:
        return take_fixed(p, 4, &out->value);
    case BYTES:
        return take_bytes(p, out);
    default:
        return false;
    }
}

bool hl_protobuf_next(struct hl_protobuf *p, struct hl_protobuf_field *out)
{
    if (p->bad || p->at == p->end)
        return false;
    p->bad = !take_field(p, out);
    return !p->bad;
}

bool hl_protobuf_find(const char *bytes, size_t len, uint32_t number, struct hl_protobuf_field *out)
{
    struct hl_protobuf p = hl_protobuf(bytes, len);
    struct hl_protobuf_field f;
    bool found = false;
    while (hl_protobuf_next(&p, &f))
        if (f.number == number && f.is_bytes) {
            *out = f;
            found = true;
        }
    return found && !p.bad;
}
