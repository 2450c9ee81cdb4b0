/* Places that follow copies; moves and their budget; options. */
#include "base/clock.h"
#include "base/log.h"
#include "conf/options.h"
#include "unit/controller/placement/placement_rig.h"

#include <stdlib.h>
#include <string.h>

static void assert_at(struct world *w, enum hl_api_tier tier, const char *node)
{
    assert_int_equal(placed(w)->place.tier, tier);
    assert_string_equal(placed_node_name(&w->c, placed(w)->place.node), node);
}

TEST_IN(world_start, world_end, a_shard_is_where_its_nearest_copy_is)
{
    struct world *w = *state;
    assert_at(w, HL_API_TIER_L3, "");
    learn(w, &w->b, HL_API_TIER_L2, "");
    assert_at(w, HL_API_TIER_L2, "b");
    learn(w, &w->a, HL_API_TIER_L2, ""); /* equally near: it stays */
    assert_at(w, HL_API_TIER_L2, "b");
    learn(w, &w->a, HL_API_TIER_L1, "emu:0");
    assert_at(w, HL_API_TIER_L1, "a");
    w->a.lost = true; /* its copies can't be read */
    placement_node_silent(&w->c, &w->a);
    follow(w);
    assert_at(w, HL_API_TIER_L2, "b");
    copies_forget(&w->c, &w->b, w->shard->id, HL_API_TIER_L2, "");
    assert_at(w, HL_API_TIER_L3, "");
}

/* Rank 0 of 2 begins a save, or completes its part of it. */
static struct hl_version_rec *save_begin(struct world *w)
{
    struct hl_version_rec *v;
    const struct hl_version_begin begin = {
        .model = "tiny", .job = "j-1", .attempt = 1, .step = 9, .world = 2, .now_ms = hl_wall_ms()};
    assert_int_equal(hl_catalog_begin(&w->c.catalog, &begin, keep_nothing, NULL, &v), HL_OK);
    return v;
}

static void save_commit(struct world *w, struct hl_version_rec *v, int rank)
{
    json_t *shards = json_pack("[o]", shard_row(10 + rank, rank));
    const struct hl_version_commit part = {.version = v,
                                           .rank = rank,
                                           .shards = shard_list(shards),
                                           .meta = "{}",
                                           .now_ms = hl_wall_ms()};
    assert_int_equal(hl_catalog_commit_part(&w->c.catalog, &part, keep_nothing, NULL), HL_OK);
    json_decref(shards);
}

TEST_IN(world_start, world_end, shards_come_and_go_with_their_version)
{
    struct world *w = *state;
    const struct hl_shard_table *t = &w->c.placement->core.shards;
    struct hl_id id = w->shard->id;
    assert_int_equal(t->count, 2);
    import_model(&w->c.catalog, "other", 3, "{}");
    assert_int_equal(t->count, 2); /* when its turn comes */
    assert_int_equal(follow(w), 1);
    assert_int_equal(t->count, 4);
    struct hl_version_rec *v = save_begin(w);
    save_commit(w, v, 0);
    follow(w);
    assert_int_equal(t->count, 4); /* it is not visible yet */
    save_commit(w, v, 1);
    follow(w);
    assert_int_equal(t->count, 6); /* with the part that existed before */
    model_remove(w, "tiny");
    assert_int_equal(t->count, 2); /* at once */
    assert_null(hl_placement_shard_find(&w->c.placement->core, id));
    follow(w);
    assert_int_equal(t->count, 2);
}

enum { MANY = 5000, TURN_MAX = 2048 }; /* more than one turn of the loop handles */

TEST_IN(world_start, world_end, a_version_of_many_shards_is_followed_in_turns)
{
    struct world *w = *state;
    const struct hl_shard_table *t = &w->c.placement->core.shards;
    import_parts(&w->c.catalog, 100, MANY);
    follow_begin(&w->c);
    uint32_t before = t->count;
    for (bool done = false; !done; before = t->count) {
        done = follow_turn(&w->c);
        assert_true(t->count - before <= TURN_MAX);
    }
    assert_int_equal(before, 2 + MANY);
    placement_node_silent(&w->c, &w->a); /* all are checked again, and only once */
    unsigned turns = follow(w);
    assert_in_range(turns, 1 + MANY / TURN_MAX, 20);
    assert_int_equal(follow(w), 1);
}

