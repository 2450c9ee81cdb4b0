/* Bytes sent at an even rate: the wait after each piece, how lost time is made up for, and no
 * limit. */
#include "support/test.h"

#include "base/pace.h"

#define MS HL_NS_PER_MS

TEST(a_piece_is_paid_for_before_the_next_one_goes)
{
    struct hl_pace p = {.bytes_per_s = 1000000};
    assert_int_equal(hl_pace_wait_ns(&p, 7 * MS), 0); /* the first piece goes at once */
    hl_pace_sent(&p, 50000, 1000 * MS);
    assert_int_equal(hl_pace_wait_ns(&p, 1000 * MS), 50 * MS);
    assert_int_equal(hl_pace_wait_ns(&p, 1049 * MS), 1 * MS);
    assert_int_equal(hl_pace_wait_ns(&p, 1050 * MS), 0);
}

TEST(time_that_passes_unused_allows_no_burst)
{
    struct hl_pace p = {.bytes_per_s = 1000000};
    hl_pace_sent(&p, 1000, 1000 * MS);
    hl_pace_sent(&p, 50000, 9000 * MS); /* eight seconds later: 5 ms of them count */
    assert_int_equal(hl_pace_wait_ns(&p, 9000 * MS), 45 * MS);
}

TEST(a_sender_that_wakes_late_keeps_its_rate)
{
    struct hl_pace p = {.bytes_per_s = 1000000};
    uint64_t now = 1000 * MS, sent = 0;
    while (now < 2000 * MS) {
        hl_pace_sent(&p, 10000, now);
        sent += 10000;
        now += hl_pace_wait_ns(&p, now) + 2 * MS; /* every sleep is 2 ms too long */
    }
    assert_in_range(sent, 980000, 1010000);
}

TEST(without_a_rate_nothing_waits)
{
    struct hl_pace p = {0};
    hl_pace_sent(&p, UINT64_MAX, 1000 * MS);
    assert_int_equal(hl_pace_wait_ns(&p, 0), 0);
}
