/* What readers and the Agent report of kept copies, and their metrics. */
#include <inttypes.h>

#include "agent/store_private.h"
#include "base/log.h"

/* The reader may have hit a fault of its own, so we check the bytes. */
static void check_kept(struct store *s, struct hl_id id)
{
    HL_AUTO(hl_freep) uint32_t *bad = NULL;
    struct hl_pool_ref ref;
    size_t count;
    if (hl_pool_find_kept(s->pool, id, &ref) != HL_OK ||
        hl_pool_verify(s->pool, id, &s->stopping, &bad, &count) != HL_ECORRUPT)
        return;
    hl_warn("kept copy is bad and is dropped id=%s chunks=%zu", hl_id_format(id).s, count);
    hl_fault_count("corrupt", "kept");
    store_keep_drop(s, id);
}

/* A pinned copy can no longer be found after this, and is freed with its last pin. */
void store_keep_drop(struct store *s, struct hl_id id)
{
    struct hl_pool_ref ref;
    if (s->pool != NULL && hl_pool_find_kept(s->pool, id, &ref) == HL_OK &&
        hl_pool_evict_kept(s->pool, id) == HL_POOL_KEPT_PINNED &&
        hl_pool_free(s->pool, id) != HL_OK)
        hl_debug("kept copy: %s", hl_error_text());
    for (size_t i = 0; i < s->tier_count; i++)
        store_keep_forget(s, &s->tiers[i], id);
}

hl_status store_reads(struct store *s, const struct hl_api_agent_store_reads_params *p)
{
    struct hl_id id;
    if (s->pool == NULL)
        return HL_OK;
    for (size_t i = 0; i < p->reads.count; i++) {
        const struct hl_api_shard_reads *r = &p->reads.items[i];
        HL_TRY(hl_id_parse(r->id, &id));
        if (r->bad)
            check_kept(s, id);
        store_keep_touch(s, &s->tiers[0], id, r->count);
    }
    return HL_OK;
}

void store_keep_gone(struct store *s, const struct hl_api_text_list *gone)
{
    struct hl_id id;
    for (size_t i = 0; i < gone->count; i++)
        if (hl_id_parse(gone->items[i], &id) == HL_OK)
            store_keep_drop(s, id);
}

void store_keep_metrics(struct store *s, struct hl_buf *out)
{
    struct hl_tier_usage u;
    if (s->pool == NULL)
        return;
    hl_tier_usage(s->tiers[0].t, &u);
    pthread_mutex_lock(&s->keep.lock);
    const struct store_keep_counts n = s->keep.counts;
    pthread_mutex_unlock(&s->keep.lock);

    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } all[] = {
        {"helios_l2_kept_bytes", "gauge", "Bytes of copies that reads have left in the L2.",
         u.kept},
        {"helios_l2_kept_shards", "gauge", "Copies that reads have left in the L2.", u.kept_shards},
        {"helios_l2_kept_loads_total", "counter", "Shards that were fetched for readers and kept.",
         n.loads},
        {"helios_l2_kept_hits_total", "counter", "Reads that found a kept copy.", n.hits},
        {"helios_l2_kept_evicted_total", "counter", "Kept copies that left to make room.",
         n.evicted},
        {"helios_l1_kept_down_total", "counter",
         "Kept copies that left a device for the L2, where they stay.", n.down}};

    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        hl_metric_family(out, all[i].name, all[i].type, all[i].help);
        (void)hl_buf_printf(out, "%s %" PRIu64 "\n", all[i].name, all[i].value);
    }
}
