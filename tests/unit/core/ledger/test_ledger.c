/* The time ledger: its parts sum to the wall time in all cases. Times are worked out by hand. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/ledger/ledger.h"

static void report(struct hl_ledger *l, int64_t step, int64_t now)
{
    hl_ledger_report(l, &(struct hl_ledger_report){.step = step, .tokens = (uint64_t)step * 10},
                     now);
}

/* Submitted at 1000, runs at 1100. */
static struct hl_ledger running(void)
{
    struct hl_ledger l = {0};
    hl_ledger_begin(&l, 1000);
    hl_ledger_enter(&l, HL_LEDGER_QUEUE, 1000);
    hl_ledger_enter(&l, HL_LEDGER_PLACE, 1040);
    hl_ledger_enter(&l, HL_LEDGER_IMAGE, 1050);
    hl_ledger_enter(&l, HL_LEDGER_PULL, 1055);
    hl_ledger_enter(&l, HL_LEDGER_START, 1070);
    hl_ledger_enter(&l, HL_LEDGER_STEP, 1100);
    return l;
}

TEST(each_part_has_the_time_that_it_was_for)
{
    struct hl_ledger l = running();
    report(&l, 0, 1500); /* the first: until now it was starting */
    report(&l, 1, 1700); /* 200 ms a step */
    report(&l, 2, 1900);
    hl_ledger_end(&l, true, 1950);
    struct hl_api_job_ledger r = hl_ledger_show(&l, 99999);
    assert_int_equal(r.queue_ms, 40);
    assert_int_equal(r.place_ms, 10);
    assert_int_equal(r.image_ms, 5);
    assert_int_equal(r.pull_ms, 15);
    assert_int_equal(r.start_ms, 30 + 400);
    assert_int_equal(r.step_ms, 200 + 200 + 50);
    assert_int_equal(r.wall_ms, 950);
    assert_int_equal(r.steps, 3);
    assert_int_equal(r.tokens, 20); /* as its process finally reported */
    assert_true(r.reported);
    assert_true(r.goodput == 450.0 / 950.0);
}

TEST(a_long_step_is_a_stall_and_a_save_in_it_a_save)
{
    struct hl_ledger l = running();
    report(&l, 0, 2000);
    report(&l, 1, 2200);
    report(&l, 2, 3400); /* 1200 ms for one step of 200: 1000 are stall */
    hl_ledger_saving(&l, true, 3500);
    hl_ledger_saving(&l, false, 3800);
    report(&l, 3, 3900); /* 500 ms, 300 of them beside the save */
    struct hl_api_job_ledger r = hl_ledger_show(&l, 3900);
    assert_int_equal(r.stall_ms, 1000);
    assert_int_equal(r.save_ms, 300);
    assert_int_equal(r.step_ms, 200 + 200 + 200);
    assert_int_equal(r.wall_ms, 2900);
}

TEST(steps_after_a_failure_are_replayed_up_to_the_last_one)
{
    struct hl_ledger l = running();
    report(&l, 0, 2000);
    report(&l, 10, 3000); /* 100 ms a step */
    hl_ledger_enter(&l, HL_LEDGER_LOST, 3070);
    hl_ledger_enter(&l, HL_LEDGER_QUEUE, 3100);
    hl_ledger_enter(&l, HL_LEDGER_START, 3150);
    hl_ledger_enter(&l, HL_LEDGER_STEP, 3200);
    report(&l, 6, 3600);  /* from a version saved at step 5 */
    report(&l, 12, 4200); /* 7 to 10 again, 11 and 12 for the first time */
    hl_ledger_end(&l, true, 4200);
    struct hl_api_job_ledger r = hl_ledger_show(&l, 4200);
    assert_int_equal(r.lost_ms, 70 + 30);
    assert_int_equal(r.replay_ms, 400);
    assert_int_equal(r.step_ms, 1000 + 200);
    assert_int_equal(r.steps, 11 + 2);
    assert_int_equal(r.replayed, 5);
    assert_int_equal(r.wall_ms, 3200);
}

