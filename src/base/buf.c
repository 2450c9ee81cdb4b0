#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hl_buf_fini(struct hl_buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
}

void hl_buf_clear(struct hl_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data != NULL)
        b->data[0] = '\0';
}

/* `cap` never exceeds the maximum, so data that fits into `cap` needs no check. */
char *hl_buf_grow(struct hl_buf *b, size_t more)
{
    size_t need;
    if (__builtin_add_overflow(b->len, more, &need) || need >= b->max) {
        b->failed = true;
        (void)hl_fail(HL_ENOMEM, "buffer would exceed its maximum of %zu bytes", b->max);
        return NULL;
    }
    if (need + 1 > b->cap) {
        size_t cap = b->cap < 128 ? 128 : b->cap * 2;
        if (cap < need + 1)
            cap = need + 1;
        if (cap > b->max)
            cap = b->max;
        char *data = realloc(b->data, cap);
        if (data == NULL) {
            b->failed = true;
            (void)hl_fail(HL_ENOMEM, "out of memory allocating a buffer of %zu bytes", cap);
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

hl_status hl_buf_printf(struct hl_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return hl_fail(HL_EINVAL, "format '%s' can't be printed", fmt);
    char *to = hl_buf_room(b, (size_t)n);
    if (to == NULL)
        return HL_ENOMEM;
    va_start(ap, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return HL_OK;
}

/* The number of bytes that escaping a byte adds. */
static const uint8_t escape_len[256] = {[0 ... 0x1f] = 5, ['"'] = 1, ['\\'] = 1};

static size_t quoted_len(const char *text)
{
    size_t n = strlen(text), more = 2;
    for (size_t i = 0; i < n; i++)
        more += escape_len[(unsigned char)text[i]];
    return n + more;
}

hl_status hl_buf_quote(struct hl_buf *b, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    size_t len = quoted_len(text);
    char *to = hl_buf_room(b, len);
    if (to == NULL)
        return HL_ENOMEM;
    *to++ = '"';
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (escape_len[c] == 5) {
            memcpy(to, "\\u00", 4);
            to[4] = hex[c >> 4];
            to[5] = hex[c & 15];
            to += 6;
            continue;
        }
        *to = '\\';
        to += escape_len[c];
        *to++ = (char)c;
    }
    memcpy(to, "\"", 2);
    b->len += len;
    return HL_OK;
}

hl_status hl_buf_shell_word(struct hl_buf *b, const char *text)
{
    hl_status st = hl_buf_append(b, "'", 1);
    for (; st == HL_OK && *text != '\0'; text++)
        st = *text == '\'' ? hl_buf_append(b, "'\\''", 4) : hl_buf_append(b, text, 1);
    return st == HL_OK ? hl_buf_append(b, "'", 1) : st;
}

char *hl_buf_take(struct hl_buf *b)
{
    char *data = b->data;
    b->data = NULL;
    b->len = b->cap = 0;
    return data;
}
