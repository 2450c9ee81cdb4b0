/* Removes shards that no longer belong to anything from the pool and the archive. */
#include <stdlib.h>

#include "base/log.h"
#include "controller/copies/copies_private.h"

static void free_answered(struct hl_controller *c, hl_status st, const char *text)
{
    if (!controller_stopped(c) && st != HL_OK)
        hl_warn("shards were not freed and wait for the sweep error=\"%s\"", text);
}

static void on_freed(void *arg, hl_status st, const char *text,
                     const struct hl_api_l3_free_results *r)
{
    (void)r;
    free_answered(arg, st, text);
}

static void on_archived_dropped(void *arg, hl_status st, const char *text,
                                const struct hl_api_l3_drop_archived_results *r)
{
    (void)r;
    free_answered(arg, st, text);
}

void pool_free(struct hl_controller *c, const struct hl_id *ids, size_t n)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_id_text cluster = claim_cluster(c);
    /* While the owner of the pool is unknown the shards stay; the sweep finds them. */
    if (n == 0 || c->closing || !claim_ok(c, NULL, 0))
        return;
    struct hl_api_text_list list = {.items = hl_arena_array(&arena, n, sizeof(*list.items))};
    for (size_t i = 0; i < n && list.items != NULL; i++) {
        list.items[list.count++] = hl_id_print(ids[i], &arena);
        copies_remove(c, ids[i]);
    }
    if (hl_arena_failed(&arena))
        return; /* the sweep finds them */
    controller_hold(c);
    hl_call_l3_free_async(c->l3, &(struct hl_api_l3_free_params){list, cluster.s},
                          c->opts.rpc_timeout_ms, c->opts.loop, on_freed, c);
    if (!pool_has_archive(c))
        return;
    controller_hold(c);
    hl_call_l3_drop_archived_async(
        c->l3, &(struct hl_api_l3_drop_archived_params){.ids = list, .cluster = cluster.s},
        c->opts.rpc_timeout_ms, c->opts.loop, on_archived_dropped, c);
}

void pool_free_uncommitted(struct hl_controller *c, const struct hl_api_text_list *ids)
{
    HL_AUTO(hl_freep) struct hl_id *unknown = calloc(ids->count + 1, sizeof(*unknown));
    size_t n = 0;
    for (size_t i = 0; unknown != NULL && i < ids->count; i++)
        n += hl_id_parse(ids->items[i], &unknown[n]) == HL_OK &&
             hl_catalog_shard(&c->catalog, unknown[n]) == NULL;
    pool_free(c, unknown, n);
}

void pool_free_shards(struct hl_controller *c, const struct hl_api_shard_list *shards)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {.items =
                                       hl_arena_array(&arena, shards->count, sizeof(*ids.items))};
    for (size_t i = 0; ids.items != NULL && i < shards->count; i++)
        ids.items[ids.count++] = shards->items[i].id;
    pool_free_uncommitted(c, &ids);
}
