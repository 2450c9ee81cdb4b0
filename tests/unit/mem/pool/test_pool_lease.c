/* Bytes reserved for one borrower: other processes do not find them, and they are freed with its
 * last pin. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem/pool/pool.h"
#include "mem/pool/pool_private.h"

#define CAPACITY ((uint64_t)1 << 20)

static char path[64];

static struct hl_pool *open_pool(struct hl_pool_found *found)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(
        &(struct hl_pool_options){.path = path, .capacity = CAPACITY, .quarantine_ms = 3600000},
        found, &pool);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return pool;
}

static struct hl_pool_ref lease(struct hl_pool *pool, uint64_t size, int byte)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_alloc(pool, size, &x), HL_OK);
    memset(x.ptr, byte, size);
    uint32_t crc = hl_crc32(0, x.ptr, size);
    assert_int_equal(hl_pool_seal_leased(pool, &x, crc + 1, &crc, 1, &ref), HL_ECORRUPT);
    assert_int_equal(hl_pool_seal_leased(pool, &x, crc, &crc, 1, &ref), HL_OK);
    return ref;
}

static void check_space(struct hl_pool *pool, uint64_t used, uint64_t shards)
{
    struct hl_pool_info info;
    hl_pool_info(pool, &info);
    assert_int_equal(info.used, used * HL_POOL_UNIT);
    assert_int_equal(info.quarantined, 0);
    assert_int_equal(info.shards, shards);
    assert_int_equal(info.used + info.free, info.capacity);
    if (hl_pool_audit(pool) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void check_bytes(struct hl_pool *pool, const struct hl_pool_ref *ref, int byte)
{
    uint8_t got[100];
    assert_int_equal(hl_pool_read(pool, ref, 0, got, sizeof(got)), HL_OK);
    for (size_t i = 0; i < sizeof(got); i++)
        assert_int_equal(got[i], byte);
}

static bool any(void *arg, const struct hl_pool_ref *ref)
{
    (void)arg, (void)ref;
    return 1;
}

TEST(what_is_leased_is_found_by_nobody_and_free_at_once_with_the_last_unpin)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = lease(pool, 70000, 5), got, again;
    struct hl_pool_evicted evicted;
    uint64_t cursor = 0;
    check_space(pool, 2, 0);
    assert_int_equal(hl_pool_find(pool, ref.id, &got), HL_ENOENT);
    assert_int_equal(hl_pool_pin(pool, ref.id, 0, &got), HL_ENOENT);
    assert_int_equal(hl_pool_free(pool, ref.id), HL_ENOENT);
    assert_int_equal(hl_pool_list(pool, &cursor, &got, 1), 0);
    assert_int_equal(
        hl_pool_evict(pool, &(struct hl_pool_eviction){.bytes = CAPACITY, .may_go = any}, &evicted),
        HL_OK);
    assert_int_equal(evicted.shards, 0);
    check_bytes(pool, &ref, 5);
    assert_int_equal(hl_pool_pin(pool, ref.id, ref.offset, &again), HL_OK);
    hl_pool_unpin(pool, &again);
    check_space(pool, 2, 0);
    hl_pool_unpin(pool, &ref);
    check_space(pool, 0, 0);
    assert_int_equal(hl_pool_pin(pool, ref.id, ref.offset, &again), HL_ENOENT);
    hl_pool_remove(pool);
}

TEST(an_adopted_lease_waits_for_its_borrower)
{
    struct hl_pool_found found;
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref mine = lease(pool, 300, 1), other = lease(pool, 400, 2), again;
    hl_pool_close(pool);
    pool = open_pool(&found);
    uint64_t opened = hl_now_ns();
    assert_int_equal(found.leased, 2);
    assert_int_equal(found.kept, 0);
    check_space(pool, 2, 0);
    assert_int_equal(hl_pool_pin(pool, mine.id, mine.offset, &again), HL_OK);
    pool_end_leases(pool, opened + (HL_POOL_LEASE_MS - 1000) * HL_NS_PER_MS);
    check_space(pool, 2, 0);
    assert_int_equal(pool_abandoned(pool, opened + HL_POOL_LEASE_SURE_MS * HL_NS_PER_MS / 2), 0);
    assert_int_equal(pool_abandoned(pool, hl_now_ns() + HL_POOL_LEASE_SURE_MS * HL_NS_PER_MS), 1);
    pool_end_leases(pool, hl_now_ns() + HL_POOL_LEASE_MS * HL_NS_PER_MS);
    check_space(pool, 1, 0);
    check_bytes(pool, &again, 1);
    assert_int_equal(hl_pool_pin(pool, other.id, other.offset, &other), HL_ENOENT);
    hl_pool_unpin(pool, &again);
    check_space(pool, 0, 0);
    hl_pool_remove(pool);
}

/* Stopped and continued: in the meantime no borrower could be heard. */
TEST(a_pause_of_the_owner_prolongs_adopted_leases)
{
    const uint64_t lease_ns = HL_POOL_LEASE_MS * HL_NS_PER_MS;
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref ref = lease(pool, 300, 1);
    hl_pool_close(pool);
    pool = open_pool(NULL);
    uint64_t resumed = hl_now_ns() + 2 * lease_ns;
    pool_listen(pool, resumed);
    pool_end_leases(pool, resumed);
    check_space(pool, 1, 0);
    assert_int_equal(pool_abandoned(pool, resumed), 0);
    pool_end_leases(pool, resumed + lease_ns + HL_NS_PER_S);
    check_space(pool, 0, 0);
    assert_int_equal(hl_pool_pin(pool, ref.id, ref.offset, &ref), HL_ENOENT);
    hl_pool_remove(pool);
}

