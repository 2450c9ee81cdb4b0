/* The deadline of one operation: how long its waits may take, and which daemon it waits for. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"

#define HOUR_MS 3600000

/* Far from its deadline, at it, or past it. */
static struct operation operation_ending(helios_client *c, int64_t in_ms)
{
    return (struct operation){.client = c,
                              .deadline_ns = hl_now_ns() + (uint64_t)in_ms * HL_NS_PER_MS};
}

TEST(it_ends_when_the_client_s_timeout_is_over)
{
    helios_client c = {.read.timeout_ms = HOUR_MS};
    struct operation op = {.retries = 7};
    operation_begin(&op, &c);
    assert_ptr_equal(op.client, &c);
    assert_int_equal(op.deadline_ns - op.started_ns, (uint64_t)HOUR_MS * HL_NS_PER_MS);
    assert_true(op.timed);
    assert_int_equal(op.retries, 0);
    assert_false(operation_expired(&op));
    assert_in_range(operation_left_ms(&op), HOUR_MS / 2, HOUR_MS + 1);
}

TEST(a_call_at_the_deadline_still_has_a_millisecond)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, 0);
    assert_true(operation_expired(&op));
    assert_int_equal(operation_left_ms(&op), 1);
    assert_int_equal(operation_socket_ms(&op), 1);
    op.deadline_ns = 0;
    assert_int_equal(operation_left_ms(&op), 1);
}

TEST(a_local_daemon_is_waited_for_five_seconds_however_much_is_left)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, HOUR_MS);
    assert_int_equal(operation_socket_ms(&op), 5000);
    op = operation_ending(&c, 3000);
    assert_in_range(operation_socket_ms(&op), 1, 3001);
}

TEST(a_pause_that_would_outlast_the_deadline_is_not_begun)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, HOUR_MS);
    assert_false(operation_pause(&op, HOUR_MS)); /* otherwise the test would take an hour */
    assert_true(operation_pause(&op, 0));
    assert_true(operation_pause(&op, 1));
    op.deadline_ns = 0;
    assert_false(operation_pause(&op, 0));
}

TEST(a_controller_that_never_answered_is_not_waited_for)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, HOUR_MS);
    assert_false(controller_again(&op, HL_EUNAVAIL));
    assert_false(controller_again(&op, HL_OK)); /* it is there now */
    assert_true(controller_again(&op, HL_EUNAVAIL));
    assert_false(controller_again(&op, HL_ENOENT));    /* that is an answer, too */
    assert_false(controller_again(&op, HL_ETIMEDOUT)); /* not asked twice */
    op.deadline_ns = 0;
    assert_false(controller_again(&op, HL_EUNAVAIL));
}

TEST(without_a_controller_the_failure_names_the_method_and_the_way_out)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, HOUR_MS);
    assert_int_equal(controller_named(&op, "helios_version_open"), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "helios_version_open"));
    assert_non_null(strstr(hl_error_text(), "HELIOS_CONTROLLER"));
    c.controller = (struct hl_rpc_peer *)&c; /* only compared, never called */
    assert_int_equal(controller_named(&op, "helios_version_open"), HL_OK);
}

TEST(what_it_meets_is_counted_for_it_and_for_the_client)
{
    helios_client c = {0};
    struct operation one = operation_ending(&c, HOUR_MS), other = one;
    operation_failed_crc(&one, 3);
    operation_retried(&one);
    operation_failed_crc(&other, 2);
    assert_int_equal(one.crc_failures, 3);
    assert_int_equal(one.retries, 1);
    assert_int_equal(other.crc_failures, 2);
    assert_int_equal(other.retries, 0);
    assert_int_equal(c.counters.crc_failures, 5);
    assert_int_equal(c.counters.retries, 1);
}

TEST(a_read_that_failed_for_good_is_not_tried_again)
{
    helios_client c = {0};
    struct operation op = operation_ending(&c, HOUR_MS);
    hl_status st = HL_ENOENT;
    assert_false(read_recover(&op, &st));
    assert_int_equal(st, HL_ENOENT);
    op.deadline_ns = 0; /* the daemon may be restarting, but there is no time */
    st = HL_EUNAVAIL;
    assert_false(read_recover(&op, &st));
    assert_int_equal(st, HL_EUNAVAIL);
}
