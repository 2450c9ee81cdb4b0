/* Shards that are replaced in place, and shards that are evicted for room. */
#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/pool/pool.h"

#define CAPACITY ((uint64_t)16 * HL_POOL_UNIT)
#define SIZE     ((uint64_t)100000) /* two units */
#define REST_MS  20

static char path[64];

static struct hl_pool *open_pool(struct hl_pool_found *found)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(
        &(struct hl_pool_options){.path = path, .capacity = CAPACITY, .quarantine_ms = REST_MS},
        found, &pool);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    return pool;
}

static struct hl_pool_view *open_view(const struct hl_pool *pool)
{
    struct hl_pool_view *view = NULL;
    int fd = -1;
    assert_int_equal(hl_pool_reopen(pool, &fd), HL_OK);
    assert_int_equal(hl_pool_view_open(fd, &view), HL_OK);
    close(fd);
    return view;
}

static struct hl_pool_ref put(struct hl_pool *pool, uint8_t byte)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_alloc(pool, SIZE, &x), HL_OK);
    memset(x.ptr, byte, SIZE);
    uint32_t crc = hl_crc32(0, x.ptr, SIZE);
    assert_int_equal(hl_pool_seal(pool, &x, crc, &crc, 1, &ref), HL_OK);
    return ref;
}

static void spoil(struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    size_t len;
    ((uint8_t *)hl_pool_base(pool, &len))[ref->offset + SIZE / 2] ^= 1;
}

static struct hl_pool_ref replace(struct hl_pool *pool, const struct hl_pool_ref *old, uint8_t byte)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_alloc_beside(pool, old, &x), HL_OK);
    memset(x.ptr, byte, SIZE);
    uint32_t crc = hl_crc32(0, x.ptr, SIZE);
    assert_int_equal(hl_pool_replace(pool, old, &x, &crc, 1, &ref), HL_OK);
    return ref;
}

static void rest(struct hl_pool *pool)
{
    struct hl_pool_info info;
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    do {
        poll(NULL, 0, 2);
        hl_pool_beat(pool);
        hl_pool_info(pool, &info);
    } while (info.quarantined > 0 && hl_now_ns() < deadline);
    assert_int_equal(info.quarantined, 0);
}

TEST(a_replaced_shard_is_found_under_its_id_and_the_old_bytes_rest)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_info info;
    struct hl_pool_ref now;
    uint8_t buf[SIZE];
    struct hl_pool_ref old = put(pool, 7);
    spoil(pool, &old);
    assert_int_equal(hl_pool_view_read(view, &old, 0, buf, SIZE), HL_ECORRUPT);
    struct hl_pool_ref fresh = replace(pool, &old, 7);
    assert_int_not_equal(fresh.offset, old.offset);
    assert_int_equal(hl_pool_view_find(view, old.id, &now), HL_OK);
    assert_int_equal(now.offset, fresh.offset);
    assert_int_equal(now.crc32, old.crc32);
    assert_int_equal(hl_pool_view_read(view, &now, 0, buf, SIZE), HL_OK);
    assert_int_equal(buf[SIZE / 2], 7);
    assert_int_equal(hl_pool_view_read(view, &old, 0, buf, 1), HL_ESTALE);
    hl_pool_info(pool, &info);
    assert_int_equal(info.shards, 1);
    assert_int_equal(info.used, 2 * HL_POOL_UNIT);
    assert_int_equal(info.quarantined, 2 * HL_POOL_UNIT);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    rest(pool);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_pinned_old_one_keeps_its_bytes)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref pinned, again;
    struct hl_pool_info info;
    size_t len;
    struct hl_pool_ref old = put(pool, 9);
    assert_int_equal(hl_pool_pin(pool, old.id, 0, &pinned), HL_OK);
    struct hl_pool_ref fresh = replace(pool, &old, 9);
    for (uint64_t end = hl_now_ns() + 3 * REST_MS * HL_NS_PER_MS; hl_now_ns() < end;) {
        poll(NULL, 0, 5);
        hl_pool_beat(pool);
    }
    hl_pool_info(pool, &info);
    assert_int_equal(info.quarantined, 2 * HL_POOL_UNIT);
    assert_int_equal(((uint8_t *)hl_pool_base(pool, &len))[old.offset], 9);
    /* a reader that has the old place mapped can pin it again; a new request gets the new place */
    assert_int_equal(hl_pool_pin(pool, old.id, old.offset, &again), HL_OK);
    assert_int_equal(again.offset, old.offset);
    hl_pool_unpin(pool, &again);
    assert_int_equal(hl_pool_pin(pool, old.id, 0, &again), HL_OK);
    assert_int_equal(again.offset, fresh.offset);
    hl_pool_unpin(pool, &again);
    hl_pool_unpin(pool, &pinned);
    rest(pool);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

TEST(what_is_gone_or_differs_is_not_replaced)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_extent x, y;
    struct hl_pool_info info;
    struct hl_pool_ref old = put(pool, 1);
    assert_int_equal(hl_pool_alloc_beside(pool, &old, &x), HL_OK);
    assert_int_equal(hl_pool_alloc_beside(pool, &old, &y), HL_EEXIST);
    memset(x.ptr, 2, SIZE); /* other bytes than the shard's */
    uint32_t crc = hl_crc32(0, x.ptr, SIZE);
    assert_int_equal(hl_pool_replace(pool, &old, &x, &crc, 1, NULL), HL_ECORRUPT);
    assert_int_equal(hl_pool_free(pool, old.id), HL_OK); /* removed meanwhile */
    memset(x.ptr, 1, SIZE);
    crc = hl_crc32(0, x.ptr, SIZE);
    assert_int_equal(hl_pool_replace(pool, &old, &x, &crc, 1, NULL), HL_ESTALE);
    hl_pool_abort(pool, &x);
    assert_int_equal(hl_pool_alloc_beside(pool, &old, &y), HL_ESTALE);
    rest(pool);
    hl_pool_info(pool, &info);
    assert_int_equal(info.used, 0);
    assert_int_equal(info.largest, CAPACITY);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

