/* A shard's header under other names: tensors and their checksum fields. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/view.h"

#define TEXT_MAX (2 * (size_t)HL_SAFETENSORS_HEADER_MAX)

/* The new header while it is collected: texts are offsets into `text` until the end. */
struct showing {
    const struct hl_safetensors *st;
    struct hl_tensor *tensors;
    size_t count;
    uint64_t data_size;
    struct hl_safetensors_meta *meta;
    size_t meta_count;
    uint32_t *by_name;
    struct hl_buf text;
};

static void showing_fini(struct showing *s)
{
    free(s->tensors);
    free(s->meta);
    free(s->by_name);
    hl_buf_fini(&s->text);
}

static const char *add_text(struct showing *s, const char *prefix, const char *text)
{
    size_t at = s->text.len;
    (void)hl_buf_append(&s->text, prefix, strlen(prefix));
    (void)hl_buf_append(&s->text, text, strlen(text) + 1);
    return (const char *)(uintptr_t)at;
}

static int name_order(const void *a, const void *b)
{
    const struct hl_view_name *x = a, *y = b;
    return strcmp(x->stored, y->stored);
}

/* NULL: it is not shown. `names` are sorted. */
static const struct hl_view_name *find_name(const struct hl_view_name *names, size_t count,
                                            const char *stored)
{
    const struct hl_view_name key = {.stored = stored};
    return count > 0 ? bsearch(&key, names, count, sizeof(*names), name_order) : NULL;
}

static void show_tensors(struct showing *s, const struct hl_view_name *names, size_t count,
                         uint64_t *from)
{
    for (size_t i = 0; i < s->st->count; i++) {
        const struct hl_tensor *t = &s->st->tensors[i];
        const struct hl_view_name *name = find_name(names, count, t->name);
        if (name == NULL)
            continue;
        from[s->count] = t->offset;
        s->tensors[s->count] = *t;
        s->tensors[s->count].name = add_text(s, "", name->shown);
        s->tensors[s->count++].offset = s->data_size;
        s->data_size += t->size;
    }
}

/* Checksum fields go with their tensors. */
static void show_meta(struct showing *s, const struct hl_view_name *names, size_t count)
{
    size_t n = strlen(HL_CRC_KEY);
    for (size_t i = 0; i < s->st->meta_count; i++) {
        const struct hl_safetensors_meta *pair = &s->st->meta[i];
        const char *tensor = strncmp(pair->key, HL_CRC_KEY, n) == 0 ? pair->key + n : NULL;
        const struct hl_view_name *name = tensor != NULL ? find_name(names, count, tensor) : NULL;
        if (tensor != NULL && name == NULL)
            continue;
        struct hl_safetensors_meta *to = &s->meta[s->meta_count++];
        to->key = name != NULL ? add_text(s, HL_CRC_KEY, name->shown) : add_text(s, "", pair->key);
        to->value = add_text(s, "", pair->value);
    }
}

static int tensor_order(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static void resolve_texts(struct showing *s)
{
    const char *base = s->text.data;
    for (size_t i = 0; i < s->count; i++) {
        s->tensors[i].name = base + (uintptr_t)s->tensors[i].name;
        s->by_name[i] = (uint32_t)i;
    }
    for (size_t i = 0; i < s->meta_count; i++) {
        s->meta[i].key = base + (uintptr_t)s->meta[i].key;
        s->meta[i].value = base + (uintptr_t)s->meta[i].value;
    }
    qsort_r(s->by_name, s->count, sizeof(*s->by_name), tensor_order, s->tensors);
}

static hl_status check_stored(const struct hl_safetensors *st, const struct hl_view_name *names,
                              size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (hl_safetensors_find(st, names[i].stored) == NULL)
            return hl_fail(HL_ECORRUPT,
                           "tensor '%s' is not in the shard: the catalogue is wrong; use another "
                           "version",
                           names[i].stored);
    return HL_OK;
}

static hl_status show_header(struct showing *s, const struct hl_view_name *names, size_t count,
                             uint64_t *from)
{
    const struct hl_safetensors *st = s->st;
    s->tensors = calloc(st->count + 1, sizeof(*s->tensors));
    s->meta = calloc(st->meta_count + 1, sizeof(*s->meta));
    s->by_name = calloc(st->count + 1, sizeof(*s->by_name));
    if (s->tensors == NULL || s->meta == NULL || s->by_name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", st->count);
    show_tensors(s, names, count, from);
    show_meta(s, names, count);
    if (s->text.failed)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", st->count);
    resolve_texts(s);
    return HL_OK;
}

hl_status hl_view_header(struct hl_safetensors *st, const struct hl_view_name *names, size_t count,
                         uint64_t *from)
{
    HL_AUTO(showing_fini)
    struct showing s = {.st = st, .text = HL_BUF(TEXT_MAX)};
    HL_AUTO(hl_freep) struct hl_view_name *sorted = calloc(count + 1, sizeof(*sorted));
    if (sorted == NULL)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", count);
    if (count > 0)
        memcpy(sorted, names, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), name_order);
    HL_TRY(check_stored(st, sorted, count));
    HL_TRY(show_header(&s, sorted, count, from));
    uint64_t data_offset = st->data_offset;
    hl_safetensors_fini(st);
    *st = (struct hl_safetensors){.tensors = s.tensors,
                                  .count = s.count,
                                  .meta = s.meta,
                                  .meta_count = s.meta_count,
                                  .data_offset = data_offset,
                                  .data_size = s.data_size,
                                  .by_name = s.by_name,
                                  .text = hl_buf_take(&s.text)};
    s.tensors = NULL;
    s.meta = NULL;
    s.by_name = NULL;
    return HL_OK;
}
