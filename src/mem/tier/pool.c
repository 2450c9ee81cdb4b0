/* The pool as a tier: L3, and a node's L2. Index, counters and quarantine are the pool's own, so
 * other users of the pool (imports, ranks that put) are counted too. */
#include <stdio.h>
#include <stdlib.h>

#include "mem/pool/pool.h"
#include "mem/tier/ops.h"

#define LIST_PAGE 64

struct pool_tier {
    struct hl_tier_store store;
    struct hl_pool *pool;
};

static struct hl_pool *pool_of(const struct hl_tier_store *t)
{
    return ((const struct pool_tier *)t)->pool;
}

static struct hl_pool_extent extent_of(const struct hl_tier_slot *slot)
{
    return (struct hl_pool_extent){.id = slot->id,
                                   .ptr = slot->host,
                                   .offset = slot->offset,
                                   .size = slot->size,
                                   .slot = (uint32_t)slot->tag};
}

static struct hl_tier_ref tier_ref(const struct hl_tier_store *t, const struct hl_pool_ref *r)
{
    return (struct hl_tier_ref){.id = r->id,
                                .size = r->size,
                                .offset = r->offset,
                                .crc32 = r->crc32,
                                .gen = r->gen,
                                .numa_id = hl_pool_numa_of(pool_of(t), r->offset),
                                .tag = (uint64_t)r->table_crc << 32 | r->slot};
}

static struct hl_pool_ref pool_ref(const struct hl_tier_ref *r)
{
    return (struct hl_pool_ref){.id = r->id,
                                .offset = r->offset,
                                .size = r->size,
                                .crc32 = r->crc32,
                                .table_crc = (uint32_t)(r->tag >> 32),
                                .gen = r->gen,
                                .slot = (uint32_t)r->tag};
}

static void pool_close(struct hl_tier_store *t)
{
    hl_tier_fini(t);
    free(t);
}

static uint64_t pool_room(const struct hl_tier_store *t, uint64_t size)
{
    (void)t;
    return hl_pool_units(size) * HL_POOL_UNIT;
}

static hl_status pool_reserve(struct hl_tier_store *t, struct hl_tier_slot *slot, int numa_node)
{
    struct hl_pool_extent x;
    HL_TRY(hl_pool_alloc_at(pool_of(t), slot->id, slot->size, numa_node, &x));
    slot->host = x.ptr;
    slot->offset = x.offset;
    slot->tag = x.slot;
    return HL_OK;
}

static hl_status pool_seal(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint32_t crc32,
                           const uint32_t *chunk_crcs, size_t chunks, struct hl_tier_ref *ref)
{
    struct hl_pool_extent x = extent_of(slot);
    struct hl_pool_ref r;
    HL_TRY((slot->kept ? hl_pool_seal_kept : hl_pool_seal)(pool_of(t), &x, crc32, chunk_crcs,
                                                           chunks, &r));
    *ref = tier_ref(t, &r);
    return HL_OK;
}

static void pool_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    struct hl_pool_extent x = extent_of(slot);
    hl_pool_abort(pool_of(t), &x);
}

static hl_status pool_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    struct hl_pool_ref r;
    HL_TRY(hl_pool_find(pool_of(t), id, &r));
    *out = tier_ref(t, &r);
    return HL_OK;
}

static hl_status pool_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    struct hl_pool_ref r;
    HL_TRY(hl_pool_find(pool_of(t), id, &r)); /* fails for a kept copy */
    HL_TRY(hl_pool_pin(pool_of(t), id, 0, &r));
    *out = tier_ref(t, &r);
    return HL_OK;
}

static void pool_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref)
{
    struct hl_pool_ref r = pool_ref(ref);
    hl_pool_unpin(pool_of(t), &r);
}

static hl_status pool_read(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint64_t offset,
                           void *dst, size_t len)
{
    struct hl_pool_ref r = pool_ref(ref);
    return hl_pool_read(pool_of(t), &r, offset, dst, len);
}

static hl_status pool_chunk_crcs(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                                 uint32_t *out)
{
    struct hl_pool_ref r = pool_ref(ref);
    return hl_pool_chunk_crcs(pool_of(t), &r, out);
}

static hl_status pool_drop(struct hl_tier_store *t, struct hl_id id)
{
    return hl_pool_free(pool_of(t), id);
}

static size_t pool_list(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out,
                        size_t max)
{
    struct hl_pool_ref page[LIST_PAGE];
    size_t n = 0;
    do {
        size_t want = max - n < LIST_PAGE ? max - n : LIST_PAGE;
        size_t got = hl_pool_list(pool_of(t), cursor, page, want);
        for (size_t i = 0; i < got; i++)
            out[n++] = tier_ref(t, &page[i]);
    } while (*cursor != 0 && n < max);
    return n;
}

static void pool_counts(struct hl_tier_store *t, struct hl_tier_counts *out)
{
    struct hl_pool_info info;
    hl_pool_info(pool_of(t), &info);
    *out = (struct hl_tier_counts){.used = info.used - info.kept,
                                   .writing = info.writing,
                                   .quarantined = info.quarantined,
                                   .shards = info.shards - info.manifests,
                                   .kept = info.kept,
                                   .kept_shards = info.kept_shards};
}

static void pool_reclaim(struct hl_tier_store *t)
{
    hl_pool_beat(pool_of(t));
}

static void pool_backing(struct hl_tier_store *t, char *out, size_t len)
{
    struct hl_pool_info info;
    hl_pool_info(pool_of(t), &info);
    snprintf(out, len, "%s", info.backing);
}

static size_t pool_regions(struct hl_tier_store *t, struct hl_pool_region *out, size_t max,
                           int *numa_id)
{
    size_t n = hl_pool_regions(pool_of(t), out, max);
    *numa_id = out[0].numa_id;
    for (size_t i = 1; i < n; i++)
        if (out[i].numa_id != *numa_id)
            *numa_id = -1;
    return n;
}

static hl_status pool_audit(struct hl_tier_store *t)
{
    return hl_pool_audit(pool_of(t));
}

static const struct hl_tier_ops pool_ops = {
    .close = pool_close,
    .room = pool_room,
    .reserve = pool_reserve,
    .seal = pool_seal,
    .abort = pool_abort,
    .find = pool_find,
    .pin = pool_pin,
    .unpin = pool_unpin,
    .read = pool_read,
    .chunk_crcs = pool_chunk_crcs,
    .drop = pool_drop,
    .list = pool_list,
    .counts = pool_counts,
    .reclaim = pool_reclaim,
    .backing = pool_backing,
    .regions = pool_regions,
    .audit = pool_audit,
};

hl_status hl_tier_over_pool(struct hl_pool *pool, enum hl_api_tier tier, const char *name,
                            const struct hl_tier_limits *limits, struct hl_tier_store **out)
{
    struct hl_pool_info info;
    hl_pool_info(pool, &info);
    struct pool_tier *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating tier %s", name);
    p->pool = pool;
    hl_status st = hl_tier_init(&p->store, &pool_ops, tier, name, info.capacity, limits);
    if (st != HL_OK) {
        free(p);
        return st;
    }
    *out = &p->store;
    return HL_OK;
}
