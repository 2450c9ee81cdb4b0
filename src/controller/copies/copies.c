/* The table of copies, and the inventories that fill it. An inventory that began before a copy was
 * made must not remove that copy: so what we learn from an answer carries the number of the current
 * round. */
#include "controller/copies/copies.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "controller/copies/copies_private.h"
#include "core/catalog/sweep.h"

#define LIST_PAGE  2000
#define DROPS_MAX  256 /* in flight at one node */
#define PRUNE_TURN 4096

/* ---- the table ------------------------------------------------------------------------------- */

static struct holding *holding_find(struct hl_controller *c, struct hl_id id)
{
    struct holding *h;
    HASH_FIND(hh, c->copies->holdings, &id, sizeof(id), h);
    return h;
}

static void holding_unsettle(struct hl_controller *c, struct holding *h)
{
    if (!h->unsettled)
        DL_APPEND(c->copies->unsettled, h);
    h->unsettled = true;
}

static void holding_settle(struct hl_controller *c, struct holding *h)
{
    if (h->unsettled)
        DL_DELETE(c->copies->unsettled, h);
    h->unsettled = false;
}

static struct holding *holding_need(struct hl_controller *c, struct hl_id id)
{
    struct holding *h = holding_find(c, id);
    if (h == NULL && (h = calloc(1, sizeof(*h))) != NULL) {
        h->id = id;
        HASH_ADD(hh, c->copies->holdings, id, sizeof(h->id), h);
        holding_unsettle(c, h);
    }
    return h;
}

static char *put_text(char **at, const char *text)
{
    char *start = *at;
    size_t len = strlen(text) + 1;
    memcpy(start, text, len);
    *at += len;
    return start;
}

static struct copy *copy_new(struct node *n, struct hl_id id, enum hl_api_tier tier,
                             const struct hl_api_copy *info)
{
    size_t texts = strlen(info->device) + strlen(info->transport) + 2;
    struct copy *x = calloc(1, sizeof(*x) + texts);
    if (x == NULL)
        return NULL;
    char *at = x->texts;
    x->id = id;
    x->node = n;
    x->tier = tier;
    x->info = *info;
    x->info.id = NULL;
    x->info.tier = tier;
    x->info.node = n->name;
    x->info.device = put_text(&at, info->device);
    x->info.transport = put_text(&at, info->transport);
    return x;
}

static void copy_free(struct copy *x)
{
    DL_DELETE2(x->node->store.copies, x, node_prev, node_next);
    free(x);
}

/* Frees the holding with its last copy. */
static void holding_shrink(struct hl_controller *c, struct holding *h)
{
    if (h->copies != NULL)
        return;
    if (c->copies->prune == h)
        c->copies->prune = h->hh.next;
    HASH_DEL(c->copies->holdings, h);
    holding_settle(c, h);
    free(h);
}

static bool copy_is(const struct copy *x, const struct node *n, enum hl_api_tier tier,
                    const char *device)
{
    return x->node == n && x->tier == tier &&
           (device[0] == '\0' || strcmp(device, x->info.device) == 0);
}

bool copy_is_right(const struct hl_shard_rec *s, const struct hl_api_copy *info)
{
    return s == NULL || (info->size_bytes == s->size_bytes && info->crc32 == s->crc32);
}

static void warn_if_wrong(const struct hl_controller *c, const struct copy *x)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, x->id);
    if (!copy_is_right(s, &x->info))
        hl_warn(
            "copy is not used: it differs from the catalogue; `helios shard drop` removes it id=%s "
            "node=%s tier=%s bytes=%llu crc32=%08x expected_bytes=%llu expected_crc32=%08x",
            hl_id_format(x->id).s, x->node->name, hl_api_tier_name(x->tier),
            (unsigned long long)x->info.size_bytes, x->info.crc32,
            (unsigned long long)s->size_bytes, s->crc32);
}

/* The next sweep would find the shard, too, but readers and a job may be waiting for its version.
 */
static void shard_found(struct hl_controller *c, const struct copy *x)
{
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, x->id);
    if (s == NULL || !s->lost || s->unusable || !node_ready(x->node) || !copy_is_right(s, &x->info))
        return;
    s->lost = false;
    c->slots_changed = true;
}

void copies_changed(struct hl_controller *c, struct hl_id id)
{
    if (c->copies->events != NULL)
        c->copies->events->changed(c, id);
}

