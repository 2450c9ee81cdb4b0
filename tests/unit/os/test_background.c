/* Threads with lower priority: their class and nice value, what they start, and which threads are
 * unchanged. */
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