TEST_IN(world_start, world_end, a_walk_goes_on_behind_shards_that_leave_meanwhile)
{
    struct world *w = *state;
    const struct hl_shard_table *t = &w->c.placement->core.shards;
    import_parts(&w->c.catalog, 100, MANY);
    struct hl_version_rec *last = import_model(&w->c.catalog, "other", 3, "{}");
    w->c.placement->behind = true;
    follow_begin(&w->c);
    assert_false(follow_turn(&w->c));
    model_remove(w, "many"); /* the walk was in the middle of that model */
    assert_int_equal(t->count, 2);
    assert_true(follow_turn(&w->c));
    assert_int_equal(t->count, 4);
    assert_non_null(hl_placement_shard_find(&w->c.placement->core, last->shards[0]->id));
}

TEST_IN(world_start, world_end, what_a_sweep_has_found_is_followed_in_its_turn)
{
    struct world *w = *state;
    assert_at(w, HL_API_TIER_L3, "");
    w->shard->missed = 2;
    w->shard->archived = true;
    w->c.copies->events->swept(&w->c, w->shard->id);
    assert_at(w, HL_API_TIER_L3, "");
    follow(w);
    assert_at(w, HL_API_TIER_L4, "");
}

TEST_IN(world_start, world_end, a_node_that_comes_and_goes_gets_no_shard)
{
    struct world *w = *state;
    const struct placed_node *a = placed_node_need(&w->c, "a");
    assert_true(placed_node_takes(&w->c, a));
    placement_node_registered(&w->c, &w->a); /* its Agent was restarted */
    assert_true(placed_node_takes(&w->c, a));
    unsigned said = hl_log_count(HL_LOG_WARN);
    placement_node_silent(&w->c, &w->a);
    placement_node_registered(&w->c, &w->a); /* it has left twice */
    assert_false(placed_node_takes(&w->c, a));
    placement_node_registered(&w->c, &w->a);
    assert_int_equal(hl_log_count(HL_LOG_WARN), said + 1); /* once for all times */
    w->c.placement->core.params.flap_ms = 0;
    assert_true(placed_node_takes(&w->c, a));
    w->a.lost = true;
    assert_false(placed_node_takes(&w->c, a));
}

static void ignore_copy(void *arg, hl_status st, const char *text, const struct hl_api_copy *copy)
{
    (void)arg, (void)st, (void)text, (void)copy;
}

TEST_IN(world_start, world_end, a_node_that_drains_gets_no_shard)
{
    struct world *w = *state;
    const struct placed_node *b = placed_node_need(&w->c, "b");
    const struct place goal = {.tier = HL_API_TIER_L2, .node = &w->b};
    assert_true(placed_node_takes(&w->c, b));
    w->b.drained_ms = 1;
    assert_true(node_ready(&w->b));
    assert_false(placed_node_takes(&w->c, b));
    /* neither by a waiting move nor by an order */
    assert_int_equal(copies_bring(&w->c,
                                  &(struct copies_order){.id = hl_id_random(),
                                                         .shard = w->shard->id,
                                                         .goal = goal,
                                                         .op = HL_API_OPERATION_READ},
                                  ignore_copy, NULL),
                     HL_EUNAVAIL);
    assert_non_null(
        strstr(hl_error_text(), "node b takes no new containers or shards: it is drained"));
}

TEST_IN(world_start, world_end, a_drop_from_the_archive_lets_no_other_drop_count_on_it)
{
    struct world *w = *state;
    const struct place in_archive = {.tier = HL_API_TIER_L4};
    struct place places[4];
    w->shard->archived = true;
    assert_int_equal(copies_places(&w->c, w->shard->id, HL_API_TIER_L1, places, 4), 2);
    copies_mark_dropping(&w->c, &in_archive, w->shard->id, true);
    assert_int_equal(copies_places(&w->c, w->shard->id, HL_API_TIER_L1, places, 4), 1);
    assert_int_equal(places[0].tier, HL_API_TIER_L3);
    copies_mark_dropping(&w->c, &in_archive, w->shard->id, false);
    assert_int_equal(copies_places(&w->c, w->shard->id, HL_API_TIER_L1, places, 4), 2);
}

