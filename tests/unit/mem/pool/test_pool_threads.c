/* Writers that free and write again as fast as they can, and readers without locks: what a reader
 * takes for good must be whole, and of the requested shard. */
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/pool/pool.h"

#define CAPACITY ((uint64_t)24 * HL_POOL_UNIT) /* small: extents and slots are reused at once */
#define PLACES   8
#define SIZE     70000
#define RUN_MS   400

static char path[64];

struct world {
    struct hl_pool *pool;
    struct hl_pool_view *view; /* a mapping of its own, as in another process */
    atomic_uint_fast64_t lo[PLACES], hi[PLACES];
    atomic_bool stop;
    atomic_uint written, read, stale, wrong;
};

/* A shard's bytes are a function of its id. */
static void fill(uint8_t *p, struct hl_id id, uint64_t size)
{
    for (uint64_t i = 0; i < size; i += 8)
        memcpy(p + i, &(uint64_t){id.lo + i}, size - i < 8 ? size - i : 8);
}

static hl_status put(struct hl_pool *pool, struct hl_id *id)
{
    struct hl_pool_extent x;
    HL_TRY(hl_pool_alloc(pool, SIZE, &x));
    uint64_t size = x.size;
    fill(x.ptr, x.id, size);
    uint32_t crc = hl_crc32(0, x.ptr, size);
    HL_TRY(hl_pool_seal(pool, &x, crc, &crc, 1, NULL));
    *id = x.id;
    return HL_OK;
}

static void *writer(void *arg)
{
    struct world *w = arg;
    unsigned place = (unsigned)(hl_random_u64() % PLACES);
    while (!atomic_load(&w->stop)) {
        struct hl_id id, old;
        if (put(w->pool, &id) != HL_OK) {
            hl_pool_beat(w->pool);
            continue;
        }
        place = (place + 1) % PLACES;
        old.lo = atomic_exchange(&w->lo[place], id.lo);
        old.hi = atomic_exchange(&w->hi[place], id.hi);
        if (!hl_id_is_none(old) && hl_pool_free(w->pool, old) == HL_OK)
            atomic_fetch_add(&w->written, 1);
    }
    return NULL;
}

static void *reader(void *arg)
{
    struct world *w = arg;
    uint8_t *got = malloc(SIZE), *expected = malloc(SIZE);
    unsigned place = 0;
    while (!atomic_load(&w->stop)) {
        place = (place + 1) % PLACES;
        struct hl_id id = {atomic_load(&w->hi[place]), atomic_load(&w->lo[place])};
        struct hl_pool_ref ref;
        hl_status st = hl_pool_view_find(w->view, id, &ref);
        if (st == HL_OK)
            st = hl_pool_view_read(w->view, &ref, 0, got, ref.size);
        if (st == HL_OK) {
            fill(expected, id, SIZE);
            bool same = ref.size == SIZE && memcmp(got, expected, SIZE) == 0;
            atomic_fetch_add(same ? &w->read : &w->wrong, 1);
        } else {
            atomic_fetch_add(st == HL_ENOENT || st == HL_ESTALE ? &w->stale : &w->wrong, 1);
        }
    }
    free(got);
    free(expected);
    return NULL;
}

TEST(readers_get_the_whole_shard_or_are_told_it_is_gone)
{
    static struct world w;
    pthread_t threads[5];
    int fd = -1;
    assert_int_equal(hl_pool_open(&(struct hl_pool_options){.path = path,
                                                            .capacity = CAPACITY,
                                                            .index_slots = 32,
                                                            .quarantine_ms = 1,
                                                            .beat_ms = 1},
                                  NULL, &w.pool),
                     HL_OK);
    assert_int_equal(hl_pool_reopen(w.pool, &fd), HL_OK);
    assert_int_equal(hl_pool_view_open(fd, &w.view), HL_OK);
    close(fd);
    for (int i = 0; i < 5; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i < 2 ? writer : reader, &w), 0);
    uint64_t until = hl_now_ns() + RUN_MS * HL_NS_PER_MS, limit = until + 20 * HL_NS_PER_S;
    while (hl_now_ns() < until ||
           (hl_now_ns() < limit && (atomic_load(&w.written) < 50 || atomic_load(&w.read) < 50)))
        usleep(1000);
    atomic_store(&w.stop, true);
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    print_message("written %u, read %u, gone %u\n", atomic_load(&w.written), atomic_load(&w.read),
                  atomic_load(&w.stale));
    assert_int_equal(atomic_load(&w.wrong), 0);
    assert_true(atomic_load(&w.written) >= 50);
    assert_true(atomic_load(&w.read) >= 50);
    hl_pool_view_put(w.view);
    hl_pool_remove(w.pool);
}

