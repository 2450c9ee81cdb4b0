/* The four phases of a move, what interrupts each, and the limits. */
#include "unit/core/migration/migration_rig.h"

#define BOTH                                                                                       \
    2, (const struct hl_place[])                                                                   \
    {                                                                                              \
        l2_of_0, l2_of_1                                                                           \
    }
#define ONLY(place) 1, &(place)

TEST_IN(rig_begin, rig_end, a_move_is_decided_copied_switched_and_cleaned_up)
{
    give(order_of(1, l2_of_0, l2_of_1));
    assert_true(is_hidden(l2_of_1));
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    assert_true(is_hidden(l2_of_1));
    assert_false(is_hidden(l2_of_0));
    answer_copy(HL_OK, SIZE, CRC);
    assert_true(is_hidden(l2_of_1));
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    take_none(); /* readers have their grace */
    assert_true(is_hidden(l2_of_0));
    assert_false(is_hidden(l2_of_1));
    pass(499);
    take_none();
    pass(1);
    answer_check(BOTH);
    answer_drop(l2_of_0, HL_OK);
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, the_record_in_the_journal_says_in_which_phase_it_is)
{
    reach_switching();
    struct hl_move_action a = take(HL_MOVE_WRITE);
    assert_int_equal(a.rec.phase, HL_MOVE_PHASE_CLEANING);
    assert_int_equal(a.rec.switched_ms, now);
    assert_int_equal(a.rec.began_ms, 1000);
}

TEST_IN(rig_begin, rig_end, a_kept_source_is_not_dropped)
{
    struct hl_move_order o = order_of(1, pool, l2_of_1);
    o.keep_source = true;
    give(o);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    answer_copy(HL_OK, SIZE, CRC);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    assert_false(is_hidden(pool));
    take(HL_MOVE_SWITCHED);
    take_end(HL_OK, true);
}

TEST_IN(rig_begin, rig_end, wrong_bytes_are_not_switched_to)
{
    reach_copying();
    answer_copy(HL_OK, SIZE, CRC + 1);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    pass(0);
    answer_check(ONLY(l2_of_0)); /* the copy at the target has another CRC */
    take_end(HL_ECORRUPT, false);
}

TEST_IN(rig_begin, rig_end, a_copy_of_another_size_is_not_switched_to)
{
    reach_copying();
    answer_copy(HL_OK, SIZE - 1, CRC);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
}

TEST_IN(rig_begin, rig_end, a_failed_copy_is_undone_and_the_target_is_cleaned)
{
    reach_undoing();
    pass(0);
    answer_check(BOTH);
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_EIO, false);
}

TEST_IN(rig_begin, rig_end, undoing_leaves_a_copy_that_was_there_before)
{
    struct hl_move_order o = order_of(1, l2_of_0, l2_of_1);
    o.goal_had = true;
    give(o);
    assert_false(is_hidden(l2_of_1));
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    answer_copy(HL_EIO, 0, 0);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take_end(HL_EIO, true);
}

/* ---- dropping -------------------------------------------------------------------------------- */

TEST_IN(rig_begin, rig_end, without_a_confirmed_copy_nothing_is_dropped)
{
    reach_cleaning();
    pass(500);
    struct hl_move_action a = take(HL_MOVE_CHECK);
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_EUNAVAIL, NULL, 0, now);
    take_none();
    pass(100);
    take(HL_MOVE_CHECK); /* it is not answered */
    pass(100);
    take(HL_MOVE_CHECK);
    pass(3000);
    assert_false(is_hidden(l2_of_0)); /* it stays, and is offered again */
    take_end(HL_OK, true);
}

TEST_IN(rig_begin, rig_end, a_copy_is_dropped_while_enough_domains_have_others)
{
    struct hl_migration_opts opts = default_opts;
    opts.domains = 2;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    reach_cleaning();
    pass(500);
    answer_check(BOTH);
    take_none();
    pass(100);
    struct hl_move_action a = take(HL_MOVE_CHECK);
    /* both others are in one domain; then in two, one with wrong bytes */
    struct hl_move_copy copies[] = {copy_at(l2_of_0, 0), copy_at(l2_of_1, 1), copy_at(pool, 1)};
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_OK, copies, 3, now);
    take_none();
    pass(100);
    a = take(HL_MOVE_CHECK);
    copies[2].domain = 2;
    copies[2].crc32++;
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_OK, copies, 3, now);
    take_none();
    pass(100);
    a = take(HL_MOVE_CHECK);
    copies[2].crc32--;
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_OK, copies, 3, now);
    answer_drop(l2_of_0, HL_OK);
}

