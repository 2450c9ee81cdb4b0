/* base/protobuf.h - the fields of a message in the wire format of Protocol Buffers.
 *
 * What a message means is the caller's: fields come in the order of the bytes, unknown ones are
 * passed over by who does not ask for them, the last one of a kind counts.
 *
 * Owns:    nothing; what is found is borrowed of the bytes.
 * Threads: one at a time. Pure.
 * Errors:  `bad`: the bytes end within a field, or are none; groups count as that.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_BASE_PROTOBUF_H
#define HL_BASE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hl_protobuf {
    const char *at, *end;
    bool bad;
};

struct hl_protobuf_field {
    uint32_t number;
    bool is_bytes;     /* a text, bytes or a message; else a number */
    uint64_t value;    /* of a number, as it stands there */
    const char *bytes; /* not ended by a 0; NULL for a number */
    size_t len;
};

static inline struct hl_protobuf hl_protobuf(const char *bytes, size_t len)
{
    return (struct hl_protobuf){.at = bytes, .end = bytes + len};
}

/* False: there is none left, or p->bad. */
bool hl_protobuf_next(struct hl_protobuf *p, struct hl_protobuf_field *out);
/* The last field of this number that is bytes; false: there is none, or the message is bad. */
bool hl_protobuf_find(const char *bytes, size_t len, uint32_t number,
                      struct hl_protobuf_field *out);

#endif
