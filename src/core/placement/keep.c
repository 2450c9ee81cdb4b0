#include "core/placement/keep.h"

static void leave_node(void *arg, uint32_t shard, bool entered)
{
    struct hl_keep *k = arg;
    if (!entered)
        hl_cache_remove(&k->l1, shard);
    if (k->changed != NULL)
        k->changed(k->arg, shard, entered);
}

hl_status hl_keep_init(struct hl_keep *k, uint64_t l1_bytes, uint64_t l2_bytes,
                       void (*changed)(void *arg, uint32_t shard, bool entered), void *arg)
{
    *k = (struct hl_keep){.l2_bytes = l2_bytes, .changed = changed, .arg = arg};
    HL_TRY(hl_cache_init(&k->node, HL_CACHE_S3FIFO, l1_bytes + l2_bytes, 1));
    HL_TRY(hl_cache_init(&k->l1, HL_CACHE_S3FIFO, l1_bytes, 1));
    k->node.changed = leave_node;
    k->node.arg = k;
    return HL_OK;
}

void hl_keep_fini(struct hl_keep *k)
{
    hl_cache_fini(&k->node);
    hl_cache_fini(&k->l1);
    *k = (struct hl_keep){0};
}

uint64_t hl_keep_l2_used(const struct hl_keep *k)
{
    return k->node.used - k->l1.used;
}

enum hl_kept hl_keep_find(const struct hl_keep *k, uint32_t shard)
{
    if (!hl_cache_has(&k->node, shard))
        return HL_KEPT_NOT;
    return hl_cache_has(&k->l1, shard) ? HL_KEPT_L1 : HL_KEPT_L2;
}

/* The shard comes to L1, and what leaves for it goes to L2, as far as it stays on the node. */
static hl_status enter_l1(struct hl_keep *k, uint32_t shard, uint64_t size_bytes)
{
    bool was_there;
    uint64_t before = k->l1.used;
    HL_TRY(hl_cache_access(&k->l1, shard, size_bytes, &was_there));
    if (!was_there && hl_cache_has(&k->l1, shard))
        k->demoted_bytes += before + size_bytes - k->l1.used;
    return HL_OK;
}

hl_status hl_keep_read(struct hl_keep *k, uint32_t shard, uint64_t size_bytes, enum hl_kept *found)
{
    enum hl_kept was = hl_keep_find(k, shard);
    bool hit;
    HL_TRY(hl_cache_access(&k->node, shard, size_bytes, &hit));
    if (hl_cache_has(&k->node, shard))
        HL_TRY(enter_l1(k, shard, size_bytes));
    /* shards do not fill L1 to the last byte */
    while (hl_keep_l2_used(k) > k->l2_bytes && hl_cache_evict(&k->node))
        continue;
    *found = was;
    return HL_OK;
}

void hl_keep_remove(struct hl_keep *k, uint32_t shard)
{
    hl_cache_remove(&k->node, shard);
}
