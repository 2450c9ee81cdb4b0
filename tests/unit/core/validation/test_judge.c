/* What passes and what fails `helios validate`, by the numbers of the specification's section 6. */
#include "support/test.h"

#include <math.h>

#include "core/validation/judge.h"

#define MIB (UINT64_C(1) << 20)

TEST(a_figure_meets_its_target_at_the_target_and_beyond_and_an_unknown_one_never)
{
    const struct hl_target latency = {HL_TARGET_AT_MOST, 1.2}, share = {HL_TARGET_AT_LEAST, 95};
    assert_true(hl_target_is_met(&latency, 1.2));
    assert_true(hl_target_is_met(&latency, 0.3));
    assert_false(hl_target_is_met(&latency, 1.21));
    assert_false(hl_target_is_met(&latency, NAN));
    assert_true(hl_target_is_met(&share, 95));
    assert_true(hl_target_is_met(&share, 100));
    assert_false(hl_target_is_met(&share, 94.9));
    assert_false(hl_target_is_met(&share, NAN));
}

TEST(a_share_counts_the_good_ones_and_of_none_it_is_not_known)
{
    struct hl_tally t = {0};
    assert_true(isnan(hl_tally_pct(t)));
    hl_tally_add(&t, true);
    hl_tally_add(&t, true);
    hl_tally_add(&t, false);
    hl_tally_add(&t, true);
    assert_float_equal(hl_tally_pct(t), 75, 1e-9);
}

/* Between hosts, with a migration network, into host memory. */
static struct hl_seen_transfer between(enum hl_api_operation op, enum hl_api_tier source,
                                       enum hl_api_tier target)
{
    return (struct hl_seen_transfer){.op = op,
                                     .source = source,
                                     .target = target,
                                     .migration_net = true,
                                     .device_direct = true,
                                     .nic = HL_NIC_CX6};
}

/* The transfer asks for this path and no other. */
static void asks_only_for(const struct hl_seen_transfer *t, enum hl_api_route_path path)
{
    for (int p = 0; p < HL_API_ROUTE_PATH_COUNT; p++)
        if (hl_path_is_asked_for(t, (enum hl_api_route_path)p) != (p == (int)path))
            fail_msg("%s: %s is %sasked for", hl_api_route_path_name(path),
                     hl_api_route_path_name((enum hl_api_route_path)p),
                     p == (int)path ? "not " : "");
}

TEST(reads_go_over_the_backbone_and_writes_between_nodes_over_the_migration_network)
{
    struct hl_seen_transfer t = between(HL_API_OPERATION_READ, HL_API_TIER_L3, HL_API_TIER_L2);
    asks_only_for(&t, HL_API_ROUTE_PATH_TCP);
    t.rdma = true;
    asks_only_for(&t, HL_API_ROUTE_PATH_DIRECT);
    t = between(HL_API_OPERATION_WRITE, HL_API_TIER_L2, HL_API_TIER_L2);
    asks_only_for(&t, HL_API_ROUTE_PATH_ZMQ);
    t.op = HL_API_OPERATION_MIGRATE;
    asks_only_for(&t, HL_API_ROUTE_PATH_ZMQ);
    t.migration_net = false;
    asks_only_for(&t, HL_API_ROUTE_PATH_UCX_TAGGED);
    t = between(HL_API_OPERATION_WRITE, HL_API_TIER_L2, HL_API_TIER_L3);
    asks_only_for(&t, HL_API_ROUTE_PATH_UCX_TAGGED);
    t.op = HL_API_OPERATION_MIGRATE;
    asks_only_for(&t, HL_API_ROUTE_PATH_UCX_TAGGED);
}

TEST(a_device_is_reached_direct_only_by_rdma_of_a_connectx_5_or_newer)
{
    struct hl_seen_transfer t = between(HL_API_OPERATION_READ, HL_API_TIER_L3, HL_API_TIER_L1);
    asks_only_for(&t, HL_API_ROUTE_PATH_PLANK); /* no RDMA */
    t.rdma = true;
    asks_only_for(&t, HL_API_ROUTE_PATH_DIRECT);
    t.nic = HL_NIC_CX5;
    asks_only_for(&t, HL_API_ROUTE_PATH_DIRECT);
    t.nic = HL_NIC_CX4;
    asks_only_for(&t, HL_API_ROUTE_PATH_PLANK);
    t.nic = HL_NIC_CX7;
    t.device_direct = false;
    asks_only_for(&t, HL_API_ROUTE_PATH_PLANK);
}

