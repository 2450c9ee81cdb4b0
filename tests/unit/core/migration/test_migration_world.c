/* Moves and their environment: holders that disappear, shards that disappear, limits, and bad
 * orders. */
#include "unit/core/migration/migration_rig.h"

static void node_gone(uint16_t node)
{
    assert_int_equal(hl_migration_node_gone(&moves, node, now), HL_OK);
}

TEST_IN(rig_begin, rig_end, a_move_to_or_from_a_holder_that_is_gone_is_refused)
{
    struct hl_move_order o = order_of(1, l2_of_0, l2_of_1), up = order_of(2, l2_of_0, pool);
    node_gone(1);
    node_gone(HL_READER_NONE);
    assert_int_equal(hl_migration_order(&moves, &o, now), HL_EUNAVAIL);
    assert_int_equal(hl_migration_order(&moves, &up, now), HL_EUNAVAIL);
    hl_migration_node_back(&moves, 1, now);
    give(o);
}

TEST_IN(rig_begin, rig_end, a_waiting_move_ends_with_its_holder)
{
    struct hl_migration_opts opts = default_opts;
    opts.in_flight = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(2, pool, archive));
    give(order_of(1, l2_of_0, l2_of_1));
    take(HL_MOVE_WRITE);
    node_gone(0);
    assert_int_equal(take(HL_MOVE_ENDED).status, HL_EUNAVAIL);
    take_none();
}

TEST_IN(rig_begin, rig_end, a_decided_move_ends_with_its_target)
{
    give(order_of(1, l2_of_0, l2_of_1));
    node_gone(1);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    take_end(HL_EUNAVAIL, false);
}

TEST_IN(rig_begin, rig_end, a_copy_ends_with_its_target)
{
    reach_copying();
    take(HL_MOVE_COPY);
    node_gone(1);
    take(HL_MOVE_STOP);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take_end(HL_EUNAVAIL, true); /* its inventory will tell what it has */
}

TEST_IN(rig_begin, rig_end, a_copy_that_was_sent_survives_its_source)
{
    reach_copying();
    node_gone(0);
    answer_copy(HL_OK, SIZE, CRC);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    take_end(HL_OK, true);
}

TEST_IN(rig_begin, rig_end, a_target_that_goes_after_the_switch_gives_the_place_back)
{
    reach_cleaning();
    assert_true(is_hidden(l2_of_0));
    node_gone(1);
    assert_false(is_hidden(l2_of_0)); /* at once */
    pass(0);
    answer_check(1, &l2_of_0);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take(HL_MOVE_REVERTED);
    take_end(HL_ENOENT, true);
}

TEST_IN(rig_begin, rig_end, a_target_that_forgets_after_the_switch_gives_the_place_back)
{
    reach_cleaning();
    pass(500);
    answer_check(1, &l2_of_0);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take(HL_MOVE_REVERTED);
    pass(500);
    answer_check(1, &l2_of_0);
    take_end(HL_ENOENT, false);
}

TEST_IN(rig_begin, rig_end, the_last_copy_is_not_dropped_whose_target_goes_beside_the_drop)
{
    reach_cleaning();
    pass(500);
    answer_check(2, (const struct hl_place[]){l2_of_0, l2_of_1});
    take(HL_MOVE_DROP);
    node_gone(1);
    assert_true(is_hidden(l2_of_0)); /* it may be gone */
    pass(0);
    answer_check(1, &l2_of_0); /* it is not, and won't be: its holder has seen a newer order */
    assert_false(is_hidden(l2_of_1) && is_hidden(l2_of_0));
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take(HL_MOVE_REVERTED);
}

TEST_IN(rig_begin, rig_end, a_source_that_goes_keeps_its_copy)
{
    reach_cleaning();
    node_gone(0);
    take_end(HL_OK, true);
}

TEST_IN(rig_begin, rig_end, the_only_copy_left_is_the_targets_and_stays)
{
    reach_undoing();
    node_gone(0);
    assert_false(is_hidden(l2_of_1));
    pass(0);
    answer_check(1, &l2_of_1);
    take_end(HL_EIO, true);
}

TEST_IN(rig_begin, rig_end, undoing_ends_with_its_target)
{
    reach_undoing();
    node_gone(1);
    take_end(HL_EIO, true);
}

TEST_IN(rig_begin, rig_end, a_copy_that_was_offered_in_need_is_dropped_after_its_readers_grace)
{
    reach_undoing();
    node_gone(0);
    assert_false(is_hidden(l2_of_1));
    hl_migration_node_back(&moves, 0, now);
    assert_true(is_hidden(l2_of_1));
    pass(0);
    answer_check(2, (const struct hl_place[]){l2_of_0, l2_of_1});
    take_none();
    pass(499);
    take_none();
    pass(1);
    answer_check(2, (const struct hl_place[]){l2_of_0, l2_of_1});
    answer_drop(l2_of_1, HL_OK);
}

TEST_IN(rig_begin, rig_end, a_copy_whose_survivor_is_lost_stays)
{
    reach_undoing();
    assert_true(is_hidden(l2_of_1));
    pass(0);
    answer_check(1, &l2_of_1); /* the source was in device memory, and its node was restarted */
    assert_false(is_hidden(l2_of_1));
    take_end(HL_EIO, true);
}

