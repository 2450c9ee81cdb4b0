/* Work of the L3 daemon's threads: run in a worker, completed on the loop, never lost. */
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "l3d/workers.h"
#include "os/loop.h"

#define COUNT 500

struct item {
    struct work work; /* first */
    int number;
    int *order; /* of the completions */
    int *ended;
    struct hl_loop *loop;
    pthread_t ran_on;
};

static atomic_int running, most;

static void item_run(struct work *w)
{
    struct item *it = (struct item *)w;
    int now = atomic_fetch_add(&running, 1) + 1, seen = atomic_load(&most);
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
        continue;
    it->ran_on = pthread_self();
    atomic_fetch_sub(&running, 1);
}

static void item_done(struct work *w)
{
    struct item *it = (struct item *)w;
    HL_ON_LOOP(it->loop);
    assert_false(pthread_equal(it->ran_on, pthread_self()));
    it->order[(*it->ended)++] = it->number;
}

static void add_items(unsigned threads, int *order, int *ended)
{
    static struct item items[COUNT];
    struct hl_loop *loop = NULL;
    struct workers *ws = NULL;
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    assert_int_equal(workers_start(loop, threads, false, &ws), HL_OK);
    for (int i = 0; i < COUNT; i++) {
        items[i] = (struct item){.work = {.run = item_run, .done = item_done},
                                 .number = i,
                                 .order = order,
                                 .ended = ended,
                                 .loop = loop};
        workers_add(ws, &items[i].work);
    }
    workers_stop(ws); /* most of it has not run yet */
    hl_loop_destroy(loop);
}

TEST(one_thread_keeps_the_order_and_loses_nothing)
{
    int order[COUNT], ended = 0;
    add_items(1, order, &ended);
    assert_int_equal(ended, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(order[i], i);
}

TEST(several_threads_end_everything_once)
{
    int order[COUNT], ended = 0, seen[COUNT] = {0};
    atomic_store(&most, 0);
    add_items(4, order, &ended);
    assert_int_equal(ended, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(seen[order[i]]++, 0);
    assert_in_range(atomic_load(&most), 1, 4);
}

TEST(without_work_they_end)
{
    struct hl_loop *loop = NULL;
    struct workers *ws = NULL;
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    assert_int_equal(workers_start(loop, 3, false, &ws), HL_OK);
    workers_stop(ws);
    workers_stop(NULL);
    hl_loop_destroy(loop);
}

/* ---- work that changes its workers ----------------------------------------------------------- */

struct held {
    struct work work; /* first */
    atomic_bool begun, go;
    pthread_t ran_on;
    int ends;
};

static void held_run(struct work *w)
{
    struct held *h = (struct held *)w;
    h->ran_on = pthread_self();
    atomic_store(&h->begun, true);
    while (!atomic_load(&h->go))
        usleep(100);
}

static void held_done(struct work *w)
{
    ((struct held *)w)->ends++;
}

/* The first one runs in the only thread of `from`, the second waits behind it. */
TEST(work_that_waits_goes_to_other_workers_and_work_that_runs_stays)
{
    struct held first = {.work = {.run = held_run, .done = held_done}}, second = first;
    struct hl_loop *loop = NULL;
    struct workers *from = NULL, *to = NULL;
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    assert_int_equal(workers_start(loop, 1, true, &from), HL_OK);
    assert_int_equal(workers_start(loop, 1, false, &to), HL_OK);
    workers_add(from, &first.work);
    while (!atomic_load(&first.begun))
        usleep(100);
    workers_add(from, &second.work);
    workers_move(to, &first.work);
    workers_move(to, &second.work);
    workers_move(to, &second.work); /* already there */
    atomic_store(&second.go, true);
    workers_stop(to); /* while the first one occupies its thread */
    assert_int_equal(second.ends, 1);
    assert_int_equal(first.ends, 0);
    assert_false(pthread_equal(first.ran_on, second.ran_on));
    atomic_store(&first.go, true);
    workers_stop(from);
    assert_int_equal(first.ends, 1);
    assert_int_equal(second.ends, 1);
    hl_loop_destroy(loop);
}
