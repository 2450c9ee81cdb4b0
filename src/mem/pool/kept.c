/* Kept copies, which the owner may evict at any time. They are sealed, placed and evicted like
 * other shards (write.c), except that their extents are free at once. */
#include "mem/pool/pool_private.h"

/* A single store under the old generation: a concurrent reader sees either state, and reads the
 * bytes the same way in both. */
hl_status hl_pool_place(struct hl_pool *pool, struct hl_id id)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t slot = pool_slot_readable(pool, id);
    if (slot != NO_SLOT && pool->notes[slot].state == HL_POOL_KEPT) {
        pool_count_readable(pool, slot, -1);
        pool->notes[slot].state = HL_POOL_SEALED;
        pool_count_readable(pool, slot, 1);
        POOL_SET(pool->index[slot].state, HL_POOL_SEALED);
    }
    pthread_mutex_unlock(&pool->lock);
    return slot != NO_SLOT ? HL_OK : pool_fail_missing(pool, id);
}

/* No quarantine is needed: a reader without a pin compares the generation after its copy. */
enum hl_pool_kept hl_pool_evict_kept(struct hl_pool *pool, struct hl_id id)
{
    enum hl_pool_kept was = HL_POOL_KEPT_NOT;
    pthread_mutex_lock(&pool->lock);
    uint32_t slot = pool_slot_of(pool, id, HL_POOL_KEPT, HL_POOL_KEPT);
    if (slot != NO_SLOT)
        was = pool_slot_unpinned(pool, slot) ? HL_POOL_KEPT_EVICTED : HL_POOL_KEPT_PINNED;
    if (was == HL_POOL_KEPT_EVICTED) {
        pool_count_readable(pool, slot, -1);
        pool_give(pool, slot);
    }
    pthread_mutex_unlock(&pool->lock);
    return was;
}

hl_status hl_pool_find_kept(struct hl_pool *pool, struct hl_id id, struct hl_pool_ref *out)
{
    return pool_find(pool, HL_POOL_KEPT, id, out);
}

size_t hl_pool_list_kept(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out,
                         size_t max)
{
    return pool_list(pool, HL_POOL_KEPT, cursor, out, max);
}
