/* A report is applied once, whatever the network does with it. */
#include "support/test.h"

#include <stdbool.h>
#include <string.h>

#include "core/placement/reports.h"

static struct hl_report_window window;

static int begin(void **state)
{
    (void)state;
    hl_report_window_start(&window, 77);
    return 0;
}

static enum hl_report_fate take(uint64_t sequence)
{
    return hl_report_window_take(&window,
                                 &(struct hl_report){.incarnation = 77, .sequence = sequence});
}

TEST_IN(begin, NULL, a_doubled_report_is_applied_once)
{
    assert_int_equal(take(1), HL_REPORT_NEW);
    assert_int_equal(take(1), HL_REPORT_DOUBLED);
    assert_int_equal(take(2), HL_REPORT_NEW);
    assert_int_equal(take(1), HL_REPORT_DOUBLED);
    assert_int_equal(hl_report_window_missing(&window), 0);
}

TEST_IN(begin, NULL, reordered_reports_are_applied_and_lost_ones_counted)
{
    assert_int_equal(take(1), HL_REPORT_NEW);
    assert_int_equal(take(5), HL_REPORT_NEW);
    assert_int_equal(hl_report_window_missing(&window), 3);
    assert_int_equal(take(3), HL_REPORT_NEW);
    assert_int_equal(take(2), HL_REPORT_NEW);
    assert_int_equal(take(3), HL_REPORT_DOUBLED);
    assert_int_equal(hl_report_window_missing(&window), 1);
}

TEST_IN(begin, NULL, a_report_behind_the_window_is_late)
{
    assert_int_equal(take(1), HL_REPORT_NEW);
    assert_int_equal(take(2 + HL_REPORT_WINDOW), HL_REPORT_NEW);
    assert_int_equal(take(3), HL_REPORT_NEW);
    assert_int_equal(take(2), HL_REPORT_LATE);
    assert_int_equal(take(1), HL_REPORT_LATE);
    assert_int_equal(take(0), HL_REPORT_LATE);
    assert_int_equal(hl_report_window_missing(&window), 2 + HL_REPORT_WINDOW - 3);
}

TEST_IN(begin, NULL, a_jump_of_the_number_is_no_reason_to_apply_twice)
{
    assert_int_equal(take(UINT64_MAX - 1), HL_REPORT_NEW);
    assert_int_equal(hl_report_window_missing(&window), 0); /* listening began there */
    assert_int_equal(take(UINT64_MAX), HL_REPORT_NEW);
    assert_int_equal(take(UINT64_MAX), HL_REPORT_DOUBLED);
    assert_int_equal(take(UINT64_MAX - 2), HL_REPORT_NEW);
    assert_int_equal(take(5), HL_REPORT_LATE);
    assert_int_equal(hl_report_window_missing(&window), 0);
}

TEST_IN(begin, NULL, another_life_is_ignored_until_it_is_known)
{
    struct hl_report other = {.incarnation = 78, .sequence = 1};
    assert_int_equal(take(1), HL_REPORT_NEW);
    assert_int_equal(hl_report_window_take(&window, &other), HL_REPORT_STALE);
    hl_report_window_start(&window, 78);
    assert_int_equal(hl_report_window_take(&window, &other), HL_REPORT_NEW);
    assert_int_equal(take(2), HL_REPORT_STALE);
}

/* Compared with a list of all numbers. */
TEST_IN(begin, NULL, random_orders_agree_with_a_list)
{
    static bool taken[5000];
    uint64_t random = 1, highest = 0;
    memset(taken, 0, sizeof(taken));
    for (unsigned i = 0; i < 20000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t base = 1 + i / 5, back = (random >> 33) % 400;
        uint64_t n = base > back ? base - back : base;
        n += (random >> 60) == 0 ? (random >> 50) % 300 : 0;
        highest = n > highest ? n : highest;
        enum hl_report_fate expected = highest - n >= HL_REPORT_WINDOW ? HL_REPORT_LATE
                                       : taken[n]                      ? HL_REPORT_DOUBLED
                                                                       : HL_REPORT_NEW;
        assert_int_equal(take(n), expected);
        taken[n] |= expected == HL_REPORT_NEW;
    }
}

TEST(each_fate_has_a_text)
{
    for (unsigned i = 0; i < HL_REPORT_FATES; i++)
        assert_true(hl_report_fate_text((enum hl_report_fate)i)[0] != '\0');
}
