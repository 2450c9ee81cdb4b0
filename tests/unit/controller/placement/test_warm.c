/* A pool that has room is warmed: which loads are ordered, in which order and when, and what is
 * left alone. No move begins: the engine holds them all. */
#include "controller/placement/placement_private.h"
#include "unit/controller/nodes_rig.h"

#include <stdlib.h>
#include <string.h>

static struct hl_api_tier_info tiers[2];
static struct hl_api_pool_info pool;
static struct hl_version_rec *older, *newest;

static bool gang_starts(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static void archive_alone(struct hl_shard_rec *s)
{
    s->archived = true;
    s->missed = HL_SWEEP_LOST_MISSES;
}

static void version_archive_alone(struct hl_version_rec *v)
{
    for (size_t i = 0; i < v->shard_count; i++)
        archive_alone(v->shards[i]);
}

static int world_start(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    world_init(w);
    w->c.closing = true; /* no timers: there is no loop */
    w->c.claim.state = CLAIM_OK;
    tiers[0] = (struct hl_api_tier_info){
        .tier = HL_API_TIER_L3, .name = "pool", .kind = "", .low_bytes = 1 << 20};
    tiers[1] = (struct hl_api_tier_info){.tier = HL_API_TIER_L4, .name = "archive", .kind = ""};
    pool = (struct hl_api_pool_info){
        .host_id = "pool", .incarnation = "boot-1", .tiers = {tiers, HL_ARRAY_LEN(tiers)}};
    w->c.copies->pool = &pool;
    w->c.copies->pool_sweeps = HL_SWEEP_LOST_MISSES;
    older = w->shard->version;
    newest = save_version(&w->c.catalog, "tiny", 5, 9, 2000);
    assert_int_equal(placement_create(&w->c, gang_starts), HL_OK);
    w->c.placement->conf.warm = true;
    placement_node_registered(&w->c, &w->a);
    hl_migration_hold(&w->c.placement->moves, UINT8_MAX, placement_now_ms());
    version_archive_alone(older);
    version_archive_alone(newest);
    *state = w;
    return 0;
}

static int world_end(void **state)
{
    struct world *w = *state;
    w->c.copies->pool = NULL;
    placement_fini(&w->c);
    world_fini(w);
    free(w);
    return 0;
}

static uint32_t count_loads(struct world *w)
{
    const struct hl_migration *m = &w->c.placement->moves;
    warm_run(&w->c);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct hl_move_order *o = &hl_migration_at(m, i)->order;
        assert_int_equal(o->priority, PRIORITY_WARM);
        assert_int_equal(o->from.tier, HL_API_TIER_L4);
        assert_int_equal(o->goal.tier, HL_API_TIER_L3);
        assert_true(o->keep_source);
    }
    return m->count;
}

static bool is_loading(const struct world *w, const struct hl_version_rec *v)
{
    for (size_t i = 0; i < v->shard_count; i++)
        if (hl_migration_find(&w->c.placement->moves, v->shards[i]->id) == NULL)
            return false;
    return true;
}

static void version_pooled(struct hl_version_rec *v)
{
    for (size_t i = 0; i < v->shard_count; i++)
        hl_sweep_made(v->shards[i], HL_API_TIER_L3, 1);
}

/* All moves have ended, with or without copies in the pool, and the Controller has noticed. */
static void end_loads(struct world *w, bool loaded)
{
    struct hl_migration *m = &w->c.placement->moves;
    if (loaded) {
        version_pooled(older);
        version_pooled(newest);
    }
    while (m->count > 0) {
        assert_int_equal(hl_migration_cancel(m, hl_migration_at(m, 0)->order.id, 0), HL_OK);
        moves_run(&w->c);
    }
    warm_run(&w->c);
    assert_int_equal(m->count, 0);
    w->c.placement->warm.rest_ms = 0; /* as if that time had passed */
}

TEST_IN(world_start, world_end, what_only_the_archive_has_is_loaded_once_the_pool_is_known)
{
    struct world *w = *state;
    w->c.copies->pool_sweeps = HL_SWEEP_LOST_MISSES - 1;
    assert_int_equal(count_loads(w), 0);
    w->c.copies->pool_sweeps++;
    assert_int_equal(count_loads(w), older->shard_count + newest->shard_count);
    assert_int_equal(count_loads(w), older->shard_count + newest->shard_count); /* and not twice */
    assert_true(is_loading(w, older) && is_loading(w, newest));
}

