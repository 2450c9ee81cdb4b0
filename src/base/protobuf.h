/* base/protobuf.h - reads the fields of a message in the wire format of Protocol Buffers.
 *
 * The caller interprets the message: fields come in the order of the bytes, the caller skips those
 * that it does not know, and the last one of a kind counts.
 *
 * Owns:    nothing; results are borrowed from the bytes.
 * Threads: one at a time. Pure.
 * Errors:  `bad`: the bytes end within a field, or are not valid; groups count as invalid.
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
    bool is_bytes;     /* a string, bytes or a message; if false, a number */
    uint64_t value;    /* of a number, undecoded */
    const char *bytes; /* not NUL-terminated; NULL for a number */
    size_t len;
};

static inline struct hl_protobuf hl_protobuf(const char *bytes, size_t len)
{
    return (struct hl_protobuf){.at = bytes, .end = bytes + len};
}

/* Reads the next field. False: there is none left, or p->bad. */
bool hl_protobuf_next(struct hl_protobuf *p, struct hl_protobuf_field *out);
/* Finds the last field with this number that is bytes; false: there is none, or the message is
 * bad. */
bool hl_protobuf_find(const char *bytes, size_t len, uint32_t number,
                      struct hl_protobuf_field *out);

#endif
