/* The owner checks its pool: bytes against their CRCs, counters against the index. */
#include <inttypes.h>
#include <stdlib.h>

#include "mem/chunks.h"
#include "mem/pool/pool_private.h"

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Stores the numbers of the bad chunks in `bad` and their count in *count. */
static hl_status verify_pinned(const struct hl_pool *pool, const struct hl_pool_ref *r,
                               const atomic_bool *cancel, uint32_t *bad, size_t *count)
{
    uint64_t chunks = hl_chunk_count(r->size);
    const uint8_t *data = pool->base + r->offset;
    const uint32_t *table = (const uint32_t *)(data + hl_pool_table_offset(r->size));
    *count = 0;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t len = i + 1 < chunks ? HL_CHUNK : r->size - i * HL_CHUNK;
        uint32_t expected = chunks == 1 ? r->crc32 : table[i];
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "verification of shard %s was cancelled",
                           hl_id_format(r->id).s);
        if (hl_crc32(0, data + i * HL_CHUNK, len) != expected)
            bad[(*count)++] = (uint32_t)i;
    }
    if (*count == 0)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "shard %s: %zu of %" PRIu64 " chunks fail their CRC, first %" PRIu32,
                   hl_id_format(r->id).s, *count, chunks, bad[0]);
}

bool pool_bytes_are_good(const struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    HL_AUTO(hl_freep) uint32_t *bad = calloc(hl_chunk_count(ref->size) + 1, sizeof(*bad));
    size_t count = 0;
    hl_status st = bad != NULL ? verify_pinned(pool, ref, NULL, bad, &count) : HL_ENOMEM;
    hl_error_clear();
    return st == HL_OK;
}

/* The shard is pinned, and the lock is not held: verifying several GiB takes a second, in which
 * other threads write and free. */
hl_status hl_pool_verify(struct hl_pool *pool, struct hl_id id, const atomic_bool *cancel,
                         uint32_t **bad, size_t *bad_count)
{
    struct hl_pool_ref r;
    size_t count = 0;
    HL_TRY(hl_pool_pin(pool, id, 0, &r));
    HL_AUTO(hl_freep) uint32_t *found = malloc(hl_chunk_count(r.size) * sizeof(*found));
    hl_status st = found == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory verifying shard %s", hl_id_format(id).s)
                       : verify_pinned(pool, &r, cancel, found, &count);
    hl_pool_unpin(pool, &r);
    if (st == HL_ECORRUPT) {
        *bad = hl_steal(&found);
        *bad_count = count;
    }
    return st;
}

/* The caller holds a pin. */
static hl_status read_pinned(const struct hl_pool *pool, const struct hl_pool_ref *r,
                             uint64_t offset, void *dst, size_t len)
{
    const uint8_t *data = pool->base + r->offset;
    uint64_t bad = 0;
    struct hl_chunks c = {
        .size = r->size,
        .crc32 = r->crc32,
        .crcs = (const uint32_t *)(data + hl_pool_table_offset(r->size)),
    };
    if (hl_chunks_copy(&c, data, offset, dst, len, &bad))
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "shard %s: chunk %" PRIu64 " of %" PRIu64 " in the pool fails its CRC",
                   hl_id_format(r->id).s, bad, hl_chunk_count(r->size));
}

hl_status hl_pool_read(struct hl_pool *pool, const struct hl_pool_ref *ref, uint64_t offset,
                       void *dst, size_t len)
{
    struct hl_pool_ref r;
    HL_TRY(hl_chunks_range(ref->id, ref->size, offset, len));
    if (hl_pool_pin(pool, ref->id, ref->offset, &r) != HL_OK)
        return hl_fail(HL_ESTALE, "shard %s was freed; look it up again", hl_id_format(ref->id).s);
    /* The next even generation means that the shard was freed, but its bytes are still there. */
    hl_status st = r.gen == ref->gen || r.gen == ref->gen + 2
                       ? read_pinned(pool, &r, offset, dst, len)
                       : hl_fail(HL_ESTALE, "shard %s was written again; look it up again",
                                 hl_id_format(ref->id).s);
    hl_pool_unpin(pool, &r);
    return st;
}

