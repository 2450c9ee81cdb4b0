/* Drops one copy. The caller has made sure that another copy stays. */
#include <stdlib.h>

#include "controller/copies/copies_private.h"

struct copy_drop {
    struct hl_controller *c;
    struct hl_id id;
    struct place place;
    copies_dropped done;
    void *arg;
};

void copies_mark_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on)
{
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    if (p->node != NULL)
        copies_dropping(c, p, id, on);
    else if (s != NULL && p->tier == HL_API_TIER_L3)
        s->dropping = on;
    else if (s != NULL)
        s->unarchiving = on;
}

static void drop_note(struct copy_drop *d, bool dropped)
{
    struct hl_shard_rec *s = hl_catalog_shard(&d->c->catalog, d->id);
    if (d->place.node != NULL)
        copies_forget(d->c, d->place.node, d->id, d->place.tier, d->place.device);
    else if (s != NULL && (dropped || d->place.tier == HL_API_TIER_L4))
        hl_sweep_dropped(s, d->place.tier);
    if (d->place.node == NULL)
        copies_changed(d->c, d->id);
}

static void drop_answered(struct copy_drop *d, hl_status st, const char *text, bool dropped)
{
    if (controller_stopped(d->c)) {
        d->done(d->arg, HL_ECANCELED, "the Controller is shutting down", false);
    } else {
        copies_mark_dropping(d->c, &d->place, d->id, false);
        if (st == HL_OK)
            drop_note(d, dropped);
        d->done(d->arg, holder_status(st), text, dropped);
    }
    free(d);
}

static void on_store_dropped(void *arg, hl_status st, const char *text,
                             const struct hl_api_agent_store_drop_results *r)
{
    drop_answered(arg, st, text, r != NULL && r->dropped);
}

static void on_archived_dropped(void *arg, hl_status st, const char *text,
                                const struct hl_api_l3_drop_archived_results *r)
{
    drop_answered(arg, st, text, r != NULL && r->dropped > 0);
}

static void on_evicted(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_evict_results *r)
{
    if (st == HL_OK && r->kept > 0) {
        st = HL_EBUSY;
        text = "L3 keeps its copy: readers use it, or the archive has no good copy of it now";
    }
    drop_answered(arg, st, text, r != NULL && r->evicted > 0);
}

static void on_freed(void *arg, hl_status st, const char *text,
                     const struct hl_api_l3_free_results *r)
{
    drop_answered(arg, st, text, r != NULL && r->freed > 0);
}

static void drop_at_l3(struct copy_drop *d)
{
    struct hl_controller *c = d->c;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, d->id);
    const struct hl_id_text id = hl_id_format(d->id), cluster = claim_cluster(c);
    const char *items[] = {id.s};
    struct hl_api_text_list ids = {items, 1};
    if (d->place.tier == HL_API_TIER_L4)
        hl_call_l3_drop_archived_async(
            c->l3, &(struct hl_api_l3_drop_archived_params){.ids = ids, .cluster = cluster.s},
            c->opts.rpc_timeout_ms, c->opts.loop, on_archived_dropped, d);
    else if (s != NULL && hl_shard_is_archived(s))
        hl_call_l3_evict_async(c->l3, &(struct hl_api_l3_evict_params){ids, cluster.s},
                               c->opts.rpc_timeout_ms, c->opts.loop, on_evicted, d);
    else
        hl_call_l3_free_async(c->l3, &(struct hl_api_l3_free_params){ids, cluster.s},
                              c->opts.rpc_timeout_ms, c->opts.loop, on_freed, d);
}

hl_status copies_drop(struct hl_controller *c, struct hl_id id, const struct place *p,
                      copies_dropped done, void *arg)
{
    struct copy_drop *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory dropping a copy");
    *d = (struct copy_drop){.c = c, .id = id, .place = *p, .done = done, .arg = arg};
    copies_mark_dropping(c, p, id, true);
    controller_hold(c);
    if (p->node == NULL) {
        drop_at_l3(d);
        return HL_OK;
    }
    const struct hl_id_text text = hl_id_format(id);
    hl_call_agent_store_drop_async(p->node->agent,
                                   &(struct hl_api_agent_store_drop_params){
                                       text.s, d->place.tier, d->place.device, c->claim.epoch},
                                   c->opts.rpc_timeout_ms, c->opts.loop, on_store_dropped, d);
    return HL_OK;
}
