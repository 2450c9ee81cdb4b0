/* Shards are copied into as many failure domains as versions.durability asks for, before their
 * version becomes visible and after a holder was lost. core/placement/durability.h decides where
 * the next copy goes. A copy counts as held only once its holder has confirmed it.
 *
 *     L3.look --> holders --> next step of each shard, IN_FLIGHT_MAX at a time
 *        ^                      | TO_POOL, TO_ARCHIVE, TO_NODE: a copy (copy_task.c)
 *        |                      | NO_WAY, or all that was tried has failed
 *        '------- RETRY_NS -----'
 *
 *     all are held                                      --> done
 *     no progress for versions.durability_timeout       --> done(failure)
 *
 * A task stays in c->copies->securings until it is freed: when it has ended and no answer is
 * outstanding, or together with the Controller. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/copies/copies_private.h"

#define IN_FLIGHT_MAX 8
#define RETRY_NS      (1000 * HL_NS_PER_MS)
#define HOLDERS_MAX   16
#define TO_ARCHIVE    SIZE_MAX /* targets other than nodes */
#define TO_POOL       (SIZE_MAX - 1)

/* A node that may get copies: targets[i] stands for nodes[i]. */
struct target {
    char name[128];
};

struct secured {
    struct securable shard; /* the task owns its texts */
    struct hl_holder holders[HOLDERS_MAX];
    size_t holder_count;
    char made_at[128]; /* the node that was given a copy; "" = none */
    bool asked, held;
};

struct securing {
    struct hl_controller *c;
    struct secured *shards;
    size_t count, held, cursor, in_flight;
    struct target *targets;
    struct hl_durability_node *nodes;
    size_t target_count;
    bool looked, looking, pool_failed, archive_failed;
    bool going; /* steps are being taken; their answers may arrive meanwhile or later */
    bool ended;
    uint64_t progress_ns, retry_ns; /* listening time; 0 = no retry is due */
    struct securing_progress progress;
    struct hl_arena arena;
    char why[256]; /* the last failure */
    securing_done done;
    void *arg;
    struct securing *prev, *next;
};

/* A call whose answer is outstanding. */
struct secure_asked {
    struct securing *t;
    struct hl_controller *c;
    size_t index;  /* of the shard */
    size_t target; /* a node's index, TO_ARCHIVE or TO_POOL */
};

static void securing_go(struct securing *t);

enum hl_durability copies_durability(const struct hl_controller *c)
{
    return c->copies->durability;
}

/* ---- ways ------------------------------------------------------------------------------------ */

bool copies_room(const struct node *n, uint64_t *free_bytes)
{
    const struct hl_api_tier_info_list *tiers = &n->report.tiers;
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *x = &tiers->items[i];
        if (x->tier != HL_API_TIER_L2 || x->kind[0] != '\0')
            continue;
        *free_bytes = x->quota_bytes > x->used_bytes ? x->quota_bytes - x->used_bytes : 0;
        return true;
    }
    return false;
}

/* Such a node may be away now, and have reported nothing since this start: then its record is all
 * we know. */
static bool has_other_host(const struct hl_controller *c)
{
    const uint32_t own = copies_domain(c, &(struct place){.tier = HL_API_TIER_L3});
    uint64_t room;
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        if ((n->info.store_socket[0] != '\0' || copies_room(n, &room)) &&
            copies_domain(c, &(struct place){.tier = HL_API_TIER_L2, .node = n}) != own)
            return true;
    return false;
}

hl_status durability_check(const struct hl_controller *c)
{
    enum hl_durability durability = copies_durability(c);
    if (durability == HL_DURABILITY_POOL || pool_info(c) == NULL || pool_has_archive(c))
        return HL_OK;
    if (durability == HL_DURABILITY_ARCHIVE)
        return hl_fail(HL_EUNSUPPORTED,
                       "versions.durability is archive, and L3 has no archive: give it one "
                       "(archive.url), or set versions.durability=pool");
    if (nodes_expected(c) || has_other_host(c))
        return HL_OK;
    return hl_fail(
        HL_EUNSUPPORTED,
        "versions.durability is two, and there is one failure domain: L3 has no archive, "
        "and no node with an L2 is on another host than L3; give L3 an archive "
        "(archive.url), add such a node, or set versions.durability=pool");
}