static bool copy_is_hidden(const struct hl_controller *c, struct hl_id id, enum hl_api_tier tier,
                           const struct node *n)
{
    return c->copies->events != NULL && c->copies->events->hidden(c, id, tier, n);
}

void copies_learn(struct hl_controller *c, struct node *n, const struct hl_api_copy *copy)
{
    struct hl_id id;
    enum hl_api_tier tier = copy->tier;
    if (n->gone || hl_id_parse(copy->id, &id) != HL_OK ||
        (tier != HL_API_TIER_L1 && tier != HL_API_TIER_L2))
        return;
    struct copy *x = copy_new(n, id, tier, copy);
    struct holding *h = x != NULL ? holding_need(c, id) : NULL;
    if (h == NULL) {
        free(x);
        return;
    }
    struct copy **at = &h->copies;
    while (*at != NULL &&
           !(copy_is(*at, n, tier, "") && strcmp(copy->device, (*at)->info.device) == 0))
        at = &(*at)->next;
    struct copy *old = *at;
    bool known = old != NULL && old->info.crc32 == copy->crc32;
    if (old != NULL) {
        x->dropping = old->dropping;
        x->next = old->next;
        copy_free(old);
    }
    *at = x;
    DL_PREPEND2(n->store.copies, x, node_prev, node_next);
    x->round = n->store.list_round;
    n->store.rdma |= strcmp(copy->transport, "rdma") == 0;
    if (!known) {
        warn_if_wrong(c, x);
        shard_found(c, x);
        copies_changed(c, id);
    }
}

/* Removes the copies for which `gone` returns true. */
typedef bool (*copy_test)(const struct copy *x, const void *arg);

static void holding_prune(struct hl_controller *c, struct holding *h, copy_test gone,
                          const void *arg)
{
    struct hl_id id = h->id;
    bool pruned = false;
    for (struct copy **at = &h->copies; *at != NULL;) {
        struct copy *x = *at;
        if (!gone(x, arg)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        copy_free(x);
        pruned = true;
    }
    holding_shrink(c, h);
    if (pruned)
        copies_changed(c, id);
}

struct kind {
    const struct node *node;
    enum hl_api_tier tier;
    const char *device;
};

static bool is_kind(const struct copy *x, const void *arg)
{
    const struct kind *k = arg;
    return copy_is(x, k->node, k->tier, k->device);
}

void copies_forget(struct hl_controller *c, struct node *n, struct hl_id id, enum hl_api_tier tier,
                   const char *device)
{
    struct holding *h = holding_find(c, id);
    if (h != NULL)
        holding_prune(c, h, is_kind, &(struct kind){n, tier, device});
}

static bool is_of(const struct copy *x, const void *node)
{
    return x->node == node;
}

void copies_forget_node(struct hl_controller *c, struct node *n)
{
    while (n->store.copies != NULL)
        holding_prune(c, holding_find(c, n->store.copies->id), is_of, n);
}

void copies_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on)
{
    struct holding *h = holding_find(c, id);
    for (struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        if (copy_is(x, p->node, p->tier, p->device))
            x->dropping = on;
}

bool copies_are_dropping(const struct hl_controller *c, struct hl_id id)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct holding *h = holding_find((struct hl_controller *)c, id);
    bool dropping = s != NULL && (s->dropping || s->unarchiving);
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        dropping |= x->dropping;
    return dropping;
}

void holdings_fini(struct hl_controller *c)
{
    struct holding *h, *next;
    HASH_ITER (hh, c->copies->holdings, h, next) {
        while (h->copies != NULL) {
            struct copy *x = h->copies;
            h->copies = x->next;
            copy_free(x);
        }
        holding_shrink(c, h);
    }
}

/* ---- queries --------------------------------------------------------------------------------- */

static void add_place(struct place *out, size_t max, size_t *n, struct place p)
{
    if (*n < max)
        out[*n] = p;
    (*n)++;
}

