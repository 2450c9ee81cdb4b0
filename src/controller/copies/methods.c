/* getShard, copyShard, dropCopy, reportBadCopy. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/plane.h"
#include "controller/controller_private.h"
#include "controller/copies/copy_task.h"

#define PLACES_MAX 1024
#define ROUTES_MAX 4096

/* A method under way. */
struct task {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    struct hl_id id;
    struct place place;
    struct place other; /* dropCopy: whose copy is to be confirmed first */
    char source[256];
};

static void task_fail(struct task *t, hl_status st, const char *text)
{
    hl_rpc_reject(t->call, st, text);
    free(t);
}

/* ---- reading parameters ---------------------------------------------------------------------- */

static hl_status parse_place(struct hl_controller *c, const json_t *params, struct place *out)
{
    const char *text = hl_json_str(params, "tier", ""), *name = hl_json_str(params, "node", "");
    int tier = 0;
    while (tier < HL_TIER_COUNT && strcasecmp(text, hl_tier_name((enum hl_tier)tier)) != 0)
        tier++;
    if (tier == HL_TIER_COUNT)
        return hl_fail(HL_EINVAL, "unknown tier '%.40s' (expected L1, L2, L3 or L4)", text);
    *out = (struct place){.tier = (enum hl_tier)tier};
    if (tier >= HL_TIER_L3 && name[0] != '\0')
        return hl_fail(HL_EINVAL, "%s is at the L3 host, not at node '%.100s'", text, name);
    if (tier >= HL_TIER_L3)
        return HL_OK;
    out->node = node_find(c, name);
    if (out->node == NULL)
        return hl_fail(HL_ENOENT, "there is no node '%.100s'; `helios nodes` lists them", name);
    snprintf(out->device, sizeof(out->device), "%s", hl_json_str(params, "device", ""));
    return HL_OK;
}

static hl_status parse_shard(struct hl_controller *c, const json_t *params,
                             struct hl_shard_rec **out)
{
    struct hl_id id;
    HL_TRY(hl_id_parse(hl_json_str(params, "id", ""), &id));
    *out = hl_catalog_shard(&c->catalog, id);
    if (*out == NULL)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version; `helios shard ls` lists shards",
                       hl_id_format(id).s);
    return HL_OK;
}

static hl_status task_new(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params,
                          struct task **out)
{
    struct hl_shard_rec *s;
    struct place p;
    HL_TRY(parse_shard(c, params, &s));
    HL_TRY(parse_place(c, params, &p));
    struct task *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "call");
    *t = (struct task){.c = c, .call = call, .id = s->id, .place = p};
    *out = t;
    return HL_OK;
}

/* What changes the pool or the archive. */
static hl_status check_claim(const struct task *t)
{
    return t->place.node == NULL ? claim_check(t->c) : HL_OK;
}

/* ---- getShard -------------------------------------------------------------------------------- */

static enum hl_nic_class nic_of(const json_t *tier)
{
    const char *name = hl_json_str(tier, "nicClass", "");
    for (int k = 0; k <= HL_NIC_BLUEFIELD; k++)
        if (strcmp(name, hl_nic_class_name((enum hl_nic_class)k)) == 0)
            return (enum hl_nic_class)k;
    return HL_NIC_OTHER;
}

static enum hl_route_link link_between(struct hl_controller *c, const struct node *n,
                                       const struct place *from)
{
    const json_t *info = from->node != NULL ? from->node->info : c->pool;
    const char *host = hl_json_str(info, "hostId", "");
    if (host[0] != '\0' && strcmp(host, hl_json_str(n->info, "hostId", "?")) == 0)
        return HL_LINK_HERE;
    if (hl_json_str(info, "dataAddress", "")[0] == '\0')
        return HL_LINK_NONE;
    return n->rdma ? HL_LINK_RDMA : HL_LINK_TCP;
}

static json_t *route_json(struct hl_controller *c, const struct node *n, enum hl_tier target,
                          const json_t *tier, const struct place *from)
{
    struct hl_route_query q = {
        .op = HL_ROUTE_READ,
        .source = from->tier,
        .target = target,
        .link = link_between(c, n, from),
        .migration_net = hl_json_str(n->info, "migrateAddress", "")[0] != '\0',
        .nic = nic_of(tier),
        .device_direct = target == HL_TIER_L1 && hl_json_bool(tier, "nicDirect", 0),
    };
    struct hl_route r = hl_route_choose(&q);
    char source[256];
    return json_pack("{s:s s:s s:s s:s s:s s:s}", "node", n->name, "target", hl_tier_name(target),
                     "source", place_name(from, source, sizeof(source)), "path",
                     hl_route_path_name(r.path), "reason", hl_route_reason_name(r.reason), "text",
                     hl_route_reason_text(r.reason));
}

