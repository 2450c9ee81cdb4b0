/* The migration channel over loopback: real sockets, real processes that die. */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/pace.h"
#include "net/zmq/frame.h"
#include "net/zmq/migrate.h"

#define KIB     ((size_t)1 << 10)
#define MIB     ((size_t)1 << 20)
#define BIG     (48 * MIB)
#define CHUNK   (256u << 10)
#define SEND_MS 20000
/* On a busy machine sanitizers can keep a thread waiting for longer than the default second. */
#define PATIENT_MS 8000

static uint8_t *source; /* BIG bytes without repetitions */

/* Where objects are stored; several can be arriving at once. */
struct vault {
    atomic_int begun, committed, aborted;
    atomic_int refuse_begin, refuse_commit;
    atomic_int seen; /* orders the test's reads and the next commit for ThreadSanitizer */
    uint8_t *last;   /* of the last commit */
    uint64_t last_size;
    uint32_t crcs[64];
    size_t crc_count;
};

struct slot {
    struct hl_id wanted;
    uint64_t size;
    uint8_t bytes[];
};

static hl_status vault_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct vault *v = arg;
    if (v->refuse_begin)
        return hl_fail(HL_ENOSPC, "the pool of node n7 has 7 bytes left");
    struct slot *slot = malloc(sizeof(*slot) + size);
    slot->size = size;
    slot->wanted = id;
    v->begun++;
    *token = slot;
    *ptr = slot->bytes;
    return HL_OK;
}

static hl_status vault_commit(void *arg, void *token, uint32_t crc, const uint32_t *crcs,
                              size_t count, struct hl_id *id)
{
    struct vault *v = arg;
    struct slot *slot = token;
    if (v->refuse_commit) {
        free(slot);
        return hl_fail(HL_ECONFLICT, "sealing failed");
    }
    (void)atomic_load(&v->seen); /* the test is done with the previous commit */
    free(v->last);
    v->last = malloc(slot->size);
    memcpy(v->last, slot->bytes, slot->size);
    v->last_size = slot->size;
    v->crc_count = count;
    for (size_t i = 0; i < count && i < HL_ARRAY_LEN(v->crcs); i++)
        v->crcs[i] = crcs[i];
    *id = hl_id_is_none(slot->wanted) ? (struct hl_id){0xabcdef, crc} : slot->wanted;
    v->committed++;
    free(slot);
    return HL_OK;
}

static void vault_abort(void *arg, void *token)
{
    ((struct vault *)arg)->aborted++;
    free(token);
}

static struct hl_migrate_server *serve(struct vault *v, uint64_t window)
{
    struct hl_migrate_server *server = NULL;
    struct hl_migrate_server_opts opts = {.listen = "127.0.0.1:0",
                                          .sink = {vault_begin, vault_commit, vault_abort, v},
                                          .window_bytes = window};
    if (hl_migrate_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    return server;
}

static void stop(struct hl_migrate_server *server, struct vault *v)
{
    hl_migrate_server_stop(server);
    assert_int_equal(v->begun, v->committed + v->aborted);
    free(v->last);
}

static struct hl_migrate_server_stats stats_of(const struct hl_migrate_server *server)
{
    struct hl_migrate_server_stats st;
    hl_migrate_server_stats(server, &st);
    return st;
}

TEST(objects_of_many_sizes_arrive_as_they_were)
{
    static const size_t sizes[] = {1,           63,      CHUNK - 1, CHUNK,           CHUNK + 1,
                                   MIB - 1,     MIB + 1, 5 * MIB,   5 * MIB + 12345, 16 * MIB,
                                   17 * MIB + 3};
    static const uint32_t chunks[] = {CHUNK, 1u << 20, 8u << 20};
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 4 * MIB);
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes) * HL_ARRAY_LEN(chunks); i++) {
        size_t size = sizes[i / HL_ARRAY_LEN(chunks)];
        const uint8_t *data = source + i * 64;
        struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                            .chunk_size = chunks[i % HL_ARRAY_LEN(chunks)],
                                            .dead_ms = PATIENT_MS};
        struct hl_migrate_report r;
        uint32_t crc = hl_crc32(0, data, size);
        if (hl_migrate_send(&opts, data, size, crc, SEND_MS, &r) != HL_OK)
            fail_msg("%zu bytes: %s", size, hl_error_text());
        assert_int_equal(v.committed, i + 1);
        assert_int_equal(v.last_size, size);
        assert_memory_equal(v.last, data, size);
        assert_int_equal(r.stored.lo, crc);
        assert_int_equal(r.chunks_sent, (size + opts.chunk_size - 1) / opts.chunk_size);
        assert_int_equal(v.crc_count, (size + MIB - 1) / MIB);
        for (size_t c = 0; c < v.crc_count; c++) {
            size_t left = size - c * MIB;
            assert_int_equal(v.crcs[c], hl_crc32(0, data + c * MIB, left < MIB ? left : MIB));
        }
        v.seen++;
    }
    struct hl_migrate_server_stats st = stats_of(server);
    assert_int_equal(st.committed, HL_ARRAY_LEN(sizes) * HL_ARRAY_LEN(chunks));
    assert_int_equal(st.refused + st.corrupted + st.duplicate + st.open_now, 0);
    stop(server, &v);
}

