/* libhelios against a real helios-l3d, through the mapped pool and over the network. There is no
 * Controller: reads by id don't need one. */
#include "support/test.h"

#include "view_world.h"

#include <pthread.h>

#include "core/safetensors/safetensors.h"
#include "mem/pool/pool.h"
#include "support/fault.h"

#define W_BYTES (2 * MIB + 12345) /* three chunks with the header */

static const char *const paths[] = {"shm", "net"};
static struct world world;

static int setup(void **state)
{
    (void)state;
    world_start(&world, "64MiB");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_end(&world);
    return 0;
}

/* One part with two tensors: "w" of W_BYTES bytes, "b" of 3 x 5 floats. */
static helios_shard put_part(helios_client *c, uint64_t seed, unsigned char **w_data)
{
    static const int64_t w_shape[] = {(int64_t)W_BYTES}, b_shape[] = {3, 5};
    static float b[15];
    unsigned char *w = noise(W_BYTES, seed);
    helios_shard shard;
    for (int i = 0; i < 15; i++)
        b[i] = (float)i / 2;
    const helios_tensor t[] = {
        {.name = "w", .dtype = "U8", .shape = w_shape, .rank = 1, .data = w},
        {.name = "b", .dtype = "F32", .shape = b_shape, .rank = 2, .data = b},
    };
    if (helios_version_put(c, "toy", 3, 0, 1, "layer-0002", t, 2, &shard) != HELIOS_OK)
        fail_msg("helios_version_put: %s", helios_last_error());
    if (w_data != NULL)
        *w_data = w;
    else
        free(w);
    return shard;
}

TEST(a_part_that_was_put_reads_back_in_every_way_on_both_paths)
{
    for (size_t writer = 0; writer < 2; writer++) {
        unsigned char *w;
        helios_client *c = world_client(&world, paths[writer], 0, 0);
        helios_shard s = put_part(c, 10 + writer, &w);
        assert_string_equal(s.part, "layer-0002");
        assert_int_equal(s.tensors, 2);
        for (size_t reader = 0; reader < 2; reader++) {
            helios_client *r = world_client(&world, paths[reader], 0, 0);
            uint64_t size;
            uint32_t crc;
            assert_int_equal(helios_find(r, s.id, &size, &crc), HELIOS_OK);
            assert_int_equal(size, s.size);
            assert_int_equal(crc, s.crc32);

            unsigned char *copy = malloc(size);
            assert_int_equal(helios_get(r, s.id, copy, size), HELIOS_OK);
            struct hl_safetensors h;
            assert_int_equal(hl_safetensors_parse(copy, size, size, &h), HL_OK);
            assert_string_equal(hl_safetensors_meta(&h, "helios.part"), "layer-0002");
            assert_string_equal(hl_safetensors_meta(&h, "helios.tp"), "1");
            assert_int_equal(h.data_offset % 64, 0);
            const struct hl_tensor *t = hl_safetensors_find(&h, "w");
            assert_int_equal(t->size, W_BYTES);
            assert_memory_equal(copy + h.data_offset + t->offset, w, W_BYTES);

            /* Ranges at, across and inside chunk boundaries. */
            static const size_t ranges[][2] = {{0, 1},           {MIB - 1, 2},    {MIB, MIB},
                                               {5, 2 * MIB + 9}, {2 * MIB, 1000}, {17, 0}};
            unsigned char *part = malloc(size);
            for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
                assert_int_equal(helios_get_range(r, s.id, ranges[i][0], part, ranges[i][1]),
                                 HELIOS_OK);
                assert_memory_equal(part, copy + ranges[i][0], ranges[i][1]);
            }
            assert_int_equal(helios_get_range(r, s.id, size - 3, part, 3), HELIOS_OK);
            assert_memory_equal(part, copy + size - 3, 3);

            const void *view, *again;
            size_t view_size;
            assert_int_equal(helios_map(r, s.id, &view, &view_size), HELIOS_OK);
            assert_int_equal(view_size, size);
            assert_memory_equal(view, copy, size);
            assert_int_equal(helios_map(r, s.id, &again, NULL), HELIOS_OK);
            assert_int_equal(helios_unmap(r, view), HELIOS_OK);
            assert_memory_equal(again, copy, size);
            assert_int_equal(helios_unmap(r, again), HELIOS_OK);

            helios_stats stats = {HELIOS_STATS_INIT};
            assert_int_equal(helios_get_stats(r, &stats), HELIOS_OK);
            assert_string_equal(stats.path, reader == 0 ? "shm" : "tcp");
            assert_int_equal(stats.reads, 10);
            assert_int_equal(stats.crc_failures, 0);
            hl_safetensors_fini(&h);
            free(part);
            free(copy);
            helios_close(r);
        }
        free(w);
        helios_close(c);
    }
}

