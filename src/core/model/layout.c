/* Works on the text itself, line by line: both sides are sorted, so a comparison is a merge. */
#include "core/model/layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "core/reshard/piece.h"

#define LAYOUT_MAX ((size_t)1 << 28)

/* ---- writing --------------------------------------------------------------------------------- */

static bool name_is_plain(const char *name)
{
    return name[0] != '\0' && !hl_ascii_has_control(name, strlen(name));
}

static int by_name(const void *a, const void *b)
{
    const struct hl_tensor *x = *(const struct hl_tensor *const *)a;
    const struct hl_tensor *y = *(const struct hl_tensor *const *)b;
    return strcmp(x->name, y->name);
}

hl_status hl_layout_text(const struct hl_tensor *tensors, size_t count, char **out)
{
    HL_AUTO(hl_freep) const struct hl_tensor **sorted = calloc(count + 1, sizeof(*sorted));
    HL_AUTO(hl_buf_fini) struct hl_buf b = HL_BUF(LAYOUT_MAX);
    if (sorted == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        if (!name_is_plain(tensors[i].name))
            return hl_fail(
                HL_EINVAL,
                "tensor '%.80s': its name is empty or has a control character; rename it",
                tensors[i].name);
        sorted[i] = &tensors[i];
    }
    qsort(sorted, count, sizeof(*sorted), by_name);
    for (size_t i = 0; i < count; i++) {
        const struct hl_tensor *t = sorted[i];
        (void)hl_buf_printf(&b, "%s\t%s\t", t->name, hl_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->rank; d++)
            (void)hl_buf_printf(&b, "%s%" PRIu64, d > 0 ? "," : "", t->shape[d]);
        (void)hl_buf_append(&b, "\n", 1);
    }
    (void)hl_buf_append(&b, "", 1);
    if (b.failed)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu tensors", count);
    *out = hl_buf_take(&b);
    return HL_OK;
}

