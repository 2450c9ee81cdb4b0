#include "whatif/tiers.h"

#include <inttypes.h>
#include <stdlib.h>

#include "whatif/loads.h"

struct tiers {
    const struct hl_access_trace *trace;
    struct hl_cache *l1, *l2; /* by node */
    struct hl_cache l3;
    uint32_t *copies; /* by shard: number of copies in L1 and L2 of all nodes */
};

static void count_copy(void *arg, uint32_t shard, bool entered)
{
    struct tiers *t = arg;
    t->copies[shard] += entered ? 1 : UINT32_MAX;
}

uint64_t hl_tiers_typical_bytes(const struct hl_access_trace *trace)
{
    double sum = 0;
    for (uint32_t i = 0; i < trace->shards.count; i++)
        sum += (double)trace->sizes[i];
    return (uint64_t)(sum / trace->shards.count);
}

static hl_status make_caches(struct tiers *t, struct hl_cache **out, enum hl_cache_kind kind,
                             uint64_t capacity)
{
    uint32_t nodes = t->trace->nodes.count;
    *out = calloc(nodes, sizeof(**out));
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for caches of %" PRIu32 " nodes", nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        HL_TRY(hl_cache_init(&(*out)[i], kind, capacity, hl_tiers_typical_bytes(t->trace)));
        (*out)[i].changed = count_copy;
        (*out)[i].arg = t;
    }
    return HL_OK;
}

static hl_status tiers_init(struct tiers *t, const struct hl_whatif_world *world,
                            enum hl_cache_kind kind)
{
    t->copies = calloc(t->trace->shards.count, sizeof(*t->copies));
    if (t->copies == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " shards", t->trace->shards.count);
    HL_TRY(hl_cache_init(&t->l3, kind, world->l3_bytes, hl_tiers_typical_bytes(t->trace)));
    HL_TRY(make_caches(t, &t->l1, kind, world->l1_bytes));
    return make_caches(t, &t->l2, kind, world->l2_bytes);
}

static void tiers_fini(struct tiers *t)
{
    for (uint32_t i = 0; i < t->trace->nodes.count; i++) {
        if (t->l1 != NULL)
            hl_cache_fini(&t->l1[i]);
        if (t->l2 != NULL)
            hl_cache_fini(&t->l2[i]);
    }
    hl_cache_fini(&t->l3);
    free(t->l1);
    free(t->l2);
    free(t->copies);
}

static hl_status access_tiers(void *arg, const struct hl_access_row *row, enum hl_found *found)
{
    struct tiers *t = arg;
    uint64_t bytes = t->trace->sizes[row->shard];
    bool hit, elsewhere = t->copies[row->shard] > 0;
    HL_TRY(hl_cache_access(&t->l1[row->node], row->shard, bytes, &hit));
    *found = HL_FOUND_L1;
    if (hit)
        return HL_OK;
    HL_TRY(hl_cache_access(&t->l2[row->node], row->shard, bytes, &hit));
    *found = HL_FOUND_L2;
    if (hit)
        return HL_OK;
    HL_TRY(hl_cache_access(&t->l3, row->shard, bytes, &hit));
    *found = hit ? HL_FOUND_L3 : elsewhere ? HL_FOUND_OTHER : HL_FOUND_L4;
    return HL_OK;
}

hl_status hl_tiers_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                       enum hl_cache_kind kind, struct hl_whatif_result *out)
{
    static const struct hl_load_ops ops = {.access = access_tiers};
    struct tiers t = {.trace = trace};
    struct hl_loads loads;
    HL_TRY(hl_loads_init(&loads, trace, world));
    hl_status st = tiers_init(&t, world, kind);
    if (st == HL_OK)
        st = hl_loads_run(&loads, &ops, &t);
    if (st == HL_OK)
        *out = loads.result;
    tiers_fini(&t);
    hl_loads_fini(&loads);
    return st;
}
