/* Rewrites a shard's header under other names: tensors and their checksum fields. */
#include <stdlib.h>
#include <string.h>

#include "core/model/view.h"
#include "core/safetensors/safetensors_rename.h"

static int name_order(const void *a, const void *b)
{
    const struct hl_view_name *x = a, *y = b;
    return strcmp(x->stored, y->stored);
}

/* NULL: the tensor is not shown. `names` are sorted. */
static const struct hl_view_name *find_name(const struct hl_view_name *names, size_t count,
                                            const char *stored)
{
    const struct hl_view_name key = {.stored = stored};
    return count > 0 ? bsearch(&key, names, count, sizeof(*names), name_order) : NULL;
}

static void show_tensors(struct hl_rename *r, const struct hl_safetensors *st,
                         const struct hl_view_name *names, size_t count, uint64_t *from)
{
    for (size_t i = 0; i < st->count; i++) {
        const struct hl_tensor *t = &st->tensors[i];
        const struct hl_view_name *name = find_name(names, count, t->name);
        if (name == NULL)
            continue;
        from[r->count] = t->offset;
        hl_rename_add(r, t, name->shown);
    }
}

/* Checksum fields are renamed with their tensors. */
static void show_meta(struct hl_rename *r, const struct hl_safetensors *st,
                      const struct hl_view_name *names, size_t count)
{
    size_t n = strlen(HL_CRC_KEY);
    for (size_t i = 0; i < st->meta_count; i++) {
        const struct hl_safetensors_meta *pair = &st->meta[i];
        const char *tensor = strncmp(pair->key, HL_CRC_KEY, n) == 0 ? pair->key + n : NULL;
        const struct hl_view_name *name = tensor != NULL ? find_name(names, count, tensor) : NULL;
        if (name != NULL)
            hl_rename_add_meta(r, HL_CRC_KEY, name->shown, pair->value);
        else if (tensor == NULL)
            hl_rename_add_meta(r, "", pair->key, pair->value);
    }
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

hl_status hl_view_header(struct hl_safetensors *st, const struct hl_view_name *names, size_t count,
                         uint64_t *from)
{
    HL_AUTO(hl_rename_fini) struct hl_rename r = {0};
    HL_AUTO(hl_freep) struct hl_view_name *sorted = calloc(count + 1, sizeof(*sorted));
    struct hl_safetensors shown;
    if (sorted == NULL)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", count);
    if (count > 0)
        memcpy(sorted, names, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), name_order);
    HL_TRY(check_stored(st, sorted, count));
    HL_TRY(hl_rename_init(&r, st));
    show_tensors(&r, st, sorted, count, from);
    show_meta(&r, st, sorted, count);
    HL_TRY(hl_rename_take(&r, st->data_offset, &shown));
    hl_safetensors_fini(st);
    *st = shown;
    return HL_OK;
}
