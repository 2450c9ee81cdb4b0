/* What a node keeps of its reads: each shard in L1 or L2 and never in both, within the room of
 * each, and who leaves. */
#include <string.h>

#include "support/test.h"

#include "core/placement/keep.h"

static enum hl_kept read_shard(struct hl_keep *k, uint32_t shard, uint64_t size)
{
    enum hl_kept found;
    assert_int_equal(hl_keep_read(k, shard, size, &found), HL_OK);
    return found;
}

static void read_all(struct hl_keep *k, const char *text)
{
    for (; *text != '\0'; text++)
        read_shard(k, (uint32_t)*text, 1);
}

static void expect(const struct hl_keep *k, const char *l1, const char *l2, const char *gone)
{
    for (; *l1 != '\0'; l1++)
        assert_int_equal(hl_keep_find(k, (uint32_t)*l1), HL_KEPT_L1);
    for (; *l2 != '\0'; l2++)
        assert_int_equal(hl_keep_find(k, (uint32_t)*l2), HL_KEPT_L2);
    for (; *gone != '\0'; gone++)
        assert_int_equal(hl_keep_find(k, (uint32_t)*gone), HL_KEPT_NOT);
}

TEST(a_first_read_finds_nothing_and_leaves_a_copy)
{
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, 2, 3, NULL, NULL), HL_OK);
    assert_int_equal(read_shard(&k, 'A', 1), HL_KEPT_NOT);
    assert_int_equal(read_shard(&k, 'A', 1), HL_KEPT_L1);
    assert_int_equal(hl_keep_l2_used(&k), 0);
    hl_keep_fini(&k);
}

TEST(what_l1_gives_up_goes_to_l2_and_then_off_the_node)
{
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, 2, 3, NULL, NULL), HL_OK);
    read_all(&k, "ABCDE"); /* first in, first out of L1 */
    expect(&k, "DE", "ABC", "");
    assert_int_equal(k.demoted_bytes, 3);
    read_all(&k, "A"); /* from L2 to L1 again, and twice read */
    assert_int_equal(read_shard(&k, 'A', 1), HL_KEPT_L1);
    read_all(&k, "F"); /* B is the oldest that was not read again */
    expect(&k, "F", "CD", "B");
    assert_int_not_equal(hl_keep_find(&k, 'A'), HL_KEPT_NOT);
    hl_keep_fini(&k);
}

TEST(a_removed_shard_is_in_neither)
{
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, 2, 3, NULL, NULL), HL_OK);
    read_all(&k, "AB");
    hl_keep_remove(&k, 'A');
    expect(&k, "B", "", "A");
    assert_int_equal(k.node.used, 1);
    assert_int_equal(k.l1.used, 1);
    hl_keep_fini(&k);
}

TEST(what_does_not_fit_is_not_kept)
{
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, 2, 3, NULL, NULL), HL_OK);
    read_shard(&k, 'A', 6);
    assert_int_equal(hl_keep_find(&k, 'A'), HL_KEPT_NOT);
    read_shard(&k, 'B', 4); /* into the node's memory as a whole, but into neither tier */
    assert_int_equal(hl_keep_find(&k, 'B'), HL_KEPT_NOT);
    read_shard(&k, 'C', 3);
    assert_int_equal(hl_keep_find(&k, 'C'), HL_KEPT_L2);
    hl_keep_fini(&k);
    assert_int_equal(hl_keep_init(&k, 0, 0, NULL, NULL), HL_OK);
    read_shard(&k, 'A', 1);
    assert_int_equal(hl_keep_find(&k, 'A'), HL_KEPT_NOT);
    hl_keep_fini(&k);
}

static void count_shard(void *arg, uint32_t shard, bool entered)
{
    int *kept = arg;
    kept[shard] += entered ? 1 : -1;
}

TEST(tiers_hold_what_they_have_room_for_and_changes_are_told)
{
    int kept[50] = {0};
    uint64_t seed = 5;
    struct hl_keep k;
    assert_int_equal(hl_keep_init(&k, 40, 100, count_shard, kept), HL_OK);
    for (int i = 0; i < 20000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t shard = (uint32_t)(seed >> 33) % 50;
        uint64_t size = 1 + shard * 11 % 30, l1 = 0, l2 = 0;
        enum hl_kept before = hl_keep_find(&k, shard);
        if (seed >> 60 == 0)
            hl_keep_remove(&k, shard);
        else
            assert_int_equal(read_shard(&k, shard, size), before);
        for (uint32_t s = 0; s < 50; s++) {
            enum hl_kept where = hl_keep_find(&k, s);
            assert_int_equal(kept[s], where != HL_KEPT_NOT);
            l1 += where == HL_KEPT_L1 ? 1 + s * 11 % 30 : 0;
            l2 += where == HL_KEPT_L2 ? 1 + s * 11 % 30 : 0;
        }
        assert_int_equal(l1, k.l1.used);
        assert_int_equal(l2, hl_keep_l2_used(&k));
        assert_true(l1 <= 40 && l2 <= 100);
    }
    hl_keep_fini(&k);
}
