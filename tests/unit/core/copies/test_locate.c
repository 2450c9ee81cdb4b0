/* What a call for the places of shards does about those that are not in the pool. */
#include "support/test.h"

#include "base/status.h"
#include "core/copies/locate.h"

TEST(a_missing_shard_is_loaded_or_says_why_it_can_not_be)
{
    static const struct {
        struct hl_locate_found found;
        enum hl_locate_fate fate;
    } rows[] = {
        {{.archived = true, .in_bytes = 100}, HL_LOCATE_LOAD},
        {{.archived = true, .in_bytes = 101}, HL_LOCATE_TOO_MUCH},
        {{.damaged = true}, HL_LOCATE_DAMAGED},
        {{.away = true}, HL_LOCATE_AWAY},
        {{.away = true, .damaged = true}, HL_LOCATE_AWAY}, /* it may have been written again */
        {{.archived = false}, HL_LOCATE_NOWHERE},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_locate l = {0};
        hl_locate_begin(&l, 100);
        assert_int_equal(hl_locate_missing(&l, &rows[i].found), rows[i].fate);
        assert_int_equal(l.loads, rows[i].fate == HL_LOCATE_LOAD);
    }
}

TEST(the_loads_of_a_round_fit_into_the_pool_together)
{
    const struct hl_locate_found sixty = {.archived = true, .in_bytes = 60},
                                 forty = {.archived = true, .in_bytes = 40},
                                 huge = {.archived = true, .in_bytes = UINT64_MAX};
    struct hl_locate l = {0};
    hl_locate_begin(&l, 100);
    assert_int_equal(hl_locate_missing(&l, &sixty), HL_LOCATE_LOAD);
    assert_int_equal(hl_locate_missing(&l, &sixty), HL_LOCATE_TOO_MUCH);
    assert_int_equal(hl_locate_missing(&l, &huge), HL_LOCATE_TOO_MUCH);
    assert_int_equal(hl_locate_missing(&l, &forty), HL_LOCATE_LOAD);
    assert_int_equal(l.bytes, 100);
    hl_locate_begin(&l, 100); /* the next round counts separately */
    assert_int_equal(hl_locate_missing(&l, &sixty), HL_LOCATE_LOAD);
}

TEST(a_call_is_answered_as_soon_as_nothing_is_missing)
{
    const struct hl_locate_found archived = {.archived = true, .in_bytes = 1};
    struct hl_locate l = {0};
    hl_locate_begin(&l, 100);
    assert_int_equal(hl_locate_missing(&l, &archived), HL_LOCATE_LOAD);
    assert_int_equal(hl_locate_next(&l), HL_LOCATE_WAIT);
    hl_locate_begin(&l, 100);
    assert_int_equal(hl_locate_next(&l), HL_LOCATE_ANSWER);
}

TEST(shards_that_evict_each_other_end_the_call_after_four_rounds)
{
    const struct hl_locate_found archived = {.archived = true, .in_bytes = 1};
    struct hl_locate l = {0};
    for (int i = 0; i < 5; i++) {
        hl_locate_begin(&l, 100);
        assert_int_equal(hl_locate_missing(&l, &archived), HL_LOCATE_LOAD);
        assert_int_equal(hl_locate_next(&l), i < 4 ? HL_LOCATE_WAIT : HL_LOCATE_BUSY);
    }
}