TEST_IN(world_start, world_end, an_inventory_that_shrinks_or_has_other_bytes_moves_nothing)
{
    struct world *w = *state;
    const struct hl_id_text id = hl_id_format(w->shard->id);
    learn(w, &w->b, HL_API_TIER_L2, "");
    assert_true(report(w, "b", 7, 1, 60));
    pass_run(&w->c);
    assert_at(w, HL_API_TIER_L2, "b");
    copies_forget(&w->c, &w->b, w->shard->id, HL_API_TIER_L2, ""); /* no longer listed */
    assert_at(w, HL_API_TIER_L3, "");
    copies_learn(&w->c, &w->b,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = HL_API_TIER_L2,
                                       .device = "",
                                       .transport = "",
                                       .size_bytes = w->shard->size_bytes,
                                       .crc32 = w->shard->crc32 + 1});
    assert_at(w, HL_API_TIER_L3, "");
    pass_run(&w->c);
    assert_int_equal(w->c.placement->moves.count, 0);
    struct place
        places[4]; /* beside a good copy it is not a source, and does not keep another one alive */
    learn(w, &w->a, HL_API_TIER_L2, "");
    assert_at(w, HL_API_TIER_L2, "a");
    assert_int_equal(copies_places(&w->c, w->shard->id, HL_API_TIER_L1, places, 4), 2);
    assert_ptr_equal(places[1].node, &w->a);
    assert_int_equal(places[0].tier, HL_API_TIER_L3);
}

TEST_IN(world_start, world_end, a_shard_does_not_move_beside_a_drop_nor_is_dropped_beside_a_move)
{
    struct world *w = *state;
    struct hl_move_order order;
    struct hl_place in_l2 = {.node = placed_node_need(&w->c, "b")->index, .tier = HL_API_TIER_L2};
    const struct place in_pool = {.tier = HL_API_TIER_L3};
    const struct place at_a = {.tier = HL_API_TIER_L2, .node = &w->a};
    const struct place in_archive = {.tier = HL_API_TIER_L4};
    const struct place *const drops[] = {&in_pool, &at_a, &in_archive};
    learn(w, &w->a, HL_API_TIER_L2, "");
    for (size_t i = 0; i < HL_ARRAY_LEN(drops); i++) {
        copies_mark_dropping(&w->c, drops[i], w->shard->id, true);
        assert_int_equal(moves_prepare(&w->c, w->shard->id, placed(w)->place, in_l2, &order),
                         HL_EBUSY);
        copies_mark_dropping(&w->c, drops[i], w->shard->id, false);
    }
    assert_false(placement_copy_events.moves(&w->c, w->shard->id));
    assert_int_equal(moves_prepare(&w->c, w->shard->id, placed(w)->place, in_l2, &order), HL_OK);
    assert_int_equal(hl_migration_order(&w->c.placement->moves, &order, placement_now_ms()), HL_OK);
    assert_true(placement_copy_events.moves(&w->c, w->shard->id));
}

/* As left by another Controller whose wall clock was off by so much. */
static void load_cleaning(struct world *w, int64_t off_ms)
{
    const struct hl_id_text shard = hl_id_format(w->shard->id);
    int64_t at = hl_wall_ms() + off_ms;
    json_t *rec = json_pack("{s:s s:s s:s s:s s:s s:s s:s s:I s:I s:I s:I}", "shard", shard.s,
                            "phase", "cleaning", "fromTier", "L2", "fromNode", "a", "tier", "L2",
                            "node", "b", "reason", "ordered", "sizeBytes",
                            (json_int_t)w->shard->size_bytes, "crc32", (json_int_t)w->shard->crc32,
                            "beganMs", (json_int_t)at, "switchedMs", (json_int_t)at);
    assert_non_null(rec);
    assert_int_equal(placement_load_move(&w->c, "move/00000000000000010000000000000002", rec),
                     HL_OK);
    json_decref(rec);
}

TEST_IN(world_start, world_end, a_move_of_the_journal_waits_its_grace_whatever_clock_wrote_it)
{
    static const int64_t year_ms = INT64_C(365) * 24 * 3600 * 1000;
    struct world *w = *state;
    struct hl_migration *m = &w->c.placement->moves;
    for (int sign = -1; sign <= 1; sign += 2) {
        int64_t before = placement_now_ms();
        load_cleaning(w, sign * year_ms);
        int64_t due = hl_migration_due(m);
        assert_in_range(due, before + w->c.placement->conf.grace_ms,
                        placement_now_ms() + w->c.placement->conf.grace_ms);
        hl_migration_shard_gone(m, w->shard->id, placement_now_ms());
        struct hl_move_action a;
        while (hl_migration_next(m, &a))
            hl_migration_journaled(m, a.rec.order.id, a.order, HL_OK, placement_now_ms());
        assert_int_equal(m->count, 0);
    }
}

