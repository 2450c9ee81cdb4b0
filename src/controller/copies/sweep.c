/* The sweep compares the inventory of pool and archive with the catalogue. A shard of no version is
 * an orphan, a shard that the pool has lost is marked, and what is not archived yet is archived.
 * Each sweep begins with a claim (claim.h): what does not belong to this cluster is looked at and
 * left alone. The sweep runs as soon as the L3 daemon answers, and then every gc.interval. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/copies/copies_private.h"
#include "core/catalog/manifest.h"

#define SWEEP_PAGE  4096
#define SETTLE_TURN 4096

static void ask_page(struct hl_controller *c, uint64_t cursor);

/* Notes one shard that L3 has, in its pool or in its archive. */
static void note_extent(struct hl_controller *c, const struct hl_api_extent *extent, bool archived)
{
    struct hl_id id;
    if (hl_id_parse(extent->id, &id) != HL_OK)
        return;
    if (hl_manifest_is(id)) {
        manifests_note(c, id, archived);
        return;
    }
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    if (s == NULL) {
        orphan_note(c, id, archived);
        return;
    }
    if (archived)
        s->archive_round = c->copies->sweep_round;
    else
        s->seen_round = c->copies->sweep_round;
    *(archived ? &c->claim.known_archived : &c->claim.known_pooled) += 1;
}

/* A node that has not listed its copies yet, since its own start or that of the Controller, may
 * have what the pool has not. lost: also count nodes that are given up. */
static bool inventory_is_awaited(struct hl_controller *c, bool lost)
{
    for (const struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        if (!n->gone && (lost || !n->lost) && !n->store.listed)
            return true;
    return false;
}

bool copies_shard_is_gone(struct hl_controller *c, const struct hl_shard_rec *s)
{
    struct hl_holder holder; /* a silent holder counts: it may come back with its copy */
    const struct holders_query q = {.awaited_ms = INT64_MAX};
    if (!s->lost || pool_info(c) == NULL || nodes_expected(c) || inventory_is_awaited(c, true) ||
        copies_places(c, s->id, HL_API_TIER_L1, NULL, 0) > 0 ||
        copies_holders(c, s, &q, &holder, 1) > 0)
        return false;
    return !copy_task_runs(c, s->id) &&
           (c->copies->events == NULL || !c->copies->events->moves(c, s->id));
}

static void shard_settle(struct hl_controller *c, struct hl_shard_rec *s, bool awaited)
{
    if (hl_sweep_count(s, c->copies->sweep_round) && c->copies->events != NULL)
        c->copies->events->swept(c, s->id);
    bool has_copies = hl_shard_is_pooled(s) || /* nearly all: the others are looked for */
                      copies_places(c, s->id, HL_API_TIER_L1, NULL, 0) > 0 || (awaited && !s->lost);
    enum hl_sweep_turn turn = hl_sweep_settle(s, has_copies);
    c->copies->settled_lost += turn == HL_SWEEP_LOST;
    c->slots_changed |= turn == HL_SWEEP_FOUND; /* a job may be waiting for its version */
}

static bool settle_turn(struct hl_controller *c)
{
    bool awaited = inventory_is_awaited(c, false);
    for (unsigned left = SETTLE_TURN; left > 0 && c->copies->settle != NULL; left--) {
        struct hl_shard_rec *s = c->copies->settle;
        c->copies->settle = s->hh.next;
        shard_settle(c, s, awaited);
    }
    return c->copies->settle == NULL;
}

void copies_shard_leaves(struct hl_controller *c, const struct hl_shard_rec *s)
{
    if (c->copies->settle == s)
        c->copies->settle = s->hh.next;
}

static void sweep_settled(struct hl_controller *c)
{
    c->copies->sweeping = false;
    c->copies->pool_sweeps += c->copies->pool_sweeps < HL_SWEEP_LOST_MISSES;
    if (c->copies->settled_lost > 0)
        hl_error("shards are missing from the pool count=%u; `helios shard ls` shows them as lost",
                 c->copies->settled_lost);
    if (claim_ok(c, NULL, 0)) {
        cuts_drop_lost(c);
        archive_write_behind(c);
        durability_restore(c);
    }
    c->copies->sweeps++;
    hl_debug("sweep ended round=%u claim=%s", c->copies->sweep_round,
             hl_api_claim_state_name(claim_state(c)));
}

void sweep_settle(struct hl_controller *c)
{
    struct copies *x = c->copies;
    x->settle = c->catalog.shards;
    x->settled_lost = 0;
    x->settling.c = c;
    x->settling.turn = settle_turn;
    x->settling.done = sweep_settled;
    turns_begin(&x->settling);
}

static void end_sweep(struct hl_controller *c)
{
    if (c->claim.comparing) {
        c->copies->sweeping = false;
        claim_compared(c);
        return;
    }
    if (claim_ok(c, NULL, 0)) {
        manifests_settle(c);
        orphans_settle(c);
    }
    sweep_settle(c);
}

static void ask_archived(struct hl_controller *c, uint64_t cursor);

static void note_page(struct hl_controller *c, const struct hl_api_extent_list *extents,
                      bool archived)
{
    for (size_t i = 0; i < extents->count; i++)
        note_extent(c, &extents->items[i], archived);
}

static void on_stated(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_state_archived_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_debug("L3 does not take the checksums of archived shards: %s", text);
}

void sweep_state_archived(struct hl_controller *c, const struct hl_api_extent_list *extents)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_id_text cluster = claim_cluster(c);
    struct hl_api_l3_state_archived_params p = {.cluster = cluster.s};
    p.extents.items = hl_arena_array(&arena, extents->count, sizeof(*p.extents.items));
    for (size_t i = 0; p.extents.items != NULL && i < extents->count; i++) {
        const struct hl_api_extent *x = &extents->items[i];
        struct hl_id id;
        const struct hl_shard_rec *s =
            hl_id_parse(x->id, &id) == HL_OK ? hl_catalog_shard(&c->catalog, id) : NULL;
        if (s != NULL && !s->damaged && s->crc32 != x->crc32)
            p.extents.items[p.extents.count++] =
                (struct hl_api_extent){.id = x->id, .crc32 = s->crc32};
    }
    if (p.extents.count == 0 || !claim_ok(c, NULL, 0))
        return;
    controller_hold(c);
    hl_call_l3_state_archived_async(c->l3, &p, c->opts.rpc_timeout_ms, c->opts.loop, on_stated, c);
}