TEST(wrong_arguments_are_refused_with_a_reason)
{
    for (size_t i = 0; i < 2; i++) {
        helios_client *c = world_client(&world, paths[i], 0, 0);
        helios_shard s = put_part(c, 20, NULL);
        char buf[64];
        const void *view;
        assert_int_equal(helios_get(c, s.id, buf, sizeof(buf)), HELIOS_EINVAL);
        assert_int_equal(helios_get_range(c, s.id, s.size, buf, 1), HELIOS_EINVAL);
        assert_int_equal(helios_get_range(c, s.id, UINT64_MAX, buf, 2), HELIOS_EINVAL);
        assert_non_null(strstr(helios_last_error(), "toy@3/pp0/tp1/layer-0002"));
        helios_id none = {.hi = 1, .lo = 2};
        assert_int_equal(helios_get(c, none, buf, sizeof(buf)), HELIOS_ENOENT);
        assert_non_null(strstr(helios_last_error(), "00000000000000010000000000000002"));
        assert_int_equal(helios_map(c, none, &view, NULL), HELIOS_ENOENT);
        assert_int_equal(helios_find(c, none, NULL, NULL), HELIOS_ENOENT);
        assert_int_equal(helios_unmap(c, buf), HELIOS_EINVAL);
        assert_int_equal(helios_version_commit(c, "toy", 3, 0, NULL, NULL), HELIOS_EINVAL);
        assert_non_null(strstr(helios_last_error(), "HELIOS_CONTROLLER"));
        helios_close(c);
    }
}

TEST(tensors_that_cannot_be_stored_are_named)
{
    helios_client *c = world_client(&world, "shm", 0, 0);
    static const int64_t shape[] = {2, -1}, huge[] = {INT64_MAX, 8};
    static const char data[64];
    const helios_tensor bad[] = {
        {.name = "x", .dtype = "F33", .shape = shape, .rank = 1, .data = data},
        {.name = "x", .dtype = "F32", .shape = shape, .rank = 2, .data = data},
        {.name = "x", .dtype = "F32", .shape = huge, .rank = 2, .data = data},
        {.name = "x", .dtype = "F32", .shape = shape, .rank = 9, .data = data},
        {.name = "x", .dtype = "F32", .shape = shape, .rank = 1, .data = NULL},
        {.name = NULL, .dtype = "F32", .shape = shape, .rank = 1, .data = data},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(helios_version_put(c, "toy", 1, 0, 0, "head", &bad[i], 1, NULL),
                         HELIOS_EINVAL);
        assert_non_null(strstr(helios_last_error(), "tensor"));
    }
    const helios_tensor twice[] = {
        {.name = "x", .dtype = "F32", .shape = shape, .rank = 1, .data = data},
        {.name = "x", .dtype = "F32", .shape = shape, .rank = 1, .data = data},
    };
    assert_int_equal(helios_version_put(c, "toy", 1, 0, 0, "head", twice, 2, NULL), HELIOS_EINVAL);
    helios_close(c);
}

