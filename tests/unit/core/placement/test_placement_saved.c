/* What a restart preserves of a shard's use and life. */
#include "support/test.h"

#include <math.h>

#include "core/placement/saved.h"

#define S     INT64_C(1000)
#define START (5000 * S)

static struct hl_placement old, fresh;
static uint16_t node;
static const struct hl_id id = {.hi = 7, .lo = 1};
static const struct hl_place in_l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
static struct hl_place in_l2 = {.tier = HL_API_TIER_L2};

static void place_init(struct hl_placement *p, struct hl_place at, int64_t now_ms)
{
    struct hl_placement_opts opts = {.shards_max = 10, .now_ms = now_ms};
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(p, &opts), HL_OK);
    assert_int_equal(hl_placement_node_add(p, 1, now_ms, &node), HL_OK);
    assert_int_equal(hl_placement_shard_add(p, id, 1 << 20, at, now_ms), HL_OK);
    in_l2.node = node;
}

static int begin(void **state)
{
    (void)state;
    place_init(&old, in_l3, START);
    place_init(&fresh, in_l3, START + 60 * S);
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_placement_fini(&old);
    hl_placement_fini(&fresh);
    return 0;
}

static const struct hl_placed_shard *shard(const struct hl_placement *p)
{
    return hl_placement_shard_find(p, id);
}

static void read_at(struct hl_placement *p, uint64_t sequence, uint32_t count, int64_t at_ms)
{
    struct hl_report_entry entry = {.shard = id, .count = count};
    struct hl_report report = {
        .incarnation = 1, .sequence = sequence, .entries = &entry, .count = 1};
    assert_int_equal(hl_placement_report(p, node, &report, at_ms), HL_REPORT_NEW);
}

static void change(enum hl_life_event event, int64_t at_ms)
{
    struct hl_change c = {.at_ms = at_ms, .event = event, .node = node, .value = 3, .limit = 2};
    hl_status st = event == HL_LIFE_ON_LOAD ? hl_placement_shard_move(&old, id, &c, in_l2)
                                            : hl_placement_shard_change(&old, id, &c);
    assert_int_equal(st, HL_OK);
}

/* Read, loaded into the L2, read again. */
static struct hl_saved used_shard(void)
{
    struct hl_saved saved;
    read_at(&old, 1, 2, START + 16 * S);
    change(HL_LIFE_ON_LOAD, START + 32 * S);
    change(HL_LIFE_ON_LOADED, START + 48 * S);
    read_at(&old, 2, 5, START + 50 * S);
    hl_saved_take(&old, 0, &saved);
    return saved;
}

TEST_IN(begin, end, use_holds_at_once_and_life_where_it_was_left)
{
    struct hl_saved saved = used_shard();
    struct hl_change history[HL_CHANGES_MAX];
    const int64_t now = START + 80 * S;
    assert_int_equal(hl_saved_give_use(&fresh, id, &saved, now), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, now), HL_EBUSY); /* it is in L3 */
    const struct hl_attributes *is = &shard(&fresh)->use, *was = &shard(&old)->use;
    const struct hl_placement_params *params = &old.params;
    struct hl_reader_count readers[HL_READERS];
    assert_int_equal(hl_attributes_count(is, params, now), 7);
    assert_float_equal(hl_attributes_heat(is, params, now), hl_attributes_heat(was, params, now),
                       1e-12);
    assert_int_equal(hl_attributes_readers(is, params, now, readers), 1);
    assert_int_equal(readers[0].node, node);
    assert_float_equal(readers[0].count, 7, 1e-9);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_CREATED);
    assert_int_equal(hl_placement_shard_found(&fresh, id, in_l2, now), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, now), HL_OK);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_ACTIVE);
    assert_true(shard(&fresh)->changed_ms == START + 48 * S);
    assert_true(is->placed_ms == START + 48 * S);
    assert_float_equal(hl_attributes_stability(is, params, now),
                       hl_attributes_stability(was, params, now), 1e-12);
    assert_int_equal(hl_placement_shard_history(&fresh, id, history), 2);
    assert_int_equal(history[0].event, HL_LIFE_ON_LOADED);
    assert_int_equal(history[1].event, HL_LIFE_ON_LOAD);
    assert_true(history[1].at_ms == START + 32 * S); /* before this placement was created */
    assert_int_equal(history[1].node, node);
    assert_float_equal(history[1].limit, 2, 0);
    struct hl_change next = {.at_ms = now, .event = HL_LIFE_ON_COOL};
    assert_int_equal(hl_placement_shard_change(&fresh, id, &next), HL_OK); /* and goes on */
    assert_int_equal(hl_placement_shard_history(&fresh, id, history), 3);
}

TEST_IN(begin, end, a_shard_that_moved_has_the_life_from_before)
{
    struct hl_saved saved;
    used_shard();
    change(HL_LIFE_ON_REMOTE, START + 52 * S);
    hl_saved_take(&old, 0, &saved);
    assert_int_equal(hl_placement_shard_found(&fresh, id, in_l2, START + 70 * S), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, START + 80 * S), HL_OK);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_ACTIVE);
    assert_false(hl_life_is_moving((enum hl_life_state)shard(&fresh)->life.before));
    assert_int_equal(fresh.nodes[node].l2_arriving, 0);
}

TEST_IN(begin, end, what_came_since_holds)
{
    struct hl_saved saved = used_shard();
    read_at(&fresh, 1, 1, START + 70 * S);
    assert_int_equal(hl_saved_give_use(&fresh, id, &saved, START + 80 * S), HL_ECONFLICT);
    assert_int_equal(hl_attributes_count(&shard(&fresh)->use, &fresh.params, START + 80 * S), 1);
    struct hl_change c = {.at_ms = START + 70 * S, .event = HL_LIFE_ON_LOAD, .node = node};
    assert_int_equal(hl_placement_shard_change(&fresh, id, &c), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, START + 80 * S), HL_ECONFLICT);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_PREHEAT);
    assert_int_equal(hl_saved_give_use(&fresh, (struct hl_id){1, 1}, &saved, START), HL_ENOENT);
    assert_int_equal(hl_saved_give_life(&fresh, (struct hl_id){1, 1}, &saved, START), HL_ENOENT);
}

