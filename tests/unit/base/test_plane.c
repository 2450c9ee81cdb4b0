#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/plane.h"
#include "base/plane_private.h"
#include "support/prom_text.h"

static struct prom *metrics(void)
{
    struct hl_buf text = HL_BUF(1 << 20);
    struct prom *p = malloc(sizeof(*p));
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    prom_parse(text.data, p);
    hl_buf_fini(&text);
    return p;
}

static double metric(const char *name, const char *labels)
{
    struct prom *p = metrics();
    double v = prom_value(p, name, labels);
    free(p);
    return v;
}

TEST(a_transfer_is_counted_on_its_plane_and_nowhere_else)
{
    struct hl_plane_stats before[HL_PLANE_COUNT], now;
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        hl_plane_stats(p, &before[p]);
    struct hl_transfer t = {.plane = HL_PLANE_MIGRATION,
                            .op = "migrate",
                            .path = "zmq",
                            .reason = "migration-net",
                            .sent = 1,
                            .bytes = 1000,
                            .ns = 600};
    hl_plane_count(&t);
    t.status = HL_ETIMEDOUT;
    t.bytes = 30;
    hl_plane_count(&t);
    for (int p = 0; p < HL_PLANE_COUNT; p++) {
        int mine = p == HL_PLANE_MIGRATION;
        hl_plane_stats(p, &now);
        assert_int_equal(now.ops[1] - before[p].ops[1], mine ? 2 : 0);
        assert_int_equal(now.bytes[1] - before[p].bytes[1], mine ? 1030 : 0);
        assert_int_equal(now.ops[0], before[p].ops[0]);
        assert_int_equal(now.failed - before[p].failed, mine);
        /* 600 ns: over 0.5 us, within 1 us; the failed one is not counted */
        assert_int_equal(now.latency[2] - before[p].latency[2], mine);
        assert_int_equal(now.latency_ns - before[p].latency_ns, mine ? 600 : 0);
    }
    assert_true(metric("helios_path_total", "op=\"migrate\",path=\"zmq\",reason=\"migration-net\","
                                            "result=\"failed\"") == 1);
    assert_true(metric("helios_path_bytes_total",
                       "op=\"migrate\",path=\"zmq\","
                       "reason=\"migration-net\",result=\"ok\"") == 1000);
}

TEST(buckets_and_quantiles_are_those_worked_out_by_hand)
{
    assert_int_equal(hl_plane_bucket(0), 0);
    assert_int_equal(hl_plane_bucket(250), 0);
    assert_int_equal(hl_plane_bucket(251), 1);
    assert_int_equal(hl_plane_bucket(500), 1);
    assert_int_equal(hl_plane_bucket(1000000), 12); /* 250 << 12 = 1.024 ms */
    assert_int_equal(hl_plane_bucket(UINT64_MAX), HL_PLANE_BUCKETS - 1);
    uint64_t h[HL_PLANE_BUCKETS] = {0};
    assert_true(hl_plane_quantile_us(h, 0.5) == 0);
    h[2] = 98; /* up to 1 us */
    h[12] = 2; /* up to 1024 us */
    assert_true(hl_plane_quantile_us(h, 0.5) == 1.0);
    assert_true(hl_plane_quantile_us(h, 0.98) == 1.0);
    assert_true(hl_plane_quantile_us(h, 0.99) == 1024.0);
    assert_true(hl_plane_quantile_us(h, 0) == 1.0);
    assert_true(hl_plane_quantile_us(h, 1) == 1024.0);
}

static double busy_at(uint64_t ns)
{
    struct hl_plane_stats s;
    hl_plane_stats_at(HL_PLANE_BACKBONE, ns, &s);
    return s.busy_pct;
}

