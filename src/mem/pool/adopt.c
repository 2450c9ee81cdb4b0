/* Adoption of a pool's file: the index is trusted, and the allocator is rebuilt from it.
 *
 * The last owner may have died between any two stores. An odd generation marks an entry that was
 * being changed: either a new shard that was not acknowledged yet, or one that was being freed.
 * Both are discarded. FREED extents go through the quarantine again, since a reader may still have
 * them mapped; LEASED ones wait for their borrower. If two entries claim the same bytes, the one
 * whose checksums match is kept; if both or neither match, both are dropped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "mem/pool/pool_private.h"

static bool table_is_good(const struct hl_pool *pool, const struct hl_pool_ref *r)
{
    uint64_t chunks = hl_chunk_count(r->size);
    const uint8_t *table = pool->base + r->offset + hl_pool_table_offset(r->size);
    return hl_crc32(0, table, chunks * sizeof(uint32_t)) == r->table_crc;
}

static struct hl_pool_ref fields_of(const struct hl_pool_entry *e, uint32_t slot)
{
    return (struct hl_pool_ref){
        .id = {POOL_GET(e->id_hi), POOL_GET(e->id_lo)},
        .offset = POOL_GET(e->offset),
        .size = POOL_GET(e->size),
        .crc32 = POOL_GET(e->crc32),
        .table_crc = POOL_GET(e->table_crc),
        .gen = POOL_GET(e->gen),
        .slot = slot,
    };
}

/* Makes the generation even, whatever it was: no change is in progress any more. */
static void pool_settle_entry(struct hl_pool_entry *e, uint32_t state)
{
    uint32_t gen = POOL_GET(e->gen);
    POOL_SET(e->gen, gen | 1);
    POOL_SET(e->state, state);
    POOL_SET(e->gen, (gen | 1) + 1);
}

/* ---- overlaps -------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const struct hl_pool_ref *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool holds_shard(uint32_t state)
{
    return pool_is_readable(state) || state == HL_POOL_FREED || state == HL_POOL_LEASED;
}

static bool is_claim(const struct hl_pool *pool, uint32_t slot, struct hl_pool_ref *out)
{
    const struct hl_pool_entry *e = &pool->index[slot];
    uint32_t state = POOL_GET(e->state);
    *out = fields_of(e, slot);
    return holds_shard(state) && POOL_GET(e->entry_crc) == pool_entry_crc(out) &&
           pool_extent_fits(pool->super, out->offset, out->size);
}

static bool is_good(const struct hl_pool *pool, const struct hl_pool_ref *r)
{
    return table_is_good(pool, r) && pool_bytes_are_good(pool, r);
}

static void drop_claim(struct hl_pool *pool, const struct hl_pool_ref *r,
                       const struct hl_pool_ref *other, struct hl_pool_found *found)
{
    char id[HL_ID_TEXT_LEN + 1];
    snprintf(id, sizeof(id), "%s", hl_id_format(r->id).s);
    hl_warn("index entry is dropped, it overlaps another one pool=%s shard=%s slot=%" PRIu32
            " offset=%" PRIu64 " size=%" PRIu64 " other=%s",
            pool->path, id, r->slot, r->offset, r->size, hl_id_format(other->id).s);
    pool_settle_entry(&pool->index[r->slot], HL_POOL_DELETED);
    found->corrupt++;
}

/* Keeps the claim whose bytes are good. If both or neither look good, both are dropped. Returns the
 * claim that is kept, or NULL. */
static const struct hl_pool_ref *resolve_overlap(struct hl_pool *pool, const struct hl_pool_ref *a,
                                                 const struct hl_pool_ref *b,
                                                 struct hl_pool_found *found)
{
    bool good_a = is_good(pool, a), good_b = is_good(pool, b);
    if (!good_a || good_b)
        drop_claim(pool, a, b, found);
    if (!good_b || good_a)
        drop_claim(pool, b, a, found);
    return good_a && !good_b ? a : good_b && !good_a ? b : NULL;
}