hl_status durability_change(struct hl_controller *c, const char *word)
{
    const enum hl_durability before = c->copies->durability;
    HL_TRY(hl_durability_parse(word, &c->copies->durability));
    hl_status st = durability_check(c);
    if (st != HL_OK)
        c->copies->durability = before;
    else
        sweep_soon(c);
    return st;
}

static hl_status targets_find(struct securing *t)
{
    struct hl_controller *c = t->c;
    size_t max = nodes_count(c) + 1, n = 0;
    struct target *targets = calloc(max, sizeof(*targets));
    struct hl_durability_node *nodes = calloc(max, sizeof(*nodes));
    free(t->targets);
    free(t->nodes);
    t->targets = targets;
    t->nodes = nodes;
    t->target_count = 0;
    if (targets == NULL || nodes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu nodes", max);
    for (struct node *x = nodes_first(c); x != NULL; x = x->hh.next) {
        uint64_t room;
        if (node_takes(x) != HL_OK || !copies_room(x, &room))
            continue;
        memcpy(targets[n].name, x->name, sizeof(targets[n].name));
        nodes[n++] = (struct hl_durability_node){
            .domain = copies_domain(c, &(struct place){.tier = HL_API_TIER_L2, .node = x}),
            .free_bytes = room,
            .takes = true};
    }
    t->target_count = n;
    return HL_OK;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const char *shard_label(struct hl_controller *c, const struct securable *s, char *buf,
                               size_t cap)
{
    char key[HL_CATALOG_KEY_MAX];
    const struct hl_shard_rec *known = hl_catalog_shard(&c->catalog, s->id);
    const char *name = known != NULL ? hl_shard_key(known, key, sizeof(key)) : s->name;
    snprintf(buf, cap, "shard %s (%s)", name, hl_id_format(s->id).s);
    return buf;
}

void holders_text(const struct hl_holder *holders, size_t count, char *buf, size_t cap)
{
    bool has[HL_API_TIER_COUNT] = {false};
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < count; i++)
        has[holders[i].tier] |= holders[i].verified && holders[i].reachable;
    for (int tier = HL_API_TIER_L2; tier <= HL_API_TIER_L4; tier++)
        if (has[tier] && at < cap)
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at > 0 ? " and " : "",
                                   hl_api_tier_name((enum hl_api_tier)tier));
    if (at == 0)
        snprintf(buf, cap, "no tier");
}

const char *durability_wants(enum hl_durability durability)
{
    return durability == HL_DURABILITY_ARCHIVE
               ? "it has to be in the archive"
               : "it has to be on another host or in the archive too";
}

/* Reports the first shard that is not held. */
static hl_status securing_failure(const struct securing *t, hl_status st)
{
    char label[HL_CATALOG_KEY_MAX + 64], places[64], limit[32];
    const struct secured *s = t->shards;
    while (s < t->shards + t->count && s->held)
        s++;
    holders_text(s->holders, s->holder_count, places, sizeof(places));
    return hl_fail(
        st,
        "%s is in %s, and %s (versions.durability=%s): %s; %zu of %zu shards are there; none "
        "followed for %s",
        shard_label(t->c, &s->shard, label, sizeof(label)), places,
        durability_wants(copies_durability(t->c)), hl_durability_word(copies_durability(t->c)),
        t->why[0] != '\0' ? t->why : "no answer yet", t->held, t->count,
        hl_format_duration_ms((uint64_t)t->c->opts.durability_timeout_ms, limit, sizeof(limit)));
}

/* ---- the end --------------------------------------------------------------------------------- */

static void securing_free(struct securing *t)
{
    DL_DELETE(t->c->copies->securings, t);
    hl_arena_fini(&t->arena);
    free(t->shards);
    free(t->targets);
    free(t->nodes);
    free(t);
}

static void free_if_idle(struct securing *t)
{
    if (t->ended && t->in_flight == 0 && !t->looking && !t->going)
        securing_free(t);
}

static void securing_set_ended(struct securing *t)
{
    t->ended = true;
    t->c->copies->securing_count--;
}

static void securing_end(struct securing *t, hl_status st, const char *text)
{
    char copy[HL_ERROR_TEXT_MAX]; /* `done` may overwrite the error text */
    snprintf(copy, sizeof(copy), "%s", text);
    securing_set_ended(t);
    t->done(t->arg, st, copy);
}

void securing_cancel(struct securing *t)
{
    securing_set_ended(t);
    free_if_idle(t);
}

