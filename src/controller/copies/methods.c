/* getShard, goneShards, copyShard, dropCopy, reportBadCopy. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/plane.h"
#include "controller/copies/copies_private.h"
#include "controller/copies/copy_task_private.h"
#include "core/copies/copyplan.h"
#include "core/copies/repair.h"
#include "core/copies/route.h"

#define PLACES_MAX       1024
#define ROUTES_MAX       4096
#define HEAL_SOURCES_MAX 16

/* A method in progress. */
struct task {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    struct hl_id id;
    struct place place;
    struct place other; /* dropCopy: the place whose copy has to be confirmed first */
    char source[256];
};

static void task_fail(struct task *t, hl_status st, const char *text)
{
    hl_rpc_reject(t->call, st, text);
    free(t);
}

/* ---- reading parameters ---------------------------------------------------------------------- */

/* A copy as the caller names it. */
struct copy_name {
    const char *id;
    enum hl_api_tier tier;
    const char *node, *device;
};

static hl_status parse_place(struct hl_controller *c, const struct copy_name *copy,
                             struct place *out)
{
    const char *name = copy->node;
    bool at_l3 = copy->tier == HL_API_TIER_L3 || copy->tier == HL_API_TIER_L4;
    if (at_l3 && name[0] != '\0')
        return hl_fail(HL_EINVAL, "%s is at the L3 host, not at node '%.100s'",
                       hl_api_tier_name(copy->tier), name);
    *out = (struct place){.tier = copy->tier};
    if (at_l3)
        return HL_OK;
    out->node = node_find(c, name);
    if (out->node == NULL)
        return hl_fail(HL_ENOENT, "there is no node '%.100s'; `helios nodes` lists them", name);
    snprintf(out->device, sizeof(out->device), "%s", copy->device);
    return HL_OK;
}

static hl_status parse_shard(struct hl_controller *c, const char *text, struct hl_shard_rec **out)
{
    struct hl_id id;
    HL_TRY(hl_id_parse(text, &id));
    *out = hl_catalog_shard(&c->catalog, id);
    if (*out == NULL)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version; `helios shard ls` lists shards",
                       hl_id_format(id).s);
    return HL_OK;
}

static hl_status task_new(struct hl_controller *c, struct hl_rpc_call *call,
                          const struct copy_name *copy, struct task **out)
{
    struct hl_shard_rec *s;
    struct place p;
    HL_TRY(parse_shard(c, copy->id, &s));
    HL_TRY(parse_place(c, copy, &p));
    struct task *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a call");
    *t = (struct task){.c = c, .call = call, .id = s->id, .place = p};
    *out = t;
    return HL_OK;
}

/* Checked by methods that change the pool or the archive. */
static hl_status check_claim(const struct task *t)
{
    return t->place.node == NULL ? claim_check(t->c) : HL_OK;
}

/* ---- getShard -------------------------------------------------------------------------------- */

static enum hl_route_link link_between(struct hl_controller *c, const struct node *n,
                                       const struct place *from)
{
    const char *host = "", *data = "";
    if (from->node != NULL) {
        host = from->node->info.host_id;
        data = from->node->info.data_address;
    } else if (c->copies->pool != NULL) {
        host = c->copies->pool->host_id;
        data = c->copies->pool->data_address;
    }
    if (host[0] != '\0' && strcmp(host, n->info.host_id) == 0)
        return HL_LINK_HERE;
    if (data[0] == '\0')
        return HL_LINK_NONE;
    return n->store.rdma ? HL_LINK_RDMA : HL_LINK_TCP;
}

/* tier: the node's device memory if that is the target, else NULL. */
static struct hl_api_route route_of(struct hl_controller *c, const struct node *n,
                                    const struct hl_api_tier_info *tier, const struct place *from,
                                    struct hl_arena *arena)
{
    enum hl_api_tier target = tier != NULL ? HL_API_TIER_L1 : HL_API_TIER_L2;
    struct hl_route_query q = {
        .op = HL_API_OPERATION_READ,
        .source = from->tier,
        .target = target,
        .link = link_between(c, n, from),
        .migration_net = n->info.migrate_address[0] != '\0',
        .nic = tier != NULL ? hl_nic_class_named(tier->nic_class) : HL_NIC_OTHER,
        .device_direct = tier != NULL && tier->nic_direct,
    };
    struct hl_route r = hl_route_choose(&q);
    char source[256];
    place_name(from, source, sizeof(source));
    return (struct hl_api_route){.node = n->name,
                                 .target = target,
                                 .source = hl_arena_strdup(arena, source),
                                 .path = r.path,
                                 .reason = r.reason,
                                 .text = hl_route_reason_text(r.reason)};
}

