/* Repairs: what the good bytes must be, what answers mean, and what happens to a node's copy. */
#include "support/test.h"

#include "core/copies/repair.h"

TEST(the_pools_index_counts_most_and_what_was_stated_least)
{
    static const struct {
        struct hl_repair_known known;
        struct hl_repair_want want;
    } rows[] = {
        {{.pool_size = 10, .pool_crc = 1, .archive_size = 20, .stated_size = 30, .stated_crc = 3},
         {10, 1, true}},
        {{.archive_size = 20, .stated_size = 30, .stated_crc = 3}, {20, 3, true}},
        {{.archive_size = 20}, {20, 0, false}}, /* any whole copy that it has */
        {{.stated_size = 30, .stated_crc = 3}, {30, 3, true}},
        {{0}, {0, 0, false}},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_repair_want want = hl_repair_want(&rows[i].known);
        assert_int_equal(want.size, rows[i].want.size);
        assert_int_equal(want.crc, rows[i].want.crc);
        assert_int_equal(want.crc_known, rows[i].want.crc_known);
    }
}

TEST(a_shard_is_lost_only_when_every_source_has_answered)
{
    const struct hl_repair_want want = {.size = 10, .crc = 7, .crc_known = true},
                                any = {.size = 10};
    assert_int_equal(hl_repair_judge(&want, HL_OK, 7), HL_REPAIR_GOOD);
    assert_int_equal(hl_repair_judge(&want, HL_OK, 8), HL_REPAIR_BAD);
    assert_int_equal(hl_repair_judge(&any, HL_OK, 8), HL_REPAIR_GOOD);
#define X(name, number, text) HL_##name,
    static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        if (all[i] != HL_OK)
            assert_int_equal(hl_repair_judge(&want, all[i], 7),
                             all[i] == HL_ECORRUPT ? HL_REPAIR_BAD
                             : all[i] == HL_ENOENT ? HL_REPAIR_NONE
                                                   : HL_REPAIR_UNASKED);
}

TEST(a_nodes_copy_is_dropped_only_for_a_better_one)
{
    static const struct {
        hl_status st;
        bool is_whole;
        enum hl_repair_copy with_other, alone;
    } rows[] = {
        {HL_OK, true, HL_REPAIR_COPY_IS_GOOD, HL_REPAIR_COPY_IS_GOOD},
        {HL_OK, false, HL_REPAIR_COPY_REPLACE, HL_REPAIR_COPY_LOST},
        {HL_ENOENT, false, HL_REPAIR_COPY_AGAIN, HL_REPAIR_COPY_LOST},
        {HL_EUNAVAIL, false, HL_REPAIR_COPY_UNKNOWN, HL_REPAIR_COPY_UNKNOWN},
        {HL_ETIMEDOUT, true, HL_REPAIR_COPY_UNKNOWN, HL_REPAIR_COPY_UNKNOWN},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_repair_copy(rows[i].st, rows[i].is_whole, true), rows[i].with_other);
        assert_int_equal(hl_repair_copy(rows[i].st, rows[i].is_whole, false), rows[i].alone);
    }
}