TEST_IN(rig_begin, rig_end, undoing_ends_where_both_copies_are_lost)
{
    reach_undoing();
    pass(0);
    answer_check(0, NULL);
    take_end(HL_EIO, false);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void shard_gone(void)
{
    hl_migration_shard_gone(&moves, (struct hl_id){2, 1}, now);
}

TEST_IN(rig_begin, rig_end, a_shard_that_goes_ends_its_copy)
{
    reach_copying();
    take(HL_MOVE_COPY);
    shard_gone();
    take(HL_MOVE_STOP);
    take_end(HL_ENOENT, true);
}

TEST_IN(rig_begin, rig_end, a_shard_that_goes_ends_its_move_after_a_commit_in_flight)
{
    reach_switching();
    shard_gone();
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take_end(HL_ENOENT, true);
}

TEST_IN(rig_begin, rig_end, a_shard_that_goes_ends_what_is_cleaned_up)
{
    reach_cleaning();
    shard_gone();
    take_end(HL_ENOENT, true);
    reach_undoing();
    shard_gone();
    take_end(HL_ENOENT, true);
    shard_gone();
    take_none();
}

/* ---- limits ---------------------------------------------------------------------------------- */

static unsigned begun(void)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < moves.count; i++)
        n += hl_migration_at(&moves, i)->phase != HL_MOVE_PHASE_WAITING;
    return n;
}

TEST_IN(rig_begin, rig_end, moves_in_flight_are_limited_in_all)
{
    struct hl_migration_opts opts = default_opts;
    opts.in_flight = 2;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(1, l2_of_0, l2_of_1));
    give(order_of(2, pool, archive));
    give(order_of(3, pool, l2_of_1));
    assert_int_equal(begun(), 2);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    take(HL_MOVE_WRITE);
    answer_copy(HL_OK, SIZE, CRC);
    assert_int_equal(begun(), 2);
    answer_write(HL_MOVE_PHASE_CLEANING,
                 HL_OK); /* a move that is being cleaned up does not block it */
    take(HL_MOVE_SWITCHED);
    assert_int_equal(begun(), 3);
    assert_int_equal(take(HL_MOVE_WRITE).rec.order.id.lo, 3);
}

TEST_IN(rig_begin, rig_end, moves_in_flight_are_limited_per_node)
{
    struct hl_migration_opts opts = default_opts;
    opts.per_node = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(1, l2_of_0, l1_of_0)); /* counts once */
    give(order_of(2, pool, l2_of_0));
    give(order_of(3, pool, l2_of_1)); /* takes precedence */
    assert_int_equal(begun(), 2);
    assert_phase(2, HL_MOVE_PHASE_WAITING);
}

TEST_IN(rig_begin, rig_end, moves_in_flight_are_limited_per_path)
{
    struct hl_migration_opts opts = default_opts;
    opts.per_path[HL_MOVE_BACKBONE] = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(1, pool, l2_of_0));
    give(order_of(2, l2_of_1, pool));
    give(order_of(3, l2_of_0, l2_of_1));
    give(order_of(4, pool, archive));
    assert_int_equal(begun(), 3);
    assert_phase(2, HL_MOVE_PHASE_WAITING);
}

TEST_IN(rig_begin, rig_end, urgent_moves_begin_first_and_equal_ones_in_their_order)
{
    struct hl_migration_opts opts = default_opts;
    opts.in_flight = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    for (unsigned i = 1; i <= 5; i++) {
        struct hl_move_order o = order_of(i, l2_of_0, l2_of_1);
        o.priority = i >= 4 ? 9 : 1;
        give(o);
    }
    static const unsigned expected[] = {1, 4, 5, 2, 3};
    struct hl_move_action a;
    unsigned n = 0;
    while (hl_migration_next(&moves, &a)) { /* no record can be written, but each can be erased */
        bool written = a.kind == HL_MOVE_WRITE;
        if (written)
            assert_int_equal(a.rec.order.id.lo, expected[n++]);
        hl_migration_journaled(&moves, a.rec.order.id, a.order, written ? HL_EIO : HL_OK, now);
    }
    assert_int_equal(n, HL_ARRAY_LEN(expected));
    assert_int_equal(moves.count, 0);
}

TEST_IN(rig_begin, rig_end, too_many_moves_are_refused)
{
    for (unsigned i = 1; i <= 8; i++)
        give(order_of(i, l2_of_0, l2_of_1));
    struct hl_move_order o = order_of(9, l2_of_0, l2_of_1);
    assert_int_equal(hl_migration_order(&moves, &o, now), HL_ENOSPC);
    assert_int_equal(moves.count, 8);
}

/* ---- bad orders ------------------------------------------------------------------------------ */

TEST_IN(rig_begin, rig_end, a_shard_moves_once_at_a_time)
{
    struct hl_move_order o = order_of(1, l2_of_0, l2_of_1);
    give(o);
    o.id = id_of(2);
    assert_int_equal(hl_migration_order(&moves, &o, now), HL_EBUSY);
    o = order_of(2, l2_of_0, l2_of_1);
    o.id = id_of(1);
    assert_int_equal(hl_migration_order(&moves, &o, now), HL_EINVAL);
    o = order_of(3, l2_of_0, l2_of_0);
    assert_int_equal(hl_migration_order(&moves, &o, now), HL_EINVAL);
    assert_int_equal(moves.count, 1);
}

TEST_IN(rig_begin, rig_end, options_without_sense_are_refused)
{
    struct hl_migration_opts opts = default_opts;
    opts.domains = 0;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_EINVAL);
    opts = default_opts;
    opts.per_path[2] = 0;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_EINVAL);
    opts = default_opts;
    opts.retry_ms = 0;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_EINVAL);
    assert_int_equal(moves.opts.domains, 1);
}
