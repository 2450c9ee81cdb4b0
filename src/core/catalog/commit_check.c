#include "core/catalog/commit_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog.h"

struct hl_api_text_list hl_commit_check_ids(const struct hl_version_rec *v,
                                            const struct hl_api_shard_list *named,
                                            struct hl_arena *arena)
{
    size_t n = v->shard_count + named->count;
    struct hl_api_text_list ids = {.items = hl_arena_array(arena, n, sizeof(*ids.items))};
    for (size_t i = 0; ids.items != NULL && i < n; i++)
        ids.items[ids.count++] = i < v->shard_count ? hl_id_print(v->shards[i]->id, arena)
                                                    : named->items[i - v->shard_count].id;
    return ids;
}

/* What L3 found, by id. */
struct find {
    struct hl_id id;
    const struct hl_api_found_shard *shard;
};

static int find_order(const void *a, const void *b)
{
    return memcmp(&((const struct find *)a)->id, &((const struct find *)b)->id,
                  sizeof(struct hl_id));
}

struct finds {
    struct find *list;
    size_t count;
};

static const struct hl_api_found_shard *find_shard(const struct finds *f, struct hl_id id)
{
    const struct find key = {.id = id};
    const struct find *hit = bsearch(&key, f->list, f->count, sizeof(key), find_order);
    return hit != NULL ? hit->shard : NULL;
}

/* found: NULL = L3 does not have it. */
static hl_status compare_shard(const char *what, uint64_t size, uint32_t crc,
                               const struct hl_api_found_shard *found)
{
    if (found == NULL)
        return hl_fail(HL_ENOENT, "%s is neither in the pool nor in the archive; save again", what);
    if (found->size_bytes != size)
        return hl_fail(HL_EINVAL,
                       "%s has %" PRIu64 " bytes in the pool, but %" PRIu64 " were stated", what,
                       found->size_bytes, size);
    if (found->crc32_known && found->crc32 != crc)
        return hl_fail(HL_EINVAL, "%s has CRC-32 %08x in the pool, but %08x was stated", what,
                       found->crc32, crc);
    return HL_OK;
}

/* Checks the shards that earlier commits have linked. */
static hl_status check_linked(const struct hl_version_rec *v, const struct finds *finds)
{
    char what[HL_CATALOG_KEY_MAX + 64], key[HL_CATALOG_KEY_MAX];
    for (size_t k = 0; k < v->shard_count; k++) {
        const struct hl_shard_rec *s = v->shards[k];
        snprintf(what, sizeof(what), "shard %s (%s)", hl_shard_key(s, key, sizeof(key)),
                 hl_id_format(s->id).s);
        HL_TRY(compare_shard(what, s->size_bytes, s->crc32, find_shard(finds, s->id)));
    }
    return HL_OK;
}

static hl_status check_named(const struct hl_api_shard_list *named, const struct finds *finds)
{
    char what[192];
    for (size_t i = 0; i < named->count; i++) {
        const struct hl_api_shard *s = &named->items[i];
        struct hl_id id;
        HL_TRY(hl_id_parse(s->id, &id));
        snprintf(what, sizeof(what), "part %.63s at pp %d, tp %d (%.32s)", s->part, s->pp, s->tp,
                 s->id);
        HL_TRY(compare_shard(what, s->size_bytes, s->crc32, find_shard(finds, id)));
    }
    return HL_OK;
}

hl_status hl_commit_check(const struct hl_version_rec *v, const struct hl_api_shard_list *named,
                          const struct hl_api_found_shard_list *found)
{
    HL_AUTO(hl_freep) struct find *list = calloc(found->count + 1, sizeof(*list));
    struct finds finds = {.list = list};
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for L3's answer");
    for (size_t i = 0; i < found->count; i++)
        if (hl_id_parse(found->items[i].id, &list[finds.count].id) == HL_OK)
            list[finds.count++].shard = &found->items[i];
    qsort(list, finds.count, sizeof(*list), find_order);
    HL_TRY(check_linked(v, &finds));
    return check_named(named, &finds);
}