TEST(a_byte_that_stays_bad_fails_and_names_shard_and_chunk)
{
    for (size_t i = 0; i < 2; i++) {
        unsigned char *w;
        helios_client *c = world_client(&world, paths[i], 0, 0);
        helios_shard s = put_part(c, 30 + i, &w);
        off_t at = world_flip(&world, w + MIB + MIB / 2, 64); /* in the second chunk */
        unsigned char *copy = malloc(s.size);
        const void *view;
        helios_stats stats = {HELIOS_STATS_INIT};
        assert_int_equal(helios_get(c, s.id, copy, s.size), HELIOS_ECORRUPT);
        assert_non_null(strstr(helios_last_error(), "toy@3/pp0/tp1/layer-0002"));
        assert_non_null(strstr(helios_last_error(), "chunk 1 of 3"));
        assert_int_equal(helios_get_stats(c, &stats), HELIOS_OK);
        assert_int_equal(stats.retries, 3);
        assert_int_equal(stats.crc_failures, 4);
        assert_int_equal(stats.reads, 0);
        assert_int_equal(helios_map(c, s.id, &view, NULL), HELIOS_ECORRUPT);
        assert_int_equal(helios_get_range(c, s.id, MIB, copy, 1), HELIOS_ECORRUPT);
        /* The other chunks are undamaged. */
        assert_int_equal(helios_get_range(c, s.id, 0, copy, MIB), HELIOS_OK);
        assert_int_equal(helios_get_range(c, s.id, 2 * MIB, copy, 100), HELIOS_OK);
        world_flip_at(&world, at);
        assert_int_equal(helios_get(c, s.id, copy, s.size), HELIOS_OK);
        free(copy);
        free(w);
        helios_close(c);
    }
}

struct reader {
    helios_client *client;
    helios_shard shard;
    unsigned char *copy;
    int map;
    int st;
};

static void *read_in_thread(void *arg)
{
    struct reader *r = arg;
    const void *view;
    if (r->map) {
        r->st = helios_map(r->client, r->shard.id, &view, NULL);
        if (r->st == HELIOS_OK) {
            memcpy(r->copy, view, r->shard.size);
            (void)helios_unmap(r->client, view);
        }
    } else {
        r->st = helios_get(r->client, r->shard.id, r->copy, r->shard.size);
    }
    return NULL;
}

TEST(a_byte_that_is_repaired_meanwhile_heals_the_read)
{
    for (size_t i = 0; i < 4; i++) {
        unsigned char *w;
        pthread_t thread;
        helios_stats stats = {HELIOS_STATS_INIT};
        helios_client *c = world_client(&world, paths[i / 2], 0, 100);
        helios_shard s = put_part(c, 40 + i, &w);
        struct reader r = {.client = c, .shard = s, .map = i % 2, .copy = calloc(1, s.size)};
        off_t at = world_flip(&world, w + 100, 64);
        assert_int_equal(pthread_create(&thread, NULL, read_in_thread, &r), 0);
        double end = now_s() + 20;
        while (stats.retries == 0 && now_s() < end) {
            assert_int_equal(helios_get_stats(c, &stats), HELIOS_OK);
            nap_ms(1);
        }
        world_flip_at(&world, at);
        pthread_join(thread, NULL);
        assert_int_equal(r.st, HELIOS_OK);
        assert_non_null(memmem(r.copy, s.size, w, W_BYTES));
        assert_int_equal(helios_get_stats(c, &stats), HELIOS_OK);
        assert_true(stats.crc_failures >= 1);
        assert_true(stats.retries >= 1);
        free(r.copy);
        free(w);
        helios_close(c);
    }
}

