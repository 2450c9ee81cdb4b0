/* What a node's tier keeps of its reads: which shards stay, which leave, and how much space there
 * is. */
#include <string.h>

#include "support/test.h"

#include "core/cache/cache_queues.h"
#include "core/placement/keep.h"

/* Returns true if the shard was kept. */
static bool read_shard(struct hl_keep *k, uint32_t shard, uint64_t size)
{
    bool had = hl_keep_has(k, shard);
    assert_int_equal(hl_keep_read(k, HL_KEEP_L2, shard, size), HL_OK);
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

static void make_keep(struct hl_keep *k, uint64_t l2_bytes)
{
    assert_int_equal(hl_keep_init(k, 0, NULL, NULL), HL_OK);
    hl_keep_resize(k, HL_KEEP_L2, l2_bytes);
}

TEST(a_first_read_finds_nothing_and_leaves_a_copy)
{
    struct hl_keep k;
    make_keep(&k, 3);
    assert_false(read_shard(&k, 'A', 1));
    assert_true(read_shard(&k, 'A', 1));
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 1);
    hl_keep_fini(&k);
}

TEST(what_was_read_again_outlives_what_was_read_once)
{
    struct hl_keep k;
    make_keep(&k, 3);
    read_all(&k, "ABC");
    read_all(&k, "AA");
    read_all(&k, "D"); /* B was the first of those that were read once */
    expect(&k, "ACD", "B");
    read_all(&k, "E");
    expect(&k, "ADE", "BC");
    hl_keep_fini(&k);
}

TEST(a_scan_passes_through)
{
    struct hl_keep k;
    make_keep(&k, 20);
    read_all(&k, "ABCDEFGHABCDEFGHABCDEFGH");
    for (uint32_t i = 1000; i < 1500; i++)
        read_shard(&k, i, 1);
    expect(&k, "ABCDEFGH", "");
    hl_keep_fini(&k);
}

TEST(what_does_not_fit_is_not_kept)
{
    struct hl_keep k;
    make_keep(&k, 5);
    read_shard(&k, 'A', 6);
    expect(&k, "", "A");
    read_shard(&k, 'B', 5);
    expect(&k, "B", "");
    hl_keep_resize(&k, HL_KEEP_L2, 0);
    expect(&k, "", "B");
    read_shard(&k, 'C', 1);
    expect(&k, "", "C");
    hl_keep_fini(&k);
}

TEST(with_less_room_the_next_ones_leave_at_once)
{
    struct hl_keep k;
    make_keep(&k, 10);
    read_all(&k, "ABCDEFGHIJ");
    hl_keep_resize(&k, HL_KEEP_L2, 4);
    expect(&k, "GHIJ", "ABCDEF");
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 4);
    hl_keep_resize(&k, HL_KEEP_L2, 6);
    read_all(&k, "KL");
    expect(&k, "GHIJKL", "");
    hl_keep_fini(&k);
}

TEST(with_less_room_fewer_of_those_that_left_are_remembered)
{
    struct hl_keep k;
    make_keep(&k, 10);
    for (uint32_t i = 0; i < 19; i++)
        read_shard(&k, i, 1);
    for (uint32_t i = 9; i < 19; i++)
        hl_keep_remove(&k, HL_KEEP_L2, i);
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 0);
    assert_int_equal(k.node.lists[HL_S3_GHOST].bytes, 9);
    hl_keep_resize(&k, HL_KEEP_L2, 4); /* nothing has to make room for it */
    assert_int_equal(k.node.lists[HL_S3_GHOST].bytes, 3);
    hl_keep_fini(&k);
}

