/* Write-behind: what visible versions hold in the pool and the archive has not yet is archived, a
 * batch at a time. The sweep knows what is missing, so nothing has to be remembered: whatever dies,
 * the next sweep finds the rest. */
#include <string.h>

#include "base/log.h"
#include "controller/controller_private.h"

#define BATCH 256

static void on_archived(void *arg, hl_status st, const char *text,
                        const struct hl_api_l3_archive_results *r)
{
    struct hl_controller *c = arg;
    (void)r;
    if (controller_stopped(c))
        return;
    c->archiving = 0;
    if (st == HL_OK) {
        c->archive_complained = 0;
        c->sweep_ns = 0; /* is there more? */
    } else if (!c->archive_complained) {
        c->archive_complained = 1;
        hl_warn("not everything is archived yet, each sweep tries again error=\"%s\"", text);
    }
}

void archive_behind(struct hl_controller *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    if (c->archiving || c->pool == NULL ||
        c->pool->archive_mode != HL_API_ARCHIVE_MODE_WRITE_BEHIND)
        return;
    struct hl_api_text_list ids = {.items = hl_arena_array(&arena, BATCH, sizeof(*ids.items))};
    if (ids.items == NULL)
        return; /* the next sweep finds them */
    for (struct hl_shard_rec *s = c->catalog.shards; s != NULL && ids.count < BATCH;
         s = s->hh.next) {
        if (s->version->state != HL_API_VERSION_STATE_VISIBLE || s->archived || s->dropping ||
            s->missed > 0)
            continue;
        ids.items[ids.count++] = hl_id_print(s->id, &arena);
    }
    manifests_not_archived(c, &ids, BATCH, &arena);
    if (ids.count == 0 || hl_arena_failed(&arena))
        return;
    c->archiving = 1;
    controller_hold(c);
    hl_call_l3_archive_async(c->l3, &(struct hl_api_l3_archive_params){ids},
                             c->opts.copy_timeout_ms, c->opts.loop, on_archived, c);
}

static void on_touched(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_touch_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_debug("L3 was not told of reads: %s", text);
}

/* The daemon can't see who reads its mapped pool, and gives up first what was not used for long. */
void archive_touch(struct hl_controller *c, const struct hl_api_access_report_list *reports)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    if (!pool_has_archive(c) || reports->count == 0)
        return;
    ids.items = hl_arena_array(&arena, reports->count, sizeof(*ids.items));
    for (size_t i = 0; i < reports->count && ids.items != NULL; i++)
        if (strcmp(reports->items[i].path, "shm") == 0 && reports->items[i].count > 0)
            ids.items[ids.count++] = reports->items[i].id;
    if (ids.count == 0)
        return;
    controller_hold(c);
    hl_call_l3_touch_async(c->l3, &(struct hl_api_l3_touch_params){ids}, c->opts.rpc_timeout_ms,
                           c->opts.loop, on_touched, c);
}
