/* When the Agent calls the Controller next. */
#include "support/test.h"

#include "agent/heartbeat.h"

static struct heartbeat registered(int64_t period_ms)
{
    struct heartbeat h;
    heartbeat_init(&h);
    assert_int_equal(heartbeat_registered(&h, 0, period_ms, 0), 0);
    return h;
}

TEST(a_new_node_is_not_registered)
{
    struct heartbeat h = {.registered = true, .again = true};
    heartbeat_init(&h);
    assert_false(h.registered);
    assert_false(h.again);
}

TEST(pauses_double_up_to_five_seconds)
{
    static const uint64_t want[] = {200, 400, 800, 1600, 3200, 5000, 5000, 5000};
    struct heartbeat h;
    heartbeat_init(&h);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        assert_int_equal(heartbeat_failed(&h), want[i]);
}

TEST(a_registered_node_is_never_silent_for_longer_than_a_heartbeat)
{
    struct heartbeat h = registered(500);
    assert_int_equal(heartbeat_failed(&h), 200);
    assert_int_equal(heartbeat_failed(&h), 400);
    assert_int_equal(heartbeat_failed(&h), 500);
    assert_int_equal(heartbeat_failed(&h), 500);
    assert_true(h.registered); /* a failed call does not tell that */
}

TEST(a_good_answer_starts_the_pauses_anew)
{
    struct heartbeat h = registered(60000);
    for (int i = 0; i < 9; i++)
        (void)heartbeat_failed(&h);
    assert_int_equal(heartbeat_failed(&h), 5000);
    assert_int_equal(heartbeat_answered(&h, 0, true), 60000);
    assert_int_equal(heartbeat_failed(&h), 200);
    (void)heartbeat_registered(&h, 0, 60000, 0);
    assert_int_equal(heartbeat_failed(&h), 200);
}

TEST(the_controller_says_how_often)
{
    struct heartbeat h = registered(250);
    assert_int_equal(heartbeat_answered(&h, 0, true), 250);
    h = registered(0);
    assert_int_equal(heartbeat_answered(&h, 0, true), HEARTBEAT_DEFAULT_MS);
    h = registered(-7);
    assert_int_equal(heartbeat_answered(&h, 0, true), HEARTBEAT_DEFAULT_MS);
}

TEST(what_changed_during_a_call_is_told_at_once_and_once)
{
    struct heartbeat h = registered(500);
    h.again = true;
    assert_int_equal(heartbeat_answered(&h, 0, true), 0);
    assert_int_equal(heartbeat_answered(&h, 0, true), 500);
    h.again = true;
    assert_int_equal(heartbeat_registered(&h, 0, 500, 0), 0); /* sent with the first heartbeat */
    assert_int_equal(heartbeat_answered(&h, 0, true), 500);
}

TEST(a_node_that_was_forgotten_registers_at_once)
{
    struct heartbeat h = registered(500);
    assert_int_equal(heartbeat_answered(&h, 0, false), 0);
    assert_false(h.registered);
    assert_int_equal(heartbeat_failed(&h), 200);
    assert_int_equal(heartbeat_failed(&h), 400);
    assert_int_equal(heartbeat_failed(&h), 800); /* the old period no longer applies */
}

/* The Controller may have given up what runs here while this process was stopped. */
TEST(who_was_not_heard_for_too_long_has_to_be_heard_again_first)
{
    struct heartbeat h;
    heartbeat_init(&h);
    assert_false(1000000 > heartbeat_lapses_ms(&h)); /* there are no containers yet */
    (void)heartbeat_registered(&h, 10000, 500, 5000);
    assert_false(15000 > heartbeat_lapses_ms(&h));
    assert_true(15001 > heartbeat_lapses_ms(&h));
    (void)heartbeat_answered(&h, 10500,
                             true); /* the answer to a call made before the process was stopped */
    assert_false(15500 > heartbeat_lapses_ms(&h));
    assert_true(100000 > heartbeat_lapses_ms(&h));
    (void)heartbeat_answered(&h, 100000,
                             false); /* the node counts as lost: it has to register first */
    assert_true(100000 > heartbeat_lapses_ms(&h));
    (void)heartbeat_registered(&h, 100100, 500, 5000);
    assert_false(100100 > heartbeat_lapses_ms(&h));
    (void)heartbeat_registered(&h, 100100, 500, 0); /* an older Controller does not send it */
    assert_false(200000 > heartbeat_lapses_ms(&h));
}

TEST(an_answer_is_waited_for_three_heartbeats)
{
    struct heartbeat h = registered(1000);
    assert_int_equal(heartbeat_timeout_ms(&h, 30000), 3000);
    assert_int_equal(heartbeat_timeout_ms(&h, 2500), 2500);
    h = registered(10);
    assert_int_equal(heartbeat_timeout_ms(&h, 30000),
                     2000); /* a busy Controller is not unreachable */
    h = registered(INT64_MAX / 4);
    assert_int_equal(heartbeat_timeout_ms(&h, 30000), 30000);
}
