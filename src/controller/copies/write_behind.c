/* Write-behind: what visible versions hold in the pool and the archive does not have yet is
 * archived, one batch at a time. The sweep knows what is missing, so nothing has to be remembered:
 * whichever process dies, the next sweep finds the rest. */
#include <string.h>

#include "base/log.h"
#include "controller/copies/copies_private.h"

#define BATCH 256

static void on_archived(void *arg, hl_status st, const char *text,
                        const struct hl_api_l3_archive_results *r)
{
    struct hl_controller *c = arg;
    (void)r;
    if (controller_stopped(c))
        return;
    c->copies->archiving = false;
    if (st == HL_OK)
        c->copies->sweep_ns = 0; /* there may be more */
    if (trouble_is_new(&c->copies->archive_trouble, st))
        hl_warn("not everything is archived yet, each sweep tries again error=\"%s\"", text);
}

/* Continues after the last batch: shards that can't be archived would otherwise keep out all
 * others. The order is that of the catalogue; manifests come last. */
static void find_batch(struct hl_controller *c, struct hl_api_text_list *ids,
                       struct hl_arena *arena)
{
    struct hl_id *last = &c->copies->archived_to;
    const struct hl_shard_rec *after = hl_catalog_shard(&c->catalog, *last);
    for (struct hl_shard_rec *s = after != NULL ? after->hh.next : c->catalog.shards;
         s != NULL && ids->count < BATCH; s = s->hh.next)
        if (hl_sweep_archives(s)) {
            ids->items[ids->count++] = hl_id_print(s->id, arena);
            *last = s->id;
        }
    if (ids->count == BATCH)
        return;
    manifests_not_archived(c, ids, BATCH, arena);
    *last = (struct hl_id){0};
    if (ids->count == 0 && after != NULL)
        find_batch(c, ids, arena);
}

void archive_write_behind(struct hl_controller *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    if (c->copies->archiving || c->copies->pool == NULL ||
        c->copies->pool->archive_mode != HL_API_ARCHIVE_MODE_WRITE_BEHIND)
        return;
    struct hl_api_text_list ids = {.items = hl_arena_array(&arena, BATCH, sizeof(*ids.items))};
    if (ids.items == NULL)
        return; /* the next sweep finds them */
    find_batch(c, &ids, &arena);
    if (ids.count == 0 || hl_arena_failed(&arena))
        return;
    c->copies->archiving = true;
    controller_hold(c);
    hl_call_l3_archive_async(c->l3, &(struct hl_api_l3_archive_params){.ids = ids},
                             c->opts.copy_timeout_ms, c->opts.loop, on_archived, c);
}

static void on_touched(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_touch_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_debug("reads were not reported to L3: %s", text);
}

/* Tells the daemon which shards are read. It can't see who reads its mapped pool, and evicts first
 * what has not been used for long. */
void archive_touch(struct hl_controller *c, const struct hl_api_access_report_list *reports)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    if (!pool_has_archive(c) || reports->count == 0)
        return;
    ids.items = hl_arena_array(&arena, reports->count, sizeof(*ids.items));
    for (size_t i = 0; i < reports->count && ids.items != NULL; i++)
        if (strcmp(reports->items[i].path, "shm") == 0 && reports->items[i].count > 0 &&
            reports->items[i].tier != HL_API_TIER_L2)
            ids.items[ids.count++] = reports->items[i].id;
    if (ids.count == 0)
        return;
    controller_hold(c);
    hl_call_l3_touch_async(c->l3, &(struct hl_api_l3_touch_params){ids}, c->opts.rpc_timeout_ms,
                           c->opts.loop, on_touched, c);
}
