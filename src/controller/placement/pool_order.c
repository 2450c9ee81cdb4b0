/* The Controller decides what leaves a full pool first: whole versions, in the order of
 * core/placement/pool_order.h. While the pool is above its low watermark, L3 is sent the start of
 * that order: as much as may leave before the next message. L3 evicts when it needs room; if it was
 * sent nothing for ORDER_TTL_PASSES passes, it uses its own knowledge. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/placement/placement_private.h"
#include "core/catalog/sweep.h"
#include "core/placement/pool_order.h"

#define ORDER_SHARDS_MAX 65536
#define ORDER_SHARE      4 /* names this fraction of the pool, plus its excess */
#define ORDER_TTL_PASSES 10
#define ORDER_TTL_MIN_MS 5000
#define ORDER_REST       50 /* pause, as a multiple of the time that building the order took */

/* The time of its newest read, or of its save if that is later. */
static int64_t version_used_ms(const struct hl_version_rec *v)
{
    int64_t used = v->visible_ms;
    for (size_t i = 0; i < v->shard_count; i++)
        used = v->shards[i]->last_access_ms > used ? v->shards[i]->last_access_ms : used;
    return used;
}

static bool versions_add(struct pool_versions *l, const struct hl_pool_version *item)
{
    if (l->count == l->room) {
        size_t room = l->room == 0 ? 64 : l->room * 2;
        struct hl_pool_version *more = realloc(l->items, room * sizeof(*more));
        if (more == NULL)
            return false;
        l->items = more;
        l->room = room;
    }
    l->items[l->count++] = *item;
    return true;
}

bool pool_versions_list(const struct hl_controller *c, struct pool_versions *l)
{
    for (const struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next) {
        bool newest = true;
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
            if (v->state != HL_API_VERSION_STATE_VISIBLE || v->damaged)
                continue;
            if (!versions_add(l, &(struct hl_pool_version){.version = v,
                                                           .used_ms = version_used_ms(v),
                                                           .sequence = l->count,
                                                           .is_newest = newest,
                                                           .is_pinned = pin_has_version(c, v)}))
                return false;
            newest = false;
        }
    }
    return true;
}

/* Names shards that the pool has, in order of the versions, until they make up `bytes`. */
static struct hl_api_text_list name_shards(const struct hl_controller *c, struct pool_versions *l,
                                           uint64_t bytes, struct hl_arena *arena)
{
    size_t leaving = hl_pool_order(l->items, l->count);
    struct hl_api_text_list ids = {.items =
                                       hl_arena_array(arena, ORDER_SHARDS_MAX, sizeof(*ids.items))};
    uint64_t named = 0;
    for (size_t i = 0; ids.items != NULL && i < leaving; i++) {
        const struct hl_version_rec *v = l->items[i].version;
        for (size_t s = 0; s < v->shard_count; s++) {
            if (named >= bytes || ids.count == ORDER_SHARDS_MAX)
                return ids;
            if (!hl_shard_is_pooled(v->shards[s]) || pin_has_shard(c, v->shards[s]->id))
                continue;
            ids.items[ids.count++] = hl_id_print(v->shards[s]->id, arena);
            named += v->shards[s]->size_bytes;
        }
    }
    return ids;
}

const struct hl_api_tier_info *pool_tier(const struct hl_controller *c)
{
    const struct hl_api_pool_info *pool = pool_info(c);
    for (size_t i = 0; pool != NULL && i < pool->tiers.count; i++)
        if (pool->tiers.items[i].tier == HL_API_TIER_L3)
            return &pool->tiers.items[i];
    return NULL;
}

static void on_ordered(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_order_eviction_results *r)
{
    struct hl_controller *c = arg;
    (void)r;
    if (controller_stopped(c))
        return;
    c->placement->pool_order_asked = false;
    if (st != HL_OK)
        hl_debug("L3 did not take the order in which versions leave the pool: %s", text);
}

static void order_send(struct hl_controller *c, const struct hl_api_text_list *ids)
{
    const struct hl_id_text us = claim_cluster(c);
    uint64_t ttl = (uint64_t)c->placement->conf.interval_ms * ORDER_TTL_PASSES;
    controller_hold(c);
    c->placement->pool_order_asked = true;
    hl_call_l3_order_eviction_async(
        c->l3,
        &(struct hl_api_l3_order_eviction_params){
            .ids = *ids,
            .cluster = us.s,
            .ttl_ms = (uint32_t)(ttl > ORDER_TTL_MIN_MS ? ttl : ORDER_TTL_MIN_MS)},
        c->opts.rpc_timeout_ms, c->opts.loop, on_ordered, c);
}

void pool_order_run(struct hl_controller *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct pool_versions list = {0};
    int64_t begun = placement_now_ms();
    const struct hl_api_tier_info *t = pool_tier(c);
    if (t == NULL || t->used_bytes <= t->low_bytes || c->placement->pool_order_asked ||
        begun < c->placement->pool_order_ms || !pool_has_archive(c) || !claim_ok(c, NULL, 0))
        return;
    if (pool_versions_list(c, &list)) {
        uint64_t bytes = t->quota_bytes / ORDER_SHARE + t->used_bytes - t->low_bytes;
        struct hl_api_text_list ids = name_shards(c, &list, bytes, &arena);
        if (!hl_arena_failed(&arena) && ids.items != NULL)
            order_send(c, &ids);
    }
    free(list.items);
    c->placement->pool_order_ms = placement_now_ms() + (placement_now_ms() - begun) * ORDER_REST;
}