TEST_IN(rig_begin, rig_end, a_copy_on_a_device_does_not_count)
{
    give(order_of(1, l2_of_0, l1_of_0));
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    answer_copy(HL_OK, SIZE, CRC);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    pass(500);
    answer_check(2, (const struct hl_place[]){l2_of_0, l1_of_0});
    take_none();
    pass(100);
    answer_check(3, (const struct hl_place[]){l2_of_0, l1_of_0, archive});
    answer_drop(l2_of_0, HL_ENOENT);
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, a_drop_that_fails_is_confirmed_anew)
{
    reach_cleaning();
    pass(500);
    answer_check(BOTH);
    answer_drop(l2_of_0, HL_EBUSY);
    pass(100);
    answer_check(BOTH);
    take(HL_MOVE_DROP); /* it is not answered */
    pass(100);
    answer_check(ONLY(l2_of_1));
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, an_old_copy_that_is_needed_after_all_stays_and_is_offered)
{
    reach_cleaning();
    assert_true(is_hidden(l2_of_0));
    pass(500);
    hl_migration_keep(&moves, id_of(1), true);
    assert_true(is_hidden(l2_of_0));
    answer_check(BOTH);
    assert_false(is_hidden(l2_of_0));
    answer_journal(HL_MOVE_ERASE, HL_OK);
    struct hl_move_action a = take(HL_MOVE_ENDED);
    assert_int_equal(a.status, HL_OK);
    assert_true(a.left);
    assert_true(a.kept);
    take_none();
}

TEST_IN(rig_begin, rig_end, an_old_copy_that_is_no_longer_needed_is_dropped)
{
    reach_cleaning();
    hl_migration_keep(&moves, id_of(1), true);
    pass(500);
    hl_migration_keep(&moves, id_of(1), false);
    answer_check(BOTH);
    answer_drop(l2_of_0, HL_OK);
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, a_needed_copy_that_is_not_there_is_not_said_to_stay)
{
    reach_cleaning();
    pass(500);
    hl_migration_keep(&moves, id_of(1), true);
    answer_check(ONLY(l2_of_1));
    answer_journal(HL_MOVE_ERASE, HL_OK);
    assert_false(take(HL_MOVE_ENDED).kept);
}

TEST_IN(rig_begin, rig_end, an_answer_to_another_order_changes_nothing)
{
    reach_copying();
    struct hl_move_action a = take(HL_MOVE_COPY);
    hl_migration_copied(&moves, a.rec.order.id, a.order - 1, HL_OK, SIZE, CRC, now);
    hl_migration_journaled(&moves, a.rec.order.id, a.order, HL_OK, now);
    hl_migration_dropped(&moves, a.rec.order.id, a.order, HL_OK, now);
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_OK, NULL, 0, now);
    hl_migration_copied(&moves, id_of(9), a.order, HL_OK, SIZE, CRC, now);
    assert_phase(1, HL_MOVE_PHASE_COPYING);
    hl_migration_copied(&moves, a.rec.order.id, a.order, HL_OK, SIZE, CRC, now);
    assert_phase(1, HL_MOVE_PHASE_SWITCHING);
    hl_migration_copied(&moves, a.rec.order.id, a.order, HL_EIO, 0, 0, now); /* doubled */
    assert_phase(1, HL_MOVE_PHASE_SWITCHING);
}

/* ---- cancelling ------------------------------------------------------------------------------ */

TEST_IN(rig_begin, rig_end, a_waiting_move_is_cancelled_at_once)
{
    struct hl_migration_opts opts = default_opts;
    opts.in_flight = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(2, pool, archive));
    give(order_of(1, l2_of_0, l2_of_1));
    take(HL_MOVE_WRITE);
    assert_false(is_hidden(l2_of_1));
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    assert_int_equal(take(HL_MOVE_ENDED).status, HL_ECANCELED);
    assert_int_equal(moves.count, 1);
}

TEST_IN(rig_begin, rig_end, a_decided_move_is_cancelled_without_a_copy)
{
    give(order_of(1, l2_of_0, l2_of_1));
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    take_end(HL_ECANCELED, false);
}

TEST_IN(rig_begin, rig_end, cancelling_stops_the_copy_and_drops_what_came)
{
    reach_copying();
    struct hl_move_action copy = take(HL_MOVE_COPY);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK); /* once more */
    take(HL_MOVE_STOP);
    take_none();
    hl_migration_copied(&moves, id_of(1), copy.order, HL_OK, SIZE, CRC, now); /* it was complete */
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    pass(0);
    answer_check(BOTH);
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_ECANCELED, false);
}

TEST_IN(rig_begin, rig_end, a_move_that_is_switched_can_be_turned_back_until_its_drop)
{
    reach_switching();
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    pass(0);
    answer_check(BOTH);
    assert_phase(1, HL_MOVE_PHASE_REVERTING);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take(HL_MOVE_REVERTED);
    assert_false(is_hidden(l2_of_0));
    assert_true(is_hidden(l2_of_1));
    pass(499);
    take_none(); /* the target has had readers */
    pass(1);
    answer_check(BOTH);
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_ECANCELED, false);
}