TEST(an_adopted_pool_has_one_of_the_two)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_found found;
    struct hl_pool_extent x;
    struct hl_pool_ref now;
    struct hl_pool_ref a = put(pool, 3), b = put(pool, 4);
    struct hl_pool_ref fresh = replace(pool, &a, 3);
    assert_int_equal(hl_pool_alloc_beside(pool, &b, &x), HL_OK); /* and never finished */
    hl_pool_close(pool);
    pool = open_pool(&found);
    assert_int_equal(found.kept, 2);
    assert_int_equal(found.freed, 1);
    assert_int_equal(found.unfinished, 1);
    assert_int_equal(hl_pool_find(pool, a.id, &now), HL_OK);
    assert_int_equal(now.offset, fresh.offset);
    assert_int_equal(hl_pool_find(pool, b.id, &now), HL_OK);
    assert_int_equal(now.offset, b.offset);
    rest(pool);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

/* ---- readers at work ------------------------------------------------------------------------- */

struct reader {
    struct hl_pool_view *view;
    struct hl_id id;
    atomic_bool *stop;
    unsigned read, wrong, missed;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    uint8_t *buf = malloc(SIZE);
    while (!atomic_load(r->stop)) {
        struct hl_pool_ref ref;
        hl_status st = hl_pool_view_find(r->view, r->id, &ref);
        r->missed += st == HL_ENOENT;
        if (st != HL_OK)
            continue;
        st = hl_pool_view_read(r->view, &ref, 0, buf, SIZE);
        r->read += st == HL_OK;
        r->wrong += st != HL_OK && st != HL_ESTALE;
        r->wrong += st == HL_OK && (buf[0] != 5 || buf[SIZE - 1] != 5);
    }
    free(buf);
    return NULL;
}

TEST(a_reader_always_finds_one_of_them)
{
    struct hl_pool *pool = open_pool(NULL);
    atomic_bool stop = false;
    pthread_t thread;
    struct hl_pool_ref ref = put(pool, 5);
    struct reader r = {.view = open_view(pool), .id = ref.id, .stop = &stop};
    assert_int_equal(pthread_create(&thread, NULL, reader_main, &r), 0);
    for (int i = 0; i < 60; i++) {
        struct hl_pool_extent x;
        hl_status st;
        while ((st = hl_pool_alloc_beside(pool, &ref, &x)) == HL_ENOSPC)
            poll(NULL, 0, 1);
        assert_int_equal(st, HL_OK);
        memset(x.ptr, 5, SIZE);
        uint32_t crc = hl_crc32(0, x.ptr, SIZE);
        assert_int_equal(hl_pool_replace(pool, &ref, &x, &crc, 1, &ref), HL_OK);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    assert_true(r.read > 0);
    assert_int_equal(r.wrong, 0);
    /* The new entry may stand before the old one in the order of a search, which has then passed
     * it by: the reader looks again. That is as rare as a change under way. */
    assert_true(r.missed <= 60);
    hl_pool_view_put(r.view);
    hl_pool_remove(pool);
}

/* ---- eviction -------------------------------------------------------------------------------- */

static bool not_the_one(void *arg, const struct hl_pool_ref *ref)
{
    return !hl_id_equal(*(struct hl_id *)arg, ref->id);
}

TEST(the_least_recently_used_go_first)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref s[5], ref;
    struct hl_pool_evicted out;
    struct hl_pool_eviction what = {.bytes = 3 * HL_POOL_UNIT, .may_go = not_the_one};
    for (int i = 0; i < 5; i++)
        s[i] = put(pool, (uint8_t)i);
    for (int i = 4; i >= 0; i--) { /* 4 is the oldest */
        hl_pool_touch(pool, &s[i]);
        poll(NULL, 0, 1);
    }
    what.arg = &s[3].id;                                          /* must stay */
    assert_int_equal(hl_pool_pin(pool, s[2].id, 0, &ref), HL_OK); /* so must a pinned one */
    assert_int_equal(hl_pool_evict(pool, &what, &out), HL_OK);
    assert_int_equal(out.shards, 2); /* two units each: three need two of them */
    assert_int_equal(out.bytes, 4 * HL_POOL_UNIT);
    assert_int_equal(hl_pool_find(pool, s[4].id, &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, s[1].id, &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, s[0].id, &ref), HL_OK);
    hl_pool_unpin(pool, &s[2]);
    what.hold_ns = 60 * HL_NS_PER_S; /* all of them were used just now */
    assert_int_equal(hl_pool_evict(pool, &what, &out), HL_OK);
    assert_int_equal(out.shards, 0);
    assert_int_equal(out.held, 4 * HL_POOL_UNIT);
    assert_int_equal(hl_pool_evict_one(pool, &s[4]), 0); /* gone already */
    assert_int_equal(hl_pool_evict_one(pool, &s[0]), 1);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    rest(pool);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-replace-%d", (int)getpid());
    unlink(path);
    return tests_run(argc, argv);
}
