/* The header's grammar is small and fixed, so a cursor reads it instead of a JSON parser. No tree
 * is built for a hostile 100 MB of brackets, order and byte positions are kept, and duplicate names
 * are noticed. Strings are unescaped into one block no longer than the header. */
#include "core/safetensors/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

struct cursor {
    const unsigned char *start;
    const unsigned char *at;
    const unsigned char *end;
    char *text; /* where the next unescaped string goes */
};

static size_t cursor_position(const struct cursor *c)
{
    return (size_t)(c->at - c->start) + 8;
}

static hl_status fail_at(const struct cursor *c, const char *what)
{
    return hl_fail(HL_EINVAL, "safetensors header, byte %zu: %s", cursor_position(c), what);
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t'))
        c->at++;
}

/* Skips white space and consumes `ch` if it is next. */
static bool cursor_accept(struct cursor *c, char ch)
{
    skip_space(c);
    if (c->at >= c->end || *c->at != (unsigned char)ch)
        return false;
    c->at++;
    return true;
}

HL_CHECK static hl_status expect(struct cursor *c, char ch)
{
    if (cursor_accept(c, ch))
        return HL_OK;
    char what[32] = "expected '?'";
    what[10] = ch;
    return fail_at(c, c->at >= c->end ? "the header ends too early" : what);
}

HL_CHECK static hl_status read_hex4(struct cursor *c, uint32_t *out)
{
    uint32_t v = 0;
    if (c->end - c->at < 4)
        return fail_at(c, "the header ends in an escape");
    for (int i = 0; i < 4; i++) {
        unsigned char ch = *c->at++;
        if (ch >= '0' && ch <= '9')
            v = v << 4 | (uint32_t)(ch - '0');
        else if ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'f')
            v = v << 4 | (uint32_t)((ch | 0x20) - 'a' + 10);
        else
            return fail_at(c, "\\u needs four hex digits");
    }
    *out = v;
    return HL_OK;
}

static void put_utf8(struct cursor *c, uint32_t v)
{
    if (v < 0x80) {
        *c->text++ = (char)v;
    } else if (v < 0x800) {
        *c->text++ = (char)(0xC0 | v >> 6);
        *c->text++ = (char)(0x80 | (v & 0x3F));
    } else if (v < 0x10000) {
        *c->text++ = (char)(0xE0 | v >> 12);
        *c->text++ = (char)(0x80 | (v >> 6 & 0x3F));
        *c->text++ = (char)(0x80 | (v & 0x3F));
    } else {
        *c->text++ = (char)(0xF0 | v >> 18);
        *c->text++ = (char)(0x80 | (v >> 12 & 0x3F));
        *c->text++ = (char)(0x80 | (v >> 6 & 0x3F));
        *c->text++ = (char)(0x80 | (v & 0x3F));
    }
}

/* An escape is at least as long as the UTF-8 it stands for, so the text block can't overflow. */
HL_CHECK static hl_status read_escape(struct cursor *c)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (c->at >= c->end)
        return fail_at(c, "the header ends in an escape");
    unsigned char ch = *c->at++;
    const char *hit = ch != 0 ? strchr(from, (char)ch) : NULL;
    if (hit != NULL) {
        *c->text++ = to[hit - from];
        return HL_OK;
    }
    if (ch != 'u')
        return fail_at(c, "unknown escape in a string");
    uint32_t v, low;
    HL_TRY(read_hex4(c, &v));
    if (v >= 0xD800 && v < 0xDC00) {
        if (c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u')
            return fail_at(c, "half of a surrogate pair");
        c->at += 2;
        HL_TRY(read_hex4(c, &low));
        if (low < 0xDC00 || low > 0xDFFF)
            return fail_at(c, "half of a surrogate pair");
        v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    } else if (v == 0 || (v >= 0xDC00 && v < 0xE000)) {
        return fail_at(c, "a character that is not allowed in strings");
    }
    put_utf8(c, v);
    return HL_OK;
}