static void on_archived_page(void *arg, hl_status st, const char *text,
                             const struct hl_api_l3_list_archived_results *r)
{
    struct hl_controller *c = arg;
    (void)text;
    if (controller_stopped(c))
        return;
    if (st == HL_EUNAVAIL && c->claim.comparing && c->claim.found.archived == 0) {
        end_sweep(c); /* an unreachable archive is not claimed now */
        return;
    }
    if (st != HL_OK) {
        c->copies->sweeping = false;
        return;
    }
    note_page(c, &r->extents, 1);
    sweep_state_archived(c, &r->extents);
    if (r->next != 0)
        ask_archived(c, r->next);
    else
        end_sweep(c);
}

static void ask_archived(struct hl_controller *c, uint64_t cursor)
{
    controller_hold(c);
    hl_call_l3_list_archived_async(
        c->l3, &(struct hl_api_l3_list_archived_params){.cursor = cursor, .limit = SWEEP_PAGE},
        c->opts.rpc_timeout_ms, c->opts.loop, on_archived_page, c);
}

static void on_page(void *arg, hl_status st, const char *text,
                    const struct hl_api_l3_inventory_results *r)
{
    struct hl_controller *c = arg;
    (void)text;
    if (controller_stopped(c))
        return;
    if (st != HL_OK) { /* the next sweep tries again: half an inventory proves nothing */
        c->copies->sweeping = false;
        return;
    }
    note_page(c, &r->extents, 0);
    if (r->next != 0)
        ask_page(c, r->next);
    else if (pool_has_archive(c))
        ask_archived(c, 0);
    else
        end_sweep(c);
}

static void ask_page(struct hl_controller *c, uint64_t cursor)
{
    controller_hold(c);
    hl_call_l3_inventory_async(
        c->l3, &(struct hl_api_l3_inventory_params){.cursor = cursor, .limit = SWEEP_PAGE},
        c->opts.rpc_timeout_ms, c->opts.loop, on_page, c);
}

