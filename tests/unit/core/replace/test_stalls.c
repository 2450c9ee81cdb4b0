/* A gang that makes no steps: which rank is named, and when none is. */
#include "support/test.h"

#include <stdlib.h>

#include "core/replace/stalls.h"

#define RANKS 4

static const struct hl_stall_rule rule = {.floor_ms = 5000, .factor = 10};

/* All ranks have just finished step 40; a step takes 100 ms. */
static void clean(struct hl_stall_rank ranks[RANKS])
{
    for (int i = 0; i < RANKS; i++)
        ranks[i] = (struct hl_stall_rank){.rank = i,
                                          .activity = HL_API_RANK_ACTIVITY_TRAINING,
                                          .step = 40,
                                          .steps = 41,
                                          .since_ms = 20 + i,
                                          .median_ms = 100};
}

static struct hl_stall find(const struct hl_stall_rank ranks[RANKS])
{
    return hl_stall_find(ranks, RANKS, &rule);
}

/* All ranks have been waiting since their last step. */
static void all_wait(struct hl_stall_rank ranks[RANKS], int64_t ms)
{
    for (int i = 0; i < RANKS; i++)
        ranks[i].since_ms = ms;
}

TEST(a_gang_that_makes_steps_has_no_stall)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    all_wait(ranks, 5000);
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
}

TEST(the_stopped_rank_is_named_among_those_that_wait_for_it)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 5001);
    ranks[2].stopped = true;
    struct hl_stall stall = find(ranks);
    assert_int_equal(stall.kind, HL_STALL_STOPPED);
    assert_int_equal(stall.rank, 2);
    assert_int_equal(stall.since_ms, 5001);
}

TEST(the_rank_whose_step_is_behind_is_named)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 7000);
    ranks[3].step = 39;
    struct hl_stall stall = find(ranks);
    assert_int_equal(stall.kind, HL_STALL_BEHIND);
    assert_int_equal(stall.rank, 3);
}

TEST(a_rank_is_not_named_by_a_report_that_is_newer_than_the_others)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 5500);
    ranks[0].step = 39;
    ranks[1].since_ms = 4900; /* asked before it was stopped */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[0].since_ms = 10001; /* the others go on without it */
    assert_int_equal(find(ranks).kind, HL_STALL_BEHIND);
    assert_int_equal(find(ranks).rank, 0);
}

TEST(where_nothing_tells_ranks_apart_none_is_named)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 7000);
    struct hl_stall stall = find(ranks);
    assert_int_equal(stall.kind, HL_STALL_ALL);
    assert_int_equal(stall.rank, -1);
}

TEST(slow_steps_get_ten_times_their_median)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    for (int i = 0; i < RANKS; i++)
        ranks[i].median_ms = 2000;
    all_wait(ranks, 20000);
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    all_wait(ranks, 20001);
    assert_int_equal(find(ranks).kind, HL_STALL_ALL);
}

TEST(a_gang_that_saves_loads_or_makes_its_first_steps_is_not_judged)
{
    const enum hl_api_rank_activity busy[] = {
        HL_API_RANK_ACTIVITY_UNSAID, HL_API_RANK_ACTIVITY_JOINING, HL_API_RANK_ACTIVITY_LOADING,
        HL_API_RANK_ACTIVITY_SAVING};
    struct hl_stall_rank ranks[RANKS];
    for (size_t i = 0; i < sizeof(busy) / sizeof(*busy); i++) {
        clean(ranks);
        all_wait(ranks, 100000);
        ranks[1].activity = busy[i];
        assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    }
    clean(ranks);
    all_wait(ranks, 100000);
    ranks[1].steps = 1;
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    assert_int_equal(hl_stall_find(ranks, 0, &rule).kind, HL_STALL_NONE);
}

/* Rank 2's connections broke silently: it waits for the end of a collective. */
TEST(a_rank_that_waits_in_a_step_while_the_others_come_together_is_named)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 11000); /* most of it before the loss was found */
    for (int i = 0; i < RANKS; i++)
        if (i != 2)
            ranks[i].activity = HL_API_RANK_ACTIVITY_JOINING;
    assert_int_equal(find(ranks).kind, HL_STALL_NONE); /* its own collective may fail next */
    ranks[0].joining_ms = ranks[1].joining_ms = 5001;
    ranks[3].joining_ms = 5000;
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[3].joining_ms = 5001;
    struct hl_stall stall = find(ranks);
    assert_int_equal(stall.kind, HL_STALL_LEFT);
    assert_int_equal(stall.rank, 2);
    ranks[2].since_ms = 5000; /* its step may yet end */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[2].since_ms = 90000;
    ranks[0].activity = HL_API_RANK_ACTIVITY_UNSAID; /* they wait for that process to start */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[0].activity = HL_API_RANK_ACTIVITY_JOINING;
    ranks[2].steps = 1; /* a first step may take long */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[2].activity = HL_API_RANK_ACTIVITY_JOINING; /* all of them do */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
}

TEST(a_process_that_stays_stopped_is_named_whatever_it_was_busy_with)
{
    struct hl_stall_rank ranks[RANKS];
    clean(ranks);
    all_wait(ranks, 6000);
    ranks[1].activity = HL_API_RANK_ACTIVITY_SAVING;
    ranks[1].stopped = true;
    ranks[1].stopped_ms = 5000;
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[1].stopped_ms = 5001;
    assert_int_equal(find(ranks).kind, HL_STALL_STOPPED);
    assert_int_equal(find(ranks).rank, 1);
    assert_int_equal(find(ranks).since_ms, 5001);
    all_wait(ranks, 400); /* it was stopped at each look, and made steps in between */
    assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    ranks[1].since_ms = -1; /* it joins or loads */
    assert_int_equal(find(ranks).rank, 1);
}

/* Steps of 100 ms, heartbeats that are a second old, pauses of a machine under load up to 3 s. */
TEST(a_thousand_clean_steps_raise_no_alarm)
{
    srand(1);
    for (int step = 0; step < 1000; step++) {
        struct hl_stall_rank ranks[RANKS];
        clean(ranks);
        for (int i = 0; i < RANKS; i++) {
            ranks[i].step = step - rand() % 2;
            ranks[i].steps = (uint64_t)step;
            ranks[i].since_ms = rand() % 4000;
            ranks[i].median_ms = 50 + rand() % 200;
        }
        assert_int_equal(find(ranks).kind, HL_STALL_NONE);
    }
}