void securings_fini(struct hl_controller *c)
{
    while (c->copies->securings != NULL) {
        struct securing *t = c->copies->securings;
        if (!t->ended)
            securing_end(t, HL_ECANCELED, "the Controller was stopped");
        securing_free(t);
    }
}

struct securing_progress securing_look(const struct securing *t)
{
    return t->progress;
}

/* ---- holders --------------------------------------------------------------------------------- */

static void secured_check(struct securing *t, struct secured *s)
{
    if (s->held || !hl_durability_holds(copies_durability(t->c), s->holders, s->holder_count))
        return;
    s->held = true;
    t->held++;
    t->progress.done_bytes += s->shard.size_bytes;
    t->progress_ns = t->c->listening.listened_ns;
}

static void secured_add(struct secured *s, struct hl_holder holder)
{
    if (s->holder_count < HOLDERS_MAX)
        s->holders[s->holder_count++] = holder;
}

/* What the table knows of nodes and archive; found: what L3 has just reported, NULL = it does not
 * have the shard. */
static void secured_begin(struct securing *t, struct secured *s,
                          const struct hl_api_found_shard *found)
{
    struct hl_controller *c = t->c;
    const struct hl_shard_rec *known = hl_catalog_shard(&c->catalog, s->shard.id);
    struct hl_holder list[HOLDERS_MAX];
    size_t n = known != NULL
                   ? copies_holders(c, known, &(struct holders_query){0}, list, HOLDERS_MAX - 1)
                   : 0;
    s->holder_count = 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].tier != HL_API_TIER_L3)
            secured_add(s, list[i]);
    if (found != NULL) {
        bool right = found->size_bytes == s->shard.size_bytes &&
                     (!found->crc32_known || found->crc32 == s->shard.crc32);
        const struct place at = {.tier = found->tier};
        secured_add(s, (struct hl_holder){.domain = copies_domain(c, &at),
                                          .tier = (uint8_t)found->tier,
                                          .verified = right,
                                          .reachable = true});
        if (!right)
            snprintf(t->why, sizeof(t->why), "L3 has different bytes under its id");
    }
    if (found == NULL && s->holder_count == 0)
        snprintf(t->why, sizeof(t->why), "it is neither in the pool nor in the archive");
    secured_check(t, s);
}

/* The answer is in the order of the ids; unknown ids are left out. */
static void holders_begin(struct securing *t, const struct hl_api_found_shard_list *found)
{
    size_t at = 0;
    for (size_t i = 0; i < t->count; i++) {
        struct secured *s = &t->shards[i];
        struct hl_id id;
        bool has = !s->held && at < found->count &&
                   hl_id_parse(found->items[at].id, &id) == HL_OK && hl_id_equal(id, s->shard.id);
        if (!s->held)
            secured_begin(t, s, has ? &found->items[at++] : NULL);
    }
}

static void look_failed(struct securing *t, const char *text)
{
    snprintf(t->why, sizeof(t->why), "L3 was asked for it: %s", text);
    t->retry_ns = t->c->listening.listened_ns + RETRY_NS;
}

static void on_looked(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_look_results *r)
{
    struct secure_asked x = *(struct secure_asked *)arg;
    struct securing *t = x.t;
    free(arg);
    if (controller_stopped(x.c))
        return; /* the task is freed along with it */
    t->looking = false;
    t->looked = st == HL_OK;
    if (st == HL_OK)
        holders_begin(t, &r->shards);
    else
        look_failed(t, text);
    securing_go(t);
}

static void securing_ask_l3(struct securing *t)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct secure_asked *x = malloc(sizeof(*x));
    struct hl_api_text_list ids = {.items = hl_arena_array(&arena, t->count, sizeof(*ids.items))};
    for (size_t i = 0; i < t->count && ids.items != NULL; i++)
        if (!t->shards[i].held)
            ids.items[ids.count++] = hl_id_print(t->shards[i].shard.id, &arena);
    if (x == NULL || hl_arena_failed(&arena)) {
        free(x);
        look_failed(t, "out of memory");
        return;
    }
    *x = (struct secure_asked){.t = t, .c = t->c};
    t->looking = true;
    controller_hold(t->c);
    hl_call_l3_look_async(t->c->l3, &(struct hl_api_l3_look_params){ids}, t->c->opts.rpc_timeout_ms,
                          t->c->opts.loop, on_looked, x);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Another way is tried now, and this one again with the next retry. */