static void sweep_claimed(struct hl_controller *c, hl_status st)
{
    if (!c->copies->sweep_waits)
        return;
    c->copies->sweep_waits = false;
    if (st == HL_OK && c->copies->pool != NULL)
        ask_page(c, 0);
    else
        c->copies->sweeping = false;
}

static void begin_sweep(struct hl_controller *c)
{
    if (c->copies->pool == NULL || c->copies->sweeping ||
        (c->copies->sweep_ns != 0 &&
         hl_now_ns() - c->copies->sweep_ns <= (uint64_t)c->opts.gc_interval_ms * HL_NS_PER_MS))
        return;
    c->copies->sweeping = true;
    c->copies->sweep_waits = true;
    c->copies->sweep_round++;
    c->copies->sweep_ns = hl_now_ns();
    c->claim.answered = sweep_claimed;
    claim_ask(c);
}

static void pool_lost(struct hl_controller *c, const char *text)
{
    if (c->copies->pool != NULL || c->copies->l3_state[0] == '\0')
        hl_warn("L3 does not answer address=%s error=\"%s\"", c->opts.l3_address, text);
    c->copies->pool = NULL;
    hl_arena_fini(&c->copies->pool_arena);
    claim_forget(c);
    snprintf(c->copies->l3_state, sizeof(c->copies->l3_state), "%s", text);
}

static void on_pool_info(void *arg, hl_status st, const char *text,
                         const struct hl_api_l3_pool_info_results *r)
{
    struct hl_controller *c = arg;
    struct hl_arena arena = {0};
    if (controller_stopped(c))
        return;
    c->copies->pool_asked = false;
    struct hl_api_pool_info *pool = hl_arena_alloc(&arena, sizeof(*pool));
    if (st == HL_OK)
        st = pool == NULL ? HL_ENOMEM : hl_api_copy(&hl_api_pool_info_type, &r->pool, &arena, pool);
    if (st != HL_OK) {
        hl_arena_fini(&arena);
        pool_lost(c, r != NULL ? "out of memory for L3's report on its pool" : text);
        return;
    }
    if (c->copies->pool == NULL || strcmp(c->copies->pool->incarnation, pool->incarnation) != 0) {
        hl_info("L3 is ready address=%s pool=%s shards=%" PRIu64, c->opts.l3_address, pool->uuid,
                pool->shards);
        claim_forget(c);
        c->copies->sweep_ns = 0;
        c->copies->pool_sweeps = c->copies->sweeping ? -1 : 0;
    }
    hl_arena_fini(&c->copies->pool_arena);
    hl_arena_move(&c->copies->pool_arena, &arena);
    c->copies->pool = pool;
    snprintf(c->copies->l3_state, sizeof(c->copies->l3_state), "ready");
    begin_sweep(c);
}

void pool_tick(struct hl_controller *c)
{
    if (!c->copies->pool_asked) {
        c->copies->pool_asked = true;
        controller_hold(c);
        hl_call_l3_pool_info_async(c->l3, &(struct hl_api_l3_pool_info_params){0},
                                   c->opts.rpc_timeout_ms, c->opts.loop, on_pool_info, c);
    }
    begin_sweep(c);
    securings_tick(c);
}

/* ---- state of this wing ---------------------------------------------------------------------- */

hl_status copies_create(struct hl_controller *c, bool (*importing)(const struct hl_controller *c))
{
    c->copies = calloc(1, sizeof(*c->copies));
    if (c->copies == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the table of copies");
    c->copies->importing = importing;
    const char *durability = c->opts.durability;
    return durability == NULL ? HL_OK : hl_durability_parse(durability, &c->copies->durability);
}

void copies_watch(struct hl_controller *c, const struct copy_events *events)
{
    c->copies->events = events;
}

void copies_end_walks(struct hl_controller *c)
{
    if (c->copies == NULL)
        return;
    turns_stop(&c->copies->settling);
    turns_stop(&c->copies->pruning);
}

void copies_fini(struct hl_controller *c)
{
    if (c->copies == NULL)
        return;
    securings_fini(c);
    holdings_fini(c);
    orphans_fini(c);
    manifests_fini(c);
    hl_arena_fini(&c->copies->pool_arena);
    free(c->copies);
    c->copies = NULL;
}
