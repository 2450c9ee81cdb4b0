/* Describes a tier for RPC: its usage and its regions of memory. */
#include "mem/tier/tier.h"

#include "mem/pool/pool.h"
#include "mem/tier/ops.h"

struct hl_api_tier_info hl_tier_info(struct hl_tier_store *t, struct hl_arena *arena)
{
    struct hl_pool_region r[HL_POOL_REGIONS_MAX];
    struct hl_tier_usage u;
    struct hl_api_region_info_list regions = {0};
    int numa_id = -1;
    regions.count =
        t->ops->regions != NULL ? t->ops->regions(t, r, HL_POOL_REGIONS_MAX, &numa_id) : 0;
    regions.items = hl_arena_array(arena, regions.count, sizeof(*regions.items));
    for (size_t i = 0; regions.items != NULL && i < regions.count; i++)
        regions.items[i] = (struct hl_api_region_info){.numa_id = r[i].numa_id,
                                                       .bytes = r[i].bytes,
                                                       .used_bytes = r[i].used,
                                                       .bound = r[i].bound};
    hl_tier_usage(t, &u);
    return (struct hl_api_tier_info){.tier = u.tier,
                                     .name = hl_arena_strdup(arena, u.name),
                                     .quota_bytes = u.quota,
                                     .used_bytes = u.used,
                                     .writing_bytes = u.writing,
                                     .quarantined_bytes = u.quarantined,
                                     .shards = u.shards,
                                     .kept_bytes = u.kept,
                                     .kept_shards = u.kept_shards,
                                     .high_bytes = u.high,
                                     .low_bytes = u.low,
                                     .pressure = u.pressure,
                                     .numa_id = numa_id,
                                     .regions = regions,
                                     .backing = hl_arena_strdup(arena, u.backing)};
}
