/* What a tier of a node keeps of its reads: who stays, who leaves, and how much room there is. */
#include <string.h>

#include "support/test.h"

#include "core/cache/cache_queues.h"
#include "core/placement/keep.h"

static bool read_shard(struct hl_keep *k, uint32_t shard, uint64_t size)
{
    bool had;
    assert_int_equal(hl_keep_read(k, shard, size, &had), HL_OK);
    return had;
}

/* "ABC": reads of shards of size 1. */
static void read_all(struct hl_keep *k, const char *text)
{
    for (; *text != '\0'; text++)
        read_shard(k, (uint32_t)*text, 1);
}

static void expect(const struct hl_keep *k, const char *kept, const char *gone)
{
    for (; *kept != '\0'; kept++)
        if (!hl_keep_has(k, (uint32_t)*kept))
            fail_msg("%c is not kept", *kept);
    for (; *gone != '\0'; gone++)
        if (hl_keep_has(k, (uint32_t)*gone))
            fail_msg("%c is kept", *gone);
}

static struct hl_keep make_keep(uint64_t bytes)
{
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, NULL, NULL), HL_OK);
    hl_keep_resize(&k, bytes);
    return k;
}

TEST(a_first_read_finds_nothing_and_leaves_a_copy)
{
    struct hl_keep k = make_keep(3);
    assert_false(read_shard(&k, 'A', 1));
    assert_true(read_shard(&k, 'A', 1));
    assert_int_equal(hl_keep_used(&k), 1);
    hl_keep_fini(&k);
}

TEST(what_was_read_again_outlives_what_was_read_once)
{
    struct hl_keep k = make_keep(3);
    read_all(&k, "ABC");
    read_all(&k, "AA");
    read_all(&k, "D"); /* B came first of those that were read once */
    expect(&k, "ACD", "B");
    read_all(&k, "E");
    expect(&k, "ADE", "BC");
    hl_keep_fini(&k);
}

TEST(a_scan_passes_through)
{
    struct hl_keep k = make_keep(20);
    read_all(&k, "ABCDEFGHABCDEFGHABCDEFGH");
    for (uint32_t i = 1000; i < 1500; i++)
        read_shard(&k, i, 1);
    expect(&k, "ABCDEFGH", "");
    hl_keep_fini(&k);
}

TEST(what_does_not_fit_is_not_kept)
{
    struct hl_keep k = make_keep(5);
    read_shard(&k, 'A', 6);
    expect(&k, "", "A");
    read_shard(&k, 'B', 5);
    expect(&k, "B", "");
    hl_keep_resize(&k, 0);
    expect(&k, "", "B");
    read_shard(&k, 'C', 1);
    expect(&k, "", "C");
    hl_keep_fini(&k);
}

TEST(with_less_room_the_next_ones_leave_at_once)
{
    struct hl_keep k = make_keep(10);
    read_all(&k, "ABCDEFGHIJ");
    hl_keep_resize(&k, 4);
    expect(&k, "GHIJ", "ABCDEF");
    assert_int_equal(hl_keep_used(&k), 4);
    hl_keep_resize(&k, 6);
    read_all(&k, "KL");
    expect(&k, "GHIJKL", "");
    hl_keep_fini(&k);
}

TEST(with_less_room_fewer_of_those_that_left_are_remembered)
{
    struct hl_keep k = make_keep(10);
    for (uint32_t i = 0; i < 19; i++)
        read_shard(&k, i, 1);
    for (uint32_t i = 9; i < 19; i++)
        hl_keep_remove(&k, i);
    assert_int_equal(hl_keep_used(&k), 0);
    assert_int_equal(k.cache.lists[HL_S3_GHOST].bytes, 9);
    hl_keep_resize(&k, 4); /* nothing has to leave for it */
    assert_int_equal(k.cache.lists[HL_S3_GHOST].bytes, 3);
    hl_keep_fini(&k);
}

TEST(room_for_others_comes_in_the_order_of_the_rule)
{
    struct hl_keep k = make_keep(4);
    read_all(&k, "ABCDBBDD");
    assert_true(hl_keep_evict(&k));
    expect(&k, "BCD", "A");
    assert_true(hl_keep_evict(&k));
    expect(&k, "BD", "AC");
    assert_true(hl_keep_evict(&k) && hl_keep_evict(&k));
    assert_int_equal(hl_keep_used(&k), 0);
    assert_false(hl_keep_evict(&k));
    hl_keep_fini(&k);
}

TEST(a_removed_shard_is_read_as_if_for_the_first_time)
{
    struct hl_keep k = make_keep(3);
    read_all(&k, "ABAA");
    hl_keep_remove(&k, 'A');
    hl_keep_remove(&k, 'Z'); /* was never there */
    expect(&k, "B", "A");
    assert_false(read_shard(&k, 'A', 1));
    hl_keep_fini(&k);
}

TEST(placed_copies_have_the_room_first)
{
    static const struct {
        uint64_t tier, placed;
        double share;
        uint64_t room;
    } cases[] = {{1000, 0, 100, 1000}, {1000, 300, 100, 700}, {1000, 300, 50, 500},
                 {1000, 600, 50, 400}, {1000, 1000, 100, 0},  {1000, 2000, 100, 0},
                 {1000, 0, 0, 0},      {0, 0, 100, 0},        {1000, 999, 1, 1}};

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++)
        assert_int_equal(hl_keep_room(cases[i].tier, cases[i].share, cases[i].placed),
                         cases[i].room);
}

static void count_shard(void *arg, uint32_t shard, bool entered)
{
    int *kept = arg;
    kept[shard] += entered ? 1 : -1;
}

TEST(changes_are_told_and_the_room_is_never_exceeded)
{
    int kept[50] = {0};
    uint64_t seed = 5, room = 100;
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, count_shard, kept), HL_OK);
    hl_keep_resize(&k, room);
    for (int i = 0; i < 20000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t shard = (uint32_t)(seed >> 33) % 50, dice = (uint32_t)(seed >> 58);
        uint64_t used = 0;
        bool before = hl_keep_has(&k, shard);
        if (dice == 0)
            hl_keep_remove(&k, shard);
        else if (dice == 1)
            hl_keep_resize(&k, room = (seed >> 20) % 200);
        else if (dice == 2)
            (void)hl_keep_evict(&k);
        else
            assert_int_equal(read_shard(&k, shard, 1 + shard * 11 % 30), before);
        for (uint32_t s = 0; s < 50; s++) {
            assert_int_equal(kept[s], hl_keep_has(&k, s));
            used += hl_keep_has(&k, s) ? 1 + s * 11 % 30 : 0;
        }
        assert_int_equal(used, hl_keep_used(&k));
        assert_true(used <= room);
    }
    hl_keep_fini(&k);
}
