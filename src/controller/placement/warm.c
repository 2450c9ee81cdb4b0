/* Warms a pool that starts empty: versions that exist only in the archive are loaded, in the order
 * of core/placement/warm.h, as long as the pool stays below its low watermark. The first reader of
 * each version then waits for the pool, not for the archive.
 *
 *     L3 has started --two sweeps--> plan --shards--> moves (moves.c) of least priority
 *                                     ^                  |
 *                                     '--some failed-----'--all are over--> nothing more for this
 *                                                                           pool
 *
 * This happens once per start of L3: what leaves the pool later, by the policy, by an order or
 * because the pool was full, stays in the archive until it is read. L3 refuses such loads while
 * other loads run, and aborts them in favour of others; then warming pauses. Nothing is evicted
 * from the pool for it.
 *
 * The plan is soft state: a restarted Controller makes it again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/plane.h"
#include "controller/placement/placement_private.h"
#include "core/catalog/sweep.h"
#include "core/placement/warm.h"

#define LAPS_MAX 3    /* plans for one pool */
#define REST_MS  5000 /* after a load that was refused, aborted, or failed */

static const struct hl_place in_pool = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
static const struct hl_place in_archive = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};

/* ---- the plan -------------------------------------------------------------------------------- */

/* True if the shard is only in the archive, and not because it went unread for long. */
static bool is_wanted(const struct hl_controller *c, const struct hl_shard_rec *s)
{
    const struct hl_placed_shard *placed = hl_placement_shard_find(&c->placement->core, s->id);
    return hl_shard_is_archived(s) && !hl_shard_is_pooled(s) && !s->lost && s->cut == NULL &&
           (placed == NULL || placed->life.state != HL_LIFE_EXPIRED_L4);
}

static uint64_t wanted_bytes(const struct hl_controller *c, const struct hl_version_rec *v)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        bytes += is_wanted(c, v->shards[i]) ? v->shards[i]->size_bytes : 0;
    return bytes;
}

/* NULL: out of memory. */
static struct hl_warm_version *versions_list(const struct hl_controller *c, size_t *count)
{
    struct pool_versions all = {0};
    struct hl_warm_version *list = NULL;
    if (pool_versions_list(c, &all))
        list = calloc(all.count + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < all.count; i++)
        list[i] = (struct hl_warm_version){.version = all.items[i],
                                           .bytes = wanted_bytes(c, all.items[i].version)};
    *count = all.count;
    free(all.items);
    return list;
}

/* Takes the shards of the first `chosen` versions. */
static hl_status plan_take(struct hl_controller *c, const struct hl_warm_version *versions,
                           size_t chosen)
{
    struct warm *w = &c->placement->warm;
    size_t most = 0;
    for (size_t i = 0; i < chosen; i++)
        most += ((const struct hl_version_rec *)versions[i].version.version)->shard_count;
    w->shards = calloc(most + 1, sizeof(*w->shards));
    if (w->shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the %zu shards that the pool is to get", most);
    for (size_t i = 0; i < chosen; i++) {
        const struct hl_version_rec *v = versions[i].version.version;
        for (size_t s = 0; s < v->shard_count; s++)
            if (is_wanted(c, v->shards[s]))
                w->shards[w->count++] = v->shards[s]->id;
    }
    return HL_OK;
}

static void plan_drop(struct warm *w)
{
    free(w->shards);
    w->shards = NULL;
    w->count = w->next = w->failed = 0;
}

static void plan_make(struct hl_controller *c, const struct hl_api_tier_info *t)
{
    struct warm *w = &c->placement->warm;
    uint64_t room = hl_warm_room(t->low_bytes, t->used_bytes);
    size_t count;
    HL_AUTO(hl_freep) struct hl_warm_version *list = versions_list(c, &count);
    plan_drop(w);
    w->laps++;
    hl_status st = list != NULL
                       ? plan_take(c, list, hl_warm_choose(list, count, room))
                       : hl_fail(HL_ENOMEM, "out of memory for the versions of the archive");
    if (st != HL_OK)
        hl_warn("the pool is not warmed error=\"%s\"", hl_error_text());
    else if (w->count > 0)
        hl_info("pool is warmed shards=%zu room=%" PRIu64, w->count, room);
}

/* ---- its moves ------------------------------------------------------------------------------- */

static const struct hl_move_rec *move_under_way(const struct hl_controller *c, struct hl_id shard)
{
    const struct hl_move_rec *rec = hl_migration_find(&c->placement->moves, shard);
    return rec != NULL && rec->order.priority == PRIORITY_WARM ? rec : NULL;
}

static void load_ended(struct hl_controller *c, struct hl_id shard)
{
    struct warm *w = &c->placement->warm;
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, shard);
    if (s == NULL)
        return;
    if (hl_shard_is_pooled(s)) {
        w->loaded++;
        w->loaded_bytes += s->size_bytes;
        w->probes = false;
        return;
    }
    w->failed++;
    w->probes = true;
    w->rest_ms = placement_now_ms() + REST_MS;
}