static void way_failed(struct securing *t, size_t target, const char *text)
{
    const char *where = target == TO_ARCHIVE ? "the archive" : "the pool";
    t->archive_failed |= target == TO_ARCHIVE;
    t->pool_failed |= target == TO_POOL;
    if (target < t->target_count) {
        t->nodes[target].takes = false;
        where = t->targets[target].name;
    }
    snprintf(t->why, sizeof(t->why), "%s: %s", where, text);
}

static void copy_made(struct securing *t, struct secured *s, size_t target,
                      const struct hl_api_copy *copy)
{
    const struct place at = {.tier = target == TO_POOL ? HL_API_TIER_L3 : HL_API_TIER_L4};
    struct hl_holder made = {.domain = copies_domain(t->c, &at),
                             .tier = (uint8_t)at.tier,
                             .verified = true,
                             .reachable = true};
    if (target < t->target_count) {
        made.domain = t->nodes[target].domain;
        made.tier = HL_API_TIER_L2;
        made.verified = copy->size_bytes == s->shard.size_bytes && copy->crc32 == s->shard.crc32;
        memcpy(s->made_at, t->targets[target].name, sizeof(s->made_at));
    }
    secured_add(s, made);
    secured_check(t, s);
    if (!s->held)
        way_failed(t, target, "its copy has another checksum");
}

static void on_copied(void *arg, hl_status st, const char *text, const struct hl_api_copy *copy)
{
    struct secure_asked x = *(struct secure_asked *)arg;
    struct securing *t = x.t;
    free(arg);
    if (st == HL_ECANCELED)
        return; /* the task is freed with the Controller */
    t->in_flight--;
    t->shards[x.index].asked = false;
    if (st == HL_OK)
        copy_made(t, &t->shards[x.index], x.target, copy);
    else
        way_failed(t, x.target, text);
    if (!t->shards[x.index].held && x.index < t->cursor)
        t->cursor = x.index;
    securing_go(t);
}

static void copy_ask(struct securing *t, size_t index, size_t target)
{
    struct secured *s = &t->shards[index];
    struct place goal = {.tier = target == TO_ARCHIVE ? HL_API_TIER_L4
                                 : target == TO_POOL  ? HL_API_TIER_L3
                                                      : HL_API_TIER_L2};
    struct secure_asked *x = malloc(sizeof(*x));
    hl_status st = x != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for a copy of a shard");
    if (st == HL_OK && target < t->target_count &&
        (goal.node = node_find(t->c, t->targets[target].name)) == NULL)
        st = hl_fail(HL_EUNAVAIL, "the node is no longer known");
    if (st == HL_OK) {
        *x = (struct secure_asked){.t = t, .c = t->c, .index = index, .target = target};
        s->asked = true;
        t->in_flight++;
        st = copies_bring_stated(t->c, &s->shard, &goal, on_copied, x);
        if (st == HL_OK)
            return; /* and x was freed */
        s->asked = false;
        t->in_flight--;
    }
    free(x);
    way_failed(t, target, hl_error_text());
    t->cursor = index;
}

/* False: nothing can be done for the shard now. */
static void shard_step(struct securing *t, size_t index)
{
    struct secured *s = &t->shards[index];
    const struct hl_durability_ways ways = {
        .pool = pool_info(t->c) != NULL && !t->pool_failed,
        .pool_domain = copies_domain(t->c, &(struct place){.tier = HL_API_TIER_L3}),
        .archive = pool_has_archive(t->c) && !t->archive_failed,
        .nodes = t->nodes,
        .node_count = t->target_count};
    size_t target = 0;
    for (size_t i = 0; i < t->target_count; i++)
        t->nodes[i].reads = strcmp(t->targets[i].name, s->shard.node) == 0;
    switch (hl_durability_next(copies_durability(t->c), s->shard.size_bytes, s->holders,
                               s->holder_count, &ways, &target)) {
    case HL_DURABILITY_HELD:
        secured_check(t, s);
        break;
    case HL_DURABILITY_TO_POOL:
        copy_ask(t, index, TO_POOL);
        break;
    case HL_DURABILITY_TO_ARCHIVE:
        copy_ask(t, index, TO_ARCHIVE);
        break;
    case HL_DURABILITY_TO_NODE:
        t->nodes[target].free_bytes -= s->shard.size_bytes;
        copy_ask(t, index, target);
        break;
    case HL_DURABILITY_NO_WAY:
        if (t->why[0] == '\0')
            snprintf(t->why, sizeof(t->why), "%s",
                     copies_durability(t->c) == HL_DURABILITY_ARCHIVE
                         ? "L3 has no archive"
                         : "no node of another host has room for it");
        break;
    }
}

