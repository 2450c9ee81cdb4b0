/* The history of shards whose holders are lost, refuse or come back. */
#include "base/log.h"
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

/* The end of a move from L2 of a to the pool. */
static struct hl_move_action end_of_move(struct world *w)
{
    const struct hl_place from = {.node = placed_node_need(&w->c, "a")->index,
                                  .tier = HL_API_TIER_L2};
    const struct hl_place goal = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    return (struct hl_move_action){.kind = HL_MOVE_ENDED,
                                   .rec = {.order = {.id = {9, 1},
                                                     .shard = w->shard->id,
                                                     .from = from,
                                                     .goal = goal,
                                                     .reason = HL_LIFE_EVENTS,
                                                     .size_bytes = w->shard->size_bytes,
                                                     .crc32 = w->shard->crc32},
                                           .phase = HL_MOVE_PHASE_CLEANING,
                                           .began_ms = placement_now_ms(),
                                           .switched_ms = placement_now_ms()}};
}

/* What durability_spares says of a's copy in that tier while these were confirmed. */
static hl_status spares(struct world *w, enum hl_api_tier tier,
                        const struct place *const confirmed[], size_t count)
{
    struct confirmed_copy copies[4];
    const struct place at_a = {.tier = tier, .node = &w->a};
    for (size_t i = 0; i < count; i++)
        copies[i] = (struct confirmed_copy){*confirmed[i], w->shard->size_bytes, w->shard->crc32};
    return durability_spares(&w->c, w->shard->id, &at_a, copies, count);
}

TEST_IN(world_start, world_end, a_copy_that_durability_needs_is_not_spared)
{
    struct world *w = *state;
    struct hl_api_pool_info l3 = {.host_id = "l3"};
    const struct place a = {.tier = HL_API_TIER_L2, .node = &w->a};
    const struct place b = {.tier = HL_API_TIER_L2, .node = &w->b};
    const struct place pool = {.tier = HL_API_TIER_L3};
    const struct place *const all[] = {&a, &b, &pool};
    w->a.info.host_id = "host-a";
    w->b.info.host_id = "host-b";
    w->a.store.listed = w->b.store.listed = true;
    w->c.copies->pool = &l3;
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 2), HL_OK);
    w->c.copies->durability = HL_DURABILITY_TWO;
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 3), HL_OK);
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 2), HL_ECONFLICT); /* L3 has lost it */
    assert_non_null(strstr(hl_error_text(), "L2 of a"));
    assert_int_equal(spares(w, HL_API_TIER_L1, all, 2), HL_OK);
    w->shard->archived = true;
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 2), HL_OK);
    w->shard->archived = false;
    w->a.store.listed = false; /* it may have more */
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 2), HL_EUNAVAIL);
    w->a.info.host_id = "host-b"; /* it would not help */
    assert_int_equal(spares(w, HL_API_TIER_L2, all, 2), HL_OK);
    w->c.copies->pool = NULL;
}

TEST_IN(world_start, world_end, an_old_copy_that_stays_is_in_the_history_with_the_reason)
{
    struct world *w = *state;
    struct hl_change history[HL_CHANGES_MAX];
    struct hl_move_action ended = end_of_move(w);
    ended.left = ended.kept = true;
    life_ended(&w->c, &ended);
    assert_newest(w, HL_LIFE_ON_KEPT, 1);
    hl_placement_shard_history(&w->c.placement->core, w->shard->id, history);
    assert_string_equal(placed_node_name(&w->c, history[0].node), "a");
    ended.kept = false;
    life_ended(&w->c, &ended);
    assert_newest(w, HL_LIFE_ON_LEFT, 2);
    ended.rec.order.keep_source = true; /* a load */
    life_ended(&w->c, &ended);
    assert_newest(w, HL_LIFE_ON_LEFT, 2);
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

/* b has other bytes under the id of the shard, in its L2; crc32 off by so much. */
static void learn_wrong(struct world *w, uint32_t off)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    copies_learn(&w->c, &w->b,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = HL_API_TIER_L2,
                                       .device = "",
                                       .transport = "",
                                       .size_bytes = w->shard->size_bytes,
                                       .crc32 = w->shard->crc32 + off});
}

TEST_IN(world_start, world_end, a_node_with_a_wrong_copy_is_no_target_until_the_copy_changes)
{
    static struct hl_api_tier_info l2 = {
        .tier = HL_API_TIER_L2, .kind = "", .quota_bytes = 1 << 20};
    struct world *w = *state;
    struct hl_move_order order;
    struct place wrong[2];
    struct hl_place in_l2 = {.node = placed_node_need(&w->c, "b")->index, .tier = HL_API_TIER_L2};
    w->b.report.tiers = (struct hl_api_tier_info_list){&l2, 1};
    assert_true(report(w, "b", 7, 1, 60));
    unsigned said = hl_log_count(HL_LOG_WARN);
    learn_wrong(w, 1);
    learn_wrong(w, 1);
    assert_int_equal(hl_log_count(HL_LOG_WARN), said + 1);
    for (int i = 0; i < 3; i++)
        pass_run(&w->c);
    assert_null(noted_find(&w->c, w->shard->id));
    assert_int_equal(moves_prepare(&w->c, w->shard->id, placed(w)->place, in_l2, &order),
                     HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "node b"));
    in_l2.tier = HL_API_TIER_L1; /* it would come through the L2 */
    assert_int_equal(moves_prepare(&w->c, w->shard->id, placed(w)->place, in_l2, &order),
                     HL_ECONFLICT);
    assert_int_equal(copies_wrong(&w->c, w->shard->id, wrong, 2), 1);
    assert_ptr_equal(wrong[0].node, &w->b);
    copies_forget(&w->c, &w->b, w->shard->id, HL_API_TIER_L2, "");
    assert_int_equal(copies_wrong(&w->c, w->shard->id, wrong, 2), 0);
    pass_run(&w->c);
    assert_non_null(noted_find(&w->c, w->shard->id));
}