hl_status hl_layout_crcs(const struct hl_tensor *tensors, const uint32_t *crcs, size_t count,
                         char **out)
{
    HL_AUTO(hl_freep) const struct hl_tensor **sorted = calloc(count + 1, sizeof(*sorted));
    char *text = malloc(8 * count + 1);
    if (sorted == NULL || text == NULL) {
        free(text);
        return hl_fail(HL_ENOMEM, "out of memory for the checksums of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, count, sizeof(*sorted), by_name);
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        snprintf(text + 8 * i, 9, "%08" PRIx32, crcs[sorted[i] - tensors]);
    *out = text;
    return HL_OK;
}

uint32_t hl_layout_crc(const char *crcs, size_t i)
{
    char digits[9];
    memcpy(digits, crcs + 8 * i, 8);
    digits[8] = '\0';
    return (uint32_t)strtoul(digits, NULL, 16);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* One line; the texts are not terminated. */
struct line {
    const char *name, *dtype, *shape, *next;
    size_t name_len, dtype_len, shape_len;
};

/* False at the end, or if the text is not in the form of a layout. */
static bool line_read(const char *at, struct line *out)
{
    const char *end = strchr(at, '\n');
    const char *tab = end != NULL ? memchr(at, '\t', (size_t)(end - at)) : NULL;
    const char *tab2 = tab != NULL ? memchr(tab + 1, '\t', (size_t)(end - tab - 1)) : NULL;
    if (tab2 == NULL)
        return false;
    *out = (struct line){.name = at,
                         .name_len = (size_t)(tab - at),
                         .dtype = tab + 1,
                         .dtype_len = (size_t)(tab2 - tab - 1),
                         .shape = tab2 + 1,
                         .shape_len = (size_t)(end - tab2 - 1),
                         .next = end + 1};
    return true;
}

static int text_order(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static int line_order(const struct line *a, const struct line *b)
{
    return text_order(a->name, a->name_len, b->name, b->name_len);
}

static bool shape_is_plain(const struct line *l)
{
    unsigned extents = l->shape_len > 0, digits = 0;
    for (size_t i = 0; i < l->shape_len; i++) {
        if (l->shape[i] == ',' && digits > 0) {
            extents++;
            digits = 0;
        } else if (l->shape[i] >= '0' && l->shape[i] <= '9' && digits < 20) {
            digits++;
        } else {
            return false;
        }
    }
    return extents <= HL_TENSOR_RANK_MAX && (l->shape_len == 0 || digits > 0);
}

static hl_status line_verify(const struct line *l, size_t number)
{
    char dtype[16];
    enum hl_dtype known;
    bool ok = l->name_len > 0 && l->name_len <= HL_TENSOR_NAME_MAX &&
              l->dtype_len < sizeof(dtype) && !hl_ascii_has_control(l->name, l->name_len);
    if (ok) {
        snprintf(dtype, sizeof(dtype), "%.*s", (int)l->dtype_len, l->dtype);
        ok = hl_dtype_parse(dtype, &known) == HL_OK;
    }
    if (ok && shape_is_plain(l))
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "line %zu of a layout is not NAME, DTYPE and extents, separated by tabs",
                   number);
}

hl_status hl_layout_verify(const char *layout)
{
    struct line l, before = {0};
    size_t number = 0;
    for (const char *at = layout; *at != '\0'; at = l.next, before = l) {
        number++;
        if (!line_read(at, &l))
            return hl_fail(HL_EINVAL, "line %zu of a layout lacks two tabs and a line end", number);
        HL_TRY(line_verify(&l, number));
        if (number > 1 && line_order(&before, &l) >= 0)
            return hl_fail(HL_EINVAL, "line %zu of a layout is not sorted by name", number);
    }
    return HL_OK;
}

size_t hl_layout_count(const char *layout)
{
    size_t n = 0;
    for (const char *at = strchr(layout, '\n'); at != NULL; at = strchr(at + 1, '\n'))
        n++;
    return n;
}

hl_status hl_layout_verify_crcs(const char *layout, const char *crcs)
{
    size_t n = hl_layout_count(layout);
    if (strspn(crcs, "0123456789abcdef") == 8 * n && strlen(crcs) == 8 * n)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "the checksums of %zu tensors are not %zu lowercase hexadecimal digits", n,
                   8 * n);
}

/* For a line that line_verify() has accepted. */
HL_CHECK static hl_status line_tensor(const struct line *l, struct hl_tensor *out)
{
    char dtype[16];
    const char *at = l->shape, *end = l->shape + l->shape_len;
    snprintf(dtype, sizeof(dtype), "%.*s", (int)l->dtype_len, l->dtype);
    HL_TRY(hl_dtype_parse(dtype, &out->dtype));
    for (out->rank = 0; at < end && out->rank < HL_TENSOR_RANK_MAX; out->rank++) {
        char *stop;
        out->shape[out->rank] = strtoull(at, &stop, 10);
        at = stop + 1;
    }
    return HL_OK;
}

hl_status hl_layout_read(const char *layout, struct hl_arena *arena, struct hl_tensor **out,
                         size_t *count)
{
    struct line l;
    size_t n, i = 0;
    HL_TRY(hl_layout_verify(layout));
    n = hl_layout_count(layout);
    struct hl_tensor *list = hl_arena_array(arena, n + 1, sizeof(*list));
    for (const char *at = layout; list != NULL && line_read(at, &l); at = l.next) {
        struct hl_tensor *t = &list[i++];
        t->name = hl_arena_text(arena, l.name, l.name_len);
        HL_TRY(line_tensor(&l, t));
        HL_TRY(hl_tensor_bytes(t, &t->size));
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors of a layout", n);
    *out = list;
    *count = n;
    return HL_OK;
}

static bool line_matches(const struct line *want, const struct line *got,
                         enum hl_api_layout_check check)
{
    return text_order(want->shape, want->shape_len, got->shape, got->shape_len) == 0 &&
           (check != HL_API_LAYOUT_CHECK_EXACT ||
            text_order(want->dtype, want->dtype_len, got->dtype, got->dtype_len) == 0);
}

/* Unexpected tensors are reported before missing ones: often they are the same tensor, misspelt. */
hl_status hl_layout_compare(const char *want, const char *got, enum hl_api_layout_check check)
{
    struct line w, g, missing = {0};
    if (check == HL_API_LAYOUT_CHECK_UNCHECKED || strcmp(want, got) == 0)
        return HL_OK;
    for (;;) {
        bool more_w = line_read(want, &w), more_g = line_read(got, &g);
        if (!more_w && !more_g)
            break;
        int order = !more_w ? 1 : !more_g ? -1 : line_order(&w, &g);
        if (order > 0)
            return hl_fail(HL_EINVAL, "tensor '%.*s' (%.*s [%.*s]) is not in the model",
                           (int)g.name_len, g.name, (int)g.dtype_len, g.dtype, (int)g.shape_len,
                           g.shape);
        if (order < 0 && missing.name == NULL)
            missing = w;
        if (order == 0 && !line_matches(&w, &g, check))
            return hl_fail(HL_EINVAL, "tensor '%.*s' is %.*s [%.*s], expected %.*s [%.*s]",
                           (int)g.name_len, g.name, (int)g.dtype_len, g.dtype, (int)g.shape_len,
                           g.shape, (int)w.dtype_len, w.dtype, (int)w.shape_len, w.shape);
        want = more_w ? w.next : want;
        got = order == 0 ? g.next : got;
    }
    if (missing.name == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "tensor '%.*s' (%.*s [%.*s]) is missing", (int)missing.name_len,
                   missing.name, (int)missing.dtype_len, missing.dtype, (int)missing.shape_len,
                   missing.shape);
}

/* ---- names of optimizer state ---------------------------------------------------------------- */

/* The lines of a layout, which are sorted by name. */
struct lines {
    struct line *list;
    size_t count;
};

static bool lines_have(const struct lines *lines, const char *name, size_t len)
{
    size_t low = 0, high = lines->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct line *l = &lines->list[mid];
        int order = text_order(l->name, l->name_len, name, len);
        if (order == 0)
            return true;
        *(order < 0 ? &low : &high) = order < 0 ? mid + 1 : mid;
    }
    return false;
}

static bool line_names_one(const struct lines *parameters, const struct line *l)
{
    size_t at = 0, len = hl_piece_name_len(l->name, l->name_len);
    for (;;) {
        if (lines_have(parameters, l->name + at, len - at))
            return true;
        const char *dot = memchr(l->name + at, '.', len - at);
        if (dot == NULL)
            return false;
        at = (size_t)(dot - l->name) + 1;
    }
}

hl_status hl_layout_names_parameters(const char *parameters, const char *state)
{
    struct line l;
    struct lines lines = {0};
    size_t n = hl_layout_count(parameters);
    HL_AUTO(hl_freep) struct line *list = calloc(n + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors of a layout", n);
    lines.list = list;
    for (const char *at = parameters; lines.count < n && line_read(at, &l); at = l.next)
        list[lines.count++] = l;
    for (const char *at = state; line_read(at, &l); at = l.next)
        if (!line_names_one(&lines, &l))
            return hl_fail(HL_EINVAL,
                           "optimizer tensor '%.*s' does not end with the name of a parameter",
                           (int)l.name_len, l.name);
    return HL_OK;
}
