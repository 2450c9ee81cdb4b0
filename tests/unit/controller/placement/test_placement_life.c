/* The history of shards whose holders are lost, refuse or come back. */
#include "unit/controller/placement/placement_rig.h"

static void assert_newest(struct world *w, enum hl_life_event event, unsigned count)
{
    struct hl_change history[HL_CHANGES_MAX];
    assert_int_equal(hl_placement_shard_history(&w->c.placement->core, w->shard->id, history),
                     count);
    assert_int_equal(history[0].event, event);
}

TEST_IN(world_start, world_end, a_shard_whose_last_holder_is_lost_and_returns_tells_of_both)
{
    struct world *w = *state;
    learn(w, &w->a, HL_API_TIER_L2, "");
    w->shard->missed = 2; /* the pool has lost it */
    assert_true(report(w, "a", 7, 1, 60));
    pass_run(&w->c);
    assert_newest(w, HL_LIFE_ON_LOADED, 2);
    w->a.lost = true;
    placement_node_silent(&w->c, &w->a);
    follow(w);
    assert_newest(w, HL_LIFE_ON_LOST, 3);
    placement_node_silent(&w->c, &w->a);
    follow(w);
    assert_newest(w, HL_LIFE_ON_LOST, 3);
    w->a.lost = false;
    placement_node_registered(&w->c, &w->a);
    follow(w);
    assert_newest(w, HL_LIFE_ON_FOUND, 4);
    assert_int_equal(placed(w)->life.state, HL_LIFE_ACTIVE);
}

TEST_IN(world_start, world_end, a_node_that_was_forgotten_gets_no_entry_by_a_late_answer)
{
    struct world *w = *state;
    const struct place at_b = {.tier = HL_API_TIER_L2, .node = &w->b};
    placement_node_forgotten(&w->c, &w->b);
    w->b.gone = true;
    assert_int_equal(placed_place(&w->c, &at_b).node, HL_READER_NONE);
    assert_int_equal(HASH_COUNT(w->c.placement->nodes), 1);
}
