/* Types and sizes of tensors, lookup in a parsed header, and writing. Our own headers are padded
 * with spaces to a multiple of 64 bytes and have CRC fields of fixed width, so that the header's
 * length is known before the data has been seen. */
#include "core/safetensors/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"

static const struct {
    const char *name;
    uint32_t size;
} dtypes[HL_DTYPE_COUNT] = {

#define X(name, size) {#name, size},
    HL_DTYPE_MAP(X)
#undef X
};

const char *hl_dtype_name(enum hl_dtype dtype)
{
    return (unsigned)dtype < HL_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

uint32_t hl_dtype_size(enum hl_dtype dtype)
{
    return (unsigned)dtype < HL_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

hl_status hl_dtype_parse(const char *name, enum hl_dtype *out)
{
    for (int i = 0; i < HL_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (enum hl_dtype)i;
            return HL_OK;
        }
    }
    return hl_fail(HL_EINVAL, "dtype '%.40s' is unknown", name);
}

hl_status hl_tensor_bytes(const struct hl_tensor *t, uint64_t *out)
{
    /* A zero anywhere makes the tensor empty, whatever the product of the other dimensions. */
    uint64_t n = hl_dtype_size(t->dtype);
    bool overflow = false;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0) {
            *out = 0;
            return HL_OK;
        }
        overflow |= __builtin_mul_overflow(n, t->shape[i], &n);
    }
    if (overflow) {
        char shape[192];
        return hl_fail(HL_EINVAL, "tensor '%s': shape %s is beyond 64 bits", t->name,
                       hl_tensor_shape_text(t, shape, sizeof(shape)));
    }
    *out = n;
    return HL_OK;
}

const char *hl_tensor_shape_text(const struct hl_tensor *t, char *buf, size_t cap)
{
    size_t at = 0;
    int n = snprintf(buf, cap, "[");
    at += (size_t)n;
    for (uint32_t i = 0; i < t->rank && at < cap; i++) {
        n = snprintf(buf + at, cap - at, "%s%" PRIu64, i > 0 ? "," : "", t->shape[i]);
        at += (size_t)n;
    }
    if (at < cap)
        snprintf(buf + at, cap - at, "]");
    return buf;
}