/* Length of the valid UTF-8 sequence at p; 0 if it is invalid. */
static size_t utf8_len(const unsigned char *p, const unsigned char *end)
{
    size_t n = *p < 0x80                  ? 1
               : *p >= 0xC2 && *p <= 0xDF ? 2
               : (*p & 0xF0) == 0xE0      ? 3
               : *p >= 0xF0 && *p <= 0xF4 ? 4
                                          : 0;
    if (n == 0 || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

HL_CHECK static hl_status read_string(struct cursor *c, const char **out)
{
    HL_TRY(expect(c, '"'));
    char *begin = c->text;
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\') {
            c->at++;
            HL_TRY(read_escape(c));
            continue;
        }
        if (*c->at < 0x20)
            return fail_at(c, "a control character in a string");
        size_t n = utf8_len(c->at, c->end);
        if (n == 0)
            return fail_at(c, "a string is not UTF-8");
        memcpy(c->text, c->at, n);
        c->text += n;
        c->at += n;
    }
    HL_TRY(expect(c, '"'));
    *c->text++ = '\0';
    *out = begin;
    return HL_OK;
}

/* Names appear in errors and listings, so control characters are refused and the length is
 * limited. */
HL_CHECK static hl_status read_name(struct cursor *c, const char **out)
{
    const char *name;
    HL_TRY(read_string(c, &name));
    size_t len = strlen(name);
    if (len > HL_TENSOR_NAME_MAX)
        return hl_fail(HL_EINVAL, "safetensors header, byte %zu: a name of %zu bytes, at most %d",
                       cursor_position(c), len, HL_TENSOR_NAME_MAX);
    if (hl_ascii_has_control(name, len))
        return fail_at(c, "a name holds a control character");
    *out = name;
    return HL_OK;
}

HL_CHECK static hl_status read_u64(struct cursor *c, uint64_t *out)
{
    skip_space(c);
    const unsigned char *begin = c->at;
    uint64_t v = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->at - '0', &v))
            return fail_at(c, "a number beyond 64 bits");
        c->at++;
    }
    if (c->at == begin)
        return fail_at(c, "expected a non-negative integer");
    if (*begin == '0' && c->at - begin > 1)
        return fail_at(c, "a number with a leading zero");
    if (c->at < c->end && (*c->at == '.' || *c->at == 'e' || *c->at == 'E'))
        return fail_at(c, "expected an integer, not a fraction");
    *out = v;
    return HL_OK;
}

/* [a, b, ...] with at most `max` entries. */
HL_CHECK static hl_status read_list(struct cursor *c, uint64_t *list, uint32_t max, uint32_t *count)
{
    uint32_t n = 0;
    HL_TRY(expect(c, '['));
    if (!cursor_accept(c, ']')) {
        do {
            if (n == max)
                return hl_fail(HL_EINVAL,
                               "safetensors header, byte %zu: a list of more than %u numbers",
                               cursor_position(c), max);
            HL_TRY(read_u64(c, &list[n++]));
        } while (cursor_accept(c, ','));
        HL_TRY(expect(c, ']'));
    }
    *count = n;
    return HL_OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

HL_CHECK static hl_status read_field(struct cursor *c, struct hl_tensor *t, uint64_t offsets[2],
                                     unsigned *has)
{
    const char *key, *dtype;
    uint32_t n;
    unsigned bit;
    HL_TRY(read_string(c, &key));
    HL_TRY(expect(c, ':'));
    if (strcmp(key, "dtype") == 0) {
        bit = HAS_DTYPE;
        HL_TRY(read_string(c, &dtype));
        if (hl_dtype_parse(dtype, &t->dtype) != HL_OK)
            return hl_fail_prefix(HL_EINVAL, "tensor '%s': ", t->name);
    } else if (strcmp(key, "shape") == 0) {
        bit = HAS_SHAPE;
        HL_TRY(read_list(c, t->shape, HL_TENSOR_RANK_MAX, &t->rank));
    } else if (strcmp(key, "data_offsets") == 0) {
        bit = HAS_OFFSETS;
        HL_TRY(read_list(c, offsets, 2, &n));
        if (n != 2)
            return hl_fail(HL_EINVAL, "tensor '%s': data_offsets needs two numbers", t->name);
    } else {
        return hl_fail(HL_EINVAL, "tensor '%s': unknown field '%.40s'", t->name, key);
    }
    if (*has & bit)
        return hl_fail(HL_EINVAL, "tensor '%s': field '%s' appears twice", t->name, key);
    *has |= bit;
    return HL_OK;
}

HL_CHECK static hl_status read_tensor(struct cursor *c, struct hl_tensor *t)
{
    uint64_t offsets[2] = {0, 0}, size;
    unsigned has = 0;
    HL_TRY(expect(c, '{'));
    if (!cursor_accept(c, '}')) {
        do
            HL_TRY(read_field(c, t, offsets, &has));
        while (cursor_accept(c, ','));
        HL_TRY(expect(c, '}'));
    }
    if (has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS))
        return hl_fail(HL_EINVAL, "tensor '%s': field %s is missing", t->name,
                       !(has & HAS_DTYPE)   ? "dtype"
                       : !(has & HAS_SHAPE) ? "shape"
                                            : "data_offsets");
    if (offsets[1] < offsets[0])
        return hl_fail(HL_EINVAL,
                       "tensor '%s': data_offsets [%" PRIu64 ", %" PRIu64 "] run backwards",
                       t->name, offsets[0], offsets[1]);
    HL_TRY(hl_tensor_bytes(t, &size));
    if (offsets[1] - offsets[0] != size) {
        char shape[128];
        return hl_fail(
            HL_EINVAL, "tensor '%s': %s %s needs %" PRIu64 " bytes, data_offsets span %" PRIu64,
            t->name, hl_dtype_name(t->dtype), hl_tensor_shape_text(t, shape, sizeof(shape)), size,
            offsets[1] - offsets[0]);
    }
    t->offset = offsets[0];
    t->size = size;
    return HL_OK;
}