TEST(a_table_of_checksums_is_used_and_found_out_when_it_lies)
{
    uint32_t table[5];
    size_t size = 4 * MIB + 100;
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 0);
    for (size_t i = 0; i < 5; i++)
        table[i] = hl_crc32(0, source + i * MIB, i < 4 ? MIB : 100);
    struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                        .chunk_size = 2u << 20,
                                        .chunk_crcs = table,
                                        .dead_ms = PATIENT_MS};
    uint32_t crc = hl_crc32(0, source, size);
    assert_int_equal(hl_migrate_send(&opts, source, size, crc, SEND_MS, NULL), HL_OK);
    table[3] ^= 1;
    struct hl_migrate_report r;
    assert_int_equal(hl_migrate_send(&opts, source, size, crc, SEND_MS, &r), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "the last was 1 of 3"));
    assert_true(r.chunks_nacked >= 16);
    stop(server, &v);
}

/* Each chunk but the first waits until the previous one is paid for. */
TEST(a_paced_migration_goes_out_no_faster_and_asks_nothing_again)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 0);
    struct hl_pace pace = {.bytes_per_s = 5 * MIB};
    struct hl_migrate_send_opts opts = {
        .address = hl_migrate_server_address(server), .dead_ms = PATIENT_MS, .pace = &pace};
    struct hl_migrate_report r;
    uint64_t begun = hl_now_ns();
    assert_int_equal(
        hl_migrate_send(&opts, source, 3 * MIB, hl_crc32(0, source, 3 * MIB), SEND_MS, &r), HL_OK);
    assert_true(hl_now_ns() - begun >= 400 * HL_NS_PER_MS - 2 * HL_PACE_LATE_NS);
    assert_int_equal(r.chunks_sent, 3);
    stop(server, &v);
}

TEST(the_sender_may_name_the_object)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 0);
    struct hl_migrate_send_opts opts = {
        .address = hl_migrate_server_address(server), .object = {7, 8}, .dead_ms = PATIENT_MS};
    struct hl_migrate_report r;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, hl_crc32(0, source, MIB), SEND_MS, &r),
                     HL_OK);
    assert_true(hl_id_equal(r.stored, opts.object));
    stop(server, &v);
}

TEST(a_wrong_checksum_of_the_whole_is_refused_and_aborted)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 0);
    struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                        .dead_ms = PATIENT_MS};
    assert_int_equal(hl_migrate_send(&opts, source, 3 * MIB, 7, SEND_MS, NULL), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "the source is damaged"));
    assert_int_equal(v.committed, 0);
    assert_int_equal(stats_of(server).aborted, 1);
    stop(server, &v);
}

TEST(a_receiver_that_is_full_says_so_in_its_own_words)
{
    struct vault v = {.refuse_begin = 1};
    struct hl_migrate_server *server = serve(&v, 0);
    struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                        .dead_ms = PATIENT_MS};
    uint32_t crc = hl_crc32(0, source, MIB);
    assert_int_equal(hl_migrate_send(&opts, source, MIB, crc, SEND_MS, NULL), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "the pool of node n7 has 7 bytes left"));
    v.refuse_begin = 0;
    v.refuse_commit = 1;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, crc, SEND_MS, NULL), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "sealing failed"));
    hl_migrate_server_stop(server);
    assert_int_equal(v.aborted, 0); /* commit ended it */
}