static hl_status drop_overlaps(struct hl_pool *pool, struct hl_pool_found *found)
{
    struct hl_pool_ref one;
    size_t n = 0;
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        n += is_claim(pool, (uint32_t)slot, &one) != 0;
    HL_AUTO(hl_freep) struct hl_pool_ref *all = calloc(n + 1, sizeof(*all));
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory adopting pool %s with %zu entries", pool->path, n);
    size_t at = 0;
    for (uint64_t slot = 0; slot < pool->slots && at < n; slot++)
        at += is_claim(pool, (uint32_t)slot, &all[at]) != 0;
    qsort(all, at, sizeof(*all), by_offset);
    const struct hl_pool_ref *last = NULL; /* the last claim that is kept */
    for (size_t i = 0; i < at; i++) {
        if (last != NULL && all[i].offset < last->offset + hl_pool_units(last->size) * HL_POOL_UNIT)
            last = resolve_overlap(pool, last, &all[i], found);
        else
            last = &all[i];
    }
    return HL_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

static hl_status claim_extent(struct hl_pool *pool, const struct hl_pool_ref *r)
{
    uint64_t first = (r->offset - pool->super->data_offset) / HL_POOL_UNIT;
    if (hl_extents_claim(pool->extents, first, hl_pool_units(r->size)) == HL_OK)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "pool %s can't be adopted: shard %s in slot %" PRIu32
                   " overlaps another one; remove the file and import again",
                   pool->path, hl_id_format(r->id).s, r->slot);
}

static hl_status adopt_entry(struct hl_pool *pool, uint32_t slot, uint64_t now_ns,
                             struct hl_pool_found *found)
{
    struct hl_pool_entry *e = &pool->index[slot];
    uint32_t state = POOL_GET(e->state);
    struct hl_pool_ref r = fields_of(e, slot);
    bool torn = (r.gen & 1) != 0;
    if (!torn && (state == HL_POOL_EMPTY || state == HL_POOL_DELETED))
        return HL_OK;
    int whole = POOL_GET(e->entry_crc) == pool_entry_crc(&r) &&
                pool_extent_fits(pool->super, r.offset, r.size);
    bool sealed = holds_shard(state);
    if (!sealed || !whole || !table_is_good(pool, &r)) {
        /* Never acknowledged, or damaged: free its bytes. */
        found->unfinished += !sealed || torn;
        found->corrupt += sealed && !torn;
        pool_settle_entry(e, HL_POOL_DELETED);
        return HL_OK;
    }
    HL_TRY(claim_extent(pool, &r));
    pool->taken++;
    if (torn || state == HL_POOL_FREED) {
        pool_settle_entry(e, HL_POOL_FREED);
        pool->quarantined_units += hl_pool_units(r.size);
        pool_quarantine(pool, slot, now_ns);
        found->freed++;
        return HL_OK;
    }
    pool->used_units += hl_pool_units(r.size);
    if (state == HL_POOL_LEASED) {
        pool->leases_end_ns = now_ns + pool->lease_ns;
        pool->leases_sure_ns = now_ns + HL_POOL_LEASE_SURE_MS * HL_NS_PER_MS;
        found->leased++;
        return HL_OK;
    }
    if (state == HL_POOL_KEPT) {
        pool->kept++;
        pool->kept_units += hl_pool_units(r.size);
        return HL_OK;
    }
    pool->shards++;
    pool->manifests += hl_manifest_is(r.id);
    pool->derived += hl_id_is_derived(r.id);
    found->kept++;
    found->kept_bytes += r.size;
    return HL_OK;
}

/* A search stops at an EMPTY slot, so there must be none between an entry and its home slot. A
 * flipped bit may have made one: it becomes DELETED, and the entries after it can be found
 * again. */
static void bridge_gaps(struct hl_pool *pool, uint32_t slot)
{
    const struct hl_pool_entry *e = &pool->index[slot];
    uint32_t state = POOL_GET(e->state);
    if (state == HL_POOL_EMPTY || state == HL_POOL_DELETED)
        return;
    uint64_t at = hl_pool_home(fields_of(e, slot).id, pool->slots);
    for (; at != slot; at = (at + 1) & (pool->slots - 1))
        if (POOL_GET(pool->index[at].state) == HL_POOL_EMPTY)
            pool_settle_entry(&pool->index[at], HL_POOL_DELETED);
}

hl_status pool_adopt(struct hl_pool *pool, struct hl_pool_found *found)
{
    uint64_t now = hl_now_ns();
    HL_TRY(drop_overlaps(pool, found));
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        HL_TRY(adopt_entry(pool, (uint32_t)slot, now, found));
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        bridge_gaps(pool, (uint32_t)slot);
    /* No search needs a DELETED slot that is followed by an EMPTY one, so it becomes EMPTY. The
     * loop goes around twice because such a run may wrap. */
    bool empty = false;
    for (uint64_t i = 2 * pool->slots; i-- > 0;) {
        struct hl_pool_entry *e = &pool->index[i & (pool->slots - 1)];
        uint32_t state = POOL_GET(e->state);
        if (empty && state == HL_POOL_DELETED)
            pool_settle_entry(e, HL_POOL_EMPTY);
        else
            empty = state == HL_POOL_EMPTY;
    }
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        pool_slot_learn(pool, (uint32_t)slot);
    return HL_OK;
}
