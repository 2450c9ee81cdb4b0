/* The node's cache has as much room as the L2 and the devices together hold, and a shard in a
 * device is in the node's cache, too. So the shards that are in no device fit into the L2, whatever
 * their sizes. */
#include "core/placement/keep.h"

uint64_t hl_keep_room(uint64_t tier_bytes, double share_pct, uint64_t placed_bytes)
{
    uint64_t share = (uint64_t)((double)tier_bytes * share_pct / 100);
    uint64_t left = placed_bytes < tier_bytes ? tier_bytes - placed_bytes : 0;
    return share < left ? share : left;
}

static void on_device_change(void *arg, uint32_t shard, bool entered)
{
    struct hl_keep_device *d = arg;
    struct hl_keep *k = d->keep;
    if (!entered && k->left != NULL)
        k->left(k->arg, shard, (unsigned)(d - k->devices) + 1);
}

static void on_node_change(void *arg, uint32_t shard, bool entered)
{
    struct hl_keep *k = arg;
    if (entered)
        return;
    for (unsigned i = 0; i < k->device_count; i++)
        if (hl_cache_has(&k->devices[i].cache, shard))
            hl_cache_remove(&k->devices[i].cache, shard);
    if (k->left != NULL)
        k->left(k->arg, shard, HL_KEEP_L2);
}

hl_status hl_keep_init(struct hl_keep *k, unsigned devices, hl_keep_left_fn left, void *arg)
{
    *k = (struct hl_keep){.left = left, .arg = arg};
    HL_TRY(hl_cache_init(&k->node, HL_CACHE_S3FIFO, 0, 1));
    k->node.changed = on_node_change;
    k->node.arg = k;
    for (; k->device_count < devices && k->device_count < HL_KEEP_DEVICES_MAX; k->device_count++) {
        struct hl_keep_device *d = &k->devices[k->device_count];
        d->keep = k;
        HL_TRY(hl_cache_init(&d->cache, HL_CACHE_S3FIFO, 0, 1));
        d->cache.changed = on_device_change;
        d->cache.arg = d;
    }
    return HL_OK;
}

void hl_keep_fini(struct hl_keep *k)
{
    for (unsigned i = 0; i < k->device_count; i++)
        hl_cache_fini(&k->devices[i].cache);
    hl_cache_fini(&k->node);
    *k = (struct hl_keep){0};
}

static uint64_t device_bytes(const struct hl_keep *k)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < k->device_count; i++)
        bytes += k->devices[i].cache.used;
    return bytes;
}

/* A shard that leaves the node may leave a device as well; then there is less room, so repeat. */
static void keep_settle(struct hl_keep *k)
{
    uint64_t room;
    do {
        room = k->l2_room + device_bytes(k);
        hl_cache_resize(&k->node, room);
    } while (room != k->l2_room + device_bytes(k));
}

static struct hl_cache *cache_of(struct hl_keep *k, unsigned where)
{
    return where == HL_KEEP_L2 ? &k->node : &k->devices[where - 1].cache;
}

void hl_keep_resize(struct hl_keep *k, unsigned where, uint64_t bytes)
{
    if (where == HL_KEEP_L2)
        k->l2_room = bytes;
    else
        hl_cache_resize(cache_of(k, where), bytes);
    keep_settle(k);
}

hl_status hl_keep_raise(struct hl_keep *k, unsigned device, uint32_t shard, uint64_t size_bytes)
{
    bool had;
    HL_TRY(hl_cache_access(cache_of(k, device), shard, size_bytes, &had));
    keep_settle(k);
    hl_status st = HL_OK;
    if (!hl_cache_has(&k->node, shard))
        st = hl_cache_access(&k->node, shard, size_bytes, &had);
    if (!hl_cache_has(&k->node, shard)) /* out of memory or out of room */
        hl_cache_remove(cache_of(k, device), shard);
    keep_settle(k);
    return st;
}

hl_status hl_keep_read(struct hl_keep *k, unsigned where, uint32_t shard, uint64_t size_bytes)
{
    bool had = hl_cache_has(&k->node, shard);
    if (where == HL_KEEP_L2 || had)
        HL_TRY(hl_cache_access(&k->node, shard, size_bytes, &had));
    if (where != HL_KEEP_L2)
        return hl_keep_raise(k, where, shard, size_bytes);
    keep_settle(k);
    return HL_OK;
}

bool hl_keep_has(const struct hl_keep *k, uint32_t shard)
{
    return hl_cache_has(&k->node, shard);
}

unsigned hl_keep_device_of(const struct hl_keep *k, uint32_t shard)
{
    for (unsigned i = 0; i < k->device_count; i++)
        if (hl_cache_has(&k->devices[i].cache, shard))
            return i + 1;
    return 0;
}

bool hl_keep_evict(struct hl_keep *k, unsigned where)
{
    bool evicted = hl_cache_evict(cache_of(k, where));
    keep_settle(k);
    return evicted;
}

void hl_keep_remove(struct hl_keep *k, unsigned where, uint32_t shard)
{
    hl_cache_remove(cache_of(k, where), shard);
    keep_settle(k);
}

uint64_t hl_keep_used(const struct hl_keep *k, unsigned where)
{
    uint64_t in_devices = device_bytes(k);
    if (where != HL_KEEP_L2)
        return k->devices[where - 1].cache.used;
    return k->node.used > in_devices ? k->node.used - in_devices : 0;
}