/* Makes room for one more element of a growing array. */
HL_CHECK static hl_status grow(void **list, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return HL_OK;
    size_t more = *cap == 0 ? 16 : *cap * 2;
    void *p = realloc(*list, more * size);
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors", more);
    *list = p;
    *cap = more;
    return HL_OK;
}

HL_CHECK static hl_status read_metadata(struct cursor *c, struct hl_safetensors *st)
{
    size_t cap = 0;
    if (st->meta != NULL)
        return fail_at(c, "__metadata__ appears twice");
    HL_TRY(expect(c, '{'));
    if (cursor_accept(c, '}'))
        return HL_OK;
    do {
        HL_TRY(grow((void **)&st->meta, st->meta_count, &cap, sizeof(*st->meta)));
        struct hl_safetensors_meta *m = &st->meta[st->meta_count];
        HL_TRY(read_string(c, &m->key));
        HL_TRY(expect(c, ':'));
        HL_TRY(read_string(c, &m->value));
        st->meta_count++;
    } while (cursor_accept(c, ','));
    return expect(c, '}');
}

HL_CHECK static hl_status read_header(struct cursor *c, struct hl_safetensors *st)
{
    size_t cap = 0;
    const char *name = NULL;
    if (c->at >= c->end || *c->at != '{')
        return fail_at(c, "the header does not begin with '{': is this a safetensors file?");
    HL_TRY(expect(c, '{'));
    if (!cursor_accept(c, '}')) {
        do {
            HL_TRY(read_name(c, &name));
            HL_TRY(expect(c, ':'));
            if (strcmp(name, "__metadata__") == 0) {
                HL_TRY(read_metadata(c, st));
                continue;
            }
            HL_TRY(grow((void **)&st->tensors, st->count, &cap, sizeof(*st->tensors)));
            struct hl_tensor *t = &st->tensors[st->count];
            *t = (struct hl_tensor){.name = name};
            HL_TRY(read_tensor(c, t));
            st->count++;
        } while (cursor_accept(c, ','));
        HL_TRY(expect(c, '}'));
    }
    skip_space(c);
    return c->at == c->end ? HL_OK : fail_at(c, "there is text after the closing '}'");
}