TEST(nobody_at_the_address_is_an_error_in_time)
{
    struct hl_migrate_send_opts opts = {.address = "127.0.0.1:1", .dead_ms = 300};
    uint64_t before = hl_now_ns();
    assert_int_equal(hl_migrate_send(&opts, source, MIB, 1, SEND_MS, NULL), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "127.0.0.1:1"));
    assert_true(hl_now_ns() - before < SEND_MS * HL_NS_PER_MS);
    opts.dead_ms = 60000;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, 1, 200, NULL), HL_ETIMEDOUT);
    assert_int_equal(hl_migrate_send(&opts, source, 0, 1, 200, NULL), HL_EINVAL);
    opts.chunk_size = 300000;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, 1, 200, NULL), HL_EINVAL);
}

static void read_all(int fd, void *buf, size_t len)
{
    assert_int_equal(read(fd, buf, len), (ssize_t)len);
}

/* A receiver in a process of its own that gets `sig` after a few chunks. */
static pid_t receiver_hit_by(int sig, char address[64])
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct vault v = {0};
        struct hl_migrate_server *server = serve(&v, 4 * CHUNK);
        char text[64] = "";
        snprintf(text, sizeof(text), "%s", hl_migrate_server_address(server));
        if (write(fds[1], text, sizeof(text)) != sizeof(text))
            _exit(1);
        uint64_t limit = hl_now_ns() + 60 * HL_NS_PER_S;
        while (stats_of(server).chunks < 4 && hl_now_ns() < limit)
            ;
        raise(sig);
        pause();
        _exit(0);
    }
    read_all(fds[0], address, 64);
    close(fds[0]);
    close(fds[1]);
    return pid;
}

static void expect_death_noticed(int sig)
{
    char address[64];
    pid_t pid = receiver_hit_by(sig, address);
    struct hl_migrate_send_opts opts = {.address = address, .chunk_size = CHUNK};
    struct hl_migrate_report r;
    uint64_t before = hl_now_ns();
    uint32_t crc = hl_crc32(0, source, BIG);
    assert_int_equal(hl_migrate_send(&opts, source, BIG, crc, SEND_MS, &r), HL_EUNAVAIL);
    uint64_t ms = (hl_now_ns() - before) / HL_NS_PER_MS;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (ms > 4000)
        fail_msg("noticed after %llu ms", (unsigned long long)ms);
    assert_true(r.chunks_sent >= 4 && r.chunks_sent < BIG / CHUNK);
    assert_non_null(strstr(hl_error_text(), "same id to go on"));
}

TEST(a_receiver_killed_in_the_middle_is_noticed)
{
    expect_death_noticed(SIGKILL);
}

TEST(a_receiver_stopped_in_the_middle_is_noticed)
{
    expect_death_noticed(SIGSTOP);
}

TEST(a_sender_killed_in_the_middle_is_resumed_with_what_is_missing)
{
    int fds[2];
    char address[64] = "";
    struct hl_id id = hl_id_random();
    uint32_t crc = hl_crc32(0, source, BIG);
    struct hl_migrate_send_opts opts = {
        .address = address, .id = id, .chunk_size = CHUNK, .dead_ms = PATIENT_MS};
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork(); /* before there are threads */
    if (pid == 0) {
        read_all(fds[0], address, sizeof(address));
        (void)!hl_migrate_send(&opts, source, BIG, crc, SEND_MS, NULL);
        _exit(0);
    }
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 2 * CHUNK);
    snprintf(address, sizeof(address), "%s", hl_migrate_server_address(server));
    assert_int_equal(write(fds[1], address, sizeof(address)), sizeof(address));
    uint64_t limit = hl_now_ns() + 30 * HL_NS_PER_S;
    while (stats_of(server).chunks < 8 && hl_now_ns() < limit)
        ;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(v.committed, 0);

    struct hl_migrate_report r;
    if (hl_migrate_send(&opts, source, BIG, crc, SEND_MS, &r) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_true(r.chunks_had >= 8);
    assert_int_equal(r.chunks_sent + r.chunks_had, BIG / CHUNK);
    assert_int_equal(v.committed, 1);
    assert_memory_equal(v.last, source, BIG);
    struct hl_migrate_server_stats st = stats_of(server);
    assert_int_equal(st.chunks, BIG / CHUNK);
    assert_true(st.resumed >= 1);
    assert_int_equal(v.begun, 1);

    /* Sent a third time: it is already there. */
    assert_int_equal(hl_migrate_send(&opts, source, BIG, crc, SEND_MS, &r), HL_OK);
    assert_int_equal(r.chunks_sent, 0);
    assert_int_equal(v.committed, 1);
    opts.chunk_size = 2 * CHUNK;
    assert_int_equal(hl_migrate_send(&opts, source, BIG, crc, SEND_MS, &r), HL_ECONFLICT);
    close(fds[0]);
    close(fds[1]);
    stop(server, &v);
}

