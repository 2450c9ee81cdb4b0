/* The demo of the three policies: results, order, refusals. */
#include "support/test.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/status.h"
#include "helios/maco.h"
#include "os/cpus.h"

TEST(the_demo_keeps_its_rounds)
{

    enum { N = 1003, ROUNDS = 10, WORKERS = 4 };

    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        float data[N], want[N];
        int32_t order[ROUNDS * WORKERS];
        uint8_t seen[WORKERS][ROUNDS] = {{0}};
        for (int i = 0; i < N; i++) {
            data[i] = want[i] = (float)i / 7;
            for (int k = 0; k < ROUNDS; k++)
                want[i] = fmaf(want[i], 1.5f, 0.1f);
        }
        if (maco_demo(data, N, ROUNDS, WORKERS, 1, policy, order) != 0)
            fail_msg("%s", hl_error_text());
        assert_memory_equal(data, want, sizeof(data));
        for (int i = 0; i < ROUNDS * WORKERS; i++) {
            assert_int_equal(order[i] % 1000, i / WORKERS);
            assert_in_range(order[i] / 1000, 0, WORKERS - 1);
            assert_int_equal(seen[order[i] / 1000][order[i] % 1000]++, 0);
        }
    }
}

enum { PART = 5003, TIMES = 900 };

struct watched {
    float data[PART];
    int32_t order[TIMES];
    int threads;
    atomic_int done, status;
};

static void *run_watched(void *arg)
{
    struct watched *w = arg;
    w->status = maco_demo(w->data, PART, TIMES, 1, w->threads, MACO_DIRECT, w->order);
    w->done = 1;
    return NULL;
}

static int threads_of_process(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* How many threads a run of the demo was seen to have, without the caller's. */
static int threads_of_demo(struct watched *w)
{
    pthread_t thread;
    int most = 0, before = threads_of_process();
    w->done = 0;
    assert_int_equal(pthread_create(&thread, NULL, run_watched, w), 0);
    while (!w->done) {
        int now = threads_of_process() - before - 1;
        most = now > most ? now : most;
    }
    pthread_join(thread, NULL);
    assert_int_equal(w->status, 0);
    return most;
}

TEST(a_worker_has_as_many_threads_as_asked_for_and_processors)
{
    static struct watched one, many;
    int want = hl_cpus_usable() < 3 ? (int)hl_cpus_usable() : 3;
    one.threads = 1;
    many.threads = 3;
    assert_in_range(threads_of_demo(&one), 0, 1);
    int seen = 0; /* on a busy host a demo can run between two looks */
    for (uint64_t end = hl_now_ns() + 30 * HL_NS_PER_S; seen < want && hl_now_ns() < end;) {
        for (int i = 0; i < PART; i++)
            many.data[i] = 0;
        seen = threads_of_demo(&many);
        assert_in_range(seen, 0, want);
    }
    assert_int_equal(seen, want);
    assert_memory_equal(many.data, one.data, sizeof(one.data));
    assert_memory_equal(many.order, one.order, sizeof(one.order));
}

TEST(the_demo_refuses_what_it_could_not_tell)
{
    float data[4] = {0};
    int32_t order[4];
    assert_int_equal(maco_demo(data, 4, 1000, 1, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 0, 1, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 5, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 0, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 1, 1, 3, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 1, 0, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 1, 1025, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(NULL, 4, 1, 1, 1, MACO_DIRECT, order), HL_EINVAL);
}
