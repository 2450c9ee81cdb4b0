/* base/buf.h - a growing byte buffer with a maximum, always NUL-terminated.
 *
 * Owns:    its bytes. Zero-initialise with HL_BUF(max), end with hl_buf_fini.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM if the maximum would be exceeded or memory runs out; the buffer is then
 * unchanged. After a failed append `failed` stays set, so a builder may check once at the end.
 * Units:   bytes.
 * Limits:  `max` given at init.
 */
#ifndef HL_BASE_BUF_H
#define HL_BASE_BUF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

struct hl_buf {
    char *data;
    size_t len;
    size_t cap;
    size_t max;
    bool failed;
};

#define HL_BUF(max_bytes)                                                                          \
    {                                                                                              \
        .max = (max_bytes)                                                                         \
    }

void hl_buf_fini(struct hl_buf *b);
void hl_buf_clear(struct hl_buf *b);
/* The slow path of hl_buf_room: grows the buffer. */
char *hl_buf_grow(struct hl_buf *b, size_t more);

/* Room for `more` bytes after len; returns where they go, NULL on failure. */
static inline char *hl_buf_room(struct hl_buf *b, size_t more)
{
    return more < b->cap - b->len ? b->data + b->len : hl_buf_grow(b, more);
}

static inline hl_status hl_buf_append(struct hl_buf *b, const void *data, size_t len)
{
    char *to = hl_buf_room(b, len);
    if (to == NULL)
        return HL_ENOMEM;
    if (len > 0)
        memcpy(to, data, len);
    to[len] = '\0';
    b->len += len;
    return HL_OK;
}

hl_status hl_buf_printf(struct hl_buf *b, const char *fmt, ...) HL_PRINTF(2, 3);
/* Appends the text as a JSON string, with quotes. */
hl_status hl_buf_quote(struct hl_buf *b, const char *text);
/* Appends the text as one word of a shell, in single quotes. */
hl_status hl_buf_shell_word(struct hl_buf *b, const char *text);
/* Hands the bytes over to the caller (free()); the buffer is empty afterwards. */
char *hl_buf_take(struct hl_buf *b);

#endif