TEST(reads_go_on_when_the_daemon_was_killed_and_started_again)
{
    helios_client *c[2];
    helios_shard s;
    unsigned char *w;
    for (size_t i = 0; i < 2; i++)
        c[i] = world_client(&world, paths[i], 20000, 0);
    s = put_part(c[0], 50, &w);
    unsigned char *copy = malloc(s.size);
    for (int round = 0; round < 2; round++) {
        struct reader r[2];
        pthread_t thread[2];
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(helios_get(c[i], s.id, copy, s.size), HELIOS_OK);
        world_kill(&world);
        /* These reads begin while no daemon serves: the one with the mapped pool may be too fast to
         * notice, the other one waits. */
        for (size_t i = 0; i < 2; i++) {
            r[i] = (struct reader){.client = c[i], .shard = s, .copy = calloc(1, s.size)};
            r[i].map = round;
            assert_int_equal(pthread_create(&thread[i], NULL, read_in_thread, &r[i]), 0);
        }
        world_launch(&world);
        world_wait(&world);
        for (size_t i = 0; i < 2; i++) {
            pthread_join(thread[i], NULL);
            if (r[i].st != HELIOS_OK)
                fail_msg("path %s: %s", paths[i], helios_strerror(r[i].st));
            assert_non_null(memmem(r[i].copy, s.size, w, W_BYTES));
            free(r[i].copy);
            assert_int_equal(helios_get(c[i], s.id, copy, s.size), HELIOS_OK);
            (void)put_part(c[i], 60, NULL);
        }
    }
    free(copy);
    free(w);
    helios_close(c[0]);
    helios_close(c[1]);
}

TEST(a_view_stays_as_it_is_when_its_shard_is_removed)
{
    for (int killed = 0; killed < 2; killed++) {
        unsigned char *w;
        const void *view;
        size_t size;
        helios_client *c = world_client(&world, "shm", 0, 0);
        helios_shard s = put_part(c, 70, &w), other = put_part(c, 71, NULL);
        assert_int_equal(helios_map(c, s.id, &view, &size), HELIOS_OK);
        if (killed) {
            const void *more;
            world_kill(&world);
            world_launch(&world);
            world_wait(&world);
            /* This call needs the socket, so the old pins are restored when it returns. */
            assert_int_equal(helios_map(c, other.id, &more, NULL), HELIOS_OK);
        }
        world_free_shard(&world, &s);
        char byte;
        assert_int_equal(helios_get_range(c, s.id, 0, &byte, 1), HELIOS_ENOENT);
        world_fill(&world, 4 * MIB);
        assert_non_null(memmem(view, size, w, W_BYTES));
        free(w);
        helios_close(c);
        world_end(&world); /* a fresh pool for the next test */
        world_start(&world, "64MiB");
    }
}

TEST(a_daemon_that_hangs_ends_in_the_deadline)
{
    for (size_t i = 0; i < 2; i++) {
        helios_client *c = world_client(&world, paths[i], 1500, 0);
        helios_shard s = put_part(c, 80, NULL);
        const void *view;
        unsigned char *copy = malloc(s.size);
        kill(world.pid, SIGSTOP);
        /* A reader of the mapped pool notices only once the heartbeat is old. */
        double end = now_s() + 20;
        int st = HELIOS_OK;
        while (st == HELIOS_OK && now_s() < end) {
            st = helios_get(c, s.id, copy, s.size);
            nap_ms(20);
        }
        assert_true(st == HELIOS_ETIMEDOUT || st == HELIOS_EUNAVAIL || st == HELIOS_ESTALE);
        double start = now_s();
        assert_int_not_equal(helios_map(c, s.id, &view, NULL), HELIOS_OK);
        assert_true(now_s() - start < 10);
        kill(world.pid, SIGCONT);
        st = helios_get(c, s.id, copy, s.size);
        for (end = now_s() + 10; st != HELIOS_OK && now_s() < end;)
            st = helios_get(c, s.id, copy, s.size);
        assert_int_equal(st, HELIOS_OK);
        free(copy);
        helios_close(c);
    }
}

#define PATIENCE_MS 5000
#define NOTICED_S   1.0