/* A node reads into its memory; where it has devices, into those too. */
static void add_routes(struct hl_controller *c, const struct node *n, const struct place *places,
                       size_t count, json_t *out)
{
    for (size_t i = 0; i < count && json_array_size(out) < ROUTES_MAX; i++) {
        const struct place *p = &places[i];
        size_t k;
        const json_t *tier;
        if (p->tier != HL_TIER_L1)
            json_array_append_new(out, route_json(c, n, HL_TIER_L2, NULL, p));
        if (p->tier == HL_TIER_L1 && p->node != n)
            continue; /* device memory is read on its own node */
        json_array_foreach (hl_json_list(n->info, "tiers"), k, tier) {
            if (strcmp(hl_json_str(tier, "tier", ""), "L1") != 0 ||
                hl_json_str(tier, "kind", "")[0] != '\0')
                continue;
            json_array_append_new(out, route_json(c, n, HL_TIER_L1, tier, p));
            break;
        }
    }
}

void method_get_shard(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_shard_rec *s;
    hl_status st = parse_shard(c, params, &s);
    struct place *places = st == HL_OK ? calloc(PLACES_MAX, sizeof(*places)) : NULL;
    if (st == HL_OK && places == NULL)
        st = hl_fail(HL_ENOMEM, "list of copies");
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    size_t n = copies_places(c, s->id, HL_TIER_L1, places, PLACES_MAX);
    json_t *routes = json_array();
    for (const struct node *node = c->nodes; node != NULL; node = node->hh.next)
        if (node_ready(node))
            add_routes(c, node, places, n < PLACES_MAX ? n : PLACES_MAX, routes);
    free(places);
    hl_rpc_reply(call, json_pack("{s:o s:o}", "shard", copies_shard_json(c, s), "routes", routes));
}

/* ---- copyShard ------------------------------------------------------------------------------- */

static hl_status parse_op(const char *text, enum hl_route_op *out)
{
    *out = HL_ROUTE_READ;
    if (text[0] == '\0')
        return HL_OK;
    for (int op = 0; op < HL_ROUTE_OP_COUNT; op++)
        if (strcmp(text, hl_route_op_name((enum hl_route_op)op)) == 0) {
            *out = (enum hl_route_op)op;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "unknown operation '%.40s' (expected read, write or migrate)", text);
}

static void on_copied(void *arg, hl_status st, const char *text, const json_t *copy)
{
    struct task *t = arg;
    if (st != HL_OK) {
        task_fail(t, st, text);
        return;
    }
    hl_rpc_reply(t->call, json_pack("{s:o}", "copy", json_deep_copy(copy)));
    free(t);
}

void method_copy_shard(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    enum hl_route_op op;
    struct task *t = NULL;
    hl_status st = parse_op(hl_json_str(params, "operation", ""), &op);
    if (st == HL_OK)
        st = task_new(c, call, params, &t);
    if (st == HL_OK)
        st = check_claim(t);
    if (st == HL_OK)
        st = order_start(c, &(struct order_spec){t->id, t->place, op, on_copied, t});
    if (st != HL_OK) {
        reject(call, st);
        free(t);
    }
}

/* ---- dropCopy -------------------------------------------------------------------------------- */

static void on_dropped(void *arg, hl_status st, const char *text, json_t *result)
{
    struct task *t = arg;
    struct hl_controller *c = t->c;
    if (controller_landed(c)) {
        task_fail(t, HL_ECANCELED, "the Controller is ending");
        return;
    }
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, t->id);
    if (t->place.node != NULL)
        copies_dropping(c, &t->place, t->id, 0);
    else if (s != NULL && t->place.tier == HL_TIER_L3)
        s->dropping = 0;
    if (st != HL_OK) {
        task_fail(t, st, text);
        return;
    }
    int dropped = hl_json_bool(result, "dropped", 0) || hl_json_int(result, "freed", 0) > 0 ||
                  hl_json_int(result, "evicted", 0) > 0;
    if (t->place.node != NULL)
        copies_forget(c, t->place.node, t->id, t->place.tier, t->place.device);
    else if (t->place.tier == HL_TIER_L4) {
        dropped = hl_json_int(result, "dropped", 0) > 0;
        if (s != NULL)
            s->archived = 0;
    } else if (s != NULL && dropped)
        s->missed = 2;
    hl_rpc_reply(t->call, json_pack("{s:b}", "dropped", dropped));
    free(t);
}