struct slow_job {
    struct hl_migrate_send_opts opts;
    hl_status st;
    char text[512];
    struct hl_migrate_report r;
};

static void *send_big(void *arg)
{
    struct slow_job *j = arg;
    j->st = hl_migrate_send(&j->opts, source, BIG, 1, SEND_MS, &j->r);
    snprintf(j->text, sizeof(j->text), "%s", hl_error_text());
    return NULL;
}

/* Whether so many came within 30 s. */
static bool wait_for_chunks(const struct hl_migrate_server *server, uint64_t chunks)
{
    uint64_t limit = hl_now_ns() + 30 * HL_NS_PER_S;
    while (stats_of(server).chunks < chunks)
        if (hl_now_ns() > limit)
            return false;
    return true;
}

TEST(a_sender_that_gives_up_frees_the_receiver_at_once)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 2 * CHUNK);
    atomic_bool stop_it = false;
    struct slow_job j = {.opts = {.address = hl_migrate_server_address(server),
                                  .id = hl_id_random(),
                                  .object = {0x77, 0x88},
                                  .cancel = &stop_it,
                                  .chunk_size = CHUNK,
                                  .dead_ms = PATIENT_MS}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_big, &j), 0);
    bool came = wait_for_chunks(server, 4);
    stop_it = 1;
    pthread_join(thread, NULL);
    if (!came)
        fail_msg("fewer than 4 chunks came within 30 s: %s", j.text);
    if (j.st != HL_ECANCELED)
        fail_msg("%d: %s", j.st, j.text);
    assert_non_null(strstr(j.text, "of shard 00000000000000770000000000000088 to 127.0.0.1:"));
    assert_int_equal(stats_of(server).open_now, 0);
    assert_int_equal(stats_of(server).canceled, 1);
    assert_int_equal(v.aborted, 1);
    stop(server, &v);
}

TEST(a_migration_is_canceled_by_somebody_else)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 2 * CHUNK);
    struct slow_job j = {.opts = {.address = hl_migrate_server_address(server),
                                  .id = hl_id_random(),
                                  .chunk_size = CHUNK,
                                  .dead_ms = PATIENT_MS}};
    struct hl_migrate_send_opts who = j.opts;
    pthread_t thread;
    char text[HL_ERROR_TEXT_MAX];
    assert_int_equal(hl_migrate_cancel(&who, SEND_MS), HL_OK); /* nothing there: fine */
    assert_int_equal(pthread_create(&thread, NULL, send_big, &j), 0);
    bool came = wait_for_chunks(server, 4);
    hl_status canceled = hl_migrate_cancel(&who, SEND_MS);
    snprintf(text, sizeof(text), "%s", hl_error_text());
    uint64_t open_now = stats_of(server).open_now;
    pthread_join(thread, NULL); /* ends by its own deadline where it was not canceled */
    if (!came)
        fail_msg("fewer than 4 chunks came within 30 s: %s", j.text);
    if (canceled != HL_OK)
        fail_msg("%s", text);
    assert_int_equal(open_now, 0);
    assert_int_equal(j.st, HL_ECANCELED);
    assert_int_equal(v.begun, 1);
    assert_int_equal(hl_migrate_cancel(&(struct hl_migrate_send_opts){.address = "127.0.0.1:1"}, 9),
                     HL_EINVAL); /* which one? */
    stop(server, &v);
}

