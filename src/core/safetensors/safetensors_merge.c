/* Merging keeps every data block unchanged: offsets only move by the size of the preceding parts.
 * Duplicate names are found by parsing the result, which uses a hash table. */
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "base/buf.h"
#include "core/safetensors/safetensors.h"

#define PART_KEY  "helios.part"
#define PARTS_MAX ((size_t)1 << 20)

struct seen {
    const char *name;
    UT_hash_handle hh;
};

struct merge {
    struct hl_tensor *tensors;
    size_t count;
    struct hl_safetensors_meta *meta;
    size_t meta_count;
    struct seen *nodes;
    struct seen *seen;
    struct hl_buf parts;
};

static void merge_fini(struct merge *m)
{
    HASH_CLEAR(hh, m->seen);
    free(m->nodes);
    free(m->tensors);
    free(m->meta);
    hl_buf_fini(&m->parts);
}

HL_CHECK static hl_status merge_init(struct merge *m, const struct hl_safetensors *const *parts,
                                     size_t count)
{
    size_t tensors = 1, meta = 1;
    for (size_t i = 0; i < count; i++) {
        tensors += parts[i]->count;
        meta += parts[i]->meta_count;
    }
    m->tensors = malloc(tensors * sizeof(*m->tensors));
    m->nodes = malloc(tensors * sizeof(*m->nodes));
    m->meta = malloc(meta * sizeof(*m->meta));
    if (m->tensors == NULL || m->nodes == NULL || m->meta == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a header of %zu tensors", tensors);
    return HL_OK;
}

HL_CHECK static hl_status add_tensors(struct merge *m, const struct hl_safetensors *part)
{
    for (size_t i = 0; i < part->count; i++) {
        const struct hl_tensor *t = &part->tensors[i];
        struct seen *hit;
        HASH_FIND_STR(m->seen, t->name, hit);
        if (hit != NULL)
            return hl_fail(HL_EINVAL, "tensor '%s' is in two parts of one rank", t->name);
        struct seen *node = &m->nodes[m->count];
        node->name = t->name;
        HASH_ADD_KEYPTR(hh, m->seen, node->name, strlen(node->name), node);
        m->tensors[m->count++] = *t;
    }
    return HL_OK;
}

/* Adds the CRC fields of every part, the names of the parts, and the other pairs of the first
 * part. */
static void add_meta(struct merge *m, const struct hl_safetensors *part, bool first)
{
    for (size_t i = 0; i < part->meta_count; i++) {
        const struct hl_safetensors_meta *pair = &part->meta[i];
        if (strcmp(pair->key, PART_KEY) == 0)
            (void)hl_buf_printf(&m->parts, "%s%s", m->parts.len > 0 ? "," : "", pair->value);
        else if (first || strncmp(pair->key, HL_CRC_KEY, strlen(HL_CRC_KEY)) == 0)
            m->meta[m->meta_count++] = *pair;
    }
}

HL_CHECK static hl_status merge_run(struct merge *m, const struct hl_safetensors *const *parts,
                                    size_t count, struct hl_safetensors_image *out)
{
    HL_TRY(merge_init(m, parts, count));
    for (size_t i = 0; i < count; i++) {
        HL_TRY(add_tensors(m, parts[i]));
        add_meta(m, parts[i], i == 0);
    }
    if (m->parts.failed)
        return hl_fail(HL_ENOMEM, "out of memory allocating the names of %zu parts", count);
    if (m->parts.len > 0)
        m->meta[m->meta_count++] =
            (struct hl_safetensors_meta){.key = PART_KEY, .value = m->parts.data};
    return hl_safetensors_write(
        &(struct hl_safetensors_layout){
            .tensors = m->tensors, .count = m->count, .meta = m->meta, .meta_count = m->meta_count},
        out);
}

hl_status hl_safetensors_merge(const struct hl_safetensors *const *parts, size_t count,
                               struct hl_safetensors_image *out, uint64_t *part_offset)
{
    HL_AUTO(merge_fini) struct merge m = {.parts = HL_BUF(PARTS_MAX)};
    HL_TRY(merge_run(&m, parts, count, out));
    uint64_t at = out->size;
    for (size_t i = 0; i < count; i++) {
        part_offset[i] = at;
        at += parts[i]->data_size;
    }
    return HL_OK;
}
