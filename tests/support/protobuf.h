/* Protocol Buffers messages for tests, written by hand. */
#ifndef HL_TEST_PROTOBUF_H
#define HL_TEST_PROTOBUF_H

#include <string.h>

#include "base/buf.h"

static inline void pb_varint(struct hl_buf *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        char byte = (char)(value | 0x80);
        (void)!hl_buf_append(b, &byte, 1);
    }
    char last = (char)value;
    (void)!hl_buf_append(b, &last, 1);
}

static inline void pb_number(struct hl_buf *b, unsigned field, uint64_t value)
{
    pb_varint(b, field << 3);
    pb_varint(b, value);
}

static inline void pb_bytes(struct hl_buf *b, unsigned field, const void *bytes, size_t len)
{
    pb_varint(b, field << 3 | 2);
    pb_varint(b, len);
    (void)!hl_buf_append(b, bytes, len);
}

static inline void pb_text(struct hl_buf *b, unsigned field, const char *text)
{
    pb_bytes(b, field, text, strlen(text));
}

/* Adds a message as a field of another; it is empty afterwards. */
static inline void pb_message(struct hl_buf *b, unsigned field, struct hl_buf *message)
{
    pb_bytes(b, field, message->data != NULL ? message->data : "", message->len);
    hl_buf_fini(message);
}

static inline void pb_entry(struct hl_buf *b, unsigned field, const char *key, const char *value)
{
    struct hl_buf entry = HL_BUF(1 << 20);
    pb_text(&entry, 1, key);
    pb_text(&entry, 2, value);
    pb_message(b, field, &entry);
}

/* The envelope of every answer of the API server. */
static inline void pb_wrapped(struct hl_buf *b, unsigned field, struct hl_buf *object)
{
    struct hl_buf unknown = HL_BUF(1 << 26), kind = HL_BUF(64);
    (void)!hl_buf_append(&unknown, "k8s\0", 4);
    pb_text(&kind, 1, "v1");
    pb_message(&unknown, 1, &kind);
    pb_message(&unknown, 2, object);
    pb_text(&unknown, 3, "");
    pb_message(b, field, &unknown);
}

#endif