static void drop_now(struct task *t)
{
    struct hl_controller *c = t->c;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, t->id);
    struct hl_id_text id = hl_id_format(t->id);
    if (t->place.node != NULL) {
        json_t *params = json_pack("{s:s s:s s:s}", "id", id.s, "tier", hl_tier_name(t->place.tier),
                                   "device", t->place.device);
        controller_call(c, t->place.node->agent, "storeDrop", params, on_dropped, t);
        json_decref(params);
        return;
    }
    json_t *params = json_pack("{s:[s] s:s}", "ids", id.s, "cluster", claim_cluster(c).s);
    const char *method = t->place.tier == HL_TIER_L4 ? "dropArchived"
                         : s != NULL && s->archived  ? "evict"
                                                     : "free";
    controller_call(c, c->l3, method, params, on_dropped, t);
    json_decref(params);
}

static void undo_dropping(struct task *t)
{
    struct hl_shard_rec *s = hl_catalog_shard(&t->c->catalog, t->id);
    if (t->place.node != NULL)
        copies_dropping(t->c, &t->place, t->id, 0);
    else if (s != NULL)
        s->dropping = 0;
}

static hl_status fail_last(struct hl_id id, const struct place *p)
{
    char name[256];
    return hl_fail(HL_ECONFLICT,
                   "%s holds the last readable copy of shard %s: dropping it would lose the shard; "
                   "copy it elsewhere first, or remove its version",
                   place_name(p, name, sizeof(name)), hl_id_format(id).s);
}

static void on_confirmed(void *arg, hl_status st, const char *text, json_t *result)
{
    struct task *t = arg;
    (void)text;
    (void)result;
    if (controller_landed(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st == HL_OK) {
        drop_now(t);
        return;
    }
    undo_dropping(t);
    fail_last(t->id, &t->place);
    task_fail(t, HL_ECONFLICT, hl_error_text());
}

/* A copy that is not the one to be dropped; host memory at least, for a device forgets. */
static int find_other(struct task *t)
{
    struct place places[64];
    size_t n = copies_places(t->c, t->id, HL_TIER_L2, places, HL_ARRAY_LEN(places));
    for (size_t i = 0; i < n && i < HL_ARRAY_LEN(places); i++)
        if (!place_same(&places[i], &t->place)) {
            t->other = places[i];
            return 1;
        }
    return 0;
}

/* What we believe of the other copy is asked of its holder before this one goes. */
static void confirm_other(struct task *t)
{
    struct hl_controller *c = t->c;
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, t->id);
    json_t *params = json_pack("{s:[s]}", "ids", hl_id_format(t->id).s);
    if (t->place.node != NULL)
        copies_dropping(c, &t->place, t->id, 1);
    else if (s != NULL && t->place.tier == HL_TIER_L3)
        s->dropping = 1;
    if (t->other.node != NULL)
        controller_call(c, t->other.node->agent, "storeLocate", params, on_confirmed, t);
    else if (t->other.tier == HL_TIER_L4 && t->place.tier == HL_TIER_L3)
        drop_now(t); /* evict looks at the archive itself */
    else
        controller_call(c, c->l3, "locate", params, on_confirmed, t);
    json_decref(params);
}

void method_drop_copy(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct task *t = NULL;
    hl_status st = task_new(c, call, params, &t);
    if (st == HL_OK)
        st = check_claim(t);
    if (st == HL_OK && t->place.node != NULL && !node_ready(t->place.node))
        st = hl_fail(HL_EUNAVAIL, "node %s is away", t->place.node->name);
    if (st == HL_OK && !find_other(t))
        st = fail_last(t->id, &t->place);
    if (st != HL_OK) {
        reject(call, st);
        free(t);
        return;
    }
    confirm_other(t);
}

/* ---- reportBadCopy --------------------------------------------------------------------------- */

static void reply_healed(struct task *t, const char *state, const char *source)
{
    hl_fault_count(state, hl_tier_name(t->place.tier));
    hl_rpc_reply(t->call, json_pack("{s:s s:s}", "state", state, "source", source));
    free(t);
}