/* Where readers are sent, "L3 L2/a". */
static void assert_offered(struct world *w, const char *expected)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard shard = copies_shard(&w->c, w->shard, &arena);
    char text[200] = "";
    size_t at = 0;
    for (size_t i = 0; i < shard.copies.count; i++) {
        const struct hl_api_copy *x = &shard.copies.items[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s%s%s", i > 0 ? " " : "",
                               hl_api_tier_name(x->tier), x->tier == HL_API_TIER_L2 ? "/" : "",
                               x->tier == HL_API_TIER_L2 ? x->node : "");
    }
    assert_string_equal(text, expected);
}

/* The engine's next action, which must be of this kind. */
static struct hl_move_action next(struct world *w, enum hl_move_action_kind kind)
{
    struct hl_move_action a = {0};
    assert_true(hl_migration_next(&w->c.placement->moves, &a));
    assert_string_equal(hl_move_action_text(a.kind), hl_move_action_text(kind));
    return a;
}

TEST_IN(world_start, world_end, readers_are_offered_the_source_before_the_switch_and_the_goal_after)
{
    struct world *w = *state;
    struct hl_migration *m = &w->c.placement->moves;
    struct hl_move_order order;
    struct hl_place in_l2 = {.node = placed_node_need(&w->c, "b")->index, .tier = HL_API_TIER_L2};
    int64_t now = placement_now_ms();
    learn(w, &w->a, HL_API_TIER_L2, "");
    assert_int_equal(moves_prepare(&w->c, w->shard->id, placed(w)->place, in_l2, &order), HL_OK);
    assert_false(order.keep_source);
    assert_false(order.goal_had);
    assert_int_equal(hl_migration_order(m, &order, now), HL_OK);
    struct hl_move_action a = next(w, HL_MOVE_WRITE);
    hl_migration_journaled(m, order.id, a.order, HL_OK, now);
    a = next(w, HL_MOVE_COPY);
    learn(w, &w->b, HL_API_TIER_L2, ""); /* from an inventory that has it already */
    assert_offered(w, "L3 L2/a");
    hl_migration_copied(m, order.id, a.order, HL_OK, order.size_bytes, order.crc32, now);
    a = next(w, HL_MOVE_WRITE);
    assert_offered(w, "L3 L2/a"); /* it is not durable yet */
    hl_migration_journaled(m, order.id, a.order, HL_OK, now);
    assert_at(w, HL_API_TIER_L2, "a");
    next(w, HL_MOVE_SWITCHED);
    assert_offered(w, "L3 L2/b");
    placement_follow(&w->c,
                     w->shard->id); /* a copy that is not offered is not a place of the shard */
    assert_at(w, HL_API_TIER_L2, "b");
}

TEST_IN(world_start, world_end, what_is_loaded_leaves_its_source_where_it_is)
{
    struct world *w = *state;
    struct hl_move_order order;
    struct hl_place in_l2 = {.node = placed_node_need(&w->c, "a")->index, .tier = HL_API_TIER_L2};
    struct hl_place in_l1 = {.node = in_l2.node, .tier = HL_API_TIER_L1};
    struct hl_place in_l3 = placed(w)->place;
    learn(w, &w->a, HL_API_TIER_L2, "");
    assert_int_equal(moves_prepare(&w->c, w->shard->id, in_l3, in_l2, &order), HL_OK);
    assert_true(order.keep_source);
    assert_true(order.goal_had);
    assert_int_equal(order.crc32, w->shard->crc32);
    assert_int_equal(moves_prepare(&w->c, w->shard->id, in_l2, in_l1, &order), HL_OK);
    assert_true(order.keep_source);
    assert_int_equal(moves_prepare(&w->c, w->shard->id, in_l1, in_l2, &order), HL_OK);
    assert_false(order.keep_source);
    assert_int_equal(moves_prepare(&w->c, w->shard->id, in_l2, in_l3, &order), HL_OK);
    assert_false(order.keep_source);
}