/* NULL: the node has no devices. */
static const struct hl_api_tier_info *device_memory(const struct node *n)
{
    const struct hl_api_tier_info_list *tiers = &n->report.tiers;
    for (size_t i = 0; i < tiers->count; i++)
        if (tiers->items[i].tier == HL_API_TIER_L1 && tiers->items[i].kind[0] == '\0')
            return &tiers->items[i];
    return NULL;
}

/* A node reads into its own memory and, if it has devices, into theirs, too. */
static void add_routes(struct hl_controller *c, const struct node *n, const struct place *places,
                       size_t count, struct hl_api_route_list *out, struct hl_arena *arena)
{
    const struct hl_api_tier_info *device = device_memory(n);
    for (size_t i = 0; i < count && out->count + 2 <= ROUTES_MAX; i++) {
        const struct place *p = &places[i];
        if (p->tier != HL_API_TIER_L1)
            out->items[out->count++] = route_of(c, n, NULL, p, arena);
        if (p->tier == HL_API_TIER_L1 && p->node != n)
            continue; /* device memory can only be read on its own node */
        if (device != NULL)
            out->items[out->count++] = route_of(c, n, device, p, arena);
    }
}

void method_get_shard(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_shard_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_shard_rec *s;
    hl_status st = parse_shard(c, p->id, &s);
    struct place *places = hl_arena_array(arena, PLACES_MAX, sizeof(*places));
    struct hl_api_controller_get_shard_results r = {
        .routes = {.items = hl_arena_array(arena, ROUTES_MAX, sizeof(*r.routes.items))}};
    if (st == HL_OK && (places == NULL || r.routes.items == NULL))
        st = hl_fail(HL_ENOMEM, "out of memory for the copies of a shard");
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    size_t n = copies_places(c, s->id, HL_API_TIER_L1, places, PLACES_MAX);
    for (const struct node *node = nodes_first(c); node != NULL; node = node->hh.next)
        if (node_ready(node))
            add_routes(c, node, places, n < PLACES_MAX ? n : PLACES_MAX, &r.routes, arena);
    r.shard = copies_shard(c, s, arena);
    r.shard.gone = copies_shard_is_gone(c, s);
    if (p->tensors) {
        r.shard.layout = s->layout;
        r.shard.tensor_crcs = s->tensor_crcs;
    }
    hl_reply_controller_get_shard(call, &r);
}

/* A text that is not an id names no shard. */
void method_gone_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_gone_shards_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_api_controller_gone_shards_results r = {
        .gone.items = hl_arena_array(hl_rpc_call_arena(call), p->ids.count + 1, sizeof(char *))};
    struct hl_id id;
    if (r.gone.items == NULL) {
        call_reject(call, hl_fail(HL_ENOMEM, "out of memory for %zu shards", p->ids.count));
        return;
    }
    for (size_t i = 0; i < p->ids.count; i++)
        if (hl_id_parse(p->ids.items[i], &id) != HL_OK || hl_catalog_shard(&c->catalog, id) == NULL)
            r.gone.items[r.gone.count++] = p->ids.items[i];
    hl_reply_controller_gone_shards(call, &r);
}

/* ---- copyShard ------------------------------------------------------------------------------- */

/* A holder that already has an extent of this id copies nothing and reports that extent. */
static hl_status check_copied(const struct task *t, const struct hl_api_copy *copy)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&t->c->catalog, t->id);
    char name[256];
    if (copy_is_right(s, copy))
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "shard %s: the copy in %s differs from the catalogue and is not used; "
                   "`helios shard drop` removes it",
                   hl_id_format(t->id).s, place_name(&t->place, name, sizeof(name)));
}

