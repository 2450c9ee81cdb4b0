/* A slow rank: which one is named, when, and when none is. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/replace/slow.h"

#define RANKS 4

static const struct hl_slow_rule rule = {.enter = 2.0,
                                         .leave = 1.5,
                                         .floor_ms = 5,
                                         .floor_share = 0.25,
                                         .hold_ms = 5000,
                                         .hold_steps = 10};

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

/* A second passes in which steps are made; returns the slow rank. */
static int second_of(struct gang *g)
{
    int worst = -2;
    g->now_ms += 1000;
    for (int i = 0; i < RANKS; i++)
        g->ranks[i].reported += 10;
    assert_int_equal(hl_slow_look(g->seen, g->ranks, RANKS, &rule, g->now_ms, &worst), HL_OK);
    return worst;
}

/* So many seconds, each with the same answer. */
static void seconds_of(struct gang *g, int count, int want)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(second_of(g), want);
}

TEST(a_rank_that_becomes_slow_is_named_after_the_hold_and_until_it_is_well_again)
{
    struct gang g = gang_of(20, 60); /* stages differ, which makes no rank slow */
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

TEST(two_of_three_that_share_a_core_are_not_slow_and_one_that_is_slower_is)
{
    struct gang g = gang_of(20, 20);
    g.ranks[2].stage = 0;
    g.ranks[0].own_ms = 15;
    g.ranks[1].own_ms = g.ranks[2].own_ms = 36;
    seconds_of(&g, 20, -1);
    g.ranks[1].own_ms = 90;
    seconds_of(&g, 4, -1);
    seconds_of(&g, 1, 1);
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
    seconds_of(&g, 5, -1); /* time starts with the first look */
    seconds_of(&g, 3, 0);
}

TEST(a_gang_that_becomes_slower_as_a_whole_has_no_slow_rank)
{
    struct gang g = gang_of(20, 60);
    seconds_of(&g, 10, -1);
    for (int i = 0; i < RANKS; i++)
        g.ranks[i].own_ms *= 3;
    seconds_of(&g, 20, -1);
    g.ranks[2].own_ms *= 2.1; /* and another one that is even slower */
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
    seconds_of(&g, 2, 0); /* the other one is not slow for long enough yet */
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
    g.ranks[3].stage = 7; /* alone in its stage: compared with its own best */
    seconds_of(&g, 10, -1);
    g.ranks[3].own_ms = 200;
    seconds_of(&g, 4, -1);
    seconds_of(&g, 1, 3);
    g.ranks[3].process = 1;
    seconds_of(&g, 20, -1);
}

TEST(a_small_part_of_a_step_is_not_slow)
{
    struct gang g = gang_of(20, 20);
    for (int i = 0; i < RANKS; i++)
        g.ranks[i].step_ms = 400;
    seconds_of(&g, 10, -1);
    g.ranks[1].own_ms = 110;
    seconds_of(&g, 20, -1);
    g.ranks[1].own_ms = 125;
    seconds_of(&g, 4, -1);
    seconds_of(&g, 5, 1);
}

TEST(some_steps_have_to_be_slow_however_long_they_take)
{
    struct gang g = gang_of(20000, 20000);
    int worst = -1, steps = 0;
    for (int i = 0; i < 20; i++) {
        g.now_ms += 60000;
        if (i == 10)
            g.ranks[1].own_ms = 50000;
        for (int k = 0; k < RANKS; k++)
            g.ranks[k].reported++;
        assert_int_equal(hl_slow_look(g.seen, g.ranks, RANKS, &rule, g.now_ms, &worst), HL_OK);
        steps += i >= 10;
        assert_int_equal(worst, steps >= 10 ? 1 : -1);
    }
}

/* ---- noise ------------------------------------------------------------------------------------
 */

#define LOOK_MS 500
#define WINDOW  15 /* number of steps over which a rank reports the median */

/* A gang on a machine with other load. All ranks slow down for some seconds, each by its own
 * factor; any one can be held up for a step, or for a second or two; each step has noise. */
struct noise {
    uint64_t seed;
    double usual[RANKS], bend[RANKS]; /* bend: how much a busy machine slows the rank down */
    double window[RANKS][WINDOW];
    uint64_t steps;
    double load, until_ms;                /* of all */
    double burst[RANKS], burst_ms[RANKS]; /* of one */
};

static double random_of(struct noise *n)
{
    n->seed = n->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(n->seed >> 11) / 9007199254740992.0;
}

static double step_of(struct noise *n, int k, double now_ms)
{
    double bell = 0;
    for (int i = 0; i < 12; i++)
        bell += random_of(n);
    if (now_ms > n->burst_ms[k]) {
        bool begins = random_of(n) < 0.01;
        n->burst[k] = begins ? 2 + 3 * random_of(n) : 1;
        n->burst_ms[k] = now_ms + (begins ? 300 + 1500 * random_of(n) : 0);
    }
    double held_up = random_of(n) < 0.05 ? 4 : 1;
    double noise = 1 + 0.25 * (bell - 6);
    noise = noise < 0.4 ? 0.4 : noise;
    return n->usual[k] * noise * held_up * n->burst[k] * (1 + (n->load - 1) * n->bend[k]);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double window[WINDOW])
{
    double sorted[WINDOW];
    memcpy(sorted, window, sizeof(sorted));
    qsort(sorted, WINDOW, sizeof(*sorted), by_value);
    return sorted[WINDOW / 2];
}

static struct noise noise_of(unsigned seed)
{
    struct noise n = {.seed = 2 * seed + 1, .load = 1};
    for (int k = 0; k < RANKS; k++) {
        n.usual[k] = k < 2 ? 20 : 60;
        n.bend[k] = 0.7 + 0.3 * random_of(&n);
    }
    return n;
}

/* Makes `count` steps; returns the first step after which a rank was named, or -1. */
static int first_alarm(struct gang *g, struct noise *n, int count, int *worst)
{
    double look_ms = (double)g->now_ms + LOOK_MS, now_ms = (double)g->now_ms;
    for (int step = 0; step < count; step++) {
        double longest = 0;
        if (now_ms > n->until_ms) {
            n->load = random_of(n) < 0.5 ? 1 : 1 + 3 * random_of(n);
            n->until_ms = now_ms + 2000 + 10000 * random_of(n);
        }
        for (int k = 0; k < RANKS; k++) {
            double own = step_of(n, k, now_ms);
            n->window[k][n->steps % WINDOW] = own;
            longest = own > longest ? own : longest;
        }
        n->steps++;
        now_ms += longest;
        if (now_ms < look_ms || n->steps < WINDOW)
            continue;
        look_ms = now_ms + LOOK_MS;
        g->now_ms = (int64_t)now_ms;
        for (int k = 0; k < RANKS; k++) {
            g->ranks[k].reported = n->steps;
            g->ranks[k].own_ms = median_of(n->window[k]);
            g->ranks[k].step_ms = longest;
        }
        assert_int_equal(hl_slow_look(g->seen, g->ranks, RANKS, &rule, g->now_ms, worst), HL_OK);
        if (*worst >= 0)
            return step;
    }
    return -1;
}

TEST(a_thousand_clean_steps_raise_no_alarm_on_a_busy_machine)
{
    for (unsigned seed = 0; seed < 100; seed++) {
        struct gang g = gang_of(20, 60);
        struct noise n = noise_of(seed);
        int worst = -1;
        for (int k = 0; k < RANKS && seed % 2 == 1; k++)
            g.ranks[k].stage = k; /* a pipeline: each is alone in its stage */
        assert_int_equal(first_alarm(&g, &n, 1000, &worst), -1);
    }
}

TEST(a_rank_that_is_slow_is_found_on_a_busy_machine_and_no_other_one)
{
    for (unsigned seed = 0; seed < 100; seed++) {
        struct gang g = gang_of(20, 60);
        struct noise n = noise_of(seed);
        int slow = (int)(seed / 2 % RANKS), worst = -1;
        for (int k = 0; k < RANKS && seed % 2 == 1; k++)
            g.ranks[k].stage = k;
        assert_int_equal(first_alarm(&g, &n, 300, &worst), -1);
        n.usual[slow] *= 5; /* as in the drill: it gets a fifth of the CPU time */
        int found = first_alarm(&g, &n, 500, &worst);
        assert_true(found >= 10);
        assert_int_equal(worst, slow);
    }
}