/* The bytes of the loads that are still in flight. */
static uint64_t look_at_loads(struct hl_controller *c)
{
    struct warm *w = &c->placement->warm;
    uint64_t bytes = 0;
    size_t left = 0;
    for (size_t i = 0; i < w->under_way_count; i++) {
        const struct hl_move_rec *rec = move_under_way(c, w->under_way[i]);
        if (rec == NULL) {
            load_ended(c, w->under_way[i]);
            continue;
        }
        bytes += rec->order.size_bytes;
        w->under_way[left++] = w->under_way[i];
    }
    w->under_way_count = left;
    return bytes;
}

static hl_status order_load(struct hl_controller *c, struct hl_id shard)
{
    struct warm *w = &c->placement->warm;
    struct hl_move_order order;
    HL_TRY(moves_prepare(c, shard, in_archive, in_pool, &order));
    order.priority = PRIORITY_WARM;
    HL_TRY(moves_order(c, &order));
    w->under_way[w->under_way_count++] = shard;
    return HL_OK;
}

/* Other moves go first, and gangs and saves have the archive to themselves. */
static bool may_order(const struct hl_controller *c)
{
    const struct placement *p = c->placement;
    size_t under_way = p->warm.under_way_count;
    return p->budget.rests == 0 && p->moves.count == under_way &&
           under_way < (p->warm.probes ? 1 : WARM_MOVES) && placement_now_ms() >= p->warm.rest_ms;
}

static void order_loads(struct hl_controller *c, uint64_t room)
{
    struct warm *w = &c->placement->warm;
    while (w->next < w->count && may_order(c)) {
        const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, w->shards[w->next]);
        if (s == NULL || !is_wanted(c, s)) {
            w->next++;
            continue;
        }
        if (s->size_bytes > room) {
            w->next = w->count;
            return;
        }
        w->next++;
        room -= s->size_bytes;
        if (order_load(c, s->id) != HL_OK) {
            hl_debug("a shard is not loaded ahead: %s", hl_error_text());
            w->failed++;
        }
    }
}

/* ---- ticks ----------------------------------------------------------------------------------- */

/* True: a plan is due, for a pool that has started or for loads that failed. */
static bool plan_is_due(const struct warm *w, const char *incarnation)
{
    if (strcmp(w->incarnation, incarnation) != 0)
        return true;
    return w->next == w->count && w->under_way_count == 0 && w->failed > 0 && w->laps < LAPS_MAX;
}

static void end_lap(struct warm *w)
{
    if (w->shards == NULL || w->next < w->count || w->under_way_count > 0)
        return;
    if (w->count > 0)
        hl_info("pool was warmed shards=%" PRIu64 " bytes=%" PRIu64 " failed=%zu", w->loaded,
                w->loaded_bytes, w->failed);
    free(w->shards);
    w->shards = NULL;
}

const char *warm_why_not(const struct hl_controller *c)
{
    if (!c->placement->conf.warm || pool_info(c) == NULL || pool_has_archive(c))
        return "";
    return "placement.warm has no effect: helios-l3d has no archive to load from; set archive.url "
           "and start it again";
}

/* Warns once, until loading works. */
static void warn_if_idle(struct hl_controller *c, struct warm *w)
{
    const char *why = warm_why_not(c);
    if (why[0] != '\0' && !w->warned)
        hl_warn("%s", why);
    w->warned = why[0] != '\0';
}

void warm_run(struct hl_controller *c)
{
    struct warm *w = &c->placement->warm;
    warn_if_idle(c, w);
    const struct hl_api_tier_info *t = pool_tier(c);
    uint64_t under_way = look_at_loads(c);
    if (!c->placement->conf.warm || t == NULL || !pool_has_archive(c) || !pool_is_known(c) ||
        !claim_ok(c, NULL, 0))
        return;
    end_lap(w);
    if (plan_is_due(w, pool_info(c)->incarnation) && placement_now_ms() >= w->rest_ms) {
        if (strcmp(w->incarnation, pool_info(c)->incarnation) != 0)
            w->laps = 0;
        snprintf(w->incarnation, sizeof(w->incarnation), "%s", pool_info(c)->incarnation);
        plan_make(c, t);
    }
    order_loads(c, hl_warm_room(t->low_bytes, t->used_bytes + under_way));
}

void warm_gauges(const struct hl_controller *c, struct hl_buf *out)
{
    const struct warm *w = &c->placement->warm;
    hl_metric_family(out, "helios_pool_warmed_total", "counter",
                     "Shards that were loaded out of the archive before they were read.");
    (void)hl_buf_printf(out, "helios_pool_warmed_total %" PRIu64 "\n", w->loaded);
    hl_metric_family(out, "helios_pool_warmed_bytes_total", "counter", "The same in bytes.");
    (void)hl_buf_printf(out, "helios_pool_warmed_bytes_total %" PRIu64 "\n", w->loaded_bytes);
}

void warm_fini(struct hl_controller *c)
{
    free(c->placement->warm.shards);
}
