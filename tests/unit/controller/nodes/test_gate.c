/* Whether a ready node gets containers, without a network. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/nodes/nodes_private.h"

static struct nodes nodes;
static struct hl_controller c;
static struct node n;

static int setup(void **state)
{
    (void)state;
    const struct hl_api_node_info info = {.name = "a", .agent_address = "h:1"};
    nodes = (struct nodes){0};
    c = (struct hl_controller){.nodes = &nodes, .refs = 1, .opts.clock_limit_ms = 10000};
    if (hl_loop_create(&c.opts.loop) != HL_OK || hl_store_open("mem:", &c.store) != HL_OK ||
        hl_store_writer_start(c.store, c.opts.loop, &c.writer) != HL_OK)
        return -1;
    hl_listening_init(&c.listening, HL_NS_PER_S, hl_now_ns(), hl_wall_ms());
    n = (struct node){.name = "a", .controller = &c, .seen_ns = 1, .incarnation = "boot-1"};
    HASH_ADD_STR(nodes.table, name, (&n));
    return hl_cluster_put(&nodes.cluster, &info) == HL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    while (c.refs > 1) /* until everything is written */
        uv_run(hl_loop_uv(c.opts.loop), UV_RUN_ONCE);
    hl_store_writer_stop(c.writer);
    hl_store_close(c.store);
    hl_loop_destroy(c.opts.loop);
    HASH_CLEAR(hh, nodes.table);
    json_decref(n.written);
    hl_arena_fini(&n.health_arena);
    hl_cluster_fini(&nodes.cluster);
    return 0;
}

static bool is_placed_on(void)
{
    gate_apply(&n);
    return nodes.cluster.nodes[0].ready;
}

static void tested(int64_t at, enum hl_api_health_state state, const char *why)
{
    const struct hl_api_health h = {.time_ms = at, .state = state, .reason = why};
    gate_take_test(&n, &h);
}

TEST_IN(setup, teardown, a_node_that_says_nothing_of_its_health_is_placed_on)
{
    assert_true(is_placed_on());
    assert_string_equal(node_why_not(&n), "");
    n.lost = true;
    assert_false(is_placed_on());
}

TEST_IN(setup, teardown, one_that_failed_is_not_until_it_passes)
{
    tested(1000, HL_API_HEALTH_STATE_FAILED, "memory: slot 8 is slow");
    assert_false(is_placed_on());
    assert_string_equal(node_why_not(&n), "health: memory: slot 8 is slow; `helios node test a` "
                                          "tests it again");
    tested(2000, HL_API_HEALTH_STATE_PASSED, "");
    c.slots_changed = false;
    assert_true(is_placed_on());
    assert_true(c.slots_changed); /* waiting jobs are placed now */
    assert_int_equal(n.drained_ms, 0);
}

TEST_IN(setup, teardown, one_whose_first_test_goes_on_is_not_until_that_has_passed)
{
    tested(0, HL_API_HEALTH_STATE_TESTING, "");
    assert_true(node_ready(&n));
    assert_false(is_placed_on());
    assert_string_equal(node_why_not(&n), "health: its first test is still running");
    tested(1000, HL_API_HEALTH_STATE_PASSED, "");
    assert_true(is_placed_on());
    tested(0, HL_API_HEALTH_STATE_TESTING, ""); /* its Agent was restarted */
    tested(2000, HL_API_HEALTH_STATE_FAILED, "script: exit code 1");
    assert_false(is_placed_on());
    assert_int_equal(n.drained_ms, 0); /* that was one failure */
}

TEST_IN(setup, teardown, failing_twice_in_an_hour_drains_it_for_good)
{
    tested(1000, HL_API_HEALTH_STATE_FAILED, "memory: slot 8 is slow");
    tested(1000, HL_API_HEALTH_STATE_FAILED, "memory: slot 8 is slow"); /* reported again */
    assert_int_equal(n.drained_ms, 0);
    tested(2000, HL_API_HEALTH_STATE_FAILED, "checksum: wrong");
    assert_int_not_equal(n.drained_ms, 0);
    assert_string_equal(n.drain_reason,
                        "it failed its health test twice in an hour: checksum: wrong");
    tested(3000, HL_API_HEALTH_STATE_PASSED, "");
    assert_true(is_placed_on()); /* as far as its health goes */
    assert_true(nodes.cluster.nodes[0].draining);
}