TEST(a_gang_that_comes_together_again_loses_and_replays_without_another_attempt)
{
    struct hl_ledger l = running();
    struct hl_ledger_report r = {.step = 0, .generation = 1, .usual_ms = 100};
    hl_ledger_report(&l, &r, 2000);
    r.step = 10;
    r.tokens = 1000;
    hl_ledger_report(&l, &r, 3000);
    r = (struct hl_ledger_report){.step = 6, .generation = 2, .tokens = 50, .usual_ms = 100};
    hl_ledger_report(&l, &r, 3700); /* a new process: 700 ms without a step */
    r.step = 12;
    r.tokens = 350;
    hl_ledger_report(&l, &r, 4300);
    struct hl_api_job_ledger s = hl_ledger_show(&l, 4300);
    assert_int_equal(s.lost_ms, 700);
    assert_int_equal(s.replay_ms, 400);
    assert_int_equal(s.step_ms, 1000 + 200);
    assert_int_equal(s.replayed, 5);
    assert_int_equal(s.tokens, 1000 + 350);
    assert_int_equal(s.wall_ms, 3300);
}

/* Looked at every 500 ms: steps of 100 ms end unobserved before and after the failure. */
TEST(steps_between_two_looks_are_replayed_too)
{
    struct hl_ledger l = running();
    struct hl_ledger_report r = {.step = 3, .steps = 4, .generation = 1, .usual_ms = 100};
    hl_ledger_report(&l, &r, 2000); /* it ran at 1100: 600 ms until its first step */
    r.step = r.steps = 8;
    hl_ledger_report(&l, &r, 2500);
    /* 9 to 11 follow, a rank is lost, and the gang resumes at step 5 */
    r = (struct hl_ledger_report){
        .step = 8, .steps = 3, .generation = 2, .usual_ms = 100, .done_before = 12};
    hl_ledger_report(&l, &r, 3600);
    r.step = 13;
    hl_ledger_report(&l, &r, 4100); /* 9 to 11 again, 12 and 13 for the first time */
    struct hl_api_job_ledger s = hl_ledger_show(&l, 4100);
    assert_int_equal(s.start_ms, 30 + 600);
    assert_int_equal(s.lost_ms, 1100 - 200);
    assert_int_equal(s.replay_ms, 200 + 300);
    assert_int_equal(s.step_ms, 300 + 500 + 200);
    assert_int_equal(s.replayed, 3 + 3);
    assert_int_equal(s.steps, 4 + 5 + 2);
    assert_int_equal(s.wall_ms, 3100);
}

TEST(without_reports_what_was_saved_is_not_lost)
{
    struct hl_ledger l = running();
    hl_ledger_saved(&l, 1600);
    hl_ledger_enter(&l, HL_LEDGER_LOST, 1900);
    struct hl_api_job_ledger r = hl_ledger_show(&l, 2000);
    assert_false(r.reported);
    assert_int_equal(r.step_ms, 500);
    assert_int_equal(r.lost_ms, 300 + 100);
    assert_int_equal(r.wall_ms, 1000);
}

TEST(reports_that_come_late_or_twice_change_nothing)
{
    struct hl_ledger l = running();
    report(&l, 5, 2000);
    report(&l, 6, 2100);
    report(&l, 6, 2150);
    report(&l, 2, 2160);
    report(&l, -1, 2170);
    struct hl_api_job_ledger r = hl_ledger_show(&l, 2200);
    assert_int_equal(r.steps, 2);
    assert_int_equal(r.step_ms, 100 + 100); /* 6, and the open time */
    assert_int_equal(r.wall_ms, 1200);
}

static struct hl_ledger stored_and_read(struct hl_ledger *l, int64_t at,
                                        struct hl_ledger_clocks then, struct hl_ledger_clocks now,
                                        int64_t now_ms)
{
    struct hl_ledger back;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_ledger_record r = hl_ledger_record(l, at, &then, &arena);
    hl_ledger_restore(&back, &r, &now, now_ms);
    return back;
}