size_t copies_places(struct hl_controller *c, struct hl_id id, enum hl_api_tier at_least,
                     struct place *out, size_t max)
{
    size_t n = 0;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct holding *h = holding_find(c, id);
    if (s != NULL && hl_shard_is_pooled(s))
        add_place(out, max, &n, (struct place){.tier = HL_API_TIER_L3});
    if (s != NULL && hl_shard_is_archived(s))
        add_place(out, max, &n, (struct place){.tier = HL_API_TIER_L4});
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next) {
        if (x->tier < at_least || x->dropping || !node_ready(x->node) ||
            !copy_is_right(s, &x->info))
            continue;
        struct place p = {.tier = x->tier, .node = x->node};
        snprintf(p.device, sizeof(p.device), "%s", x->info.device);
        add_place(out, max, &n, p);
    }
    return n;
}

size_t copies_wrong(struct hl_controller *c, struct hl_id id, struct place *out, size_t max)
{
    size_t n = 0;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct holding *h = holding_find(c, id);
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        if (!copy_is_right(s, &x->info))
            add_place(out, max, &n, (struct place){.tier = x->tier, .node = x->node});
    return n;
}

hl_status copies_fit(struct hl_controller *c, struct hl_id id, const struct place *at)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct holding *h = at->node != NULL ? holding_find(c, id) : NULL;
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next)
        if (x->node == at->node && (x->tier == at->tier || x->tier == HL_API_TIER_L2) &&
            !copy_is_right(s, &x->info))
            return hl_fail(HL_ECONFLICT,
                           "node %s has other bytes under the id of shard %s in its %s; `helios "
                           "shard drop` removes them",
                           at->node->name, hl_id_format(id).s, hl_api_tier_name(x->tier));
    return HL_OK;
}

#define ARCHIVE_ALONE UINT32_MAX /* a failure domain of its own */

uint32_t copies_domain(const struct hl_controller *c, const struct place *p)
{
    const struct hl_api_pool_info *pool = pool_info(c);
    const char *host = p->node != NULL ? p->node->info.host_id : pool != NULL ? pool->host_id : "";
    return p->tier == HL_API_TIER_L4 ? ARCHIVE_ALONE : (uint32_t)hl_hash_text(host);
}

static void add_holder(struct hl_controller *c, struct place p, bool verified, bool reachable,
                       struct hl_holder *out, size_t max, size_t *n)
{
    if (*n < max)
        out[(*n)++] = (struct hl_holder){.domain = copies_domain(c, &p),
                                         .tier = (uint8_t)p.tier,
                                         .verified = verified,
                                         .reachable = reachable};
}

static bool is_without(const struct holders_query *q, enum hl_api_tier tier,
                       const struct node *node)
{
    return q->without != NULL && q->without->tier == tier && q->without->node == node;
}

size_t copies_holders(struct hl_controller *c, const struct hl_shard_rec *s,
                      const struct holders_query *q, struct hl_holder *out, size_t max)
{
    const struct holding *h = holding_find(c, s->id);
    size_t n = 0;
    if (hl_shard_is_pooled(s) && !is_without(q, HL_API_TIER_L3, NULL) &&
        !copy_is_hidden(c, s->id, HL_API_TIER_L3, NULL))
        add_holder(c, (struct place){.tier = HL_API_TIER_L3}, true, pool_info(c) != NULL, out, max,
                   &n); /* while its daemon is silent, its failure domain is not known either */
    if (hl_shard_is_archived(s) && !is_without(q, HL_API_TIER_L4, NULL))
        add_holder(c, (struct place){.tier = HL_API_TIER_L4}, true, true, out, max, &n);
    for (const struct copy *x = h != NULL ? h->copies : NULL; x != NULL; x = x->next) {
        bool right = copy_is_right(s, &x->info);
        bool there = node_ready(x->node) || node_silent_ms(x->node) < q->awaited_ms;
        if (x->tier == HL_API_TIER_L2 && !x->dropping && !is_without(q, x->tier, x->node) &&
            !copy_is_hidden(c, s->id, x->tier, x->node))
            add_holder(c, (struct place){.tier = x->tier, .node = x->node}, right, there, out, max,
                       &n);
    }
    return n;
}

static struct hl_api_copy pool_copy(const struct hl_shard_rec *s, enum hl_api_tier tier,
                                    const char *id)
{
    return (struct hl_api_copy){
        .id = id, .tier = tier, .numa_id = -1, .size_bytes = s->size_bytes, .crc32 = s->crc32};
}