TEST(busy_is_that_of_the_last_whole_second)
{
    const uint64_t S = HL_NS_PER_S, T = 5000 * S;
    assert_true(busy_at(T) == -1);                 /* without a rate there is no answer */
    hl_plane_set_rate(HL_PLANE_BACKBONE, 8000000); /* 1 MB/s */
    struct hl_transfer t = {.plane = HL_PLANE_BACKBONE,
                            .op = "read",
                            .path = "busy-test",
                            .reason = "",
                            .bytes = 250000,
                            .ns = 1000};
    hl_plane_count_at(&t, T + S / 2);
    hl_plane_count_at(&t, T + S / 2 + 7);
    t.sent = 1;
    hl_plane_count_at(&t, T + S / 2);     /* the other direction is less busy */
    assert_true(busy_at(T + S - 1) == 0); /* this second has not ended */
    assert_true(busy_at(T + S) == 50.0);
    assert_true(busy_at(T + 2 * S - 1) == 50.0);
    assert_true(busy_at(T + 2 * S) == 0);
    /* the slot of an old second is reused: nothing of the old one is left */
    t.sent = 0;
    hl_plane_count_at(&t, T + HL_PLANE_SECONDS * S + S / 2);
    assert_true(busy_at(T + (HL_PLANE_SECONDS + 1) * S) == 25.0);
    /* 2 s long, ending 0.5 s into a second: a quarter of its bytes in this one, half before */
    t.bytes = 1000000;
    t.ns = 2 * S;
    hl_plane_count_at(&t, T + 20 * S + S / 2);
    assert_true(busy_at(T + 20 * S) == 50.0);
    assert_true(busy_at(T + 21 * S) == 25.0);
    hl_plane_set_rate(HL_PLANE_BACKBONE, 0);
}

TEST(many_transfers_may_be_added_at_once)
{
    struct hl_plane_stats a, b;
    hl_plane_stats(HL_PLANE_INSIDE, &a);
    uint64_t h[HL_PLANE_BUCKETS] = {[0] = 3, [4] = 1};
    struct hl_transfer t = {.plane = HL_PLANE_INSIDE,
                            .op = "read",
                            .path = "mapped",
                            .reason = "shared-memory",
                            .bytes = 64000,
                            .ns = 4500};
    hl_plane_add(&t, 1000, h); /* of which four were timed */
    hl_plane_add(&t, 0, h);
    hl_plane_stats(HL_PLANE_INSIDE, &b);
    assert_int_equal(b.ops[0] - a.ops[0], 1000);
    assert_int_equal(b.bytes[0] - a.bytes[0], 64000);
    assert_int_equal(b.latency[0] - a.latency[0], 3);
    assert_int_equal(b.latency_ns - a.latency_ns, 4500);
    hl_path_add("read", "direct", "one-sided", 0, 5, 50);
    assert_true(metric("helios_path_total", "op=\"read\",path=\"direct\",reason=\"one-sided\","
                                            "result=\"ok\"") == 5);
}

TEST(the_text_holds_every_family_and_escapes_words)
{
    hl_plane_set_rate(HL_PLANE_MIGRATION, 200000000000ull);
    hl_plane_set_place(HL_PLANE_MIGRATION, "10.1.0.7", "eth\"1");
    hl_fault_count("cr\"c\\\n", "tcp");
    hl_fault_count("cr\"c\\\n", "tcp");
    hl_fault_count(NULL, "a word that is longer than thirty-one bytes");
    struct prom *p = metrics();
    assert_true(prom_value(p, "helios_plane_line_rate_bits", "plane=\"migration\"") == 2e11);
    assert_true(prom_value(p, "helios_plane_line_rate_bits", "plane=\"management\"") == -1);
    assert_true(prom_value(p, "helios_plane_busy_ratio", "plane=\"migration\"") >= 0);
    assert_true(prom_value(p, "helios_plane_info",
                           "plane=\"migration\",address=\"10.1.0.7\","
                           "interface=\"eth\\\"1\"") == 1);
    assert_true(prom_value(p, "helios_fault_total", "cause=\"cr\\\"c\\\\\\n\",path=\"tcp\"") == 2);
    assert_true(prom_value(p, "helios_fault_total",
                           "cause=\"\",path=\"a word that is longer than thir\"") == 1);
    for (int i = 0; i < HL_PLANE_COUNT; i++) {
        char labels[64];
        snprintf(labels, sizeof(labels), "plane=\"%s\",direction=\"received\"", hl_plane_name(i));
        assert_true(prom_value(p, "helios_plane_bytes_total", labels) >= 0);
        assert_true(prom_value(p, "helios_plane_ops_total", labels) >= 0);
    }
    assert_true(prom_value(p, "helios_plane_latency_seconds_count", "plane=\"backbone\"") >= 0);
    assert_true(prom_value(p, "helios_plane_latency_seconds_bucket",
                           "plane=\"backbone\",le=\"2.5e-07\"") >= 0);
    assert_true(prom_value(p, "helios_plane_failed_total", "plane=\"backbone\"") >= 0);
    free(p);
    struct hl_buf small = HL_BUF(100);
    assert_int_equal(hl_plane_metrics(&small), HL_ENOMEM);
    hl_buf_fini(&small);
}

