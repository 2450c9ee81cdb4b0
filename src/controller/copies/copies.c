/* The table of copies, and the inventories it comes from. An inventory that was begun before a copy
 * was made must not take it away: what we learn by an answer carries the round that is under way.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_private.h"
#include "controller/copies/copies.h"

#define LIST_PAGE  2000
#define DROPS_MAX  256 /* under way at one node */
#define UNKNOWN_NS (2 * HL_NS_PER_S)

/* ---- the table ------------------------------------------------------------------------------- */

static struct holding *holding_find(struct hl_controller *c, struct hl_id id)
{
    struct holding *h;
    HASH_FIND(hh, c->holdings, &id, sizeof(id), h);
    return h;
}

static struct holding *holding_need(struct hl_controller *c, struct hl_id id)
{
    struct holding *h = holding_find(c, id);
    if (h == NULL && (h = calloc(1, sizeof(*h))) != NULL) {
        h->id = id;
        HASH_ADD(hh, c->holdings, id, sizeof(h->id), h);
    }
    return h;
}

static void copy_free(struct copy *x)
{
    json_decref(x->json);
    free(x);
}

/* Frees the holding with its last copy. */
static void holding_shrink(struct hl_controller *c, struct holding *h)
{
    if (h->copies != NULL)
        return;
    HASH_DEL(c->holdings, h);
    free(h);
}

static int is(const struct copy *x, const struct node *n, enum hl_tier tier, const char *device)
{
    return x->node == n && x->tier == tier &&
           (device[0] == '\0' || strcmp(device, hl_json_str(x->json, "device", "")) == 0);
}

static int parse_tier(const char *text, enum hl_tier *out)
{
    for (int t = 0; t < HL_TIER_COUNT; t++)
        if (strcasecmp(text, hl_tier_name((enum hl_tier)t)) == 0) {
            *out = (enum hl_tier)t;
            return 1;
        }
    return 0;
}

void copies_learn(struct hl_controller *c, struct node *n, const json_t *copy)
{
    struct hl_id id;
    enum hl_tier tier;
    const char *device = hl_json_str(copy, "device", "");
    if (n->gone || hl_id_parse(hl_json_str(copy, "id", ""), &id) != HL_OK ||
        !parse_tier(hl_json_str(copy, "tier", ""), &tier) || tier > HL_TIER_L2)
        return;
    struct holding *h = holding_need(c, id);
    if (h == NULL)
        return;
    struct copy *x = h->copies;
    while (x != NULL &&
           !(is(x, n, tier, device) && strcmp(device, hl_json_str(x->json, "device", "")) == 0))
        x = x->next;
    if (x == NULL) {
        x = calloc(1, sizeof(*x));
        if (x == NULL) {
            holding_shrink(c, h);
            return;
        }
        *x = (struct copy){.id = id, .node = n, .tier = tier, .next = h->copies};
        h->copies = x;
    }
    json_decref(x->json);
    x->json = json_deep_copy(copy);
    json_object_set_new(x->json, "node", json_string(n->name));
    x->round = n->list_round;
    n->rdma |= strcmp(hl_json_str(copy, "transport", ""), "rdma") == 0;
}

/* Take away the copies for which `gone` says so. */
typedef int (*copy_test)(const struct copy *x, const void *arg);