/* True if a node that was given copies has gone away since: its copies no longer count. */
static bool holders_left(struct securing *t)
{
    bool left = false;
    for (size_t i = 0; i < t->count; i++) {
        struct secured *s = &t->shards[i];
        const struct node *n = s->made_at[0] != '\0' ? node_find(t->c, s->made_at) : NULL;
        if (!s->held || s->made_at[0] == '\0' || (n != NULL && node_ready(n)))
            continue;
        s->held = false;
        s->made_at[0] = '\0';
        t->held--;
        t->progress.done_bytes -= s->shard.size_bytes;
        left = true;
    }
    return left;
}

static void securing_settle(struct securing *t)
{
    if (t->looked && t->held == t->count && !holders_left(t)) {
        securing_end(t, HL_OK, "");
        return;
    }
    if (t->in_flight > 0 || t->looking || t->retry_ns != 0)
        return;
    hl_status st = durability_check(t->c);
    if (st != HL_OK)
        securing_end(t, st, hl_error_text());
    else
        t->retry_ns = t->c->listening.listened_ns + RETRY_NS;
}

static void securing_go(struct securing *t)
{
    if (t->going)
        return;
    t->going = true;
    if (!t->ended && !t->looked && !t->looking && t->retry_ns == 0)
        securing_ask_l3(t);
    while (!t->ended && t->looked && t->in_flight < IN_FLIGHT_MAX && t->cursor < t->count) {
        size_t index = t->cursor++;
        if (!t->shards[index].held && !t->shards[index].asked)
            shard_step(t, index);
    }
    if (!t->ended)
        securing_settle(t);
    t->going = false;
    free_if_idle(t);
}

/* What failed before may work now; the holders are looked up again. */
static void securing_retry(struct securing *t)
{
    t->retry_ns = 0;
    t->cursor = 0;
    t->looked = false;
    t->pool_failed = t->archive_failed = false;
    if (targets_find(t) != HL_OK)
        snprintf(t->why, sizeof(t->why), "%s", hl_error_text());
    securing_go(t);
}

void securings_tick(struct hl_controller *c)
{
    struct securing *t, *next;
    uint64_t now = c->listening.listened_ns;
    DL_FOREACH_SAFE (c->copies->securings, t, next) {
        if (t->ended)
            continue;
        if (now - t->progress_ns > (uint64_t)c->opts.durability_timeout_ms * HL_NS_PER_MS) {
            securing_end(t, securing_failure(t, HL_ETIMEDOUT), hl_error_text());
            free_if_idle(t);
        } else if (t->retry_ns != 0 && now >= t->retry_ns) {
            securing_retry(t);
        }
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

static hl_status shards_take(struct securing *t, const struct securable *shards)
{
    for (size_t i = 0; i < t->count; i++) {
        t->shards[i].shard = shards[i];
        t->shards[i].shard.node = hl_arena_strdup(&t->arena, shards[i].node);
        t->shards[i].shard.name = hl_arena_strdup(&t->arena, shards[i].name);
        t->progress.total_bytes += shards[i].size_bytes;
    }
    if (hl_arena_failed(&t->arena))
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards of a version", t->count);
    return targets_find(t);
}

hl_status securing_start(struct hl_controller *c, const struct securable *shards, size_t count,
                         securing_done done, void *arg, struct securing **out)
{
    struct securing *t = calloc(1, sizeof(*t));
    struct secured *list = calloc(count + 1, sizeof(*list));
    if (t == NULL || list == NULL) {
        free(t);
        free(list);
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards of a version", count);
    }
    *t = (struct securing){.c = c,
                           .shards = list,
                           .count = count,
                           .progress_ns = c->listening.listened_ns,
                           .done = done,
                           .arg = arg};
    DL_APPEND(c->copies->securings, t);
    c->copies->securing_count++;
    hl_status st = shards_take(t, shards);
    if (st != HL_OK) {
        securing_cancel(t);
        return st;
    }
    *out = t;
    securing_go(t); /* this asks L3, so `done` is called later */
    return HL_OK;
}
