/* The queue of puts, shared by several threads. */
#include "support/test.h"

#include <poll.h>

#include "unit/net/put_rig.h"

#include "net/dispatch/put_queue.h"

struct queuer {
    struct hl_put_queue *q;
    size_t first;
    hl_status st;
    char text[256];
};

static void *put_forty(void *arg)
{
    struct queuer *p = arg;
    for (size_t i = p->first; i < p->first + 40 && p->st == HL_OK; i++) {
        struct hl_id id = {5, i + 1};
        p->st = hl_put_queue_put(p->q, pool + i, 64, hl_crc32(0, pool + i, 64), 10000, &id);
        if (p->st == HL_OK && (id.hi != 5 || id.lo != i + 1))
            p->st = HL_EINTERNAL;
    }
    snprintf(p->text, sizeof(p->text), "%s", hl_error_text());
    return NULL;
}

TEST(small_puts_of_many_threads_share_messages)
{
    struct store s;
    struct hl_put_queue *q = NULL;
    struct hl_put_queue_stats stats;
    pthread_t threads[8];
    struct queuer queuers[8];
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    struct hl_put_queue_opts opts = {
        .connect.address = hl_net_server_address(server), .connect.ops = back_end, .batch_ms = 20};
    assert_int_equal(hl_put_queue_open(&opts, &q), HL_OK);
    for (size_t i = 0; i < 8; i++) {
        queuers[i] = (struct queuer){.q = q, .first = i * 40};
        assert_int_equal(pthread_create(&threads[i], NULL, put_forty, &queuers[i]), 0);
    }
    for (size_t i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 8; i++)
        if (queuers[i].st != HL_OK)
            fail_msg("%s", queuers[i].text);
    hl_put_queue_stats(q, &stats);
    assert_int_equal(stats.puts, 320);
    assert_int_equal(stats.connects, 1);
    assert_true(stats.batches < 320); /* a put waits 20 ms for others */
    assert_int_equal(stats_of(server).batches, stats.batches);
    assert_int_equal(count_of(&s, 2), 320);
    for (size_t i = 0; i < 320; i++)
        assert_memory_equal(object_of(&s, (struct hl_id){5, i + 1})->bytes, pool + i, 64);
    hl_put_queue_close(q);
    hl_net_server_stop(server);
    store_fini(&s);
}

TEST(each_put_of_a_queue_has_its_own_result_and_a_lost_server_is_found_again)
{
    struct store s;
    struct hl_put_queue *q = NULL;
    char address[64];
    struct hl_id id = {0, 0};
    store_init(&s);
    s.refuse_of = 777;
    struct hl_net_server *server = serve_store(&s, 0, 0);
    snprintf(address, sizeof(address), "%s", hl_net_server_address(server));
    assert_int_equal(
        hl_put_queue_open(
            &(struct hl_put_queue_opts){.connect.address = address, .connect.ops = back_end}, &q),
        HL_OK);
    uint32_t crc = hl_crc32(0, pool, 777);
    assert_int_equal(hl_put_queue_put(q, pool, 777, crc, 5000, &id), HL_ENOSPC);
    assert_string_equal(hl_error_text(), "no room for 777");
    assert_int_equal(hl_put_queue_put(q, pool, 776, crc, 5000, &id), HL_ECORRUPT);
    crc = hl_crc32(0, pool, 100);
    assert_int_equal(hl_put_queue_put(q, pool, 100, crc, 5000, &id), HL_OK);
    hl_net_server_stop(server);
    assert_int_not_equal(hl_put_queue_put(q, pool, 100, crc, 5000, &id), HL_OK);
    assert_non_null(strstr(hl_error_text(), address));
    struct hl_net_server_opts again = {.listen = address,
                                       .pool = pool,
                                       .pool_len = POOL_LEN,
                                       .put = {store_begin, store_commit, store_abort, &s},
                                       .ops = back_end};
    if (hl_net_server_start(&again, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    if (hl_put_queue_put(q, pool, 100, crc, 5000, &id) != HL_OK)
        fail_msg("%s", hl_error_text());
    hl_put_queue_close(q);
    hl_net_server_stop(server);
    store_fini(&s);
}

/* The results of puts without a waiting caller. */
struct ends {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    size_t ok, cancelled, other;
};

static void on_end(void *arg, hl_status st, const char *words)
{
    struct ends *e = arg;
    pthread_mutex_lock(&e->lock);
    *(st == HL_OK ? &e->ok : st == HL_ECANCELED ? &e->cancelled : &e->other) += 1;
    assert_true(st == HL_OK || words[0] != '\0');
    pthread_cond_signal(&e->moved);
    pthread_mutex_unlock(&e->lock);
}

static void wait_ends(struct ends *e, size_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&e->lock);
    while (e->ok + e->cancelled + e->other < n)
        assert_int_equal(pthread_cond_timedwait(&e->moved, &e->lock, &until), 0);
    pthread_mutex_unlock(&e->lock);
}

static void start_puts(struct hl_put_queue *q, struct ends *e, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        struct hl_put_queue_order order = {.data = pool + i,
                                           .len = 64,
                                           .crc = hl_crc32(0, pool + i, 64),
                                           .id = {6, i + 1},
                                           .timeout_ms = 10000,
                                           .done = on_end,
                                           .arg = e};
        assert_int_equal(hl_put_queue_start(q, &order), HL_OK);
    }
}