TEST_IN(begin, end, what_was_noted_of_copies_meanwhile_follows_the_life)
{
    struct hl_saved saved = used_shard();
    struct hl_change history[HL_CHANGES_MAX];
    assert_int_equal(hl_placement_shard_lost(&fresh, id, START + 70 * S), HL_OK);
    assert_int_equal(hl_placement_shard_found(&fresh, id, in_l2, START + 75 * S), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, START + 80 * S), HL_OK);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_ACTIVE);
    assert_int_equal(hl_placement_shard_history(&fresh, id, history), 4);
    assert_int_equal(history[0].event, HL_LIFE_ON_FOUND);
    assert_int_equal(history[1].event, HL_LIFE_ON_LOST);
    assert_int_equal(history[2].event, HL_LIFE_ON_LOADED);
    assert_int_equal(history[3].event, HL_LIFE_ON_LOAD);
}

TEST_IN(begin, end, a_copy_that_was_lost_before_the_restart_was_found_after_it)
{
    struct hl_saved saved;
    struct hl_change history[HL_CHANGES_MAX];
    used_shard();
    assert_int_equal(hl_placement_shard_lost(&old, id, START + 55 * S), HL_OK);
    hl_saved_take(&old, 0, &saved);
    assert_int_equal(hl_placement_shard_found(&fresh, id, in_l2, START + 70 * S), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, START + 80 * S), HL_OK);
    assert_int_equal(shard(&fresh)->life.state, HL_LIFE_ACTIVE);
    assert_false(shard(&fresh)->life.lost);
    assert_int_equal(hl_placement_shard_history(&fresh, id, history), 4);
    assert_int_equal(history[0].event, HL_LIFE_ON_FOUND);
    assert_float_equal(history[0].value, HL_API_TIER_L2, 0);
    assert_int_equal(history[1].event, HL_LIFE_ON_LOST);
}

TEST_IN(begin, end, a_use_that_was_not_taken_yet_is_after_its_copy_was_found_elsewhere)
{
    read_at(&old, 1, 2, START + 16 * S);
    assert_int_equal(hl_placement_shard_found(&old, id, in_l2, START + 17 * S), HL_OK);
    assert_true(shard(&old)->unsaved);
}

TEST_IN(begin, end, foreign_numbers_are_clamped_or_left_out)
{
    struct hl_change history[HL_CHANGES_MAX];
    const int64_t now = START + 80 * S;
    struct hl_saved saved = used_shard();
    saved.place = in_l3;
    saved.use.interval_ms = NAN;
    saved.use.interval_m2 = -INFINITY;
    saved.use.recent_moves = INFINITY;
    saved.use.moves = 1;
    saved.use.last_ms = saved.use.slice_ms = saved.use.placed_ms = now + 1000 * S;
    saved.use.last_reader = saved.use.readers[0].node = 77;
    saved.changed_ms = -5;
    saved.window_ms = -1;
    saved.change_count = HL_SAVED_CHANGES + 5;
    saved.changes[1].event = HL_LIFE_EVENTS;
    assert_int_equal(hl_saved_give_use(&fresh, id, &saved, now), HL_OK);
    assert_int_equal(hl_saved_give_life(&fresh, id, &saved, now), HL_OK);
    const struct hl_placed_shard *s = shard(&fresh);
    assert_true(s->use.last_ms == now && s->use.placed_ms == now && s->changed_ms == 0);
    assert_int_equal(s->use.last_reader, HL_READER_NONE);
    assert_int_equal(s->use.readers[0].node, HL_READER_NONE);
    assert_true(isfinite(hl_attributes_heat(&s->use, &fresh.params, now)));
    assert_true(isfinite(hl_attributes_stability(&s->use, &fresh.params, now)));
    assert_true(hl_attributes_fluidity(&s->use, &fresh.params, now) == 0);
    assert_int_equal(hl_placement_shard_history(&fresh, id, history), 1); /* up to the bad record */
}

TEST_IN(begin, end, counts_of_another_window_stay_at_their_times)
{
    struct hl_saved saved = used_shard();
    fresh.params.window_ms = saved.window_ms * 2;
    assert_int_equal(hl_saved_give_use(&fresh, id, &saved, START + 80 * S), HL_OK);
    assert_int_equal(hl_attributes_count(&shard(&fresh)->use, &fresh.params, START + 80 * S), 7);
}

TEST_IN(begin, end, what_was_taken_is_taken_again_when_it_changes_or_was_not_kept)
{
    struct hl_saved saved = used_shard();
    assert_false(shard(&old)->unsaved);
    assert_true(shard(&old)->kept);
    read_at(&old, 3, 1, START + 60 * S);
    assert_true(shard(&old)->unsaved);
    hl_saved_take(&old, 0, &saved);
    hl_saved_undo(&old, id);
    assert_true(shard(&old)->unsaved);
    hl_saved_take(&old, 0, &saved);
    change(HL_LIFE_ON_COOL, START + 61 * S);
    assert_true(shard(&old)->unsaved);
    hl_saved_take(&old, 0, &saved);
    assert_int_equal(hl_placement_shard_found(&old, id, in_l3, START + 62 * S), HL_OK);
    assert_true(shard(&old)->unsaved);
    assert_false(shard(&fresh)->unsaved); /* it was never used */
}