TEST(a_line_carries_one_object_after_another_and_heals)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 4 * MIB);
    struct hl_migrate_line *line;
    char address[64];
    snprintf(address, sizeof(address), "%s", hl_migrate_server_address(server));
    assert_int_equal(hl_migrate_line_open(address, 0, &line), HL_OK);
    struct hl_migrate_send_opts opts = {.line = line, .dead_ms = PATIENT_MS};
    for (size_t i = 1; i <= 20; i++) {
        size_t size = i * 300000;
        uint32_t crc = hl_crc32(0, source + i, size);
        if (hl_migrate_send(&opts, source + i, size, crc, SEND_MS, NULL) != HL_OK)
            fail_msg("object %zu: %s", i, hl_error_text());
        assert_int_equal(v.committed, i); /* also orders what follows after the commit */
        assert_int_equal(v.last_size, size);
        assert_memory_equal(v.last, source + i, size);
        v.seen++;
    }
    /* An object that fails costs the connections, not the line. */
    assert_int_equal(hl_migrate_send(&opts, source, 5, 7, SEND_MS, NULL), HL_ECORRUPT);
    uint32_t crc = hl_crc32(0, source, MIB);
    assert_int_equal(hl_migrate_send(&opts, source, MIB, crc, SEND_MS, NULL), HL_OK);
    stop(server, &v);
    /* The receiver ends and comes back at the same address. */
    opts.dead_ms = 200;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, crc, 5000, NULL), HL_EUNAVAIL);
    struct vault again = {0};
    struct hl_migrate_server_opts so = {.listen = address,
                                        .sink = {vault_begin, vault_commit, vault_abort, &again}};
    assert_int_equal(hl_migrate_server_start(&so, &server), HL_OK);
    opts.dead_ms = PATIENT_MS;
    assert_int_equal(hl_migrate_send(&opts, source, MIB, crc, SEND_MS, NULL), HL_OK);
    hl_migrate_line_close(line);
    hl_migrate_line_close(NULL);
    stop(server, &again);
}

TEST(objects_are_compressed_when_asked_for_and_when_they_shrink)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 4 * MIB);
    size_t size = 6 * MIB + 77;
    uint8_t *text = malloc(size);
    for (size_t i = 0; i < size; i++)
        text[i] = (uint8_t)(i % 251 == 0 ? i / 251 : 'a' + i % 7);
    static const int modes[] = {1, 9, HL_MIGRATE_ZSTD_AUTO, HL_MIGRATE_ZSTD_OFF};
    for (size_t i = 0; i < HL_ARRAY_LEN(modes) * 2; i++) {
        const uint8_t *data = i % 2 ? source : text;
        struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                            .zstd = modes[i / 2],
                                            .dead_ms = PATIENT_MS};
        struct hl_migrate_report r;
        uint32_t crc = hl_crc32(0, data, size);
        if (hl_migrate_send(&opts, data, size, crc, SEND_MS, &r) != HL_OK)
            fail_msg("mode %d: %s", opts.zstd, hl_error_text());
        assert_int_equal(v.committed, i + 1);
        assert_memory_equal(v.last, data, size);
        v.seen++;
        if (opts.zstd > 0 && data == text) {
            assert_int_equal(r.chunks_packed, 7);
            assert_true(r.wire_bytes < size / 4);
        } else if (opts.zstd == HL_MIGRATE_ZSTD_OFF || data == source) {
            assert_int_equal(r.chunks_packed, 0);
            assert_int_equal(r.wire_bytes, size);
        }
    }
    struct hl_migrate_send_opts wrong = {.address = "127.0.0.1:1", .zstd = 20};
    assert_int_equal(hl_migrate_send(&wrong, text, size, 0, 9, NULL), HL_EINVAL);
    free(text);
    stop(server, &v);
}

/* The first two chunks are compressed before anything is asked: a second or more of silence that
 * is not the receiver's. */