/* With an owner that has a thread for its heartbeat, as the daemons have. */
TEST(the_heartbeat_thread_ends_an_adopted_lease_in_time)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref mine = lease(pool, 300, 1), other = lease(pool, 400, 2);
    uint64_t limit = hl_now_ns() + 10 * HL_NS_PER_S;
    hl_pool_close(pool);
    const struct hl_pool_options o = {
        .path = path, .capacity = CAPACITY, .lease_ms = 1000, .beat_ms = 1};
    assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_OK);
    assert_int_equal(hl_pool_pin(pool, mine.id, mine.offset, &mine), HL_OK);
    while (POOL_GET(pool->index[other.slot].state) == HL_POOL_LEASED && hl_now_ns() < limit)
        usleep(1000);
    assert_int_equal(POOL_GET(pool->index[other.slot].state), HL_POOL_EMPTY);
    check_space(pool, 1, 0);
    check_bytes(pool, &mine, 1);
    hl_pool_remove(pool);
}

/* After the first seconds it is free for any allocation that needs the room, and not before one
 * does. */
TEST(an_adopted_lease_gives_way_where_room_is_short)
{
    struct hl_pool *pool = open_pool(NULL);
    struct hl_pool_ref mine = lease(pool, 300, 1), other = lease(pool, 400, 2), again;
    struct hl_pool_extent x;
    struct hl_pool_info info;
    hl_pool_close(pool);
    pool = open_pool(NULL);
    assert_int_equal(hl_pool_pin(pool, mine.id, mine.offset, &mine), HL_OK);
    uint64_t rest = CAPACITY - HL_POOL_UNIT;
    assert_int_equal(hl_pool_alloc(pool, rest, &x), HL_ENOSPC); /* too early */
    check_space(pool, 2, 0);
    pool->leases_sure_ns = hl_now_ns(); /* the time has passed */
    check_space(pool, 1, 0);
    assert_int_equal(hl_pool_pin(pool, other.id, other.offset, &again), HL_OK); /* it came back */
    check_space(pool, 2, 0);
    assert_int_equal(hl_pool_alloc(pool, rest, &x), HL_ENOSPC);
    hl_pool_close(pool);
    pool = open_pool(NULL);
    assert_int_equal(hl_pool_pin(pool, mine.id, mine.offset, &mine), HL_OK);
    pool->leases_sure_ns = hl_now_ns();
    assert_int_equal(hl_pool_alloc(pool, rest - 8192, &x), HL_OK);
    assert_int_equal(hl_pool_pin(pool, other.id, other.offset, &again), HL_ENOENT);
    check_bytes(pool, &mine, 1);
    hl_pool_info(pool, &info);
    assert_int_equal(info.used, CAPACITY);
    hl_pool_remove(pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-lease-%d", (int)getpid());
    int failed = tests_run(argc, argv);
    unlink(path);
    return failed;
}