/* Signals the owner and waits until none of its threads runs any more; on a busy machine that takes
 * a while. */
static void strike_owner(int sig)
{
    siginfo_t info;
    assert_int_equal(kill(world.pid, sig), 0);
    assert_int_equal(waitid(P_PID, (id_t)world.pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
}

/* How long after the signal the last successful read began. The time of its beginning is what
 * counts: a read that the machine delays does not count against the notice, one that begins too
 * late does, however busy the machine is. The patience of the read that fails does not count
 * either. */
static double mapped_reads_until_noticed(int sig)
{
    helios_client *c = world_client(&world, "shm", PATIENCE_MS, -1);
    helios_shard s = put_part(c, 85, NULL);
    char byte;
    int st = HELIOS_OK;
    double start = now_s(), began, last;
    while (st == HELIOS_OK && now_s() < start + 0.3) /* long after it was connected */
        st = helios_get_range(c, s.id, 0, &byte, 1);
    assert_int_equal(st, HELIOS_OK);
    strike_owner(sig);
    start = last = now_s();
    while (began = now_s(),
           (st = helios_get_range(c, s.id, 0, &byte, 1)) == HELIOS_OK && began < start + 20)
        last = began;
    assert_true(st == HELIOS_EUNAVAIL || st == HELIOS_ETIMEDOUT || st == HELIOS_ESTALE);
    assert_non_null(strstr(helios_last_error(), world.address));
    helios_close(c);
    return last - start;
}

TEST(a_mapped_pool_whose_owner_is_killed_or_frozen_is_noticed_within_a_second)
{
    static const struct {
        int sig;
        const char *name;
    } blows[] = {{SIGSTOP, "stop"}, {SIGKILL, "kill"}};

    for (size_t i = 0; i < 2; i++) {
        double took = mapped_reads_until_noticed(blows[i].sig);
        if (blows[i].sig == SIGSTOP) {
            kill(world.pid, SIGCONT);
        } else {
            world_kill(&world);
            world_launch(&world);
            world_wait(&world);
        }
        helios_client *c = world_client(&world, "shm", 0, 0); /* the daemon serves again */
        (void)put_part(c, 86, NULL);
        helios_close(c);
        assert_true(took < NOTICED_S);
        fault_noticed("shm", blows[i].name, "noticed", (uint64_t)(took * 1e9));
    }
}

TEST(nobody_there_is_said_at_once)
{
    helios_client *c = NULL;
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = "", .l3 = "127.0.0.1:1"};
    double start = now_s();
    assert_int_equal(helios_open(&o, &c), HELIOS_EUNAVAIL);
    assert_true(now_s() - start < 5);
    assert_null(c);
    assert_non_null(strstr(helios_last_error(), "127.0.0.1:1"));
    o = (helios_options){HELIOS_OPTIONS_INIT, .controller = "", .l3 = "", .path = "shm"};
    assert_int_equal(helios_open(&o, &c), HELIOS_EINVAL);
    o = (helios_options){HELIOS_OPTIONS_INIT, .controller = "", .l3 = world.address,
                         .path = "fast"};
    assert_int_equal(helios_open(&o, &c), HELIOS_EINVAL);
    o = (helios_options){HELIOS_OPTIONS_INIT, .controller = "", .l3 = world.address, .retries = -2};
    assert_int_equal(helios_open(&o, &c), HELIOS_EINVAL);
    static const char *const bad[] = {"soon", "99ms", "61m"};
    for (size_t i = 0; i < 3; i++) {
        setenv("HELIOS_DATA_CONNECT_TIMEOUT", bad[i], 1);
        o = (helios_options){HELIOS_OPTIONS_INIT, .controller = "", .l3 = world.address};
        assert_int_equal(helios_open(&o, &c), HELIOS_EINVAL);
        assert_non_null(strstr(helios_last_error(), "HELIOS_DATA_CONNECT_TIMEOUT"));
        assert_non_null(strstr(helios_last_error(), bad[i]));
    }
    unsetenv("HELIOS_DATA_CONNECT_TIMEOUT");
    char with_scheme[128];
    snprintf(with_scheme, sizeof(with_scheme), "tcp://%s", world.address);
    o = (helios_options){HELIOS_OPTIONS_INIT, .controller = "", .l3 = with_scheme};
    assert_int_equal(helios_open(&o, &c), HELIOS_OK);
    helios_close(c);
    helios_close(NULL);
}

struct many {
    helios_client *client;
    helios_shard shard;
    const unsigned char *expected;
    size_t at; /* in the shard; searching for it takes longer than reading it */
    int failures;
};

static void *read_many(void *arg)
{
    struct many *m = arg;
    unsigned char *copy = malloc(m->shard.size);
    for (int i = 0; i < 50; i++) {
        uint64_t size;
        const void *view;
        if (helios_find(m->client, m->shard.id, &size, NULL) != HELIOS_OK ||
            helios_get(m->client, m->shard.id, copy, m->shard.size) != HELIOS_OK ||
            memcmp(copy + m->at, m->expected, W_BYTES) != 0)
            m->failures++;
        if (i % 10 == 0) {
            if (helios_map(m->client, m->shard.id, &view, NULL) != HELIOS_OK)
                m->failures++;
            else
                m->failures += helios_unmap(m->client, view) != HELIOS_OK;
        }
    }
    free(copy);
    return NULL;
}

static size_t offset_of(helios_client *c, const helios_shard *s, const unsigned char *w)
{
    unsigned char *copy = malloc(s->size);
    assert_int_equal(helios_get(c, s->id, copy, s->size), HELIOS_OK);
    const unsigned char *found = memmem(copy, s->size, w, W_BYTES);
    assert_non_null(found);
    size_t at = (size_t)(found - copy);
    free(copy);
    return at;
}

TEST(many_threads_read_at_once)
{
    for (size_t i = 0; i < 2; i++) {
        unsigned char *w;
        pthread_t threads[6];
        helios_client *c = world_client(&world, paths[i], 0, 0);
        struct many m = {.client = c, .shard = put_part(c, 90, &w), .expected = w};
        struct many each[6];
        m.at = offset_of(c, &m.shard, w);
        for (size_t t = 0; t < 6; t++) {
            each[t] = m;
            assert_int_equal(pthread_create(&threads[t], NULL, read_many, &each[t]), 0);
        }
        for (size_t t = 0; t < 6; t++) {
            pthread_join(threads[t], NULL);
            assert_int_equal(each[t].failures, 0);
        }
        helios_stats stats = {HELIOS_STATS_INIT};
        assert_int_equal(helios_get_stats(c, &stats), HELIOS_OK);
        assert_int_equal(stats.reads, 1 + 6 * 55);
        free(w);
        helios_close(c);
    }
}

/* ---- small parts over the network ---- */

#define WRITERS 8
#define PARTS   25

struct writer {
    helios_client *client;
    int number;
    helios_shard shards[PARTS];
    int stored, failure;
    char text[256];
};

static unsigned char byte_of(int writer, int part)
{
    return (unsigned char)(writer * PARTS + part + 1);
}

/* Writes small parts one after the other until one fails. */
static void *write_parts(void *arg)
{
    static const int64_t shape[] = {100};
    struct writer *w = arg;
    unsigned char data[100];
    char name[32];
    for (int i = 0; i < PARTS && w->failure == HELIOS_OK; i++) {
        const helios_tensor t = {
            .name = "w", .dtype = "U8", .shape = shape, .rank = 1, .data = data};
        memset(data, byte_of(w->number, i), sizeof(data));
        snprintf(name, sizeof(name), "part-%d", i);
        w->failure =
            helios_version_put(w->client, "small", 1, 0, w->number, name, &t, 1, &w->shards[i]);
        memset(data, 0, sizeof(data)); /* it was copied */
        w->stored += w->failure == HELIOS_OK;
    }
    snprintf(w->text, sizeof(w->text), "%s", helios_last_error());
    return NULL;
}

static void writers_start(helios_client *c, struct writer *w, pthread_t *threads)
{
    for (int i = 0; i < WRITERS; i++) {
        w[i] = (struct writer){.client = c, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_parts, &w[i]), 0);
    }
}

