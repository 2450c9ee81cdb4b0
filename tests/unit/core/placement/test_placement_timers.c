/* When shards are to be looked at. */
#include "support/test.h"

#include "core/placement/timers.h"

#define TICK INT64_C(64)

TEST(timers_come_out_in_the_order_of_their_times_whether_many_or_few_were_added)
{
    struct hl_timers t = {0};
    struct hl_timer got;
    hl_timers_clear(&t, 1000);
    for (unsigned i = 0; i < 1000; i++) /* 0..1000, each once, in another order */
        assert_int_equal(hl_timers_add(&t, 1000 + i * 377 % 1000 * TICK, i), HL_OK);
    hl_timers_order(&t);
    for (unsigned i = 0; i < 1000; i++) {
        assert_true(hl_timers_take(&t, 1000 + 1000 * TICK, &got));
        assert_int_equal(got.tick, i);
        assert_int_equal(got.shard * 377 % 1000, i);
        if (i % 100 == 50) { /* two at a time, to the front and to the end */
            assert_int_equal(hl_timers_add(&t, 1000 + i * TICK, 7000), HL_OK);
            assert_int_equal(hl_timers_add(&t, 1000 + 5000 * TICK, 8000), HL_OK);
            hl_timers_order(&t);
            assert_true(hl_timers_take(&t, 1000 + 1000 * TICK, &got));
            assert_int_equal(got.shard, 7000);
        }
    }
    assert_false(hl_timers_take(&t, 1000 + 4999 * TICK, &got));
    assert_int_equal(t.count, 10);
    hl_timers_fini(&t);
}

TEST(a_timer_is_due_a_tick_too_early_at_most_and_never_too_late)
{
    struct hl_timers t = {0};
    struct hl_timer got;
    hl_timers_clear(&t, 0);
    assert_int_equal(hl_timers_add(&t, 2 * TICK + TICK - 1, 5), HL_OK);
    hl_timers_order(&t);
    assert_false(hl_timers_take(&t, 2 * TICK - 1, &got));
    assert_true(hl_timers_take(&t, 2 * TICK, &got));
    assert_int_equal(got.shard, 5);
    assert_false(hl_timers_take(&t, INT64_MAX, &got));
    hl_timers_fini(&t);
}

TEST(timers_are_old_when_half_of_their_ticks_are_over)
{
    struct hl_timers t = {0};
    struct hl_timer got;
    const int64_t half = (INT64_C(1) << 31) * TICK;
    hl_timers_clear(&t, 500);
    assert_false(hl_timers_are_old(&t, 500 + half - 1));
    assert_true(hl_timers_are_old(&t, 500 + half));
    /* what is too far away waits at the end, not at the front */
    assert_int_equal(hl_timers_add(&t, 500 + 4 * half, 1), HL_OK);
    hl_timers_order(&t);
    assert_false(hl_timers_take(&t, 500 + half, &got));
    hl_timers_fini(&t);
}