static void on_copied(void *arg, hl_status st, const char *text, const struct hl_api_copy *copy)
{
    struct task *t = arg;
    if (st == HL_OK && (st = check_copied(t, copy)) != HL_OK)
        text = hl_error_text();
    if (st != HL_OK) {
        task_fail(t, st, text);
        return;
    }
    hl_reply_controller_copy_shard(t->call, &(struct hl_api_controller_copy_shard_results){*copy});
    free(t);
}

void method_copy_shard(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_copy_shard_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct task *t = NULL;
    hl_status st = task_new(c, call, &(struct copy_name){p->id, p->tier, p->node, p->device}, &t);
    if (st == HL_OK)
        st = check_claim(t);
    if (st == HL_OK)
        st = copy_task_start(
            c, &(struct copy_task_spec){
                   .id = t->id, .goal = t->place, .op = p->operation, .done = on_copied, .arg = t});
    if (st != HL_OK) {
        call_reject(call, st);
        free(t);
    }
}

/* ---- dropCopy -------------------------------------------------------------------------------- */

static void undo_dropping(struct task *t)
{
    copies_mark_dropping(t->c, &t->place, t->id, false);
}

/* dropped: the holder had the copy. */
static void on_copy_dropped(void *arg, hl_status st, const char *text, bool dropped)
{
    struct task *t = arg;
    if (st != HL_OK) {
        task_fail(t, st, text);
        return;
    }
    hl_reply_controller_drop_copy(t->call, &(struct hl_api_controller_drop_copy_results){dropped});
    free(t);
}

/* done: the callback for storeDrop at the node that holds the task's copy. */
static void drop_at_node(struct task *t, hl_agent_store_drop_done done)
{
    struct hl_controller *c = t->c;
    const struct hl_id_text id = hl_id_format(t->id);
    const struct hl_api_agent_store_drop_params p = {id.s, t->place.tier, t->place.device,
                                                     c->claim.epoch};
    controller_hold(c);
    hl_call_agent_store_drop_async(t->place.node->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                   done, t);
}

static void drop_now(struct task *t)
{
    hl_status st = copies_drop(t->c, t->id, &t->place, on_copy_dropped, t);
    if (st != HL_OK) {
        undo_dropping(t);
        task_fail(t, st, hl_error_text());
    }
}

static hl_status fail_last(struct hl_id id, const struct place *p)
{
    char name[256];
    return hl_fail(HL_ECONFLICT,
                   "%s holds the last readable copy of shard %s: dropping it would lose the shard; "
                   "copy it elsewhere first, or remove its version",
                   place_name(p, name, sizeof(name)), hl_id_format(id).s);
}

static hl_status fail_unconfirmed(const struct task *t, hl_status st, const char *text)
{
    char goes[256], stays[256];
    return hl_fail(st, "the copy in %s is kept, because the one in %s could not be confirmed: %s",
                   place_name(&t->place, goes, sizeof(goes)),
                   place_name(&t->other, stays, sizeof(stays)), text);
}

/* copies: what the holder of the other copy has. */
static void drop_confirmed(struct task *t, hl_status st, const char *text,
                           const struct hl_api_extent_list *copies)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&t->c->catalog, t->id);
    if (controller_stopped(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is shutting down");
        return;
    }
    st = holder_status(st);
    bool is_there = st == HL_OK && copies->count > 0;
    if (is_there && s != NULL &&
        (copies->items[0].size_bytes != s->size_bytes || copies->items[0].crc32 != s->crc32))
        st = fail_unconfirmed(t, HL_ECORRUPT, "it differs from the catalogue");
    else if (is_there)
        st = HL_OK;
    else if (st == HL_OK || st == HL_ENOENT)
        st = fail_last(t->id, &t->place);
    else
        st = fail_unconfirmed(t, st, text);
    if (st == HL_OK) {
        drop_now(t);
        return;
    }
    undo_dropping(t);
    task_fail(t, st, hl_error_text());
}

static void on_store_located(void *arg, hl_status st, const char *text,
                             const struct hl_api_agent_store_locate_results *r)
{
    drop_confirmed(arg, st, text, r != NULL ? &r->extents : NULL);
}

static void on_located(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_locate_results *r)
{
    drop_confirmed(arg, st, text, r != NULL ? &r->extents : NULL);
}

