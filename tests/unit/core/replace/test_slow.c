/* A slow rank: who is named, when, and when nobody is. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/replace/slow.h"

#define RANKS 4

static const struct hl_slow_rule rule = {
    .enter = 2.0, .leave = 1.5, .floor_ms = 5, .hold_ms = 5000};

struct gang {
    struct hl_slow_seen seen[RANKS];
    struct hl_slow_rank ranks[RANKS];
    int64_t now_ms;
};

/* Two stages of two ranks; the second one has more to do. */
static struct gang gang_of(double first_ms, double second_ms)
{
    struct gang g = {.now_ms = 1000};
    for (int i = 0; i < RANKS; i++)
        g.ranks[i] = (struct hl_slow_rank){.stage = i / 2, .own_ms = i < 2 ? first_ms : second_ms};
    return g;
}

/* A second goes by, in which steps are made; who is slow then. */
static int second_of(struct gang *g)
{
    int worst = -2;
    g->now_ms += 1000;
    for (int i = 0; i < RANKS; i++)
        g->ranks[i].reported += 10;
    assert_int_equal(hl_slow_look(g->seen, g->ranks, RANKS, &rule, g->now_ms, &worst), HL_OK);
    return worst;
}

/* So many seconds, in all of which the answer is the same. */
static void seconds_of(struct gang *g, int count, int want)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(second_of(g), want);
}

TEST(a_rank_that_becomes_slow_is_named_after_the_hold_and_until_it_is_well_again)
{
    struct gang g = gang_of(20, 60); /* stages differ, and nobody is slow for that */
    seconds_of(&g, 20, -1);
    g.ranks[3].own_ms = 130;
    seconds_of(&g, 4, -1);
    seconds_of(&g, 10, 3);
    g.ranks[3].own_ms = 95; /* between the limits: it stays named */
    seconds_of(&g, 10, 3);
    g.ranks[3].own_ms = 85;
    seconds_of(&g, 2, 3);
    seconds_of(&g, 10, -1);
}

TEST(a_rank_that_is_slow_now_and_then_is_not_named)
{
    struct gang g = gang_of(20, 20);
    seconds_of(&g, 5, -1);
    for (int i = 0; i < 20; i++) {
        g.ranks[1].own_ms = 100;
        seconds_of(&g, 4, -1);
        g.ranks[1].own_ms = 20;
        seconds_of(&g, 2, -1);
    }
}

TEST(a_rank_that_was_slow_from_its_first_step_is_told_by_its_stage)
{
    struct gang g = gang_of(20, 60);
    g.ranks[0].own_ms = 50;
    seconds_of(&g, 5, -1); /* with the first look time begins */
    seconds_of(&g, 3, 0);
}

TEST(a_gang_that_becomes_slower_as_a_whole_has_no_slow_rank)
{
    struct gang g = gang_of(20, 60);
    seconds_of(&g, 10, -1);
    for (int i = 0; i < RANKS; i++)
        g.ranks[i].own_ms *= 3;
    seconds_of(&g, 20, -1);
    g.ranks[2].own_ms *= 2.1; /* and one even more so */
    seconds_of(&g, 4, -1);
    seconds_of(&g, 5, 2);
}

TEST(the_slower_of_two_is_named)
{
    struct gang g = gang_of(20, 20);
    seconds_of(&g, 10, -1);
    g.ranks[0].own_ms = 60;
    seconds_of(&g, 2, -1);
    g.ranks[2].own_ms = 100;
    seconds_of(&g, 2, -1);
    seconds_of(&g, 2, 0); /* the other one not long enough yet */
    seconds_of(&g, 2, 2);
}

TEST(a_slow_rank_is_named_though_its_figures_jump)
{
    struct gang g = gang_of(20, 20);
    int seconds = 0;
    seconds_of(&g, 10, -1);
    for (int worst = -1; worst != 1; seconds++) {
        g.ranks[1].own_ms = seconds % 4 == 3 ? 25 : 100;
        worst = second_of(&g);
        assert_true(worst == -1 || worst == 1);
        assert_true(seconds < 20);
    }
}

TEST(a_few_milliseconds_are_not_slow)
{
    struct gang g = gang_of(2, 2);
    seconds_of(&g, 10, -1);
    g.ranks[1].own_ms = 6;
    seconds_of(&g, 20, -1);
}

TEST(without_new_steps_or_own_times_nothing_is_judged)
{
    struct gang g = gang_of(20, 20);
    int worst;
    seconds_of(&g, 10, -1);
    g.ranks[1].own_ms = 100;
    seconds_of(&g, 2, -1);
    for (int i = 0; i < 10; i++) { /* the same report again and again */
        g.now_ms += 1000;
        assert_int_equal(hl_slow_look(g.seen, g.ranks, RANKS, &rule, g.now_ms, &worst), HL_OK);
        assert_int_equal(worst, -1);
    }
    g.ranks[0].own_ms = 0; /* does not tell */
    seconds_of(&g, 10, -1);
}

TEST(a_process_in_a_ranks_place_begins_anew)
{
    struct gang g = gang_of(20, 60);
    g.ranks[3].stage = 7; /* alone in its stage: its best is its measure */
    seconds_of(&g, 10, -1);
    g.ranks[3].own_ms = 200;
    seconds_of(&g, 4, -1);
    seconds_of(&g, 1, 3);
    g.ranks[3].process = 1;
    seconds_of(&g, 20, -1);
}

/* Steps of 20 ms with noise of a machine that others use too, and a pause of any rank now and then.
 */
TEST(a_thousand_clean_steps_raise_no_alarm)
{
    for (unsigned seed = 0; seed < 50; seed++) {
        struct gang g = gang_of(20, 60);
        double usual[RANKS];
        srand(seed);
        for (int i = 0; i < RANKS; i++)
            usual[i] = g.ranks[i].own_ms;
        for (int i = 0; i < 100; i++) { /* ten steps a second */
            for (int k = 0; k < RANKS; k++)
                g.ranks[k].own_ms =
                    usual[k] * (0.8 + 0.6 * rand() / RAND_MAX) * (rand() % 10 == 0 ? 4 : 1);
            assert_int_equal(second_of(&g), -1);
        }
    }
}