static void holding_prune(struct hl_controller *c, struct holding *h, copy_test gone,
                          const void *arg)
{
    for (struct copy **at = &h->copies; *at != NULL;) {
        struct copy *x = *at;
        if (!gone(x, arg)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        copy_free(x);
    }
    holding_shrink(c, h);
}

struct kind {
    const struct node *node;
    enum hl_tier tier;
    const char *device;
};

static int is_kind(const struct copy *x, const void *arg)
{
    const struct kind *k = arg;
    return is(x, k->node, k->tier, k->device);
}

void copies_forget(struct hl_controller *c, struct node *n, struct hl_id id, enum hl_tier tier,
                   const char *device)
{
    struct holding *h = holding_find(c, id);
    if (h != NULL)
        holding_prune(c, h, is_kind, &(struct kind){n, tier, device});
}

static int is_of(const struct copy *x, const void *node)
{
    return x->node == node;
}

void copies_forget_node(struct hl_controller *c, struct node *n)
{
    struct holding *h, *next;
    HASH_ITER (hh, c->holdings, h, next) {
        holding_prune(c, h, is_of, n);
    }
}

void copies_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, int on)
{
    struct holding *h = holding_find(c, id);
    for (struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        if (is(x, p->node, p->tier, p->device))
            x->dropping = on;
}

void copies_fini(struct hl_controller *c)
{
    struct holding *h, *next;
    HASH_ITER (hh, c->holdings, h, next) {
        while (h->copies != NULL) {
            struct copy *x = h->copies;
            h->copies = x->next;
            copy_free(x);
        }
        holding_shrink(c, h);
    }
}

/* ---- asking it ------------------------------------------------------------------------------- */

static void add_place(struct place *out, size_t max, size_t *n, struct place p)
{
    if (*n < max)
        out[*n] = p;
    (*n)++;
}

size_t copies_places(struct hl_controller *c, struct hl_id id, enum hl_tier at_least,
                     struct place *out, size_t max)
{
    size_t n = 0;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct holding *h = holding_find(c, id);
    if (s != NULL && !s->dropping && s->missed < 2)
        add_place(out, max, &n, (struct place){.tier = HL_TIER_L3});
    if (s != NULL && s->archived)
        add_place(out, max, &n, (struct place){.tier = HL_TIER_L4});
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next) {
        if (x->tier < at_least || x->dropping || !node_ready(x->node))
            continue;
        struct place p = {.tier = x->tier, .node = x->node};
        snprintf(p.device, sizeof(p.device), "%s", hl_json_str(x->json, "device", ""));
        add_place(out, max, &n, p);
    }
    return n;
}

static json_t *pool_copy_json(const struct hl_shard_rec *s, enum hl_tier tier)
{
    return json_pack("{s:s s:s s:s s:i s:I s:I}", "id", hl_id_format(s->id).s, "tier",
                     hl_tier_name(tier), "node", "", "numaId", -1, "sizeBytes",
                     (json_int_t)s->size_bytes, "crc32", (json_int_t)s->crc32);
}

json_t *copies_json(struct hl_controller *c, const struct hl_shard_rec *s)
{
    json_t *list = json_array();
    const struct holding *h = holding_find(c, s->id);
    if (!s->dropping && s->missed < 2)
        json_array_append_new(list, pool_copy_json(s, HL_TIER_L3));
    if (s->archived)
        json_array_append_new(list, pool_copy_json(s, HL_TIER_L4));
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        if (!x->dropping && node_ready(x->node))
            json_array_append(list, x->json);
    return list;
}

json_t *copies_shard_json(struct hl_controller *c, const struct hl_shard_rec *s)
{
    json_t *json = hl_shard_rec_to_json(s), *copies = copies_json(c, s);
    const json_t *first = json_array_get(copies, 0);
    json_object_set_new(json, "state", json_string(first != NULL || !s->lost ? "sealed" : "lost"));
    if (first != NULL)
        json_object_set(json, "location", json_object_get(first, "tier"));
    json_object_set_new(json, "copies", copies);
    return json;
}

/* ---- inventories ----------------------------------------------------------------------------- */

static int is_stale(const struct copy *x, const void *arg)
{
    const struct node *n = arg;
    return x->node == n && x->round != n->list_round;
}

static void ask_list(struct hl_controller *c, struct node *n, json_int_t cursor);

static void end_list(struct hl_controller *c, struct node *n)
{
    struct holding *h, *next;
    HASH_ITER (hh, c->holdings, h, next) {
        holding_prune(c, h, is_stale, n);
    }
    n->listing = 0;
    n->listed_epoch = n->list_epoch;
    n->listed = !n->list_again;
}