/* The host does not matter here. */
static struct hl_copy_place drop_place(const struct place *p)
{
    return (struct hl_copy_place){p->tier, p->node, "", p->device};
}

/* Finds a copy that remains without the one to be dropped. */
static bool find_other(struct task *t)
{
    const struct hl_copy_place goes = drop_place(&t->place);
    struct place places[64];
    size_t n = copies_places(t->c, t->id, HL_API_TIER_L2, places, HL_ARRAY_LEN(places));
    for (size_t i = 0; i < n && i < HL_ARRAY_LEN(places); i++) {
        const struct hl_copy_place stays = drop_place(&places[i]);
        if (hl_copy_outlives(&stays, &goes)) {
            t->other = places[i];
            return true;
        }
    }
    return false;
}

/* We only believe that the other copy exists, so its holder is asked before this one is dropped. */
static void confirm_other(struct task *t)
{
    struct hl_controller *c = t->c;
    const struct hl_id_text id = hl_id_format(t->id);
    const char *items[] = {id.s};
    struct hl_api_text_list ids = {items, 1};
    copies_mark_dropping(c, &t->place, t->id, true);
    const struct hl_copy_place goes = drop_place(&t->place), stays = drop_place(&t->other);
    if (!hl_copy_is_confirmed(&stays, &goes)) {
        drop_now(t);
        return;
    }
    controller_hold(c);
    if (t->other.node != NULL)
        hl_call_agent_store_locate_async(
            t->other.node->agent, &(struct hl_api_agent_store_locate_params){ids, c->claim.epoch},
            c->opts.rpc_timeout_ms, c->opts.loop, on_store_located, t);
    else
        hl_call_l3_locate_async(c->l3, &(struct hl_api_l3_locate_params){.ids = ids},
                                c->opts.rpc_timeout_ms, c->opts.loop, on_located, t);
}

void method_drop_copy(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_drop_copy_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct task *t = NULL;
    hl_status st = task_new(c, call, &(struct copy_name){p->id, p->tier, p->node, p->device}, &t);
    if (st == HL_OK)
        st = check_claim(t);
    if (st == HL_OK && t->place.node != NULL && !node_ready(t->place.node))
        st = hl_fail(HL_EUNAVAIL, "node %s is unreachable", t->place.node->name);
    /* The move and the drop would each count on the copy that the other one removes. */
    if (st == HL_OK && c->copies->events != NULL && c->copies->events->moves(c, t->id))
        st = hl_fail(HL_EBUSY, "shard %s is being moved; wait until the move ends, or cancel it",
                     hl_id_format(t->id).s);
    if (st == HL_OK && !find_other(t))
        st = fail_last(t->id, &t->place);
    if (st == HL_OK)
        st = durability_lets_go(c, t->id, &t->place, NULL);
    if (st != HL_OK) {
        call_reject(call, st);
        free(t);
        return;
    }
    confirm_other(t);
}

/* ---- reportBadCopy --------------------------------------------------------------------------- */

static void reply_healed(struct task *t, enum hl_api_heal_state state, const char *source)
{
    hl_fault_count(hl_api_heal_state_name(state), hl_api_tier_name(t->place.tier));
    hl_reply_controller_report_bad_copy(
        t->call, &(struct hl_api_controller_report_bad_copy_results){state, source});
    free(t);
}

static void on_copied_again(void *arg, hl_status st, const char *text,
                            const struct hl_api_copy *copy)
{
    struct task *t = arg;
    char name[256];
    (void)copy;
    if (st != HL_OK) {
        hl_fault_count("heal-failed", hl_api_tier_name(t->place.tier));
        hl_fail(st, "the bad copy in %s was dropped, and replacing it failed: %s",
                place_name(&t->place, name, sizeof(name)), text);
        task_fail(t, st, hl_error_text());
        return;
    }
    reply_healed(t, HL_API_HEAL_STATE_HEALED, t->source);
}

static void copy_again(struct task *t)
{
    struct hl_controller *c = t->c;
    copies_forget(c, t->place.node, t->id, t->place.tier, t->place.device);
    hl_status st = copy_task_start(c, &(struct copy_task_spec){.id = t->id,
                                                               .goal = t->place,
                                                               .op = HL_API_OPERATION_READ,
                                                               .done = on_copied_again,
                                                               .arg = t});
    if (st != HL_OK) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        on_copied_again(t, st, text, NULL);
    }
}