static json_int_t batches_of_the_daemon(void)
{
    static const char name[] = "\nhelios_data_batches_total ";
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    json_t *result = NULL, *params = json_object();
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, world.address, "L3", &peer), HL_OK);
    if (rpc_json_call(peer, "metrics", params, 5000, &result) != HL_OK)
        fail_msg("%s", hl_error_text());
    const char *at = strstr(json_string_value(json_object_get(result, "text")), name);
    assert_non_null(at);
    json_int_t count = strtoll(at + sizeof(name) - 1, NULL, 10);
    json_decref(result);
    json_decref(params);
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
    return count;
}

TEST(small_parts_of_several_threads_share_messages)
{
    static struct writer w[WRITERS];
    pthread_t threads[WRITERS];
    helios_client *c = world_client(&world, "net", 0, 0);
    json_int_t before = batches_of_the_daemon();
    writers_start(c, w, threads);
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        if (w[i].failure != HELIOS_OK)
            fail_msg("%s", w[i].text);
    }
    json_int_t messages = batches_of_the_daemon() - before;
    assert_true(messages > 0 && messages < WRITERS * PARTS);
    for (int i = 0; i < WRITERS; i++)
        for (int part = 0; part < PARTS; part++) {
            const helios_shard *s = &w[i].shards[part];
            unsigned char copy[1024], expected[100];
            memset(expected, byte_of(i, part), sizeof(expected));
            assert_true(s->size <= sizeof(copy));
            assert_int_equal(helios_get(c, s->id, copy, s->size), HELIOS_OK);
            assert_memory_equal(copy + s->size - sizeof(expected), expected, sizeof(expected));
        }
    helios_close(c);
}