const struct hl_tensor *hl_safetensors_find(const struct hl_safetensors *st, const char *name)
{
    size_t low = 0, high = st->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct hl_tensor *t = &st->tensors[st->by_name[mid]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const char *hl_safetensors_meta(const struct hl_safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->meta_count; i++)
        if (strcmp(st->meta[i].key, key) == 0)
            return st->meta[i].value;
    return NULL;
}

hl_status hl_safetensors_crc(const struct hl_safetensors *st, const char *name, uint32_t *out)
{
    char key[sizeof(HL_CRC_KEY) + HL_TENSOR_NAME_MAX];
    snprintf(key, sizeof(key), HL_CRC_KEY "%s", name);
    const char *text = hl_safetensors_meta(st, key);
    if (text == NULL)
        return hl_fail(HL_ENOENT, "tensor '%s' has no CRC in its header", name);
    if (strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        return hl_fail(HL_EINVAL, "the CRC of tensor '%s' is '%.20s', not 8 hex digits", name,
                       text);
    *out = (uint32_t)strtoul(text, NULL, 16);
    return HL_OK;
}

void hl_safetensors_image_fini(struct hl_safetensors_image *image)
{
    free(image->bytes);
    free(image->crc_at);
    *image = (struct hl_safetensors_image){0};
}

static void put_metadata(struct hl_buf *b, const struct hl_safetensors_layout *l, uint64_t *crc_at)
{
    const char *comma = "";
    (void)hl_buf_printf(b, "\"__metadata__\":{");
    for (size_t i = 0; i < l->meta_count; i++, comma = ",") {
        (void)hl_buf_printf(b, "%s", comma);
        (void)hl_buf_quote(b, l->meta[i].key);
        (void)hl_buf_printf(b, ":");
        (void)hl_buf_quote(b, l->meta[i].value);
    }
    for (size_t i = 0; l->crc_fields && i < l->count; i++, comma = ",") {
        char key[sizeof(HL_CRC_KEY) + HL_TENSOR_NAME_MAX];
        snprintf(key, sizeof(key), HL_CRC_KEY "%s", l->tensors[i].name);
        (void)hl_buf_printf(b, "%s", comma);
        (void)hl_buf_quote(b, key);
        (void)hl_buf_printf(b, ":\"");
        crc_at[i] = b->len;
        (void)hl_buf_printf(b, "00000000\"");
    }
    (void)hl_buf_printf(b, "}");
}

static void put_tensor(struct hl_buf *b, const struct hl_tensor *t)
{
    char shape[192];
    (void)hl_buf_quote(b, t->name);
    (void)hl_buf_printf(
        b, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
        hl_dtype_name(t->dtype), hl_tensor_shape_text(t, shape, sizeof(shape)), t->offset,
        t->offset + t->size);
}

/* Computes offsets and sizes of tensors stored one after the other. */
HL_CHECK static hl_status lay_out(const struct hl_safetensors_layout *l, uint64_t *data_size)
{
    uint64_t at = 0;
    for (size_t i = 0; i < l->count; i++) {
        struct hl_tensor *t = &l->tensors[i];
        if (strlen(t->name) > HL_TENSOR_NAME_MAX)
            return hl_fail(HL_EINVAL, "tensor name '%.60s...' is longer than %d bytes", t->name,
                           HL_TENSOR_NAME_MAX);
        HL_TRY(hl_tensor_bytes(t, &t->size));
        t->offset = at;
        if (__builtin_add_overflow(at, t->size, &at))
            return hl_fail(HL_EINVAL, "tensor '%s' ends beyond 64 bits", t->name);
    }
    *data_size = at;
    return HL_OK;
}

static void put_header(struct hl_buf *b, const struct hl_safetensors_layout *l, uint64_t *crc_at)
{
    uint64_t n = 0;
    const char *comma = "";
    (void)hl_buf_append(b, &n, sizeof(n));
    (void)hl_buf_printf(b, "{");
    if (l->meta_count > 0 || (l->crc_fields && l->count > 0)) {
        put_metadata(b, l, crc_at);
        comma = ",";
    }
    for (size_t i = 0; i < l->count; i++, comma = ",") {
        (void)hl_buf_printf(b, "%s", comma);
        put_tensor(b, &l->tensors[i]);
    }
    (void)hl_buf_printf(b, "}");
    while (!b->failed && b->len % HL_SAFETENSORS_ALIGN != 0)
        (void)hl_buf_append(b, " ", 1);
    if (b->failed)
        return;
    n = b->len - sizeof(n);
    memcpy(b->data, &n, sizeof(n));
}

hl_status hl_safetensors_write(const struct hl_safetensors_layout *layout,
                               struct hl_safetensors_image *out)
{
    uint64_t data_size = 0;
    HL_TRY(lay_out(layout, &data_size));
    HL_AUTO(hl_freep) uint64_t *crc_at = NULL;
    if (layout->crc_fields) {
        crc_at = calloc(layout->count > 0 ? layout->count : 1, sizeof(*crc_at));
        if (crc_at == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating the CRC fields of %zu tensors",
                           layout->count);
    }
    HL_AUTO(hl_buf_fini) struct hl_buf b = HL_BUF(HL_SAFETENSORS_HEADER_MAX + 8);
    put_header(&b, layout, crc_at);
    if (b.failed)
        return hl_fail(HL_ENOMEM, "a header of %zu tensors exceeds the format's limit of 100 MB",
                       layout->count);
    *out = (struct hl_safetensors_image){
        .size = b.len, .data_size = data_size, .crc_at = hl_steal(&crc_at), .count = layout->count};
    out->bytes = hl_buf_take(&b);
    return HL_OK;
}

void hl_safetensors_patch_crc(const struct hl_safetensors_image *image, void *header, size_t i,
                              uint32_t crc)
{
    static const char digits[] = "0123456789abcdef";
    char *at = (char *)header + image->crc_at[i];
    for (int k = 0; k < 8; k++)
        at[k] = digits[crc >> (28 - 4 * k) & 15];
}

static hl_status compare_origin(const struct hl_safetensors *st, const char *part, const char *key,
                                const char *want)
{
    const char *has = hl_safetensors_meta(st, key);
    if (has == NULL || strcmp(has, want) == 0)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "part '%s': the shard's own header says %s = '%.128s', not '%s': the catalogue "
                   "is wrong; use another version",
                   part, key, has, want);
}

hl_status hl_safetensors_check_origin(const struct hl_safetensors *st, const char *model,
                                      int64_t version, int pp, int tp, int ep, const char *part)
{
    char text[24];
    HL_TRY(compare_origin(st, part, "helios.model", model));
    snprintf(text, sizeof(text), "%" PRId64, version);
    HL_TRY(compare_origin(st, part, "helios.version", text));
    snprintf(text, sizeof(text), "%d", pp);
    HL_TRY(compare_origin(st, part, "helios.pp", text));
    snprintf(text, sizeof(text), "%d", tp);
    HL_TRY(compare_origin(st, part, "helios.tp", text));
    snprintf(text, sizeof(text), "%d", ep);
    HL_TRY(compare_origin(st, part, "helios.ep", text));
    return compare_origin(st, part, "helios.part", part);
}

static int64_t origin_number(const struct hl_safetensors *st, const char *key, uint64_t max)
{
    const char *text = hl_safetensors_meta(st, key);
    uint64_t value;
    return text != NULL && hl_parse_number(text, max, &value) ? (int64_t)value : -1;
}

void hl_safetensors_read_origin(const struct hl_safetensors *st, struct hl_safetensors_origin *out)
{
    *out = (struct hl_safetensors_origin){
        .model = hl_safetensors_meta(st, "helios.model"),
        .part = hl_safetensors_meta(st, "helios.part"),
        .version = origin_number(st, "helios.version", INT64_MAX),
        .pp = (int)origin_number(st, "helios.pp", INT32_MAX),
        .tp = (int)origin_number(st, "helios.tp", INT32_MAX),
        .ep = hl_safetensors_meta(st, "helios.ep") != NULL
                  ? (int)origin_number(st, "helios.ep", INT32_MAX)
                  : 0,
    };
}
