/* Copies that the pool's owner may remove at any time: read like any other, counted separately, and
 * freed at once. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/pool/pool.h"

#define CAPACITY ((uint64_t)1 << 20)

static char path[64];

static struct hl_pool *open_pool(struct hl_pool_found *found)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(
        &(struct hl_pool_options){.path = path, .capacity = CAPACITY, .quarantine_ms = 3600000},
        found, &pool);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    return pool;
}

static struct hl_pool_view *open_view(struct hl_pool *pool)
{
    struct hl_pool_view *view;
    int fd;
    assert_int_equal(hl_pool_reopen(pool, &fd), HL_OK);
    assert_int_equal(hl_pool_view_open(fd, &view), HL_OK);
    close(fd);
    return view;
}

static struct hl_pool_ref seal(struct hl_pool *pool, uint64_t size, int byte, bool kept)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_alloc(pool, size, &x), HL_OK);
    memset(x.ptr, byte, size);
    uint32_t crc = hl_crc32(0, x.ptr, size);
    assert_int_equal((kept ? hl_pool_seal_kept : hl_pool_seal)(pool, &x, crc + 1, &crc, 1, &ref),
                     HL_ECORRUPT);
    assert_int_equal((kept ? hl_pool_seal_kept : hl_pool_seal)(pool, &x, crc, &crc, 1, &ref),
                     HL_OK);
    return ref;
}

static void check_space(struct hl_pool *pool, uint64_t used, uint64_t kept, uint64_t quarantined)
{
    struct hl_pool_info info;
    hl_pool_info(pool, &info);
    assert_int_equal(info.used, used * HL_POOL_UNIT);
    assert_int_equal(info.kept, kept * HL_POOL_UNIT);
    assert_int_equal(info.quarantined, quarantined * HL_POOL_UNIT);
    assert_int_equal(info.used + info.quarantined + info.free, info.capacity);
    if (hl_pool_audit(pool) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static size_t listed(struct hl_pool *pool, bool kept)
{
    struct hl_pool_ref page[16];
    uint64_t cursor = 0;
    return (kept ? hl_pool_list_kept : hl_pool_list)(pool, &cursor, page, HL_ARRAY_LEN(page));
}

static bool any(void *arg, const struct hl_pool_ref *ref)
{
    (void)arg, (void)ref;
    return true;
}

TEST(a_kept_copy_is_read_and_pinned_but_is_no_lasting_one)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = seal(pool, 70000, 5, true), got;
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_evicted evicted;
    uint8_t bytes[100];
    assert_int_equal(hl_pool_view_find(view, ref.id, &got), HL_OK);
    assert_true(got.kept);
    assert_int_equal(hl_pool_view_read(view, &got, 7, bytes, sizeof(bytes)), HL_OK);
    assert_int_equal(bytes[99], 5);
    assert_int_equal(hl_pool_pin(pool, ref.id, 0, &got), HL_OK);
    hl_pool_unpin(pool, &got);
    assert_int_equal(hl_pool_find(pool, ref.id, &got), HL_ENOENT);
    assert_int_equal(hl_pool_find_kept(pool, ref.id, &got), HL_OK);
    assert_int_equal(listed(pool, false), 0);
    assert_int_equal(listed(pool, true), 1);
    assert_int_equal(
        hl_pool_evict(pool, &(struct hl_pool_eviction){.bytes = CAPACITY, .may_go = any}, &evicted),
        HL_OK);
    assert_int_equal(evicted.shards, 0);
    check_space(pool, 2, 2, 0);
    struct hl_pool_extent x; /* its id is taken */
    assert_int_equal(hl_pool_alloc_at(pool, ref.id, 10, -1, &x), HL_EEXIST);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(what_is_evicted_is_free_at_once_and_its_readers_notice)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = seal(pool, 70000, 5, true), got;
    struct hl_pool_view *view = open_view(pool);
    uint8_t bytes[100];
    assert_int_equal(hl_pool_view_find(view, ref.id, &got), HL_OK);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_EVICTED);
    check_space(pool, 0, 0, 0);
    struct hl_pool_ref other = seal(pool, 70000, 6, false);
    assert_int_equal(other.offset, ref.offset); /* the same bytes */
    assert_int_equal(hl_pool_view_read(view, &got, 0, bytes, sizeof(bytes)), HL_ESTALE);
    assert_int_equal(hl_pool_view_find(view, ref.id, &got), HL_ENOENT);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_NOT);
    assert_int_equal(hl_pool_evict_kept(pool, other.id), HL_POOL_KEPT_NOT);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_pinned_one_stays_until_the_last_unpin)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = seal(pool, 70000, 5, true), pin;
    assert_int_equal(hl_pool_pin(pool, ref.id, 0, &pin), HL_OK);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_PINNED);
    check_space(pool, 2, 2, 0);
    hl_pool_unpin(pool, &pin);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_EVICTED);
    check_space(pool, 0, 0, 0);
    hl_pool_remove(pool);
}

TEST(a_placed_one_is_like_any_other_and_its_readers_go_on)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = seal(pool, 70000, 5, true), got;
    struct hl_pool_view *view = open_view(pool);
    uint8_t bytes[100];
    assert_int_equal(hl_pool_view_find(view, ref.id, &got), HL_OK);
    assert_int_equal(hl_pool_place(pool, ref.id), HL_OK);
    assert_int_equal(hl_pool_place(pool, ref.id), HL_OK);
    assert_int_equal(hl_pool_view_read(view, &got, 0, bytes, sizeof(bytes)), HL_OK);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_NOT);
    assert_int_equal(hl_pool_find(pool, ref.id, &got), HL_OK);
    assert_int_equal(listed(pool, false), 1);
    check_space(pool, 2, 0, 0);
    assert_int_equal(hl_pool_place(pool, hl_id_random()), HL_ENOENT);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_freed_one_is_in_quarantine_as_any_other)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = seal(pool, 70000, 5, true);
    assert_int_equal(hl_pool_free(pool, ref.id), HL_OK);
    check_space(pool, 0, 0, 2);
    hl_pool_remove(pool);
}

TEST(the_next_owner_finds_what_was_kept)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_found found;
    struct hl_pool_ref ref = seal(pool, 70000, 5, true), other = seal(pool, 100, 6, false), got;
    hl_pool_close(pool);
    pool = open_pool(&found);
    assert_int_equal(found.kept, 1); /* of the shards */
    check_space(pool, 3, 2, 0);
    assert_int_equal(hl_pool_find_kept(pool, ref.id, &got), HL_OK);
    assert_int_equal(hl_pool_find(pool, other.id, &got), HL_OK);
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_EVICTED);
    check_space(pool, 1, 0, 0);
    hl_pool_remove(pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-kept-%d", (int)getpid());
    int failed = tests_run(argc, argv);
    unlink(path);
    return failed;
}