TEST(within_a_host_no_network_is_asked_for)
{
    struct hl_seen_transfer t = between(HL_API_OPERATION_MIGRATE, HL_API_TIER_L2, HL_API_TIER_L2);
    t.same_host = true;
    assert_true(hl_path_is_asked_for(&t, HL_API_ROUTE_PATH_LOCAL_COPY));
    assert_true(hl_path_is_asked_for(&t, HL_API_ROUTE_PATH_MAPPED));
    assert_false(hl_path_is_asked_for(&t, HL_API_ROUTE_PATH_ZMQ));
    assert_false(hl_path_is_asked_for(&t, HL_API_ROUTE_PATH_NONE));
}

TEST(a_connectx_4_is_decided_to_the_plank_and_a_connectx_6_direct_until_that_has_failed)
{
    assert_float_equal(
        hl_tally_pct(hl_decided_into_device(HL_NIC_CX4, HL_DIRECT_GOOD, HL_API_ROUTE_PATH_PLANK)),
        100, 0);
    assert_float_equal(
        hl_tally_pct(hl_decided_into_device(HL_NIC_CX6, HL_DIRECT_GOOD, HL_API_ROUTE_PATH_DIRECT)),
        100, 0);
    assert_float_equal(
        hl_tally_pct(hl_decided_into_device(HL_NIC_CX6, HL_DIRECT_FAILED, HL_API_ROUTE_PATH_PLANK)),
        100, 0);
    assert_float_equal(
        hl_tally_pct(hl_decided_into_device(HL_NIC_CX4, HL_DIRECT_GOOD, HL_API_ROUTE_PATH_DIRECT)),
        0, 0);
}

TEST(the_median_is_the_middle_one_or_between_the_middle_ones)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    assert_float_equal(hl_median(odd, 3), 2, 0);
    assert_float_equal(hl_median(even, 4), 2.5, 0);
    assert_true(isnan(hl_median(odd, 0)));
}

TEST(the_fill_of_l1_is_above_the_watermark_with_one_hot_shard_and_fits_with_both)
{
    static const double marks[] = {50, 70, 85, 95, 99};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        const struct hl_l1_room room = {
            .quota = 16 * MIB, .devices = 1 + (unsigned)i, .high_pct = marks[i]};
        struct hl_l1_fill f = hl_l1_fill_of(&room);
        double high = (double)room.quota * marks[i] / 100;
        double cold = (double)(f.cold_count * f.cold_bytes);
        assert_true(cold + (double)f.hot_bytes > high);
        assert_true(cold < high);
        assert_true(f.bytes <= room.quota);
    }
    const struct hl_l1_room full = {.quota = 16 * MIB, .devices = 1, .high_pct = 100};
    assert_int_equal(hl_l1_fill_of(&full).bytes, 0);
    const struct hl_l1_room none = {.high_pct = 85};
    assert_int_equal(hl_l1_fill_of(&none).bytes, 0);
}

TEST(l1_is_relieved_when_enough_has_left_of_the_least_stable_set)
{
    struct hl_l1_shard s[] = {{4 * MIB, 0.2, 1, true},
                              {4 * MIB, 0.1, 1, false},
                              {2 * MIB, 0.1, 0, false},
                              {2 * MIB, 0.5, 0, false}};
    assert_true(hl_l1_is_relieved(s, 4, 15 * MIB, 13 * MIB));
    assert_false(hl_l1_is_relieved(s, 4, 15 * MIB, 10 * MIB)); /* not enough */
    s[0].leaves = false;
    assert_false(hl_l1_is_relieved(s, 4, 15 * MIB, 13 * MIB)); /* nothing */
    s[2].leaves = true; /* of the more stable set, while the other one stays */
    assert_false(hl_l1_is_relieved(s, 4, 14 * MIB, 13 * MIB));
    s[0].leaves = s[1].leaves = true; /* it had left before */
    assert_true(hl_l1_is_relieved(s, 4, 15 * MIB, 6 * MIB));
}