TEST_IN(rig_begin, rig_end, a_load_is_turned_back_too)
{
    struct hl_move_order o = order_of(1, pool, l2_of_1);
    o.keep_source = true;
    give(o);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    answer_copy(HL_OK, SIZE, CRC);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    pass(0);
    answer_check(2, (const struct hl_place[]){pool, l2_of_1});
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
}

TEST_IN(rig_begin, rig_end, a_move_whose_source_is_being_dropped_is_not_cancelled)
{
    reach_cleaning();
    pass(500);
    answer_check(BOTH);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_EBUSY);
    answer_drop(l2_of_0, HL_OK);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_EBUSY);
    take_end(HL_OK, false);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_ENOENT);
}

/* ---- time ------------------------------------------------------------------------------------ */

TEST_IN(rig_begin, rig_end, a_copy_has_a_deadline)
{
    reach_copying();
    take(HL_MOVE_COPY);
    assert_int_equal(hl_migration_due(&moves), now + 10000);
    pass(9999);
    take_none();
    pass(1);
    take(HL_MOVE_STOP);
    pass(699);
    take_none();
    pass(1); /* no answer comes */
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    pass(3000); /* nor here */
    take_end(HL_ETIMEDOUT, true);
}

TEST_IN(rig_begin, rig_end, the_deadline_of_a_copy_may_be_its_own)
{
    struct hl_move_order o = order_of(1, l2_of_0, l2_of_1);
    o.copy_ms = 77;
    give(o);
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    assert_int_equal(hl_migration_due(&moves), now + 77);
}

TEST_IN(rig_begin, rig_end, a_move_that_waits_too_long_ends)
{
    struct hl_migration_opts opts = default_opts;
    opts.in_flight = 1;
    assert_int_equal(hl_migration_configure(&moves, &opts), HL_OK);
    give(order_of(2, pool, archive));
    give(order_of(1, l2_of_0, l2_of_1));
    take(HL_MOVE_WRITE);
    pass(100000);
    assert_int_equal(take(HL_MOVE_ENDED).status, HL_ETIMEDOUT);
}

TEST_IN(rig_begin, rig_end, what_is_held_begins_when_the_hold_ends_and_high_priority_at_once)
{
    struct hl_move_order high = order_of(2, pool, archive);
    high.priority = 9;
    hl_migration_hold(&moves, 9, now);
    give(order_of(1, l2_of_0, l2_of_1));
    take_none();
    give(high);
    assert_true(hl_id_equal(take(HL_MOVE_WRITE).rec.order.id, id_of(2)));
    take_none();
    hl_migration_hold(&moves, 0, now);
    assert_true(hl_id_equal(take(HL_MOVE_WRITE).rec.order.id, id_of(1)));
}

TEST_IN(rig_begin, rig_end, a_clock_that_goes_back_stands_still)
{
    reach_cleaning();
    now -= 900;
    pass(0);
    take_none();
    now += 900;
    pass(500);
    take(HL_MOVE_CHECK);
}

/* ---- the journal ----------------------------------------------------------------------------- */

TEST_IN(rig_begin, rig_end, a_record_that_was_not_written_is_erased)
{
    give(order_of(1, l2_of_0, l2_of_1));
    answer_write(HL_MOVE_PHASE_COPYING, HL_EIO);
    answer_journal(HL_MOVE_ERASE, HL_EIO);
    take_none();
    pass(100);
    take_end(HL_EIO, false);
}

TEST_IN(rig_begin, rig_end, a_switch_that_was_not_committed_is_undone_in_the_journal_first)
{
    reach_switching();
    answer_write(HL_MOVE_PHASE_CLEANING, HL_EIO);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_EIO);
    take_none(); /* the switch may have been committed: no drop */
    pass(100);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    pass(0);
    answer_check(BOTH);
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_EIO, false);
}

/* The record as another Controller would have written it. */
static void restore(enum hl_move_phase phase)
{
    struct hl_move_rec rec = {.order = order_of(1, l2_of_0, l2_of_1), .phase = phase};
    if (phase == HL_MOVE_PHASE_CLEANING)
        rec.switched_ms = 5;
    assert_int_equal(hl_migration_restore(&moves, &rec, now), HL_OK);
    assert_phase(1, phase);
    pass(0);
}

TEST_IN(rig_begin, rig_end, a_restored_copy_that_has_come_goes_on)
{
    restore(HL_MOVE_PHASE_COPYING);
    answer_check(BOTH);
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
}

