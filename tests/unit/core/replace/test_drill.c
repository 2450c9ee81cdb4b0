/* What a drill accepts as proof, and what as its contrary. */
#include "support/test.h"

#include <math.h>

#include "core/replace/drill.h"

static struct hl_drill_sums sums;
static struct hl_drill_curve curve;

static int setup(void **state)
{
    (void)state;
    sums = (struct hl_drill_sums){0};
    curve = (struct hl_drill_curve){0};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hl_drill_curve_fini(&curve);
    return 0;
}

static void point(uint64_t generation, int64_t step, double loss)
{
    assert_int_equal(hl_drill_point(&curve, generation, step, loss, &sums), HL_OK);
}

TEST_IN(setup, teardown, losses_of_flipped_bits_prove_nothing_until_the_gang_comes_together_again)
{
    point(1, 0, 1);
    hl_drill_doubt(&curve);
    point(1, 1, 7);
    point(1, 2, 7);
    point(2, 1, 2); /* the first time that counts */
    point(3, 1, 2);
    assert_int_equal(sums.doubted, 2);
    assert_int_equal(sums.repeated, 1);
    assert_int_equal(sums.differing, 0);
    assert_int_equal(sums.jumps, 0);
    point(4, 1, 7);
    assert_int_equal(sums.differing, 1);
}

TEST(events_and_warnings_name_a_rank_only_where_they_say_what_is_wrong_with_it)
{
    static const struct {
        const char *kind, *text;
        int rank; /* -1 = none */
    } cases[] = {
        {"rank-replaced", "rank 3 on node-1 was lost, exit code 1; it is replaced", 3},
        {"stalled", "rank 12 on node-1 has made no step for 5 s: its process is stopped", 12},
        {"stalled",
         "no rank has made a step for 5 s, and nothing shows which one holds up the others", -1},
        {"slow", "rank 1 on a is slow: it needs 9 ms of a step", 1},
        {"trouble", "rank 0 on a: has other bytes than 2 of its replicas", 0},
        {"slow-over", "rank 1 is as fast as the others again", -1},
        {"recovered", "rank 1 on a", -1},
        {"", "log of rank 2: No space left on device; output is dropped", 2},
        {"", "log of rank 2: File too large; 1.3 KiB dropped", -1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int rank = -1;
        bool names = hl_drill_names(cases[i].kind, cases[i].text, &rank);
        assert_int_equal(names, cases[i].rank >= 0);
        assert_int_equal(names ? rank : -1, cases[i].rank);
    }
}

TEST(what_is_wrong_with_a_gang_is_an_alarm_and_what_is_over_is_none)
{
    static const char *const alarms[] = {"rank-replaced", "stalled", "slow", "trouble",
                                         "node-silent"};
    static const char *const others[] = {"",        "running",   "slow-over",
                                         "goes-on", "node-back", "recovered"};
    for (size_t i = 0; i < sizeof(alarms) / sizeof(*alarms); i++)
        assert_true(hl_drill_alarms(alarms[i]));
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        assert_false(hl_drill_alarms(others[i]));
}

TEST_IN(setup, teardown, steps_that_are_made_again_with_their_losses_prove_it)
{
    for (int i = 100; i < 110; i++)
        point(1, i, 1.0 / i);
    for (int i = 105; i < 120; i++)
        point(2, i, 1.0 / i);
    assert_int_equal(sums.steps, 25);
    assert_int_equal(sums.repeated, 5);
    assert_int_equal(sums.differing, 0);
    assert_int_equal(sums.jumps, 0);
}

TEST_IN(setup, teardown, the_last_bit_of_a_loss_counts)
{
    point(1, 0, 0.5);
    point(2, 0, nextafter(0.5, 1));
    assert_int_equal(sums.repeated, 1);
    assert_int_equal(sums.differing, 1);
    point(3, 0, 0.5); /* compared with the first one */
    assert_int_equal(sums.differing, 1);
}

TEST_IN(setup, teardown, a_loss_that_is_no_number_is_equal_to_itself)
{
    point(1, 0, NAN);
    point(2, 0, NAN);
    assert_int_equal(sums.differing, 0);
}

TEST_IN(setup, teardown, a_step_that_is_left_out_or_made_twice_is_a_jump)
{
    point(1, 4, 0);
    point(1, 6, 0); /* left out */
    point(1, 6, 0); /* twice in one generation */
    point(2, 9, 0); /* begins after the gang's position */
    point(1, 3, 0); /* of a generation that had ended */
    assert_int_equal(sums.jumps, 4);
}

TEST_IN(setup, teardown, behind_a_gap_nothing_is_taken_for_a_jump)
{
    point(1, 4, 0);
    hl_drill_gap(&curve, 70, &sums);
    point(1, 75, 0);
    point(1, 76, 0);
    assert_int_equal(sums.missed, 70);
    assert_int_equal(sums.jumps, 0);
    point(1, HL_DRILL_STEPS_MAX, 0);
    assert_int_equal(sums.missed, 71);
}

TEST(a_quantile_is_one_of_the_values)
{
    double values[] = {5, 1, 4, 2, 3};
    assert_true(hl_drill_quantile(values, 5, 0.5) == 3);
    assert_true(hl_drill_quantile(values, 5, 0.99) == 5);
    assert_true(hl_drill_quantile(values, 5, 0) == 1);
    assert_true(hl_drill_quantile(values, 0, 0.5) == 0);
}