enum { THREADS = 8, ROUNDS = 20000 };

static void *count_in_a_thread(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        char reason[16];
        snprintf(reason, sizeof(reason), "r%d", i % 16);
        struct hl_transfer t = {.plane = HL_PLANE_MANAGEMENT,
                                .op = "call",
                                .path = "threads",
                                .reason = reason,
                                .sent = i & 1,
                                .bytes = 3,
                                .ns = 100};
        hl_plane_count(&t);
        if (i % 5000 == 0) {
            struct hl_buf text = HL_BUF(1 << 20);
            hl_status st = hl_plane_metrics(&text);
            hl_buf_fini(&text);
            if (st != HL_OK)
                return arg;
        }
    }
    return NULL;
}

TEST(threads_lose_no_count)
{
    struct hl_plane_stats a, b;
    pthread_t thread[THREADS];
    hl_plane_stats(HL_PLANE_MANAGEMENT, &a);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, count_in_a_thread, &b), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    hl_plane_stats(HL_PLANE_MANAGEMENT, &b);
    for (int dir = 0; dir < 2; dir++) {
        assert_int_equal(b.ops[dir] - a.ops[dir], THREADS * ROUNDS / 2);
        assert_int_equal(b.bytes[dir] - a.bytes[dir], THREADS * ROUNDS / 2 * 3);
    }
    assert_int_equal(b.latency[0] - a.latency[0], THREADS * ROUNDS);
    for (int r = 0; r < 16; r++) { /* each once in the table, with all of its counts */
        char labels[128];
        snprintf(labels, sizeof(labels),
                 "op=\"call\",path=\"threads\",reason=\"r%d\",result=\"ok\"", r);
        assert_true(metric("helios_path_total", labels) == THREADS * ROUNDS / 16);
    }
}

/* Must be last: it leaves a full table behind. */
TEST(what_finds_no_room_is_counted_as_other)
{
    struct hl_transfer t = {.plane = HL_PLANE_INSIDE, .op = "fill", .path = "x", .bytes = 1};
    for (int i = 0; i < 2 * HL_PLANE_PATHS_MAX; i++) {
        char reason[16];
        snprintf(reason, sizeof(reason), "full%d", i);
        t.reason = reason;
        hl_plane_count(&t);
    }
    struct prom *p = metrics();
    unsigned own = 0;
    for (size_t i = 0; i < p->count; i++)
        own += !strcmp(p->sample[i].name, "helios_path_total") &&
               !strncmp(p->sample[i].labels, "op=\"fill\"", 9);
    double other =
        prom_value(p, "helios_path_total", "op=\"other\",path=\"other\",reason=\"\",result=\"ok\"");
    assert_true(own > 0 && own < HL_PLANE_PATHS_MAX);
    assert_true(other == 2 * HL_PLANE_PATHS_MAX - own);
    free(p);
}

TEST(faults_are_taken_once_to_be_told_elsewhere)
{
    struct hl_fault taken[2];
    while (hl_fault_take(taken, 2) > 0) /* what other tests have counted */
        ;
    hl_fault_count("told-cause", "told-path");
    hl_fault_add("told-cause", "told-path", 4);
    assert_int_equal(hl_fault_take(taken, 2), 1);
    assert_string_equal(taken[0].cause, "told-cause");
    assert_string_equal(taken[0].path, "told-path");
    assert_int_equal(taken[0].count, 5);
    assert_int_equal(hl_fault_take(taken, 2), 0);
    for (int i = 0; i < 3; i++)
        hl_fault_count("told-cause", i == 0 ? "a" : i == 1 ? "b" : "c");
    assert_int_equal(hl_fault_take(taken, 2), 2);
    assert_int_equal(hl_fault_take(taken, 2), 1); /* no more than fit, and none is lost */
}
