/* Versions as sets of their shards. */
#include <jansson.h>

#include "unit/controller/placement/placement_rig.h"

static uint32_t set_of(struct world *w, struct hl_version_rec *v, size_t shard)
{
    w->shard = v->shards[shard];
    return placed(w)->set - 1;
}

TEST_IN(world_start, world_end, shards_are_in_the_set_of_their_rank_below_that_of_their_version)
{
    struct world *w = *state;
    const struct hl_set_table *t = &w->c.placement->core.sets;
    struct hl_version_rec *tiny = w->shard->version;
    struct hl_version_rec *other = import_model(&w->c.catalog, "other", 3, "{}");
    follow(w);
    uint32_t rank_0 = set_of(w, tiny, 0), rank_1 = set_of(w, tiny, 1);
    assert_int_not_equal(rank_0, rank_1);
    assert_int_equal(hl_set_table_find(t, rank_0)->shards, 1);
    assert_int_equal(hl_set_table_top(t, rank_0), hl_set_table_top(t, rank_1));
    uint32_t version = hl_set_table_top(t, rank_0);
    assert_int_not_equal(version, rank_0);
    assert_int_not_equal(hl_set_table_top(t, set_of(w, other, 0)), hl_set_table_top(t, rank_0));
    model_remove(w, "tiny"); /* its sets are removed with it */
    assert_null(hl_set_table_find(t, rank_0));
    assert_null(hl_set_table_find(t, rank_1));
    assert_null(hl_set_table_find(t, version));
    assert_int_equal(hl_set_table_find(t, set_of(w, other, 0))->shards, 1);
}

static void pin_load(struct world *w, const char *key)
{
    json_t *pin = json_pack("{s:i}", "sinceMs", 1);
    assert_int_equal(placement_load_pin(&w->c, key, pin), HL_OK);
    json_decref(pin);
}

TEST_IN(world_start, world_end, a_pinned_version_keeps_all_its_shards_and_those_that_come)
{
    struct world *w = *state;
    struct hl_version_rec *tiny = w->shard->version;
    set_pin(&w->c, tiny, true);
    for (size_t i = 0; i < 2; i++) {
        w->shard = tiny->shards[i];
        assert_true(placed(w)->pinned);
        assert_false(placed(w)->pinned_itself);
    }
    set_pin(&w->c, tiny, false);
    assert_false(placed(w)->pinned);
    pin_load(w, "pin/version/other/0000000001"); /* before its shards are known */
    struct hl_version_rec *other = import_model(&w->c.catalog, "other", 3, "{}");
    follow(w);
    assert_false(placed(w)->pinned);
    w->shard = other->shards[1];
    assert_true(placed(w)->pinned);
}

TEST_IN(world_start, world_end, a_version_has_the_heat_the_pin_and_the_memory_of_its_shards)
{
    struct world *w = *state;
    struct hl_version_rec *tiny = w->shard->version;
    struct hl_api_model_version v = {0};
    assert_true(report(w, "a", 7, 1, 30));
    placement_describe_version(&w->c, tiny, &v);
    assert_float_equal(v.heat, 0.7 * 30 / 300 + 0.3, 0.01); /* of the one that was read */
    assert_true(v.in_memory);
    assert_false(v.pinned);
    pin_load(w, "pin/version/tiny/0000000001");
    hl_sweep_made(tiny->shards[1], HL_API_TIER_L4, 1);
    hl_sweep_dropped(tiny->shards[1], HL_API_TIER_L3);
    placement_describe_version(&w->c, tiny, &v);
    assert_true(v.pinned);
    assert_false(v.in_memory); /* a rank waits for its last shard */
}
