/* A pool of several regions: where shards go, what a restart keeps, what is reported about the
 * pages. The second node need not exist: a region that can't be bound is used anyway. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/pool/pool.h"

#define MIB      ((uint64_t)1 << 20)
#define FAR_NODE 1000

static char path[64];

static struct hl_pool *open_with(const struct hl_pool_region_options *regions, size_t count,
                                 struct hl_pool_found *found)
{
    struct hl_pool *pool = NULL;
    struct hl_pool_options o = {.path = path,
                                .capacity = count == 0 ? 8 * MIB : 0,
                                .quarantine_ms = 1,
                                .prefault = 1,
                                .regions = regions,
                                .region_count = count};
    if (hl_pool_open(&o, found, &pool) != HL_OK)
        fail_msg("%s", hl_error_text());
    return pool;
}

static struct hl_pool *open_two(void)
{
    const struct hl_pool_region_options two[] = {{0, 4 * MIB}, {FAR_NODE, 4 * MIB}};
    return open_with(two, 2, NULL);
}

/* A sealed shard of `size` bytes, all `fill`. */
static struct hl_pool_ref put(struct hl_pool *pool, uint64_t size, int near, int fill)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    uint64_t chunks = hl_chunk_count(size);
    uint32_t *crcs = calloc(chunks, sizeof(*crcs));
    if (hl_pool_alloc_at(pool, hl_id_random(), size, near, &x) != HL_OK)
        fail_msg("%s", hl_error_text());
    memset(x.ptr, fill, size);
    for (uint64_t i = 0; i < chunks; i++)
        crcs[i] = hl_crc32(0, (uint8_t *)x.ptr + i * MIB, i + 1 < chunks ? MIB : size - i * MIB);
    assert_int_equal(hl_pool_seal(pool, &x, hl_crc32(0, x.ptr, size), crcs, chunks, &ref), HL_OK);
    free(crcs);
    return ref;
}

static int remove_file(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

TEST_IN(NULL, remove_file, a_shard_goes_to_the_node_it_is_wanted_near_until_that_is_full)
{
    struct hl_pool *pool = open_two();
    struct hl_pool_region r[4];
    assert_int_equal(hl_pool_regions(pool, r, 4), 2);
    assert_int_equal(r[0].bytes + r[1].bytes, 8 * MIB);
    assert_in_range(r[0].bytes, 4 * MIB, 4 * MIB + 65535);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hl_pool_numa_of(pool, put(pool, MIB, 0, i).offset), 0);
        assert_int_equal(hl_pool_numa_of(pool, put(pool, MIB, FAR_NODE, i).offset), FAR_NODE);
    }
    hl_pool_regions(pool, r, 4);
    assert_int_equal(r[0].used, 3 * 17 * HL_POOL_UNIT); /* 1 MiB and 4 bytes of CRC: 17 units */
    assert_int_equal(r[1].used, 3 * 17 * HL_POOL_UNIT);
    struct hl_pool_ref full = put(pool, 700000, 0, 9), other = put(pool, 700000, 0, 9);
    assert_int_equal(hl_pool_numa_of(pool, full.offset), 0);
    assert_int_equal(hl_pool_numa_of(pool, other.offset), FAR_NODE);
    put(pool, 1000, -1, 1);
    put(pool, 1000, 77, 1); /* a node without a region in the pool */
    hl_pool_remove(pool);
    pool = open_two();
    for (int i = 0; i < 6; i++)
        put(pool, MIB, -1, i); /* each to the region with more free space */
    hl_pool_regions(pool, r, 4);
    assert_int_equal(r[0].used, 3 * 17 * HL_POOL_UNIT);
    assert_int_equal(r[1].used, 3 * 17 * HL_POOL_UNIT);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

TEST_IN(NULL, remove_file, a_shard_larger_than_a_region_lies_across_the_border)
{
    struct hl_pool *pool = open_two();
    struct hl_pool_region r[2];
    struct hl_pool_info info;
    put(pool, MIB, 0, 1);
    put(pool, MIB, FAR_NODE, 2);
    hl_pool_info(pool, &info);
    assert_int_equal(info.largest, info.free); /* the free rests meet at the boundary */
    struct hl_pool_ref big = put(pool, info.free - HL_POOL_UNIT, FAR_NODE, 3);
    hl_pool_regions(pool, r, 2);
    assert_int_equal(r[0].used, r[0].bytes);
    assert_int_equal(r[1].used, r[1].bytes);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_close(pool);

    struct hl_pool_found found;
    uint8_t *back = malloc(big.size);
    struct hl_pool_ref again;
    pool = open_with(NULL, 0, &found); /* existing regions are not divided again */
    assert_int_equal(found.kept, 3);
    assert_int_equal(hl_pool_regions(pool, r, 2), 2);
    assert_int_equal(r[1].numa_id, FAR_NODE);
    assert_int_equal(r[0].used + r[1].used, 8 * MIB);
    assert_int_equal(hl_pool_find(pool, big.id, &again), HL_OK);
    assert_int_equal(hl_pool_read(pool, &again, 0, back, big.size), HL_OK);
    assert_int_equal(back[0] + back[big.size - 1], 6);
    assert_int_equal(hl_pool_free(pool, big.id), HL_OK);
    for (int i = 0; i < 1000 && (hl_pool_beat(pool), hl_pool_info(pool, &info), info.quarantined);
         i++)
        usleep(1000);
    assert_int_equal(info.largest, info.free);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    free(back);
    hl_pool_remove(pool);
}