TEST_IN(world_start, world_end, nothing_is_loaded_where_it_is_off_or_without_an_archive)
{
    struct world *w = *state;
    w->c.placement->conf.warm = false;
    assert_int_equal(count_loads(w), 0);
    w->c.placement->conf.warm = true;
    pool.tiers.count = 1;
    assert_int_equal(count_loads(w), 0);
    pool.tiers.count = 2;
    w->c.copies->pool = NULL;
    assert_int_equal(count_loads(w), 0);
    w->c.copies->pool = &pool;
    assert_true(count_loads(w) > 0);
}

TEST_IN(world_start, world_end, that_it_is_on_without_an_archive_is_said)
{
    struct world *w = *state;
    assert_string_equal(warm_why_not(&w->c), "");
    pool.tiers.count = 1;
    assert_non_null(strstr(warm_why_not(&w->c), "placement.warm has no effect"));
    warm_run(&w->c);
    assert_true(w->c.placement->warm.warned);
    w->c.placement->conf.warm = false;
    assert_string_equal(warm_why_not(&w->c), "");
    warm_run(&w->c);
    assert_false(w->c.placement->warm.warned); /* the warning would be repeated */
    w->c.placement->conf.warm = true;
    w->c.copies->pool = NULL; /* its contents are not known */
    assert_string_equal(warm_why_not(&w->c), "");
    pool.tiers.count = 2;
    w->c.copies->pool = &pool;
}

TEST_IN(world_start, world_end, the_newest_version_comes_first_and_none_in_part)
{
    struct world *w = *state;
    for (size_t i = 0; i < newest->shard_count; i++)
        tiers[0].low_bytes = i == 0 ? newest->shards[i]->size_bytes
                                    : tiers[0].low_bytes + newest->shards[i]->size_bytes;
    tiers[0].low_bytes +=
        older->shards[0]->size_bytes; /* there is room for one shard of the other version */
    assert_int_equal(count_loads(w), newest->shard_count);
    assert_true(is_loading(w, newest));
}

TEST_IN(world_start, world_end, what_left_the_pool_after_that_stays_in_the_archive)
{
    struct world *w = *state;
    assert_true(count_loads(w) > 0);
    end_loads(w, true);
    assert_int_equal(count_loads(w), 0);
    assert_int_equal(w->c.placement->warm.loaded, older->shard_count + newest->shard_count);
    archive_alone(newest->shards[0]);
    assert_int_equal(count_loads(w), 0);
    pool.incarnation = "boot-2"; /* a pool that starts */
    assert_int_equal(count_loads(w), 1);
}

TEST_IN(world_start, world_end, what_failed_is_loaded_again_and_not_for_ever)
{
    struct world *w = *state;
    const size_t all = older->shard_count + newest->shard_count;
    assert_int_equal(count_loads(w), all);
    end_loads(w, false);
    for (size_t i = 0; i < 2 * all; i++) {
        assert_int_equal(count_loads(w), 1); /* may it be loaded now? */
        end_loads(w, false);
    }
    assert_int_equal(count_loads(w), 0);
    assert_int_equal(w->c.placement->warm.loaded, 0);
}

TEST_IN(world_start, world_end, other_moves_go_first)
{
    struct world *w = *state;
    struct hl_move_order order;
    const struct hl_place in_archive = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};
    const struct hl_place on_node =
        placed_place(&w->c, &(struct place){.tier = HL_API_TIER_L2, .node = &w->a});
    assert_int_equal(moves_prepare(&w->c, w->shard->id, in_archive, on_node, &order), HL_OK);
    assert_int_equal(moves_order(&w->c, &order), HL_OK);
    warm_run(&w->c);
    assert_int_equal(w->c.placement->moves.count, 1);
    assert_int_equal(hl_migration_cancel(&w->c.placement->moves, order.id, 0), HL_OK);
    moves_run(&w->c);
    assert_true(count_loads(w) > 1);
}
