/* The time in which a process could receive messages: core/listening. */
#include "support/test.h"

#include "core/listening.h"

#define MS  UINT64_C(1000000)
#define DAY INT64_C(86400000)

struct clocks {
    struct hl_listening l;
    uint64_t ns;
    int64_t wall_ms;
};

static struct clocks clocks_start(void)
{
    struct clocks c = {.ns = 77 * MS, .wall_ms = 1000 * DAY};
    hl_listening_init(&c.l, 1000 * MS, c.ns, c.wall_ms);
    return c;
}

/* Both clocks advance by `ms`, the wall clock by `step` more. */
static struct hl_listening_gap check_after(struct clocks *c, unsigned ms, int64_t step)
{
    c->ns += ms * MS;
    c->wall_ms += (int64_t)ms + step;
    return hl_listening_check(&c->l, c->ns, c->wall_ms);
}

TEST(checks_in_time_count_whole)
{
    struct clocks c = clocks_start();
    for (int i = 0; i < 12; i++) {
        struct hl_listening_gap gap = check_after(&c, 500, 0);
        assert_int_equal(gap.paused_ns, 0);
        assert_int_equal(gap.stepped_ms, 0);
    }
    assert_int_equal(c.l.listened_ns, 1 + 6000 * MS);
}

TEST(a_pause_is_not_counted_and_the_check_after_it_counts_again)
{
    struct clocks c = clocks_start();
    check_after(&c, 500, 0);
    assert_int_equal(check_after(&c, 20000, 0).paused_ns, 20000 * MS);
    assert_int_equal(c.l.listened_ns, 1 + 500 * MS);
    assert_int_equal(check_after(&c, 400, 0).paused_ns, 0);
    assert_int_equal(c.l.listened_ns, 1 + 900 * MS);
}

TEST(the_time_of_a_loop_that_is_always_late_still_advances)
{
    struct clocks c = clocks_start();
    for (int i = 0; i < 10; i++)
        check_after(&c, 3000, 0);
    assert_int_equal(c.l.listened_ns, 1 + 9 * 1000 * MS); /* the first one counts as a pause */
}

TEST(short_pauses_in_a_row_are_each_left_out)
{
    struct clocks c = clocks_start();
    for (int i = 0; i < 10; i++) { /* a commit of 1.9 s, then a check in time */
        assert_int_equal(check_after(&c, 1900, 0).paused_ns, 1900 * MS);
        check_after(&c, 100, 0);
    }
    assert_int_equal(c.l.listened_ns, 1 + 1000 * MS);
}

TEST(a_step_of_the_wall_clock_is_noticed_and_not_part_of_steady_time)
{
    struct clocks c = clocks_start();
    assert_int_equal(check_after(&c, 500, 400 * DAY).stepped_ms, 400 * DAY);
    assert_int_equal(check_after(&c, 500, 0).stepped_ms, 0);
    assert_int_equal(check_after(&c, 500, -3 * DAY).stepped_ms, -3 * DAY);
    assert_int_equal(hl_listening_steady_ms(&c.l, c.ns), 1000 * DAY + 1500);
    assert_int_equal(c.l.listened_ns, 1 + 1500 * MS);
}

TEST(drift_is_no_step)
{
    struct clocks c = clocks_start();
    assert_int_equal(check_after(&c, 500, 1999).stepped_ms, 0);
    assert_int_equal(check_after(&c, 500, -1999).stepped_ms, 0);
    assert_int_equal(check_after(&c, 500, 2000).stepped_ms, 2000);
}