static struct hl_api_copy_list readable_copies(struct hl_controller *c,
                                               const struct hl_shard_rec *s, const char *id,
                                               struct hl_arena *arena)
{
    const struct holding *h = holding_find(c, s->id);
    const struct copy *first = h != NULL ? h->copies : NULL;
    struct hl_api_copy_list list = {0};
    size_t max = 2;
    for (const struct copy *x = first; x != NULL; x = x->next)
        max++;
    list.items = hl_arena_array(arena, max, sizeof(*list.items));
    if (list.items == NULL)
        return list;
    if (hl_shard_is_pooled(s) && !copy_is_hidden(c, s->id, HL_API_TIER_L3, NULL))
        list.items[list.count++] = pool_copy(s, HL_API_TIER_L3, id);
    if (hl_shard_is_archived(s) && !copy_is_hidden(c, s->id, HL_API_TIER_L4, NULL))
        list.items[list.count++] = pool_copy(s, HL_API_TIER_L4, id);
    for (const struct copy *x = first; x != NULL; x = x->next)
        if (!x->dropping && node_ready(x->node) && copy_is_right(s, &x->info) &&
            !copy_is_hidden(c, s->id, x->tier, x->node)) {
            list.items[list.count] = x->info;
            list.items[list.count++].id = id;
        }
    return list;
}

struct hl_api_shard copies_shard(struct hl_controller *c, const struct hl_shard_rec *s,
                                 struct hl_arena *arena)
{
    struct hl_api_shard shard = hl_shard_rec_info(s, arena);
    shard.copies = readable_copies(c, s, shard.id, arena);
    shard.state =
        shard.copies.count > 0 || !s->lost ? HL_API_SHARD_STATE_SEALED : HL_API_SHARD_STATE_LOST;
    if (shard.copies.count > 0)
        shard.location = shard.copies.items[0].tier;
    return shard;
}

/* ---- inventories ----------------------------------------------------------------------------- */

static bool is_stale(const struct copy *x, const void *arg)
{
    (void)arg;
    return x->node->store.pruning && x->round != x->node->store.list_round;
}

static bool prune_turn(struct hl_controller *c)
{
    for (unsigned left = PRUNE_TURN; left > 0 && c->copies->prune != NULL; left--) {
        struct holding *h = c->copies->prune;
        c->copies->prune = h->hh.next;
        holding_prune(c, h, is_stale, NULL);
    }
    return c->copies->prune == NULL;
}

static void prune_begin(struct hl_controller *c);

static void prune_done(struct hl_controller *c)
{
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        if (!n->store.pruning)
            continue;
        n->store.pruning = false;
        n->store.listing = false;
        n->store.listed_epoch = n->store.list_epoch;
        n->store.listed = !n->store.list_again;
    }
    prune_begin(c);
}

/* For all nodes at once whose inventories have finished since the last prune began. */
static void prune_begin(struct hl_controller *c)
{
    struct copies *x = c->copies;
    bool any = false;
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        n->store.pruning = n->store.list_ended;
        n->store.list_ended = false;
        any |= n->store.pruning;
    }
    if (!any)
        return;
    x->prune = x->holdings;
    x->pruning.c = c;
    x->pruning.turn = prune_turn;
    x->pruning.done = prune_done;
    turns_begin(&x->pruning);
}

void copies_listed(struct hl_controller *c, struct node *n)
{
    n->store.list_ended = true;
    if (c->copies->pruning.timer == NULL)
        prune_begin(c);
}

static void ask_list(struct hl_controller *c, struct node *n, uint64_t cursor);

static void on_list(void *arg, hl_status st, const char *text,
                    const struct hl_api_agent_store_list_results *r)
{
    struct node *n = arg;
    struct hl_controller *c = n->controller;
    if (controller_stopped(c))
        return;
    if (st != HL_OK) { /* the next tick asks again */
        n->store.listing = false;
        if (st == HL_EUNSUPPORTED) /* the Agent has no store */
            n->store.listed = true;
        else
            hl_debug("inventory of node %s: %s", n->name, text);
        return;
    }
    for (size_t i = 0; i < r->copies.count; i++)
        copies_learn(c, n, &r->copies.items[i]);
    if (r->next != 0)
        ask_list(c, n, r->next);
    else
        copies_listed(c, n);
}

static void ask_list(struct hl_controller *c, struct node *n, uint64_t cursor)
{
    controller_hold(c);
    hl_call_agent_store_list_async(
        n->agent,
        &(struct hl_api_agent_store_list_params){
            .cursor = cursor, .limit = LIST_PAGE, .epoch = c->claim.epoch},
        c->opts.rpc_timeout_ms, c->opts.loop, on_list, n);
}