TEST_IN(setup, teardown, the_first_failure_is_in_its_record)
{
    tested(1000, HL_API_HEALTH_STATE_PASSED, "");
    assert_int_equal(c.refs, 1);
    tested(2000, HL_API_HEALTH_STATE_FAILED, "x");
    assert_int_equal(c.refs, 2); /* being written to the store */
    json_t *record = node_record(&n, &n.info, false);
    assert_int_equal(json_integer_value(json_object_get(record, "failedMs")), n.failed_ms);
    assert_int_equal(json_integer_value(json_object_get(record, "failedTestMs")), 2000);
    json_decref(record);
}

TEST_IN(setup, teardown, two_failures_more_than_an_hour_apart_do_not_drain_it)
{
    tested(1000, HL_API_HEALTH_STATE_FAILED, "x");
    n.failed_ms -= INT64_C(3600) * 1000 + 1;
    tested(2000, HL_API_HEALTH_STATE_FAILED, "x");
    assert_int_equal(n.drained_ms, 0);
}

TEST_IN(setup, teardown, a_clock_that_is_far_off_counts_from_the_second_heartbeat)
{
    int64_t ahead = hl_wall_ms() + 600000;
    gate_take_clock(&n, ahead);
    assert_true(is_placed_on()); /* this process may have been stopped */
    gate_take_clock(&n, hl_wall_ms() + 600000);
    assert_false(is_placed_on());
    assert_non_null(strstr(node_why_not(&n), "its clock is 10 min"));
    assert_non_null(strstr(node_why_not(&n), "ahead of the Controller's"));
    gate_take_clock(&n, hl_wall_ms() - 600000);
    assert_non_null((is_placed_on(), strstr(node_why_not(&n), "behind the Controller's")));
    n.lost = true; /* that is the reason now */
    assert_string_equal(node_why_not(&n), "");
    n.lost = false;
    gate_take_clock(&n, hl_wall_ms());
    assert_true(is_placed_on());
    c.opts.clock_limit_ms = 0; /* any distance */
    gate_take_clock(&n, 1);
    gate_take_clock(&n, 1);
    assert_true(is_placed_on());
}

/* The refusal would otherwise begin while the test's is in force, and no line would tell of it. */
TEST_IN(setup, teardown, a_clock_that_is_far_off_during_the_first_test_is_logged_once)
{
    unsigned said = hl_log_count(HL_LOG_WARN);
    tested(0, HL_API_HEALTH_STATE_TESTING, "");
    gate_take_clock(&n, hl_wall_ms() + 600000);
    gate_take_clock(&n, hl_wall_ms() + 600000);
    assert_false(is_placed_on());
    assert_int_equal(hl_log_count(HL_LOG_WARN), said); /* a test is as it should be */
    tested(1, HL_API_HEALTH_STATE_PASSED, "");
    assert_false(is_placed_on());
    assert_int_equal(hl_log_count(HL_LOG_WARN), said + 1);
    assert_false(is_placed_on());
    assert_int_equal(hl_log_count(HL_LOG_WARN), said + 1);
    gate_take_clock(&n, hl_wall_ms());
    assert_true(is_placed_on());
}

TEST_IN(setup, teardown, a_trouble_of_its_telemetry_is_the_reason)
{
    const char *troubles[] = {"GPU 0000:3b:00.0 (GPU-a) vanished"};
    n.report.telemetry.troubles = (struct hl_api_text_list){troubles, 1};
    assert_false(is_placed_on());
    assert_string_equal(node_why_not(&n), troubles[0]);
    n.report.telemetry.troubles.count = 0;
    assert_true(is_placed_on());
}
