#include "core/placement/keep.h"

uint64_t hl_keep_room(uint64_t tier_bytes, double share_pct, uint64_t placed_bytes)
{
    uint64_t share = (uint64_t)((double)tier_bytes * share_pct / 100);
    uint64_t left = placed_bytes < tier_bytes ? tier_bytes - placed_bytes : 0;
    return share < left ? share : left;
}

hl_status hl_keep_init(struct hl_keep *k, void (*changed)(void *arg, uint32_t shard, bool entered),
                       void *arg)
{
    HL_TRY(hl_cache_init(&k->cache, HL_CACHE_S3FIFO, 0, 1));
    if (changed != NULL) {
        k->cache.changed = changed;
        k->cache.arg = arg;
    }
    return HL_OK;
}

void hl_keep_fini(struct hl_keep *k)
{
    hl_cache_fini(&k->cache);
}

void hl_keep_resize(struct hl_keep *k, uint64_t bytes)
{
    hl_cache_resize(&k->cache, bytes);
}

hl_status hl_keep_read(struct hl_keep *k, uint32_t shard, uint64_t size_bytes, bool *had)
{
    return hl_cache_access(&k->cache, shard, size_bytes, had);
}

bool hl_keep_has(const struct hl_keep *k, uint32_t shard)
{
    return hl_cache_has(&k->cache, shard);
}

bool hl_keep_evict(struct hl_keep *k)
{
    return hl_cache_evict(&k->cache);
}

void hl_keep_remove(struct hl_keep *k, uint32_t shard)
{
    hl_cache_remove(&k->cache, shard);
}

uint64_t hl_keep_used(const struct hl_keep *k)
{
    return k->cache.used;
}