/* ---- copies of unknown shards ---------------------------------------------------------------- */

struct drop {
    struct hl_controller *c;
    struct node *node;
    struct hl_id id;
    enum hl_api_tier tier;
    char device[96];
};

static void on_dropped(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_store_drop_results *r)
{
    struct drop *d = arg;
    struct hl_controller *c = d->c;
    (void)r;
    if (!controller_stopped(c)) {
        d->node->store.drops--;
        if (st == HL_OK)
            copies_forget(c, d->node, d->id, d->tier, d->device);
        else {
            struct place p = {.tier = d->tier, .node = d->node};
            memcpy(p.device, d->device, sizeof(p.device));
            copies_dropping(c, &p, d->id, false);
            hl_debug("copy was not dropped node=%s error=\"%s\"", d->node->name, text);
        }
    }
    free(d);
}

static void copy_drop(struct hl_controller *c, struct copy *x)
{
    struct drop *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return;
    *d = (struct drop){.c = c, .node = x->node, .id = x->id, .tier = x->tier};
    snprintf(d->device, sizeof(d->device), "%s", x->info.device);
    x->dropping = true;
    x->node->store.drops++;
    struct hl_id_text id = hl_id_format(x->id);
    controller_hold(c);
    hl_call_agent_store_drop_async(
        x->node->agent,
        &(struct hl_api_agent_store_drop_params){id.s, x->tier, d->device, c->claim.epoch},
        c->opts.rpc_timeout_ms, c->opts.loop, on_dropped, d);
}

static void drop_copies(struct hl_controller *c, struct holding *h)
{
    for (struct copy *x = h->copies; x != NULL; x = x->next)
        if (!x->dropping && node_ready(x->node) && x->node->store.drops < DROPS_MAX)
            copy_drop(c, x);
}

void copies_remove(struct hl_controller *c, struct hl_id id)
{
    struct holding *h = holding_find(c, id);
    if (h == NULL)
        return;
    h->gone = true;
    holding_unsettle(c, h);
    drop_copies(c, h);
}

/* The catalogue reports that shards have left it, but not which ones. */
static void unsettle_all(struct hl_controller *c)
{
    if (c->copies->shards_left == c->catalog.shards_left)
        return;
    for (struct holding *h = c->copies->holdings; h != NULL; h = h->hh.next)
        holding_unsettle(c, h);
    c->copies->shards_left = c->catalog.shards_left;
}

/* Handles copies of shards that are not in the catalogue: of a version that was removed while the
 * node was away, or of one that is being written now. */
static void settle_unknown(struct hl_controller *c)
{
    struct holding *h, *next;
    unsettle_all(c);
    if (c->copies->unsettled == NULL)
        return;
    const struct hl_sweep now = copies_sweep(c);
    bool has_open = hl_sweep_has_open_version(&c->catalog);
    /* their shards may not be in any version yet */
    bool wanted = now.importing || c->copies->securing_count > (c->copies->restoring != NULL);
    DL_FOREACH_SAFE (c->copies->unsettled, h, next) {
        if (hl_catalog_shard(&c->catalog, h->id) != NULL) {
            h->unknown_ns = 0;
            holding_settle(c, h);
            continue;
        }
        if (h->unknown_ns == 0 || wanted)
            h->unknown_ns = now.now_ns;
        if (hl_sweep_copy_goes(h->gone, h->unknown_ns, has_open, &now))
            drop_copies(c, h);
    }
}

static void list_begin(struct hl_controller *c, struct node *n)
{
    n->store.listing = true;
    n->store.list_again = false;
    n->store.list_round++;
    n->store.list_epoch = n->store_epoch;
    ask_list(c, n, 0);
}

void copies_relist(struct hl_controller *c, struct node *n)
{
    n->store.listed = false;
    n->store.list_again = true;
    if (!n->store.listing && node_ready(n))
        list_begin(c, n); /* readers may wait for a shard that only this node has */
}

void copies_tick(struct hl_controller *c)
{
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        if (!n->store.listing && node_ready(n) &&
            !(n->store.listed && n->store.listed_epoch == n->store_epoch))
            list_begin(c, n);
    settle_unknown(c);
}
