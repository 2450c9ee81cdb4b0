/* Threads that give way: their class and nice value, what they start, who stays as it was, and when
 * they rest. */
#include "support/test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/background.h"

struct seen {
    int policy, nice;
};

static struct seen look(void)
{
    return (struct seen){sched_getscheduler(0),
                         getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid))};
}

static void *child(void *arg)
{
    *(struct seen *)arg = look();
    return NULL;
}

static void *background(void *arg)
{
    struct seen *seen = arg;
    pthread_t thread;
    hl_background_enter();
    seen[0] = look();
    assert_int_equal(pthread_create(&thread, NULL, child, &seen[1]), 0);
    pthread_join(thread, NULL);
    return NULL;
}

static void run_background(struct seen seen[2])
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, background, seen), 0);
    pthread_join(thread, NULL);
}

TEST(a_thread_of_the_background_and_what_it_starts_give_way_and_no_other_does)
{
    struct seen seen[2], before = look();
    hl_background_nice(before.nice + 5 <= 19 ? before.nice + 5 : 19);
    run_background(seen);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seen[i].nice, before.nice + 5 <= 19 ? before.nice + 5 : 19);
        if (before.nice < 19) /* one that is there already stays as it is */
            assert_int_equal(seen[i].policy, SCHED_BATCH);
    }
    assert_int_equal(look().nice, before.nice);
    assert_int_equal(look().policy, before.policy);
}

TEST(with_0_nothing_gives_way)
{
    struct seen seen[2], before = look();
    hl_background_nice(0);
    run_background(seen);
    assert_int_equal(seen[0].nice, before.nice);
    assert_int_equal(seen[0].policy, before.policy);
}

/* ---- rests: pieces of 1 ms ------------------------------------------------------------------- */

#define MS HL_NS_PER_MS

/* Processors that are idle, and that the process takes itself. */
struct host {
    double idle, own;
};

static void pass_time(struct hl_background_count *c, struct host h, uint64_t ns)
{
    c->now_ns += ns;
    c->idle_ns += (uint64_t)(h.idle * (double)ns);
    c->own_ns += (uint64_t)(h.own * (double)ns);
}

/* The part of the next `ms` milliseconds in which it rests. */
static double rests(struct hl_background_state *b, struct hl_background_count *c, struct host h,
                    unsigned ms)
{
    uint64_t sum = 0, begun = c->now_ns;
    while (c->now_ns < begun + ms * MS) {
        pass_time(c, h, MS);
        uint64_t rest = hl_background_step(b, c) ? hl_background_rest_ns(MS) : 0;
        pass_time(c, h, rest);
        sum += rest;
    }
    return (double)sum / (double)(c->now_ns - begun);
}

static const struct host crowded = {.idle = 0.3, .own = 0.4}, quiet = {.idle = 0.6, .own = 0.4};

TEST(on_a_crowded_host_it_works_a_tenth_of_the_time_but_while_it_looks)
{
    struct hl_background_state b = {0};
    struct hl_background_count c = {.now_ns = 1000 * MS};
    assert_true(rests(&b, &c, crowded, 99) == 0); /* it looks for 100 ms first */
    double part = rests(&b, &c, crowded, 4000);
    assert_true(part > 0.88 && part < 0.91);
    part = rests(&b, &c, crowded, 41000); /* ten looks of 100 ms among 40 s of rests */
    assert_true(part > 0.86 && part < 0.89);
}

TEST(it_never_rests_where_others_leave_a_processor)
{
    struct hl_background_state b = {0};
    struct hl_background_count c = {.now_ns = 1000 * MS};
    assert_true(rests(&b, &c, quiet, 3000) == 0);
    assert_true(rests(&b, &c, (struct host){.own = 1}, 3000) == 0); /* the only one */
}

TEST(it_goes_on_within_4_s_after_the_host_became_quiet)
{
    struct hl_background_state b = {0};
    struct hl_background_count c = {.now_ns = 1000 * MS};
    assert_true(rests(&b, &c, crowded, 500) > 0);
    rests(&b, &c, quiet, 4000);
    assert_true(rests(&b, &c, quiet, 2000) == 0);
}

TEST(what_was_seen_before_a_pause_does_not_count)
{
    struct hl_background_state b = {0};
    struct hl_background_count c = {.now_ns = 1000 * MS};
    assert_true(rests(&b, &c, crowded, 300) > 0);
    pass_time(&c, crowded, 600 * MS);
    assert_true(rests(&b, &c, crowded, 99) == 0);
}

TEST(a_rest_is_nine_times_its_piece_and_50_ms_at_most)
{
    assert_int_equal(hl_background_rest_ns(0), 0);
    assert_int_equal(hl_background_rest_ns(2 * MS), 18 * MS);
    assert_int_equal(hl_background_rest_ns(UINT64_MAX), 50 * MS);
}

static void *rest_in_background(void *arg)
{
    hl_background_enter();
    for (int i = 0; i < 3; i++)
        hl_background_rest();
    return arg;
}

TEST(threads_of_the_background_and_others_may_ask_for_a_rest)
{
    pthread_t thread;
    hl_background_rest();
    hl_background_nice(10);
    assert_int_equal(pthread_create(&thread, NULL, rest_in_background, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}
