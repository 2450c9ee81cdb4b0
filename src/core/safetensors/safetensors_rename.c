#include "core/safetensors/safetensors_rename.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (2 * (size_t)HL_SAFETENSORS_HEADER_MAX)

hl_status hl_rename_init(struct hl_rename *r, const struct hl_safetensors *from)
{
    struct hl_rename made = {.text = HL_BUF(TEXT_MAX)};
    made.tensors = calloc(from->count + 1, sizeof(*made.tensors));
    made.meta = calloc(from->meta_count + 1, sizeof(*made.meta));
    if (made.tensors == NULL || made.meta == NULL) {
        hl_rename_fini(&made);
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", from->count);
    }
    *r = made;
    return HL_OK;
}

void hl_rename_fini(struct hl_rename *r)
{
    free(r->tensors);
    free(r->meta);
    hl_buf_fini(&r->text);
    *r = (struct hl_rename){0};
}

static const char *add_text(struct hl_rename *r, const char *prefix, const char *text)
{
    size_t at = r->text.len;
    (void)hl_buf_append(&r->text, prefix, strlen(prefix));
    (void)hl_buf_append(&r->text, text, strlen(text) + 1);
    return (const char *)(uintptr_t)at;
}

void hl_rename_add(struct hl_rename *r, const struct hl_tensor *t, const char *name)
{
    struct hl_tensor *to = &r->tensors[r->count++];
    *to = *t;
    to->name = add_text(r, "", name);
    to->offset = r->data_size;
    r->data_size += t->size;
}

void hl_rename_add_meta(struct hl_rename *r, const char *prefix, const char *key, const char *value)
{
    struct hl_safetensors_meta *to = &r->meta[r->meta_count++];
    to->key = add_text(r, prefix, key);
    to->value = add_text(r, "", value);
}

static int tensor_order(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Converts offsets to pointers. */
static void resolve_texts(struct hl_rename *r)
{
    const char *base = r->text.data;
    for (size_t i = 0; i < r->count; i++)
        r->tensors[i].name = base + (uintptr_t)r->tensors[i].name;
    for (size_t i = 0; i < r->meta_count; i++) {
        r->meta[i].key = base + (uintptr_t)r->meta[i].key;
        r->meta[i].value = base + (uintptr_t)r->meta[i].value;
    }
}

hl_status hl_rename_take(struct hl_rename *r, uint64_t data_offset, struct hl_safetensors *out)
{
    uint32_t *by_name = calloc(r->count + 1, sizeof(*by_name));
    if (by_name == NULL || r->text.failed) {
        free(by_name);
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", r->count);
    }
    resolve_texts(r);
    for (size_t i = 0; i < r->count; i++)
        by_name[i] = (uint32_t)i;
    qsort_r(by_name, r->count, sizeof(*by_name), tensor_order, r->tensors);
    *out = (struct hl_safetensors){.tensors = hl_steal(&r->tensors),
                                   .count = r->count,
                                   .meta = hl_steal(&r->meta),
                                   .meta_count = r->meta_count,
                                   .data_offset = data_offset,
                                   .data_size = r->data_size,
                                   .by_name = by_name,
                                   .text = hl_buf_take(&r->text)};
    hl_rename_fini(r);
    return HL_OK;
}