TEST(puts_that_nobody_waits_for_share_messages_until_they_are_cancelled)
{
    struct store s;
    struct hl_put_queue *q = NULL;
    struct hl_put_queue_stats stats;
    struct ends ends = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
    atomic_bool cancel = false;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    struct hl_put_queue_opts opts = {.connect.address = hl_net_server_address(server),
                                     .connect.ops = back_end,
                                     .cancel = &cancel};
    assert_int_equal(hl_put_queue_open(&opts, &q), HL_OK);
    assert_int_equal(hl_put_queue_start(q, &(struct hl_put_queue_order){.done = on_end}),
                     HL_EINVAL);
    start_puts(q, &ends, 0, 200);
    wait_ends(&ends, 200);
    assert_int_equal(ends.ok, 200);
    assert_int_equal(count_of(&s, 2), 200);
    hl_put_queue_stats(q, &stats);
    assert_int_equal(stats.puts, 200);
    assert_true(stats.batches < 200);
    assert_string_equal(stats.path, "tcp");
    atomic_store(&cancel, true);
    start_puts(q, &ends, 200, 20);
    wait_ends(&ends, 220);
    assert_int_equal(ends.cancelled, 20);
    assert_int_equal(count_of(&s, 2), 200);
    hl_put_queue_close(q);
    hl_net_server_stop(server);
    store_fini(&s);
}

static void start_stoppable(struct hl_put_queue *q, struct ends *e, size_t i, atomic_bool *stop)
{
    struct hl_put_queue_order order = {.data = pool + i,
                                       .len = 64,
                                       .crc = hl_crc32(0, pool + i, 64),
                                       .id = {6, i + 1},
                                       .timeout_ms = 600000,
                                       .stop = stop,
                                       .done = on_end,
                                       .arg = e};
    assert_int_equal(hl_put_queue_start(q, &order), HL_OK);
}

TEST(a_put_that_is_stopped_in_line_is_not_sent_and_one_that_is_alone_under_way_breaks_off)
{
    struct store s;
    struct hl_put_queue *q = NULL;
    struct ends ends = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
    atomic_bool first = false, second = false, third = false;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    struct hl_put_queue_opts opts = {.connect.address = hl_net_server_address(server),
                                     .connect.ops = back_end};
    shut(&s, true); /* the server does not answer */
    assert_int_equal(hl_put_queue_open(&opts, &q), HL_OK);
    start_stoppable(q, &ends, 0, &first);
    while (!at_door(&s))
        poll(NULL, 0, 1);
    start_stoppable(q, &ends, 1, &second);
    start_stoppable(q, &ends, 2, &third);
    atomic_store(&second, true);
    atomic_store(&first, true);
    wait_ends(&ends, 2); /* long before the deadline */
    assert_int_equal(ends.cancelled, 2);
    shut(&s, false);
    wait_ends(&ends, 3);
    assert_int_equal(ends.ok, 1);
    hl_put_queue_close(q);
    hl_net_server_stop(server);
    for (size_t i = 0; i < s.count; i++)
        assert_int_not_equal(s.objects[i].id.lo, 2);
    (void)object_of(&s, (struct hl_id){6, 3});
    store_fini(&s);
}

static void *stop_server(void *server)
{
    hl_net_server_stop(server);
    return NULL;
}

/* The handler has the first batch; the next ones are queued, or on their way. */
static void stop_amid_puts(size_t round)
{
    struct store s;
    struct hl_put_queue *q = NULL;
    struct ends ends = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
    pthread_t thread;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    struct hl_put_queue_opts opts = {.connect.address = hl_net_server_address(server),
                                     .connect.ops = back_end};
    shut(&s, true);
    assert_int_equal(hl_put_queue_open(&opts, &q), HL_OK);
    start_puts(q, &ends, 0, 1 + round);
    while (!at_door(&s))
        sched_yield();
    start_puts(q, &ends, 1 + round, 100);
    assert_int_equal(pthread_create(&thread, NULL, stop_server, server), 0);
    uint64_t until_ns = hl_now_ns() + HL_NS_PER_S / 5; /* the server waits 2 s for its handlers */
    for (size_t i = 0; i < round * 1000 && hl_now_ns() < until_ns; i++)
        sched_yield(); /* the stop has got this far */
    shut(&s, false);
    wait_ends(&ends, 101 + round);
    pthread_join(thread, NULL);
    assert_int_equal(ends.ok, count_of(&s, 2)); /* a refused put has left nothing there */
    assert_int_equal(s.open, 0);
    assert_in_range(ends.ok, 1, 101 + round);
    hl_put_queue_close(q);
    store_fini(&s);
}

TEST(puts_that_a_stopping_server_has_begun_are_stored_and_answered_and_the_others_are_refused)
{
    for (size_t round = 0; round < 8; round++)
        stop_amid_puts(round);
}

TESTS_IN(over_tcp, NULL)