static int64_t budget_left(struct world *w, enum hl_move_path path)
{
    int64_t out[HL_MOVE_PATHS];
    hl_budget_look(&w->c.placement->budget, placement_now_ms(), out);
    return out[path];
}

TEST_IN(world_start, world_end, the_rate_limits_what_goes_over_a_network)
{
    struct world *w = *state;
    assert_int_equal(budget_left(w, HL_MOVE_MIGRATION), INT64_MAX); /* 0: no limit */
    w->c.placement->conf.rate = 8000000;
    assert_int_equal(budget_configure(&w->c), HL_OK);
    assert_int_equal(budget_left(w, HL_MOVE_MIGRATION), 1000000);
    assert_int_equal(budget_left(w, HL_MOVE_BACKBONE), 1000000);
    assert_int_equal(budget_left(w, HL_MOVE_INSIDE), INT64_MAX);
    assert_int_equal(budget_left(w, HL_MOVE_ARCHIVE), INT64_MAX);
}

/* For shards that the catalogue need not know. */
static struct hl_move_order policy_move(struct world *w, uint64_t shard, struct hl_place goal)
{
    const struct hl_move_order order = {.id = {9, shard},
                                        .shard = {8, shard},
                                        .from = placed(w)->place,
                                        .goal = goal,
                                        .reason = HL_LIFE_ON_REMOTE,
                                        .size_bytes = 1 << 20};
    assert_int_equal(hl_migration_order(&w->c.placement->moves, &order, placement_now_ms()), HL_OK);
    return order;
}

TEST_IN(world_start, world_end, moves_in_flight_share_the_rate_and_each_keeps_to_its_part)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    const struct hl_place a = {.node = placed_node_need(&w->c, "a")->index, .tier = HL_API_TIER_L2};
    const struct hl_place l4 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};
    struct hl_move_order first = policy_move(w, 1, a), ordered = first;
    assert_int_equal(budget_pace(&w->c, &first), 0); /* no limit */
    assert_int_equal(budget_copy_ms(&w->c, &first), 0);
    p->conf.rate = 80000000;
    assert_int_equal(budget_pace(&w->c, &first), 10000000);
    struct hl_move_order second = policy_move(w, 2, a);
    assert_int_equal(budget_pace(&w->c, &first), 5000000);
    assert_int_equal(budget_pace(&w->c, &second), 5000000);
    struct hl_move_order third =
        policy_move(w, 3, l4); /* needs no network, and no share of the budget */
    assert_int_equal(budget_pace(&w->c, &third), 0);
    assert_int_equal(budget_pace(&w->c, &first), 5000000);
    ordered.priority = UINT8_MAX;
    ordered.bytes_per_s = 123;
    assert_int_equal(budget_pace(&w->c, &ordered), 123);
    p->conf.rate = 8000000; /* half of it is too little */
    assert_int_equal(budget_pace(&w->c, &first), PACE_MIN);
    p->conf.moves = 1;
    assert_int_equal(budget_copy_ms(&w->c, &first), 1049); /* 1 MiB at 1 MB/s, and one */
    p->conf.rate = 7;                                      /* less than a byte per second */
    assert_int_equal(budget_pace(&w->c, &first), PACE_MIN);
}

TEST_IN(world_start, world_end, a_move_that_never_began_gives_its_bytes_back)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    struct hl_move_rec rec = {.order = {.from = placed(w)->place,
                                        .goal = {.node = 0, .tier = HL_API_TIER_L2},
                                        .reason = HL_LIFE_ON_ACCESS,
                                        .size_bytes = INT64_C(1) << 40}};
    p->conf.rate = 8000000;
    assert_int_equal(budget_configure(&w->c), HL_OK);
    hl_budget_take(&p->budget, HL_MOVE_BACKBONE, INT64_C(1) << 40);
    rec.began_ms = 1;
    budget_move_ended(&w->c, &rec); /* its bytes have been sent */
    assert_true(budget_left(w, HL_MOVE_BACKBONE) < 0);
    rec.began_ms = 0;
    budget_move_ended(&w->c, &rec);
    assert_int_equal(budget_left(w, HL_MOVE_BACKBONE), 1000000);
    rec.order.reason = HL_LIFE_EVENTS; /* an ordered move has not used the budget */
    hl_budget_take(&p->budget, HL_MOVE_BACKBONE, INT64_C(1) << 40);
    budget_move_ended(&w->c, &rec);
    assert_true(budget_left(w, HL_MOVE_BACKBONE) < 0);
}