static json_int_t shards_of_the_daemon(void)
{
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    json_t *result = NULL, *params = json_object();
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, world.address, "L3", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "poolInfo", params, 5000, &result), HL_OK);
    json_int_t shards =
        json_integer_value(json_object_get(json_object_get(result, "pool"), "shards"));
    json_decref(result);
    json_decref(params);
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
    return shards;
}

/* The daemon is stopped with writes queued behind it, then killed. Each write fails within its
 * deadline, and the next daemon has exactly what was stored. */
TEST(small_parts_that_wait_for_a_dead_daemon_fail_and_leave_nothing)
{
    static struct writer w[WRITERS];
    pthread_t threads[WRITERS];
    helios_client *c = world_client(&world, "net", 3000, 0);
    (void)put_part(c, 95, NULL); /* connected */
    json_int_t before = shards_of_the_daemon(), stored = 0;
    kill(world.pid, SIGSTOP);
    writers_start(c, w, threads);
    nap_ms(100); /* they need not all be waiting: later ones meet a dead daemon */
    world_kill(&world);
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        stored += w[i].stored;
        assert_int_not_equal(w[i].failure, HELIOS_OK);
        assert_true(strlen(w[i].text) > 0);
    }
    assert_int_equal(stored, 0);
    helios_close(c);
    world_launch(&world);
    world_wait(&world);
    assert_int_equal(shards_of_the_daemon(), before);
}

TESTS_IN(setup, teardown)

int main(int argc, char **argv)
{
    char program[512];
    world_program(program, sizeof(program));
    if (access(program, X_OK) != 0) {
        printf("skipped: %s is not built\n", program);
        return SKIP_CODE;
    }
    return tests_run(argc, argv);
}