TEST(room_for_others_comes_in_the_order_of_the_rule)
{
    struct hl_keep k;
    make_keep(&k, 4);
    read_all(&k, "ABCDBBDD");
    assert_true(hl_keep_evict(&k, HL_KEEP_L2));
    expect(&k, "BCD", "A");
    assert_true(hl_keep_evict(&k, HL_KEEP_L2));
    expect(&k, "BD", "AC");
    assert_true(hl_keep_evict(&k, HL_KEEP_L2) && hl_keep_evict(&k, HL_KEEP_L2));
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 0);
    assert_false(hl_keep_evict(&k, HL_KEEP_L2));
    hl_keep_fini(&k);
}

TEST(a_removed_shard_is_read_as_if_for_the_first_time)
{
    struct hl_keep k;
    make_keep(&k, 3);
    read_all(&k, "ABAA");
    hl_keep_remove(&k, HL_KEEP_L2, 'A');
    hl_keep_remove(&k, HL_KEEP_L2, 'Z'); /* was never there */
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

/* ---- devices --------------------------------------------------------------------------------- */

#define DEVICE 1

static void read_device(struct hl_keep *k, const char *text)
{
    for (; *text != '\0'; text++)
        assert_int_equal(hl_keep_read(k, DEVICE, (uint32_t)*text, 1), HL_OK);
}

static void make_two_tiers(struct hl_keep *k, uint64_t device_bytes, uint64_t l2_bytes)
{
    assert_int_equal(hl_keep_init(k, 1, NULL, NULL), HL_OK);
    hl_keep_resize(k, DEVICE, device_bytes);
    hl_keep_resize(k, HL_KEEP_L2, l2_bytes);
}

static void expect_in_device(const struct hl_keep *k, const char *shards, const char *others)
{
    for (; *shards != '\0'; shards++)
        if (hl_keep_device_of(k, (uint32_t)*shards) != DEVICE)
            fail_msg("%c is not in the device", *shards);
    for (; *others != '\0'; others++)
        if (hl_keep_device_of(k, (uint32_t)*others) != 0)
            fail_msg("%c is in the device", *others);
}

TEST(what_leaves_a_device_takes_room_in_the_l2)
{
    struct hl_keep k;
    make_two_tiers(&k, 2, 3);
    read_device(&k, "ABCDE"); /* the node has room for five, its device for two of them */
    expect(&k, "ABCDE", "");
    expect_in_device(&k, "DE", "ABC");
    assert_int_equal(hl_keep_used(&k, DEVICE), 2);
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 3);
    read_device(&k, "F");
    expect(&k, "BCDEF", "A");
    expect_in_device(&k, "EF", "BCD");
    hl_keep_fini(&k);
}

TEST(without_room_in_the_l2_what_leaves_a_device_leaves_the_node)
{
    struct hl_keep k;
    make_two_tiers(&k, 2, 0);
    read_device(&k, "ABC");
    expect(&k, "BC", "A");
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 0);
    hl_keep_fini(&k);
}

TEST(what_is_read_again_in_a_device_outlives_a_scan_there)
{
    struct hl_keep k;
    make_two_tiers(&k, 10, 20);
    read_device(&k, "ABCDEFABCDEFABCDEF");
    for (uint32_t i = 1000; i < 1500; i++)
        assert_int_equal(hl_keep_read(&k, DEVICE, i, 1), HL_OK);
    expect_in_device(&k, "ABCDEF", "");
    hl_keep_fini(&k);
}

TEST(a_smaller_l2_lets_those_of_the_device_stay)
{
    struct hl_keep k;
    make_two_tiers(&k, 2, 3);
    read_device(&k, "ABCDE");
    hl_keep_resize(&k, HL_KEEP_L2, 0);
    expect(&k, "DE", "ABC");
    expect_in_device(&k, "DE", "");
    hl_keep_resize(&k, DEVICE, 1); /* nor is there room below */
    expect(&k, "E", "D");
    hl_keep_fini(&k);
}