static void on_bad_dropped(void *arg, hl_status st, const char *text,
                           const struct hl_api_agent_store_drop_results *r)
{
    struct task *t = arg;
    (void)r;
    if (controller_stopped(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is shutting down");
        return;
    }
    if (st == HL_OK) {
        copy_again(t);
        return;
    }
    undo_dropping(t);
    task_fail(t, st, text);
}

static void on_verified(void *arg, hl_status st, const char *text,
                        const struct hl_api_agent_store_verify_results *r)
{
    struct task *t = arg;
    char name[256];
    if (controller_stopped(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is shutting down");
        return;
    }
    bool has_other = find_other(t);
    if (has_other)
        place_name(&t->other, t->source, sizeof(t->source));
    switch (hl_repair_copy(st, st == HL_OK && r->ok, has_other)) {
    case HL_REPAIR_COPY_IS_GOOD:
        reply_healed(t, HL_API_HEAL_STATE_GOOD, place_name(&t->place, name, sizeof(name)));
        break;
    case HL_REPAIR_COPY_AGAIN:
        copy_again(t);
        break;
    case HL_REPAIR_COPY_REPLACE:
        copies_dropping(t->c, &t->place, t->id, 1);
        drop_at_node(t, on_bad_dropped);
        break;
    case HL_REPAIR_COPY_LOST:
        reply_healed(t, HL_API_HEAL_STATE_LOST, "");
        break;
    case HL_REPAIR_COPY_UNKNOWN:
        task_fail(t, st, text);
        break;
    }
}

static void heal_node(struct task *t)
{
    struct hl_controller *c = t->c;
    if (!node_ready(t->place.node)) {
        hl_fail(HL_EUNAVAIL, "node %s is unreachable", t->place.node->name);
        task_fail(t, HL_EUNAVAIL, hl_error_text());
        return;
    }
    const struct hl_id_text id = hl_id_format(t->id);
    const struct hl_api_agent_store_verify_params p = {id.s, t->place.tier, t->place.device,
                                                       c->claim.epoch};
    controller_hold(c);
    hl_call_agent_store_verify_async(t->place.node->agent, &p, c->opts.copy_timeout_ms,
                                     c->opts.loop, on_verified, t);
}

static void on_pool_healed(void *arg, hl_status st, const char *text,
                           const struct hl_api_l3_heal_results *r)
{
    struct task *t = arg;
    if (controller_stopped(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is shutting down");
        return;
    }
    if (st != HL_OK) {
        task_fail(t, st, text);
        return;
    }
    if (r->state == HL_API_HEAL_STATE_LOST)
        cuts_drop_damaged(t->c, t->id);
    reply_healed(t, r->state, r->source);
}

static void heal_pool(struct task *t)
{
    struct hl_controller *c = t->c;
    struct place places[HEAL_SOURCES_MAX];
    struct hl_api_copy_request sources[HEAL_SOURCES_MAX];
    struct hl_api_copy_request_list list = {.items = sources};
    const struct hl_id_text id = hl_id_format(t->id);
    size_t n = copies_places(c, t->id, HL_API_TIER_L2, places, HEAL_SOURCES_MAX);
    for (size_t i = 0; i < n && i < HEAL_SOURCES_MAX; i++)
        if (places[i].node != NULL)
            sources[list.count++] = copy_request_from(c, id.s, &places[i]);
    controller_hold(c);
    hl_call_l3_heal_async(c->l3, &(struct hl_api_l3_heal_params){id.s, list},
                          c->opts.copy_timeout_ms, c->opts.loop, on_pool_healed, t);
}

void method_report_bad_copy(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_report_bad_copy_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct task *t = NULL;
    hl_status st = task_new(c, call, &(struct copy_name){p->id, p->tier, p->node, ""}, &t);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    hl_fault_count("reported-bad", hl_api_tier_name(t->place.tier));
    hl_warn("copy is reported bad id=%s where=\"%s\"", hl_id_format(t->id).s,
            place_name(&t->place, t->source, sizeof(t->source)));
    if (t->place.node == NULL)
        heal_pool(t);
    else
        heal_node(t);
}