hl_status hl_pool_chunk_crcs(struct hl_pool *pool, const struct hl_pool_ref *ref, uint32_t *out)
{
    const uint8_t *table = pool->base + ref->offset + hl_pool_table_offset(ref->size);
    memcpy(out, table, hl_chunk_count(ref->size) * sizeof(uint32_t));
    pool_acquire_fence();
    struct hl_pool_ref now; /* as in a view: the copy is valid if the generation has not changed */
    if ((hl_pool_find(pool, ref->id, &now) == HL_OK ||
         hl_pool_find_kept(pool, ref->id, &now) == HL_OK) &&
        now.gen == ref->gen)
        return HL_OK;
    return hl_fail(HL_ESTALE, "shard %s was freed", hl_id_format(ref->id).s);
}

/* ---- counters -------------------------------------------------------------------------------- */

void hl_pool_info(struct hl_pool *pool, struct hl_pool_info *out)
{
    pthread_mutex_lock(&pool->lock);
    *out = (struct hl_pool_info){
        .uuid = pool->super->uuid,
        .incarnation = POOL_GET(pool->super->incarnation),
        .capacity = pool->super->capacity,
        .used = pool->used_units * HL_POOL_UNIT,
        .writing = pool->writing_units * HL_POOL_UNIT,
        .quarantined = pool->quarantined_units * HL_POOL_UNIT,
        .free = hl_extents_free(pool->extents) * HL_POOL_UNIT,
        .largest = hl_extents_largest(pool->extents) * HL_POOL_UNIT,
        .shards = pool->shards,
        .manifests = pool->manifests,
        .derived = pool->derived,
        .kept = pool->kept_units * HL_POOL_UNIT,
        .kept_shards = pool->kept,
    };
    /* Leases that alloc may take back at once count as free. */
    uint64_t may_go = pool_abandoned(pool, hl_now_ns()) * HL_POOL_UNIT;
    out->used -= may_go;
    out->free += may_go;
    pthread_mutex_unlock(&pool->lock);
    memcpy(out->backing, pool->backing, sizeof(out->backing));
}

struct sums {
    uint64_t taken, used, writing, quarantined, shards, kept, kept_shards;
};

/* With the lock held, so that counters and index match. */
static struct sums sum_up(const struct hl_pool *pool)
{
    struct sums s = {0};
    for (uint64_t i = 0; i < pool->slots; i++) {
        uint32_t state = pool->notes[i].state;
        if (state == HL_POOL_EMPTY || state == HL_POOL_DELETED)
            continue;
        uint64_t units = hl_pool_units(pool->notes[i].size);
        s.taken++;
        s.shards += state == HL_POOL_SEALED;
        s.writing += state == HL_POOL_WRITING ? units : 0;
        s.quarantined += state == HL_POOL_FREED ? units : 0;
        s.used += state != HL_POOL_FREED ? units : 0;
        s.kept += state == HL_POOL_KEPT ? units : 0;
        s.kept_shards += state == HL_POOL_KEPT;
    }
    return s;
}

hl_status hl_pool_audit(struct hl_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct sums s = sum_up(pool);
    struct sums c = {pool->taken,  pool->used_units, pool->writing_units, pool->quarantined_units,
                     pool->shards, pool->kept_units, pool->kept};
    uint64_t spare = hl_extents_free(pool->extents);
    uint64_t all = pool->super->capacity / HL_POOL_UNIT;
    pthread_mutex_unlock(&pool->lock);
    if (memcmp(&s, &c, sizeof(s)) == 0 && s.used + s.quarantined + spare == all)
        return HL_OK;
    return hl_fail(
        HL_ECORRUPT,
        "pool %s: the index holds %" PRIu64 " slots, %" PRIu64 " units used, %" PRIu64
        " of them being written, %" PRIu64 " quarantined, %" PRIu64 " shards and %" PRIu64
        " kept ones (%" PRIu64 " units); the counters say %" PRIu64 ", %" PRIu64 ", %" PRIu64
        ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 " (%" PRIu64 "); %" PRIu64 " of %" PRIu64
        " units are free",
        pool->path, s.taken, s.used, s.writing, s.quarantined, s.shards, s.kept_shards, s.kept,
        c.taken, c.used, c.writing, c.quarantined, c.shards, c.kept_shards, c.kept, spare, all);
}