TEST_IN(rig_begin, rig_end, a_restored_copy_that_has_not_come_is_undone)
{
    restore(HL_MOVE_PHASE_COPYING);
    answer_check(ONLY(l2_of_0));
    assert_true(hl_id_equal(take(HL_MOVE_STOP).rec.order.id, id_of(1))); /* it may still run */
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    pass(500); /* the previous Controller may have offered it when there was nothing else */
    answer_check(BOTH); /* now it has */
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_ESTALE, false); /* nobody has cancelled it */
}

TEST_IN(rig_begin, rig_end, a_restored_copy_that_nothing_is_heard_of_is_undone)
{
    restore(HL_MOVE_PHASE_COPYING);
    take(HL_MOVE_CHECK);
    pass(3000);
    take(HL_MOVE_STOP);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
}

TEST_IN(rig_begin, rig_end, a_restored_copy_can_be_cancelled)
{
    restore(HL_MOVE_PHASE_COPYING);
    struct hl_move_action check = take(HL_MOVE_CHECK);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    take(HL_MOVE_STOP);
    struct hl_move_copy both[] = {copy_at(l2_of_0, 0), copy_at(l2_of_1, 1)};
    hl_migration_checked(&moves, id_of(1), check.order, HL_OK, both, 2, now);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take_none();
}

TEST_IN(rig_begin, rig_end, a_restored_copy_that_is_cancelled_unheard_is_undone_after_stop_ms)
{
    restore(HL_MOVE_PHASE_COPYING);
    take(HL_MOVE_CHECK);
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_OK);
    take(HL_MOVE_STOP);
    pass(700);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    take_none();
}

TEST_IN(rig_begin, rig_end, restored_cleaning_goes_on_after_the_grace)
{
    restore(HL_MOVE_PHASE_CLEANING);
    assert_true(is_hidden(l2_of_0));
    assert_int_equal(hl_migration_cancel(&moves, id_of(1), now), HL_EBUSY);
    take_none();
    pass(500);
    answer_check(BOTH);
    answer_drop(l2_of_0, HL_OK);
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, restored_undoing_goes_on)
{
    restore(HL_MOVE_PHASE_UNDOING);
    take_none();
    pass(500);
    answer_check(BOTH);
    answer_drop(l2_of_1, HL_OK);
    take_end(HL_OK, false);
}

TEST_IN(rig_begin, rig_end, a_record_in_another_phase_is_refused)
{
    struct hl_move_rec rec = {.order = order_of(1, l2_of_0, l2_of_1), .phase = HL_MOVE_PHASE_ENDED};
    assert_int_equal(hl_migration_restore(&moves, &rec, now), HL_EINVAL);
    assert_int_equal(moves.count, 0);
}

TEST_IN(rig_begin, rig_end, order_numbers_grow_and_those_of_a_later_epoch_are_greater)
{
    give(order_of(1, l2_of_0, l2_of_1));
    give(order_of(2, l2_of_0, pool));
    uint64_t first = take(HL_MOVE_WRITE).order, second = take(HL_MOVE_WRITE).order;
    assert_true(second > first);
    hl_migration_fini(&moves);
    assert_int_equal(hl_migration_init(&moves, &default_opts, EPOCH + 1, now), HL_OK);
    give(order_of(1, l2_of_0, l2_of_1));
    assert_true(take(HL_MOVE_WRITE).order > second);
}

TEST(the_move_of_a_shard_is_found_among_many_that_come_and_go)
{
    enum { SHARDS = 300 };
    struct hl_migration_opts opts = default_opts;
    bool moving[SHARDS] = {false};
    uint32_t seed = 1;
    opts.moves_max = SHARDS;
    assert_int_equal(hl_migration_init(&moves, &opts, EPOCH, now = 1000), HL_OK);
    hl_migration_hold(&moves, UINT8_MAX, now); /* all of them wait */
    for (unsigned step = 0; step < 4000; step++) {
        unsigned i = (seed = seed * 1103515245 + 12345) / 65536 % SHARDS;
        struct hl_move_action a;
        if (moving[i])
            assert_int_equal(hl_migration_cancel(&moves, id_of(i + 1), now), HL_OK);
        else
            give(order_of(i + 1, l2_of_0, l2_of_1));
        moving[i] = !moving[i];
        while (hl_migration_next(&moves, &a))
            assert_string_equal(hl_move_action_text(a.kind), "ended");
        for (unsigned k = 0; step % 50 == 0 && k < SHARDS; k++) {
            const struct hl_move_rec *rec = hl_migration_find(&moves, (struct hl_id){2, k + 1});
            assert_int_equal(rec != NULL, moving[k]);
            assert_true(rec == NULL || hl_id_equal(rec->order.id, id_of(k + 1)));
        }
    }
    hl_migration_fini(&moves);
}