static int by_offset(const void *a, const void *b)
{
    const struct hl_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

HL_CHECK static hl_status check_names(struct hl_safetensors *st)
{
    st->by_name = malloc((st->count > 0 ? st->count : 1) * sizeof(*st->by_name));
    if (st->by_name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu tensors", st->count);
    for (size_t i = 0; i < st->count; i++)
        st->by_name[i] = (uint32_t)i;
    qsort_r(st->by_name, st->count, sizeof(*st->by_name), by_name, st->tensors);
    for (size_t i = 1; i < st->count; i++) {
        const char *name = st->tensors[st->by_name[i]].name;
        if (strcmp(st->tensors[st->by_name[i - 1]].name, name) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' appears twice in the header", name);
    }
    return HL_OK;
}

/* In order of offset, every tensor must begin where the previous one ends, and the last must end
 * the file. */
HL_CHECK static hl_status check_coverage(const struct hl_safetensors *st)
{
    uint64_t at = 0;
    for (size_t i = 0; i < st->count; i++) {
        const struct hl_tensor *t = &st->tensors[i];
        if (t->offset != at)
            return hl_fail(
                HL_EINVAL,
                "tensor '%s' begins at %" PRIu64 " but the one before ends at %" PRIu64 ": %s",
                t->name, t->offset, at, t->offset < at ? "they overlap" : "there is a hole");
        if (__builtin_add_overflow(at, t->size, &at))
            return hl_fail(HL_EINVAL, "tensor '%s' ends beyond 64 bits", t->name);
    }
    if (at > st->data_size)
        return hl_fail(HL_EINVAL,
                       "the tensors need %" PRIu64 " bytes of data, the file has %" PRIu64
                       ": it is truncated",
                       at, st->data_size);
    if (at < st->data_size)
        return hl_fail(HL_EINVAL, "the file has %" PRIu64 " bytes after the last tensor",
                       st->data_size - at);
    return HL_OK;
}

hl_status hl_safetensors_header_len(const void *bytes, size_t len, uint64_t file_size,
                                    uint64_t *out)
{
    uint64_t n;
    if (len < sizeof(n) || file_size < sizeof(n))
        return hl_fail(HL_EINVAL, "a safetensors file has at least 8 bytes, this one has %" PRIu64,
                       file_size);
    memcpy(&n, bytes, sizeof(n));
    if (n > HL_SAFETENSORS_HEADER_MAX)
        return hl_fail(HL_EINVAL,
                       "header length %" PRIu64 " is beyond %llu: is this a safetensors file?", n,
                       HL_SAFETENSORS_HEADER_MAX);
    if (n > file_size - sizeof(n))
        return hl_fail(HL_EINVAL,
                       "header length %" PRIu64 " is beyond the file's %" PRIu64
                       " bytes: it is truncated",
                       n, file_size);
    *out = n;
    return HL_OK;
}

HL_CHECK static hl_status parse_into(const unsigned char *bytes, uint64_t n,
                                     struct hl_safetensors *st)
{
    /* Every string loses its two quotes and gains one NUL. */
    st->text = malloc((size_t)n + 1);
    if (st->text == NULL)
        return hl_fail(HL_ENOMEM,
                       "out of memory allocating the text of a header of %" PRIu64 " bytes", n);
    struct cursor c = {.start = bytes, .at = bytes, .end = bytes + n, .text = st->text};
    HL_TRY(read_header(&c, st));
    if (st->count > UINT32_MAX)
        return hl_fail(HL_EINVAL, "%zu tensors are too many", st->count);
    if (st->count > 1)
        qsort(st->tensors, st->count, sizeof(*st->tensors), by_offset);
    HL_TRY(check_names(st));
    return check_coverage(st);
}

hl_status hl_safetensors_parse(const void *bytes, size_t len, uint64_t file_size,
                               struct hl_safetensors *out)
{
    uint64_t n;
    HL_TRY(hl_safetensors_header_len(bytes, len, file_size, &n));
    if (len - sizeof(n) < n)
        return hl_fail(HL_EINVAL, "%zu bytes of a header of %" PRIu64 " were given", len,
                       n + sizeof(n));
    struct hl_safetensors st = {.data_offset = n + sizeof(n)};
    st.data_size = file_size - st.data_offset;
    hl_status status = parse_into((const unsigned char *)bytes + sizeof(n), n, &st);
    if (status != HL_OK) {
        hl_safetensors_fini(&st);
        return status;
    }
    *out = st;
    return HL_OK;
}

void hl_safetensors_fini(struct hl_safetensors *st)
{
    free(st->tensors);
    free(st->meta);
    free(st->by_name);
    free(st->text);
    *st = (struct hl_safetensors){0};
}
