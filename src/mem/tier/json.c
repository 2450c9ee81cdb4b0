#include "mem/tier/json.h"

#include "mem/pool/pool.h"
#include "mem/tier/ops.h"

json_t *hl_tier_json(struct hl_tier_store *t)
{
    struct hl_pool_region r[HL_POOL_REGIONS_MAX];
    struct hl_tier_usage u;
    int numa_id = -1;
    size_t n = t->ops->regions != NULL ? t->ops->regions(t, r, HL_POOL_REGIONS_MAX, &numa_id) : 0;
    json_t *regions = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(regions, json_pack("{s:i s:I s:I s:b}", "numaId", r[i].numa_id,
                                                 "bytes", (json_int_t)r[i].bytes, "usedBytes",
                                                 (json_int_t)r[i].used, "bound", r[i].bound));
    hl_tier_usage(t, &u);
    return json_pack("{s:s s:s s:I s:I s:I s:I s:I s:I s:I s:s s:i s:o s:s}", "tier",
                     hl_tier_name(u.tier), "name", u.name, "quotaBytes", (json_int_t)u.quota,
                     "usedBytes", (json_int_t)u.used, "writingBytes", (json_int_t)u.writing,
                     "quarantinedBytes", (json_int_t)u.quarantined, "shards", (json_int_t)u.shards,
                     "highBytes", (json_int_t)u.high, "lowBytes", (json_int_t)u.low, "pressure",
                     hl_api_pressure_name(u.pressure), "numaId", numa_id, "regions", regions,
                     "backing", u.backing);
}