/* A pool from before regions existed, or with a damaged table. */
TEST_IN(NULL, remove_file, without_a_good_table_the_pool_is_one_region_and_keeps_its_shards)
{
    for (int round = 0; round < 2; round++) {
        struct hl_pool *pool = open_two();
        struct hl_pool_found found;
        struct hl_pool_region r[2];
        struct hl_pool_ref ref = put(pool, MIB, FAR_NODE, 5);
        size_t len;
        struct hl_pool_super *s = hl_pool_base(pool, &len);
        if (round == 0)
            s->region_count = 0;
        else
            ((uint8_t *)s)[HL_POOL_REGIONS_AT + 8] ^= 1;
        hl_pool_close(pool);
        pool = open_with(NULL, 0, &found);
        assert_int_equal(found.kept, 1);
        assert_int_equal(hl_pool_regions(pool, r, 2), 1);
        assert_int_equal(r[0].numa_id, -1);
        assert_int_equal(r[0].bytes, 8 * MIB);
        assert_false(r[0].bound);
        assert_int_equal(hl_pool_find(pool, ref.id, &ref), HL_OK);
        hl_pool_remove(pool);
    }
}

TEST_IN(NULL, remove_file, what_is_said_of_binding_is_what_the_kernel_says_of_the_pages)
{
    const struct hl_pool_region_options three[] = {
        {0, 3 * MIB}, {FAR_NODE, 3 * MIB}, {-1, 2 * MIB}};
    struct hl_pool *pool = open_with(three, 3, NULL);
    struct hl_pool_region r[3];
    struct hl_pool_info info;
    size_t len;
    uint8_t *base = hl_pool_base(pool, &len);
    struct hl_pool_ref ref = put(pool, MIB, 0, 1);
    void *page = base + ref.offset;
    int node = -1;
    long asked = syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0);
    assert_int_equal(hl_pool_regions(pool, r, 3), 3);
    if (asked == 0 && node >= 0)
        assert_int_equal(r[0].bound, node == 0);
    assert_false(r[1].bound);
    assert_false(r[2].bound);
    hl_pool_info(pool, &info);
    assert_non_null(strstr(info.backing, "pages"));
    hl_pool_remove(pool);
}

TEST_IN(NULL, remove_file, regions_that_make_no_sense_are_refused)
{
    struct hl_pool_region_options many[HL_POOL_REGIONS_MAX + 1];
    struct hl_pool *pool = NULL;
    for (size_t i = 0; i < HL_POOL_REGIONS_MAX + 1; i++)
        many[i] = (struct hl_pool_region_options){0, MIB};
    struct hl_pool_options o = {
        .path = path, .regions = many, .region_count = HL_POOL_REGIONS_MAX + 1};
    assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_EINVAL);
    assert_int_not_equal(access(path, F_OK), 0);
    o.region_count = 2;
    many[0].bytes = many[1].bytes = 0;
    assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_EINVAL);
}

TEST(what_a_person_says_of_nodes_becomes_regions)
{
    struct hl_pool_region_options r[HL_POOL_REGIONS_MAX];
    size_t n = 9;
    assert_int_equal(hl_pool_regions_parse("off", 8 * MIB, r, &n), HL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(hl_pool_regions_parse("auto", 8 * MIB, r, &n), HL_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(r[i].bytes, 8 * MIB / n);
    assert_int_equal(hl_pool_regions_parse("0-1000", 8 * MIB, r, &n), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "0-1000"));
    assert_int_equal(hl_pool_regions_parse("", 8 * MIB, r, &n), HL_EINVAL);
    assert_int_equal(hl_pool_regions_parse("one", 8 * MIB, r, &n), HL_EINVAL);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-regions-%d", (int)getpid());
    return tests_run(argc, argv);
}