TEST(a_sender_that_compresses_for_long_does_not_take_its_receiver_for_dead)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 4 * MIB);
    size_t size = 4 * MIB;
    uint8_t *slow = malloc(size);
    for (size_t i = 0; i < size; i++)
        slow[i] = source[i] & 15;
    struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(server),
                                        .chunk_size = 2 * MIB,
                                        .zstd = HL_MIGRATE_ZSTD_MAX,
                                        .dead_ms = 500};
    if (hl_migrate_send(&opts, slow, size, hl_crc32(0, slow, size), 5 * SEND_MS, NULL) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(v.committed, 1);
    assert_memory_equal(v.last, slow, size);
    free(slow);
    stop(server, &v);
}

struct job {
    const struct hl_migrate_server *server;
    size_t at, size;
    hl_status st;
    char text[256];
};

static void *send_job(void *arg)
{
    struct job *j = arg;
    struct hl_migrate_send_opts opts = {.address = hl_migrate_server_address(j->server),
                                        .chunk_size = CHUNK,
                                        .dead_ms = PATIENT_MS};
    uint32_t crc = hl_crc32(0, source + j->at, j->size);
    j->st = hl_migrate_send(&opts, source + j->at, j->size, crc, SEND_MS, NULL);
    snprintf(j->text, sizeof(j->text), "%s", j->st == HL_OK ? "" : hl_error_text());
    return NULL;
}

TEST(senders_at_once_share_the_receiver)
{
    struct vault v = {0};
    struct hl_migrate_server *server = serve(&v, 8 * CHUNK);
    struct job jobs[3];
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) {
        jobs[i] = (struct job){.server = server, .at = i * 777, .size = 12 * MIB + i};
        pthread_create(&threads[i], NULL, send_job, &jobs[i]);
    }
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(jobs[i].text, "");
    assert_int_equal(v.committed, 3);
    assert_int_equal(stats_of(server).bytes, 36 * MIB + 3);
    stop(server, &v);
}

TEST(an_abandoned_migration_is_aborted)
{
    struct vault v = {0};
    struct hl_migrate_server *server = NULL;
    struct hl_migrate_server_opts opts = {.listen = "127.0.0.1:0",
                                          .sink = {vault_begin, vault_commit, vault_abort, &v},
                                          .keep_ms = 50};
    assert_int_equal(hl_migrate_server_start(&opts, &server), HL_OK);
    void *ctx = zmq_ctx_new(), *sock = zmq_socket(ctx, ZMQ_DEALER);
    char endpoint[96];
    uint8_t header[HL_MIG_HEADER];
    snprintf(endpoint, sizeof(endpoint), "tcp://%s", hl_migrate_server_address(server));
    assert_int_equal(zmq_connect(sock, endpoint), 0);
    struct hl_mig_frame f = {.type = HL_MIG_OPEN,
                             .id = hl_id_random(),
                             .total = MIB,
                             .chunk_size = CHUNK,
                             .chunk_count = 4};
    hl_mig_encode(&f, header);
    assert_int_equal(zmq_send(sock, header, sizeof(header), 0), sizeof(header));
    /* Rubbish in between must not disturb it. */
    assert_int_equal(zmq_send(sock, "hello", 5, ZMQ_SNDMORE), 5);
    assert_int_equal(zmq_send(sock, "a", 1, ZMQ_SNDMORE), 1);
    assert_int_equal(zmq_send(sock, "b", 1, 0), 1);
    assert_int_equal(zmq_send(sock, "hello", 5, 0), 5);
    uint64_t limit = hl_now_ns() + 10 * HL_NS_PER_S;
    struct hl_migrate_server_stats st = stats_of(server);
    for (; (st.aborted == 0 || st.open_now > 0) && hl_now_ns() < limit; st = stats_of(server))
        usleep(1000);
    assert_int_equal(st.aborted, 1);
    assert_int_equal(st.open_now, 0);
    assert_int_equal(st.refused, 2);
    int zero = 0;
    zmq_setsockopt(sock, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_close(sock);
    zmq_ctx_term(ctx);
    stop(server, &v);
}

static int make_source(void **state)
{
    (void)state;
    source = malloc(BIG);
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < BIG; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(source + i, &x, 8);
    }
    return 0;
}

static int free_source(void **state)
{
    (void)state;
    free(source);
    return 0;
}

TESTS_IN(make_source, free_source)
