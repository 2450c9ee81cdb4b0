/* The archive's trash: its RPC methods, and the timer that empties it. Shards get into it by
 * dropArchived, and leave it by untrash or after archive.trash_keep. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/catalog/claim.h"
#include "core/catalog/retention.h"
#include "l3d/l4_private.h"
#include "os/loop.h"

struct trash {
    struct work work;
    struct hl_l3d *d;
    struct hl_timer *timer;
    bool busy;
};

hl_status trash_now(struct hl_l3d *d, struct hl_archive *a, struct hl_id id)
{
    struct hl_archive_trashed t;
    HL_TRY(hl_archive_trash(a, id, hl_wall_ms(), &t));
    hl_warn("shard moved to the archive's trash id=%s place=%s/%s keep_ms=%" PRIu64,
            hl_id_format(id).s, d->l4->url, t.place, d->l4->opts.trash_keep_ms);
    return HL_OK;
}

hl_status untrash_now(struct hl_archive *a, struct hl_id id)
{
    HL_TRY(hl_archive_untrash(a, id));
    hl_info("shard is back from the archive's trash id=%s", hl_id_format(id).s);
    return HL_OK;
}

void method_list_trash(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_l3_list_trash_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_api_l3_list_trash_results r = {.next = params->cursor};
    size_t limit = params->limit;
    struct hl_archive *a = NULL;
    if (limit == 0 || limit > INVENTORY_MAX)
        limit = INVENTORY_MAX;
    HL_AUTO(hl_freep) struct hl_archive_trashed *list = calloc(limit, sizeof(*list));
    hl_status st =
        list != NULL
            ? l4_need(d, &a)
            : hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu trashed shards", limit);
    if (st != HL_OK) {
        hl_rpc_reject(call, st, NULL);
        return;
    }
    struct hl_arena *arena = hl_rpc_call_arena(call);
    r.trashed.count = hl_archive_trash_page(a, &r.next, list, limit);
    r.trashed.items = hl_arena_array(arena, r.trashed.count, sizeof(*r.trashed.items));
    for (size_t i = 0; r.trashed.items != NULL && i < r.trashed.count; i++)
        r.trashed.items[i] = (struct hl_api_trashed){.id = hl_id_print(list[i].id, arena),
                                                     .size_bytes = list[i].size,
                                                     .trashed_ms = list[i].ms,
                                                     .place = list[i].place};
    hl_reply_l3_list_trash(call, &r);
}

/* ---- emptying -------------------------------------------------------------------------------- */

static int64_t oldest_kept(const struct hl_l3d *d)
{
    return hl_wall_ms() - (int64_t)d->l4->opts.trash_keep_ms;
}

static void trash_empty(struct work *w)
{
    const struct hl_l3d *d = ((struct trash *)w)->d;
    struct hl_archive *a = l4_archive(d);
    hl_status st = HL_OK;
    while (st == HL_OK && !atomic_load_explicit(&d->stopping, memory_order_relaxed)) {
        struct hl_archive_trashed gone;
        st = hl_archive_trash_empty(a, oldest_kept(d), &gone);
        if (st == HL_OK)
            hl_info("shard left the archive's trash for good id=%s place=%s/%s",
                    hl_id_format(gone.id).s, d->l4->url, gone.place);
        else if (st != HL_ENOENT)
            hl_warn("the archive's trash can't be emptied, trying again error=\"%s\"",
                    hl_error_text());
    }
    hl_error_clear();
}

static void trash_emptied(struct work *w)
{
    ((struct trash *)w)->busy = false;
}

/* What another cluster has put into the trash is left alone. */
static bool archive_is_ours(struct hl_l3d *d, struct hl_archive *a)
{
    struct hl_pool_claim pool;
    struct hl_archive_claim there;
    hl_pool_claimed(d->pool, &pool);
    hl_archive_claimed(a, &there);
    return hl_claim_is_of(&(struct hl_claimed){.cluster = there.cluster, .damaged = there.damaged},
                          pool.cluster);
}

static void on_look(void *arg)
{
    struct trash *t = arg;
    struct hl_archive *a = l4_archive(t->d);
    if (t->busy || a == NULL || !hl_archive_trash_old(a, oldest_kept(t->d)) ||
        !archive_is_ours(t->d, a))
        return;
    t->busy = true;
    t->work = (struct work){.run = trash_empty, .done = trash_emptied};
    workers_add(t->d->l4->stores, &t->work);
}

hl_status trash_start(struct hl_l3d *d)
{
    uint64_t look = hl_trash_look_ms(d->l4->opts.trash_keep_ms);
    if (look == 0)
        return HL_OK;
    struct trash *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the trash of the archive");
    t->d = d;
    d->l4->trash = t;
    return hl_timer_create(d->loop, look, look, on_look, t, &t->timer);
}

void trash_stop(struct hl_l3d *d)
{
    if (d->l4->trash != NULL)
        hl_timer_destroy(d->l4->trash->timer);
    if (d->l4->trash != NULL)
        d->l4->trash->timer = NULL;
}

void trash_fini(struct hl_l3d *d)
{
    free(d->l4->trash);
    d->l4->trash = NULL;
}