TEST(a_read_of_the_l2_brings_nothing_into_a_device)
{
    struct hl_keep k;
    make_two_tiers(&k, 2, 3);
    read_all(&k, "AB");
    expect_in_device(&k, "", "AB");
    assert_int_equal(hl_keep_raise(&k, DEVICE, 'A', 1), HL_OK); /* a rank maps it there */
    expect_in_device(&k, "A", "B");
    assert_int_equal(hl_keep_raise(&k, DEVICE, 'Z', 1), HL_OK); /* its L2 copy is a placed one */
    expect_in_device(&k, "AZ", "B");
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 1);
    hl_keep_remove(&k, DEVICE, 'A'); /* B and A are in the L2 */
    expect(&k, "ABZ", "");
    assert_int_equal(hl_keep_used(&k, HL_KEEP_L2), 2);
    hl_keep_remove(&k, HL_KEEP_L2, 'Z');
    expect_in_device(&k, "", "ABZ");
    expect(&k, "AB", "Z");
    hl_keep_fini(&k);
}

/* ---- random ---------------------------------------------------------------------------------- */

#define TIERS  3 /* the L2 and two devices */
#define SHARDS 50

struct world {
    struct hl_keep k;
    uint64_t room[TIERS];
    bool on_node[SHARDS];
    unsigned device[SHARDS]; /* 0: none */
    uint32_t reading;        /* it can come and go within the read */
};

static uint64_t size_of(uint32_t shard)
{
    return 1 + shard * 11 % 30;
}

/* A shard that leaves a device is reported once, with whether it stays on the node. */
static void note_left(void *arg, uint32_t shard, unsigned where)
{
    struct world *w = arg;
    if (shard == w->reading)
        return;
    assert_true(w->on_node[shard]);
    if (where == HL_KEEP_L2) {
        assert_false(hl_keep_has(&w->k, shard));
        assert_int_equal(w->device[shard], 0); /* it had left that device before */
        w->on_node[shard] = false;
        return;
    }
    assert_int_equal(w->device[shard], where);
    w->device[shard] = 0;
}

static void check_world(struct world *w)
{
    uint64_t used[TIERS] = {0};
    for (uint32_t s = 0; s < SHARDS; s++) {
        assert_int_equal(w->on_node[s], hl_keep_has(&w->k, s));
        assert_int_equal(w->device[s], hl_keep_device_of(&w->k, s));
        used[w->device[s]] += w->on_node[s] ? size_of(s) : 0;
    }
    for (unsigned i = 0; i < TIERS; i++) {
        assert_int_equal(used[i], hl_keep_used(&w->k, i));
        assert_true(used[i] <= w->room[i]);
    }
}

TEST(changes_are_told_and_no_room_is_ever_exceeded)
{
    struct world w = {.room = {100, 40, 60}, .reading = SHARDS};
    uint64_t seed = 5;
    assert_int_equal(hl_keep_init(&w.k, TIERS - 1, note_left, &w), HL_OK);
    for (unsigned i = 0; i < TIERS; i++)
        hl_keep_resize(&w.k, i, w.room[i]);
    for (int i = 0; i < 20000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t shard = (uint32_t)(seed >> 33) % SHARDS, dice = (uint32_t)(seed >> 58);
        unsigned where = (unsigned)(seed >> 20) % TIERS;
        if (dice == 0) {
            hl_keep_remove(&w.k, where, shard);
        } else if (dice == 1) {
            hl_keep_resize(&w.k, where, w.room[where] = (seed >> 24) % 200);
        } else if (dice == 2) {
            (void)hl_keep_evict(&w.k, where);
        } else if (where == HL_KEEP_L2 || w.device[shard] == 0 || w.device[shard] == where) {
            w.reading = shard;
            assert_int_equal(hl_keep_read(&w.k, where, shard, size_of(shard)), HL_OK);
            w.reading = SHARDS;
            w.on_node[shard] = hl_keep_has(&w.k, shard);
            w.device[shard] = hl_keep_device_of(&w.k, shard);
        }
        check_world(&w);
    }
    hl_keep_fini(&w.k);
}
