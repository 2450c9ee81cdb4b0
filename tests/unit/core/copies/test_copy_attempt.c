/* A step of a copy at its node: what it reads, what a failure counts against, what is tried
 * next. */
#include "support/test.h"

#include "core/copies/copy_attempt.h"

TEST(every_source_has_one_way_to_be_read)
{
    static const struct {
        struct hl_copy_source source;
        enum hl_copy_reading reading;
    } rows[] = {
        {{HL_API_TIER_L1, .own_node = true}, HL_COPY_FROM_OWN},
        {{HL_API_TIER_L2, .own_node = true, .mappable = true}, HL_COPY_FROM_OWN},
        /* device memory of another node is not even mapped */
        {{HL_API_TIER_L1, .mappable = true, .has_data = true}, HL_COPY_FROM_NONE},
        {{HL_API_TIER_L2, .mappable = true, .has_data = true}, HL_COPY_FROM_MAPPED},
        {{HL_API_TIER_L2, .has_data = true}, HL_COPY_FROM_NET},
        /* the pool does not belong to a node */
        {{HL_API_TIER_L3, .own_node = true, .mappable = true}, HL_COPY_FROM_MAPPED},
        {{HL_API_TIER_L3, .has_data = true}, HL_COPY_FROM_NET},
        {{.tier = HL_API_TIER_L3}, HL_COPY_FROM_NET}, /* it fails there with a clear error */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_copy_reading(&rows[i].source), rows[i].reading);
}

#define X(name, number, text) HL_##name,
static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X

/* A slow owner, or one without the shard, would be the same over the network. */
TEST(memory_that_is_not_mapped_is_fetched_where_that_may_help)
{
    const struct hl_copy_source far = {HL_API_TIER_L3, .mappable = true, .has_data = true},
                                near = {HL_API_TIER_L3, .mappable = true};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        bool helps = all[i] != HL_OK && all[i] != HL_ENOENT && all[i] != HL_ETIMEDOUT;
        assert_int_equal(hl_copy_reads_by_net(&far, all[i]), helps);
        assert_false(hl_copy_reads_by_net(&near, all[i]));
    }
}

TEST(a_path_rests_for_what_is_no_fault_of_shard_or_order)
{
    assert_true(hl_copy_blames_path(HL_EUNAVAIL));
    assert_true(hl_copy_blames_path(HL_ETIMEDOUT));
    assert_true(hl_copy_blames_path(HL_EIO));
    static const hl_status others[] = {HL_OK, HL_ECANCELED, HL_ENOENT, HL_ESTALE, HL_ECORRUPT};
    for (size_t i = 0; i < HL_ARRAY_LEN(others); i++)
        assert_false(hl_copy_blames_path(others[i]));
}

TEST(a_full_tier_is_waited_for_only_while_something_leaves_quarantine)
{
    static const struct {
        hl_status refused;
        struct hl_copy_room room;
        bool comes;
    } rows[] = {
        {HL_ENOSPC, {.quota = 100, .used = 60, .quarantined = 1, .size = 40}, true},
        {HL_ENOSPC, {.quota = 100, .used = 60, .quarantined = 0, .size = 40}, false},
        {HL_ENOSPC, {.quota = 100, .used = 61, .quarantined = 1, .size = 40}, false},
        {HL_ENOSPC, {.quota = 100, .used = 0, .quarantined = 1, .size = 101}, false},
        {HL_ENOSPC, {.quota = 100, .used = 1, .quarantined = 1, .size = UINT64_MAX}, false},
        {HL_ENOSPC, {.quota = 0, .used = 60, .quarantined = 1, .size = 40}, true}, /* no limit */
        {HL_EEXIST, {.quota = 100, .used = 100, .size = 40}, true}, /* another thread has it */
        {HL_EUNAVAIL, {.quota = 100, .quarantined = 1, .size = 40}, false},
        {HL_OK, {.quota = 100, .quarantined = 1, .size = 40}, false},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_copy_room_may_come(rows[i].refused, &rows[i].room), rows[i].comes);
}

TEST(a_migration_that_breaks_off_goes_on_by_the_other_network)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        bool link_failed = all[i] == HL_EUNAVAIL || all[i] == HL_ETIMEDOUT;
        assert_int_equal(hl_copy_send_after(HL_API_ROUTE_PATH_ZMQ, all[i], true),
                         link_failed ? HL_COPY_SEND_BACKBONE : HL_COPY_SEND_ENDS);
        assert_int_equal(hl_copy_send_after(HL_API_ROUTE_PATH_ZMQ, all[i], false),
                         link_failed ? HL_COPY_SEND_LATER : HL_COPY_SEND_ENDS);
        assert_int_equal(hl_copy_send_after(HL_API_ROUTE_PATH_UCX_TAGGED, all[i], true),
                         all[i] == HL_EEXIST ? HL_COPY_SEND_LATER : HL_COPY_SEND_ENDS);
    }
}