TEST(a_restart_counts_by_the_boot_clock_whatever_the_wall_clock_says)
{
    struct hl_ledger l = running();
    report(&l, 0, 2000);
    report(&l, 1, 2100);
    /* 300 ms later on the same boot, and the wall clock was set back by an hour: the new steady
     * clock starts anywhere */
    struct hl_ledger back =
        stored_and_read(&l, 2150, (struct hl_ledger_clocks){"boot", 5000, 10000000},
                        (struct hl_ledger_clocks){"boot", 5300, 6400300}, 700000);
    report(&back, 5, 700050); /* 400 ms for 4 steps of 100 */
    struct hl_api_job_ledger r = hl_ledger_show(&back, 700050);
    assert_int_equal(r.wall_ms, 1150 + 300 + 50);
    assert_int_equal(r.tokens, 50); /* counted once */
    assert_int_equal(r.step_ms, 500);
    assert_int_equal(r.steps, 6);
}

TEST(after_a_reboot_the_wall_clock_says_how_long_it_took_and_never_less_than_nothing)
{
    struct hl_ledger l = running();
    struct hl_ledger a = stored_and_read(&l, 1200, (struct hl_ledger_clocks){"one", 9000, 100000},
                                         (struct hl_ledger_clocks){"two", 10, 160000}, 50);
    assert_int_equal(hl_ledger_show(&a, 50).wall_ms, 200 + 60000);
    struct hl_ledger b = stored_and_read(&l, 1200, (struct hl_ledger_clocks){"one", 9000, 100000},
                                         (struct hl_ledger_clocks){"two", 10, 40000}, 50);
    assert_int_equal(hl_ledger_show(&b, 50).wall_ms, 200);
}

TEST(a_record_of_an_older_release_is_a_ledger_that_has_not_begun)
{
    struct hl_ledger l;
    const struct hl_ledger_clocks clocks = {"boot", 1, 1};
    hl_ledger_restore(&l, &(struct hl_api_job_ledger_record){.step = -1}, &clocks, 10);
    assert_false(l.begun);
    assert_int_equal(hl_ledger_show(&l, 99).wall_ms, 0);
}

TEST(a_record_without_the_part_of_images_keeps_the_others)
{
    struct hl_ledger l = running(), back;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_ledger_clocks clocks = {"boot", 1, 1};
    struct hl_api_job_ledger_record r = hl_ledger_record(&l, 1100, &clocks, &arena);
    r.parts.count = 9;
    hl_ledger_restore(&back, &r, &clocks, 1100);
    assert_int_equal(hl_ledger_show(&back, 1100).pull_ms, 15);
    assert_int_equal(hl_ledger_show(&back, 1100).wall_ms, 95);
    r.parts.count = 8;
    hl_ledger_restore(&back, &r, &clocks, 1100);
    assert_false(back.begun);
}

/* One random event of a job's life. */
static void random_event(struct hl_ledger *l, int64_t now, int64_t *step)
{
    switch (rand() % 8) {
    case 0:
        hl_ledger_enter(l, rand() % HL_LEDGER_PARTS, now);
        break;
    case 1:
        hl_ledger_saving(l, rand() % 2, now);
        break;
    case 2:
        hl_ledger_saved(l, now);
        break;
    case 3:
        *step = rand() % 50;
        break;
    default:
        hl_ledger_enter(l, HL_LEDGER_STEP, now);
        report(l, ++*step, now);
    }
}

TEST(after_any_events_the_parts_sum_to_the_wall_time_and_none_is_negative)
{
    for (unsigned seed = 0; seed < 2000; seed++) {
        struct hl_ledger l = {0};
        int64_t now = 1000, step = 0;
        srand(seed);
        hl_ledger_begin(&l, now);
        for (int i = 0; i < 100; i++) {
            now += rand() % 5 == 0 ? rand() % 5000 : rand() % 100;
            random_event(&l, now, &step);
            struct hl_api_job_ledger r = hl_ledger_show(&l, now);
            int64_t sum = r.queue_ms + r.place_ms + r.pull_ms + r.start_ms + r.step_ms + r.save_ms +
                          r.stall_ms + r.image_ms + r.lost_ms + r.replay_ms;
            if (sum != now - 1000 || r.wall_ms != sum)
                fail_msg("seed %u: the parts sum to %lld ms of %lld", seed, (long long)sum,
                         (long long)(now - 1000));
            for (int k = 0; k < HL_LEDGER_PARTS; k++)
                assert_true(l.ms[k] >= 0);
        }
    }
}
