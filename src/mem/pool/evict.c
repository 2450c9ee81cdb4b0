/* The time of last use is kept in notes beside the index and sorted only when room is needed: a use
 * costs one store, and one eviction frees many shards.
 *
 *     collect             pages of references, with their `used_ns`   locks for one page at a time
 *     sort, call may_go                                               without the lock: may do I/O
 *     evict               each victim that is still the same          locks for one shard at a time
 *
 * So a shard may be used, pinned or freed between collect and evict. pool_ref_stands compares the
 * generation, and the pins are counted again: a shard that has changed is left alone. */
#include <stdlib.h>

#include "mem/pool/pool_private.h"

#define PAGE 4096

void hl_pool_touch(struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    pthread_mutex_lock(&pool->lock);
    if (pool_ref_stands(pool, ref))
        pool->notes[ref->slot].used_ns = hl_now_ns();
    pthread_mutex_unlock(&pool->lock);
}

bool hl_pool_evict_one(struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    pthread_mutex_lock(&pool->lock);
    bool may = pool_ref_stands(pool, ref) && pool_slot_unpinned(pool, ref->slot);
    if (may)
        pool_slot_free(pool, ref->slot, hl_now_ns());
    pthread_mutex_unlock(&pool->lock);
    return may;
}

struct victim {
    uint64_t rank;
    uint64_t used_ns;
    struct hl_pool_ref ref;
};

static int by_rank(const void *a, const void *b)
{
    const struct victim *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* Collects all unpinned sealed shards with their rank and the time of their last use. */
static hl_status collect_victims(struct hl_pool *pool, const struct hl_pool_eviction *what,
                                 struct victim **out, size_t *count)
{
    struct hl_pool_ref page[64];
    struct hl_pool_info info;
    uint64_t cursor = 0;
    hl_pool_info(pool, &info);
    size_t n = 0, cap = info.shards + PAGE;
    struct victim *all = malloc(cap * sizeof(*all));
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", cap);
    do {
        size_t got = hl_pool_list(pool, &cursor, page, HL_ARRAY_LEN(page));
        pthread_mutex_lock(&pool->lock);
        for (size_t i = 0; i < got && n < cap; i++)
            if (pool_slot_may_go(pool, page[i].slot))
                all[n++] = (struct victim){UINT64_MAX, pool->notes[page[i].slot].used_ns, page[i]};
        pthread_mutex_unlock(&pool->lock);
    } while (cursor != 0 && n < cap);
    for (size_t i = 0; what->rank != NULL && i < n; i++)
        all[i].rank = what->rank(what->arg, &all[i].ref, all[i].used_ns);
    qsort(all, n, sizeof(*all), by_rank);
    *out = all;
    *count = n;
    return HL_OK;
}

hl_status hl_pool_evict(struct hl_pool *pool, const struct hl_pool_eviction *what,
                        struct hl_pool_evicted *out)
{
    HL_AUTO(hl_freep) struct victim *all = NULL;
    size_t n = 0;
    HL_TRY(collect_victims(pool, what, &all, &n));
    *out = (struct hl_pool_evicted){0};
    uint64_t now = hl_now_ns();
    for (size_t i = 0; i < n && out->bytes + out->held < what->bytes; i++) {
        uint64_t bytes = hl_pool_units(all[i].ref.size) * HL_POOL_UNIT;
        if (!what->may_go(what->arg, &all[i].ref))
            continue;
        uint64_t used = all[i].used_ns;
        if (used != 0 && (used > now || now - used < what->hold_ns)) {
            out->held += bytes;
        } else if (hl_pool_evict_one(pool, &all[i].ref)) {
            out->shards++;
            out->ranked += all[i].rank != UINT64_MAX;
            out->bytes += bytes;
        }
    }
    return HL_OK;
}
