/* Rows of `helios validate` that need rare hardware: their results for given figures on both sides
 * of the target, and for missing hardware. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "cli/validate/validate.h"

static struct vnode node = {.name = "far"};

struct rig {
    struct validate_args args;
    struct validation v;
    struct found f;
};

/* Everything is measured, on the hardware that the rows need. */
static void rig_init(struct rig *r, enum hl_nic_class nic)
{
    memset(r, 0, sizeof(*r));
    r->args.topology = (char[]){""};
    r->v.args = &r->args;
    r->v.speeds = (struct speeds){.read_known = true,
                                  .plank_known = true,
                                  .read_path = "rdma",
                                  .nic = nic,
                                  .plank_node = &node,
                                  .plank_transport = "rdma"};
    node.emulated = false;
}

static enum hl_api_validation_result judge(struct rig *r,
                                           hl_status (*row)(struct validation *, struct found *),
                                           enum hl_target_side side, double target)
{
    r->f = (struct found){.target = {side, target}, .row.missing = ""};
    assert_int_equal(row(&r->v, &r->f), HL_OK);
    return r->f.row.result;
}

#define PASS   HL_API_VALIDATION_RESULT_PASS
#define FAIL   HL_API_VALIDATION_RESULT_FAIL
#define ABSENT HL_API_VALIDATION_RESULT_ABSENT

TEST(a_slow_read_fails_the_row_of_its_nic_and_leaves_the_other_one_out)
{
    struct rig r;
    rig_init(&r, HL_NIC_CX4);
    r.v.speeds.read_us = 2.2;
    assert_int_equal(judge(&r, row_read_cx4, HL_TARGET_AT_MOST, 2.2), PASS);
    r.v.speeds.read_us = 2.3;
    assert_int_equal(judge(&r, row_read_cx4, HL_TARGET_AT_MOST, 2.2), FAIL);
    assert_float_equal(r.f.row.value, 2.3, 0);
    assert_int_equal(judge(&r, row_read_cx6, HL_TARGET_AT_MOST, 1.2), ABSENT);
    hl_arena_fini(&r.v.arena);

    rig_init(&r, HL_NIC_CX6);
    r.v.speeds.read_us = 1.1;
    assert_int_equal(judge(&r, row_read_cx6, HL_TARGET_AT_MOST, 1.2), PASS);
    r.v.speeds.read_us = 1.3;
    assert_int_equal(judge(&r, row_read_cx6, HL_TARGET_AT_MOST, 1.2), FAIL);
    assert_int_equal(judge(&r, row_read_cx4, HL_TARGET_AT_MOST, 2.2), ABSENT);
    hl_arena_fini(&r.v.arena);
}

TEST(reads_that_went_without_rdma_are_shown_and_not_judged)
{
    struct rig r;
    rig_init(&r, HL_NIC_CX6);
    snprintf(r.v.speeds.read_path, sizeof(r.v.speeds.read_path), "tcp");
    r.v.speeds.read_us = 0.1;
    assert_int_equal(judge(&r, row_read_cx6, HL_TARGET_AT_MOST, 1.2), ABSENT);
    assert_float_equal(r.f.row.value, 0.1, 0);
    assert_non_null(strstr(r.f.row.missing, "RDMA"));
    hl_arena_fini(&r.v.arena);
}

TEST(a_plank_that_costs_too_much_fails_the_row_of_its_time_or_of_its_bandwidth)
{
    struct rig r;
    rig_init(&r, HL_NIC_CX4);
    r.v.speeds.plank_us = 0.9;
    r.v.speeds.plank_loss_pct = 14;
    assert_int_equal(judge(&r, row_plank_latency, HL_TARGET_AT_MOST, 0.8), FAIL);
    assert_float_equal(r.f.row.value, 0.9, 0);
    assert_int_equal(judge(&r, row_plank_bandwidth, HL_TARGET_AT_MOST, 15), PASS);
    r.v.speeds.plank_us = 0.7;
    r.v.speeds.plank_loss_pct = 16;
    assert_int_equal(judge(&r, row_plank_latency, HL_TARGET_AT_MOST, 0.8), PASS);
    assert_int_equal(judge(&r, row_plank_bandwidth, HL_TARGET_AT_MOST, 15), FAIL);
    assert_float_equal(r.f.row.value, 16, 0);
    hl_arena_fini(&r.v.arena);
}

TEST(a_plank_into_emulated_memory_or_without_rdma_is_not_judged)
{
    struct rig r;
    rig_init(&r, HL_NIC_CX4);
    r.v.speeds.plank_us = 100;
    node.emulated = true;
    assert_int_equal(judge(&r, row_plank_latency, HL_TARGET_AT_MOST, 0.8), ABSENT);
    assert_non_null(strstr(r.f.row.missing, "emulated"));
    node.emulated = false;
    snprintf(r.v.speeds.plank_transport, sizeof(r.v.speeds.plank_transport), "tcp");
    assert_int_equal(judge(&r, row_plank_latency, HL_TARGET_AT_MOST, 0.8), ABSENT);
    assert_non_null(strstr(r.f.row.missing, "RDMA"));
    r.v.speeds.plank_node = NULL; /* and without one nothing is measured */
    r.v.speeds.plank_known = false;
    assert_int_equal(judge(&r, row_plank_bandwidth, HL_TARGET_AT_MOST, 15), ABSENT);
    hl_arena_fini(&r.v.arena);
}

TEST(rows_of_the_plank_are_as_good_as_their_copies)
{
    struct rig r;
    struct hl_tally tally = {.good = 19, .all = 20};
    rig_init(&r, HL_NIC_CX6);
    node.nic = HL_NIC_CX6;
    node.nic_from = "";
    r.f.target = (struct hl_target){HL_TARGET_AT_LEAST, 95};
    found_paths(&r.v, &r.f, &node, HL_API_ROUTE_PATH_DIRECT, tally);
    assert_int_equal(r.f.row.result, PASS);
    tally.good = 18;
    found_paths(&r.v, &r.f, &node, HL_API_ROUTE_PATH_DIRECT, tally);
    assert_int_equal(r.f.row.result, FAIL);
    assert_float_equal(r.f.row.value, 90, 1e-9);
    assert_non_null(strstr(r.f.row.found, "18 of 20 copies"));
    hl_arena_fini(&r.v.arena);
}
