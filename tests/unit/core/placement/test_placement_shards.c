/* The table of shards, compared with a list. */
#include "support/test.h"

#include <stdbool.h>

#include "core/placement/shards.h"

/* All ids have one home or few: chains are long, and entries shift. */
static struct hl_id id_of(unsigned i)
{
    return (struct hl_id){.hi = i % 7 == 0 ? i : 0, .lo = 1 + (uint64_t)i * UINT64_C(0x100000000)};
}

TEST(what_was_added_is_found_until_it_is_removed)
{
    enum { IDS = 3000 };

    static uint32_t index[IDS]; /* + 1 */
    struct hl_shard_table t;
    assert_int_equal(hl_shard_table_init(&t, IDS), HL_OK);
    uint64_t random = 99;
    uint32_t count = 0;
    for (unsigned i = 0; i < 60000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned n = (random >> 33) % IDS;
        uint32_t at;
        if (index[n] == 0) {
            assert_int_equal(hl_shard_table_find(&t, id_of(n)), HL_SHARD_NONE);
            assert_int_equal(hl_shard_table_add(&t, id_of(n), &at), HL_OK);
            hl_shard_at(&t, at)->size_bytes = n;
            index[n] = at + 1;
            count++;
        } else if ((random >> 60) < 9) {
            hl_shard_table_remove(&t, index[n] - 1);
            index[n] = 0;
            count--;
        } else {
            assert_int_equal(hl_shard_table_find(&t, id_of(n)), index[n] - 1);
            assert_int_equal(hl_shard_at(&t, index[n] - 1)->size_bytes, n);
        }
        assert_int_equal(t.count, count);
    }
    for (unsigned n = 0; n < IDS; n++)
        assert_int_equal(hl_shard_table_find(&t, id_of(n)), index[n] - 1);
    hl_shard_table_fini(&t);
}

TEST(an_id_is_in_it_once_and_the_table_has_a_limit)
{
    struct hl_shard_table t;
    uint32_t at = 12345;
    assert_int_equal(hl_shard_table_init(&t, 2), HL_OK);
    assert_int_equal(hl_shard_table_add(&t, (struct hl_id){0}, &at), HL_EINVAL);
    assert_int_equal(hl_shard_table_add(&t, id_of(1), &at), HL_OK);
    assert_int_equal(hl_shard_table_add(&t, id_of(1), &at), HL_EEXIST);
    assert_int_equal(hl_shard_table_add(&t, id_of(2), &at), HL_OK);
    assert_int_equal(hl_shard_table_add(&t, id_of(3), &at), HL_ENOSPC);
    assert_int_equal(at, 1);
    hl_shard_table_remove(&t, 0);
    assert_int_equal(hl_shard_table_add(&t, id_of(3), &at), HL_OK);
    assert_int_equal(at, 0);
    hl_shard_table_fini(&t);
    assert_int_equal(hl_shard_table_init(&t, 0), HL_EINVAL);
    assert_int_equal(hl_shard_table_init(&t, HL_SHARDS_MAX + 1), HL_EINVAL);
}

TEST(a_record_needs_few_bytes)
{
    struct hl_shard_table t;
    uint32_t at;
    assert_int_equal(hl_shard_table_init(&t, 100000), HL_OK);
    for (unsigned i = 0; i < 100000; i++)
        assert_int_equal(hl_shard_table_add(&t, (struct hl_id){.hi = i, .lo = ~i}, &at), HL_OK);
    assert_true(hl_shard_table_bytes(&t) <= 100000 * 256);
    hl_shard_table_fini(&t);
}