static void policy_set(struct world *w, const char *policy)
{
    free((char *)w->c.placement->conf.policy);
    w->c.placement->conf.policy = strdup(policy);
}

static void assert_rest(struct world *w, const char *why)
{
    budget_rest(&w->c);
    assert_string_equal(budget_rest_text(&w->c), why);
    assert_int_equal(budget_left(w, HL_MOVE_INSIDE), why[0] != '\0' ? 0 : INT64_MAX);
    assert_int_equal(w->c.placement->moves.held_below, why[0] != '\0' ? PRIORITY_PREFETCH : 0);
}

TEST_IN(world_start, world_end, moves_of_the_policy_rest_while_a_gang_starts)
{
    struct world *w = *state;
    gang_is_starting = true;
    assert_rest(w, ""); /* it observes, and moves nothing */
    policy_set(w, "on");
    assert_rest(w, "a gang starts");
    gang_is_starting = false;
    assert_rest(w, "");
}

TEST_IN(world_start, world_end, moves_of_the_policy_rest_from_the_first_part_of_a_save_to_its_last)
{
    struct world *w = *state;
    policy_set(w, "on");
    w->c.opts.gc_grace_ms = 60000;
    struct hl_version_rec *v = save_begin(w);
    assert_rest(w, ""); /* its ranks still train */
    save_commit(w, v, 0);
    assert_rest(w, "a save commits");
    gang_is_starting = true;
    assert_rest(w, "a gang starts, and a save commits");
    gang_is_starting = false;
    v->touched_ms -= 60001; /* no process continues it */
    assert_rest(w, "");
    v->touched_ms += 60001;
    assert_rest(w, "a save commits");
    save_commit(w, v, 1);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    assert_rest(w, "");
}

static struct hl_api_tier_info l1_and_l2[] = {
    {.tier = HL_API_TIER_L1, .kind = "", .quota_bytes = 4020, .used_bytes = 4010},
    {.tier = HL_API_TIER_L2, .kind = "", .quota_bytes = 1 << 20},
};

/* Puts them in L1 of a, with so many reads. */
static void fill_l1(struct world *w, struct hl_version_rec *v, uint64_t sequence,
                    const uint64_t reads[2])
{
    for (size_t i = 0; i < 2; i++) {
        w->shard = v->shards[i];
        learn(w, &w->a, HL_API_TIER_L1, "emu:0");
        assert_true(report(w, "a", 7, sequence + i, reads[i]));
    }
}

/* Whether the policy wants it out of L1. */
static bool leaves_l1(struct world *w, const struct hl_shard_rec *s)
{
    const struct noted_decision *n = noted_find(&w->c, s->id);
    return n != NULL && n->decision.event == HL_LIFE_ON_PRESSURE;
}

TEST_IN(world_start, world_end, a_version_leaves_l1_before_a_shard_of_another_one_does)
{
    struct world *w = *state;
    struct hl_version_rec *tiny = w->shard->version;
    struct hl_version_rec *other = import_model(&w->c.catalog, "other", 3, "{}");
    struct placement *p = w->c.placement;
    struct hl_placement_params params = p->core.params;
    follow(w);
    fill_l1(w, tiny, 1, (const uint64_t[]){3, 60});
    fill_l1(w, other, 3, (const uint64_t[]){3, 6});
    w->a.report.tiers = (struct hl_api_tier_info_list){l1_and_l2, 2};
    params.low_pct = 0;
    params.high_pct = 70; /* met without two of the four shards */
    assert_int_equal(hl_placement_configure(&p->core, &params, placement_now_ms()), HL_OK);
    pass_run(&w->c);                 /* shards that were read are active */
    for (uint32_t i = 0; i < 4; i++) /* there since a second */
        hl_shard_at(&p->core.shards, i)->use.placed_ms -= 1000;
    pass_run(&w->c);
    assert_true(leaves_l1(w, other->shards[0]));
    assert_true(leaves_l1(w, other->shards[1]));
    assert_false(leaves_l1(w, tiny->shards[0])); /* it was read as rarely as one of those */
    assert_false(leaves_l1(w, tiny->shards[1]));
}