/* Pins from many threads: pinned bytes are not overwritten, and in the end all space is back. */
static void *borrower(void *arg)
{
    struct world *w = arg;
    uint8_t *expected = malloc(SIZE);
    while (!atomic_load(&w->stop)) {
        struct hl_id id;
        struct hl_pool_ref ref, again;
        if (put(w->pool, &id) != HL_OK)
            continue;
        if (hl_pool_pin(w->pool, id, 0, &ref) != HL_OK || hl_pool_free(w->pool, id) != HL_OK ||
            hl_pool_pin(w->pool, id, ref.offset, &again) != HL_OK) {
            atomic_fetch_add(&w->wrong, 1);
            break;
        }
        usleep(1500); /* longer than the quarantine */
        size_t len;
        const uint8_t *base = hl_pool_base(w->pool, &len);
        fill(expected, id, SIZE);
        if (memcmp(base + ref.offset, expected, SIZE) != 0)
            atomic_fetch_add(&w->wrong, 1);
        hl_pool_unpin(w->pool, &ref);
        hl_pool_unpin(w->pool, &again);
        atomic_fetch_add(&w->written, 1);
    }
    free(expected);
    return NULL;
}

TEST(pinned_shards_keep_their_bytes_while_others_are_written)
{
    static struct world w;
    pthread_t threads[4];
    struct hl_pool_info info;
    assert_int_equal(hl_pool_open(
                         &(struct hl_pool_options){
                             .path = path, .capacity = CAPACITY, .quarantine_ms = 1, .beat_ms = 1},
                         NULL, &w.pool),
                     HL_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, borrower, &w), 0);
    uint64_t until = hl_now_ns() + RUN_MS / 2 * HL_NS_PER_MS, limit = until + 20 * HL_NS_PER_S;
    while (hl_now_ns() < until || (hl_now_ns() < limit && atomic_load(&w.written) < 20))
        usleep(1000);
    atomic_store(&w.stop, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&w.wrong), 0);
    assert_true(atomic_load(&w.written) >= 20);
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    do {
        usleep(1000);
        hl_pool_info(w.pool, &info);
    } while (info.quarantined > 0 && hl_now_ns() < deadline);
    assert_int_equal(info.free, CAPACITY);
    hl_pool_remove(w.pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-threads-%d", (int)getpid());
    int failed = tests_run(argc, argv);
    unlink(path);
    return failed;
}

/* The pool is full: the waiter gets its room once a shard is freed and its quarantine has ended. It
 * waits an hour at most, so a wait that no change ends fails by the test's time limit. */
static void *waiter(void *arg)
{
    struct world *w = arg;
    struct hl_pool_extent x;
    const uint64_t hour_ns = UINT64_C(3600) * HL_NS_PER_S;
    for (;;) {
        uint64_t seen = hl_pool_changes(w->pool);
        if (hl_pool_alloc(w->pool, CAPACITY / 2, &x) == HL_OK)
            break;
        hl_pool_wait_change(w->pool, seen, hl_now_ns() + hour_ns);
    }
    hl_pool_abort(w->pool, &x);
    return NULL;
}

TEST(who_waits_for_room_is_woken_when_a_quarantine_ends)
{
    static struct world w;
    pthread_t thread;
    struct hl_pool_extent x;
    assert_int_equal(hl_pool_open(
                         &(struct hl_pool_options){
                             .path = path, .capacity = CAPACITY, .quarantine_ms = 1, .beat_ms = 1},
                         NULL, &w.pool),
                     HL_OK);
    uint64_t before = hl_pool_changes(w.pool);
    assert_int_equal(hl_pool_alloc(w.pool, CAPACITY / 4 * 3, &x), HL_OK);
    assert_int_equal(pthread_create(&thread, NULL, waiter, &w), 0);
    uint32_t crcs[8] = {0}, crc = 0;
    uint64_t chunks = hl_chunk_count(x.size);
    assert_true(chunks <= 8);
    memset(x.ptr, 0, x.size);
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t len = i + 1 < chunks ? HL_CHUNK : x.size - i * HL_CHUNK;
        crcs[i] = hl_crc32(0, (const char *)x.ptr + i * HL_CHUNK, len);
        crc = i == 0 ? crcs[0] : hl_crc32_combine(crc, crcs[i], len);
    }
    assert_int_equal(hl_pool_seal(w.pool, &x, crc, crcs, chunks, NULL), HL_OK);
    assert_int_equal(hl_pool_free(w.pool, x.id), HL_OK);
    pthread_join(thread, NULL);
    assert_true(hl_pool_changes(w.pool) >= before + 3);      /* sealed, freed, rested */
    hl_pool_wait_change(w.pool, hl_pool_changes(w.pool), 0); /* a time that has passed */
    hl_pool_remove(w.pool);
}