static void on_copied_again(void *arg, hl_status st, const char *text, const json_t *copy)
{
    struct task *t = arg;
    char name[256];
    (void)copy;
    if (st != HL_OK) {
        hl_fault_count("heal-failed", hl_tier_name(t->place.tier));
        hl_fail(st, "the bad copy in %s is dropped, and could not be made again: %s",
                place_name(&t->place, name, sizeof(name)), text);
        task_fail(t, st, hl_error_text());
        return;
    }
    reply_healed(t, "healed", t->source);
}

static void copy_again(struct task *t)
{
    struct hl_controller *c = t->c;
    copies_forget(c, t->place.node, t->id, t->place.tier, t->place.device);
    hl_status st =
        order_start(c, &(struct order_spec){t->id, t->place, HL_ROUTE_READ, on_copied_again, t});
    if (st != HL_OK) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        on_copied_again(t, st, text, NULL);
    }
}

static void on_bad_dropped(void *arg, hl_status st, const char *text, json_t *result)
{
    struct task *t = arg;
    (void)result;
    if (controller_landed(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st == HL_OK) {
        copy_again(t);
        return;
    }
    undo_dropping(t);
    task_fail(t, st, text);
}

static void drop_bad(struct task *t)
{
    struct hl_controller *c = t->c;
    if (!find_other(t)) { /* what is left of the last one stays */
        reply_healed(t, "lost", "");
        return;
    }
    place_name(&t->other, t->source, sizeof(t->source));
    copies_dropping(c, &t->place, t->id, 1);
    json_t *drop = json_pack("{s:s s:s s:s}", "id", hl_id_format(t->id).s, "tier",
                             hl_tier_name(t->place.tier), "device", t->place.device);
    controller_call(c, t->place.node->agent, "storeDrop", drop, on_bad_dropped, t);
    json_decref(drop);
}

/* Only what is bad indeed is replaced: a reader may have met a fault of its own. */
static void on_verified(void *arg, hl_status st, const char *text, json_t *result)
{
    struct task *t = arg;
    char name[256];
    if (controller_landed(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st == HL_OK && hl_json_bool(result, "ok", 0))
        reply_healed(t, "good", place_name(&t->place, name, sizeof(name)));
    else if (st == HL_OK)
        drop_bad(t);
    else if (st == HL_ENOENT && find_other(t)) {
        place_name(&t->other, t->source, sizeof(t->source));
        copy_again(t);
    } else if (st == HL_ENOENT)
        reply_healed(t, "lost", "");
    else
        task_fail(t, st, text);
}

static void heal_node(struct task *t)
{
    struct hl_controller *c = t->c;
    if (!node_ready(t->place.node)) {
        hl_fail(HL_EUNAVAIL, "node %s is away", t->place.node->name);
        task_fail(t, HL_EUNAVAIL, hl_error_text());
        return;
    }
    json_t *p = json_pack("{s:s s:s s:s}", "id", hl_id_format(t->id).s, "tier",
                          hl_tier_name(t->place.tier), "device", t->place.device);
    controller_call_for(c, t->place.node->agent, "storeVerify", p, c->opts.copy_timeout_ms,
                        on_verified, t);
    json_decref(p);
}

static void on_pool_healed(void *arg, hl_status st, const char *text, json_t *result)
{
    struct task *t = arg;
    if (controller_landed(t->c)) {
        task_fail(t, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st != HL_OK)
        task_fail(t, st, text);
    else
        reply_healed(t, hl_json_str(result, "state", "lost"), hl_json_str(result, "source", ""));
}

static void heal_pool(struct task *t)
{
    struct hl_controller *c = t->c;
    struct place places[16];
    json_t *sources = json_array();
    size_t n = copies_places(c, t->id, HL_TIER_L2, places, HL_ARRAY_LEN(places));
    for (size_t i = 0; i < n && i < HL_ARRAY_LEN(places); i++)
        if (places[i].node != NULL)
            json_array_append_new(sources, order_source_json(c, t->id, &places[i]));
    json_t *params = json_pack("{s:s s:o}", "id", hl_id_format(t->id).s, "sources", sources);
    controller_call_for(c, c->l3, "heal", params, c->opts.copy_timeout_ms, on_pool_healed, t);
    json_decref(params);
}

void method_report_bad_copy(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct task *t = NULL;
    hl_status st = task_new(c, call, params, &t);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    hl_fault_count("reported-bad", hl_tier_name(t->place.tier));
    hl_warn("copy is reported bad id=%s where=\"%s\"", hl_id_format(t->id).s,
            place_name(&t->place, t->source, sizeof(t->source)));
    if (t->place.node == NULL)
        heal_pool(t);
    else
        heal_node(t);
}