static void assert_uses(struct world *w, const char *state, unsigned count)
{
    char line[80];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    uses_gauges(&w->c, &text);
    snprintf(line, sizeof(line), "helios_shard_uses{state=\"%s\"} %u\n", state, count);
    if (strstr(text.data, line) == NULL)
        fail_msg("not there: %s", line);
}

TEST_IN(world_start, world_end, uses_that_have_no_room_in_the_store_are_counted)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    p->conf.keep_use_ms = 1;
    p->uses_lap_ms -= 10; /* a lap is due */
    assert_true(report(w, "b", 7, 1, 30));
    assert_uses(w, "waiting", 1);
    assert_uses(w, "left_out", 0);
    p->uses_kept = 65536; /* the maximum, for other shards */
    assert_uses(w, "kept", 65536);
    assert_uses(w, "waiting", 0);
    assert_uses(w, "left_out", 1);
    uses_run(&w->c);
    assert_int_equal(p->uses_left, 1); /* one line in the log */
    assert_false(p->uses_writing);
    p->uses_kept = 65535; /* its turn comes */
    assert_uses(w, "waiting", 1);
    assert_uses(w, "left_out", 0);
}

/* b reads a shard in L2 of a; then a pass runs. */
static const struct noted_decision *judge_remote_reads(struct world *w, uint64_t sequence,
                                                       uint64_t count)
{
    assert_true(report(w, "b", 7, sequence, count));
    pass_run(&w->c); /* shards that were read are active */
    pass_run(&w->c);
    return noted_find(&w->c, w->shard->id);
}

TEST_IN(world_start, world_end, a_busy_backbone_raises_the_threshold_of_moves_to_readers)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    struct hl_placement_params params = p->core.params;
    params.residence_ms = 0;
    params.migrate_base = 20;
    assert_int_equal(hl_placement_configure(&p->core, &params, placement_now_ms()), HL_OK);
    learn(w, &w->a, HL_API_TIER_L2, "");
    w->b.report.tiers = (struct hl_api_tier_info_list){&l1_and_l2[1], 1};
    w->a.report.telemetry.backbone = (struct hl_api_line_load){"eth0", 1000, 90};
    w->b.report.telemetry.backbone = (struct hl_api_line_load){"eth0", 1000, 30};
    assert_float_equal(backbone_busy_pct(&w->c), 60, 1e-9);
    assert_null(judge_remote_reads(w, 1, 30)); /* above 20, and not above 32 */
    const struct noted_decision *n = judge_remote_reads(w, 2, 3);
    assert_non_null(n);
    assert_int_equal(n->decision.event, HL_LIFE_ON_REMOTE);
    assert_float_equal(n->decision.value, 33, 1e-9);
    assert_float_equal(n->decision.limit, 32, 1e-9);
    assert_float_equal(n->busy_pct, 60, 1e-9);
    w->a.lost = true; /* its report is old */
    assert_float_equal(backbone_busy_pct(&w->c), 30, 1e-9);
    w->b.report.telemetry.backbone.bits_per_second = 0;
    assert_float_equal(backbone_busy_pct(&w->c), -1, 0);
}

/* Both are generated from HL_POLICY_MAP, in different ways. */
TEST(options_and_parameters_have_the_same_defaults_and_ranges)
{
    struct hl_placement_params by_rows = {0}, own = {0};
    hl_placement_params_init(&own);
    assert_int_equal(hl_options_defaults(hl_policy_rows.rows, hl_policy_rows.count, &by_rows),
                     HL_OK);
    assert_memory_equal(&by_rows, &own, sizeof(own));
    for (size_t i = 0; i < hl_policy_rows.count; i++) {
        const struct hl_option *row = &hl_policy_rows.rows[i];
        bool integer = row->kind == HL_OPT_INT || row->kind == HL_OPT_DURATION;
        void *at = (char *)&by_rows + row->offset;
        by_rows = own;
        if (integer)
            *(int64_t *)at = row->max + 1;
        else
            *(double *)at = (double)row->max + 1;
        assert_int_not_equal(hl_placement_params_check(&by_rows), HL_OK);
        assert_non_null(strstr(hl_error_text(), row->name));
        by_rows = own;
        if (integer)
            *(int64_t *)at = row->min - 1;
        else
            *(double *)at = (double)row->min - 1;
        assert_int_not_equal(hl_placement_params_check(&by_rows), HL_OK);
        assert_non_null(strstr(hl_error_text(), row->name));
    }
}