static void on_list(void *arg, hl_status st, const char *text, json_t *result)
{
    struct node *n = arg;
    struct hl_controller *c = n->controller;
    size_t i;
    json_t *copy;
    if (controller_landed(c))
        return;
    if (st != HL_OK) { /* asked again at the next tick */
        n->listing = 0;
        if (st == HL_EUNSUPPORTED) /* an Agent without a store */
            n->listed = 1;
        else if (st != HL_OK)
            hl_debug("inventory of node %s: %s", n->name, text);
        return;
    }
    json_array_foreach (hl_json_list(result, "copies"), i, copy) {
        copies_learn(c, n, copy);
    }
    json_int_t at = hl_json_int(result, "next", 0);
    if (at != 0)
        ask_list(c, n, at);
    else
        end_list(c, n);
}

static void ask_list(struct hl_controller *c, struct node *n, json_int_t cursor)
{
    json_t *params = json_pack("{s:I s:i}", "cursor", cursor, "limit", LIST_PAGE);
    controller_call(c, n->agent, "storeList", params, on_list, n);
    json_decref(params);
}

/* ---- what nobody knows ----------------------------------------------------------------------- */

struct drop {
    struct hl_controller *c;
    struct node *node;
    struct hl_id id;
    enum hl_tier tier;
    char device[96];
};

static void on_dropped(void *arg, hl_status st, const char *text, json_t *result)
{
    struct drop *d = arg;
    struct hl_controller *c = d->c;
    (void)result;
    if (!controller_landed(c)) {
        d->node->drops--;
        if (st == HL_OK)
            copies_forget(c, d->node, d->id, d->tier, d->device);
        else {
            struct place p = {.tier = d->tier, .node = d->node};
            memcpy(p.device, d->device, sizeof(p.device));
            copies_dropping(c, &p, d->id, 0);
            hl_debug("copy was not dropped node=%s error=\"%s\"", d->node->name, text);
        }
    }
    free(d);
}

static void order_drop(struct hl_controller *c, struct copy *x)
{
    struct drop *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return;
    *d = (struct drop){.c = c, .node = x->node, .id = x->id, .tier = x->tier};
    snprintf(d->device, sizeof(d->device), "%s", hl_json_str(x->json, "device", ""));
    x->dropping = 1;
    x->node->drops++;
    json_t *params = json_pack("{s:s s:s s:s}", "id", hl_id_format(x->id).s, "tier",
                               hl_tier_name(x->tier), "device", d->device);
    controller_call(c, x->node->agent, "storeDrop", params, on_dropped, d);
    json_decref(params);
}

static void drop_copies(struct hl_controller *c, struct holding *h)
{
    for (struct copy *x = h->copies; x != NULL; x = x->next)
        if (!x->dropping && node_ready(x->node) && x->node->drops < DROPS_MAX)
            order_drop(c, x);
}

void copies_remove(struct hl_controller *c, struct hl_id id)
{
    struct holding *h = holding_find(c, id);
    if (h == NULL)
        return;
    h->gone = 1;
    drop_copies(c, h);
}

/* A copy of what is not in the catalogue: of a version that was removed while its node was away, or
 * of one that is being written now. */
static void settle_unknown(struct hl_controller *c)
{
    struct holding *h, *next;
    uint64_t now = hl_now_ns();
    uint64_t grace =
        any_open_version(c) ? (uint64_t)c->opts.gc_grace_ms * HL_NS_PER_MS : UNKNOWN_NS;
    HASH_ITER (hh, c->holdings, h, next) {
        if (hl_catalog_shard(&c->catalog, h->id) != NULL) {
            h->unknown_ns = 0;
            continue;
        }
        if (h->unknown_ns == 0)
            h->unknown_ns = now;
        if (h->gone || now - h->unknown_ns >= grace)
            drop_copies(c, h);
    }
}

void copies_tick(struct hl_controller *c)
{
    for (struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        if (n->listing || !node_ready(n) || (n->listed && n->listed_epoch == n->store_epoch))
            continue;
        n->listing = 1;
        n->list_again = 0;
        n->list_round++;
        n->list_epoch = n->store_epoch;
        ask_list(c, n, 0);
    }
    settle_unknown(c);
}
