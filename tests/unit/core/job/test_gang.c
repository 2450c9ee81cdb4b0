/* What pods report about a job's containers, and what is requested from Kubernetes next. */
#include "support/test.h"

#include "core/job/gang.h"

#define WANTED    HL_API_CONTAINER_STATE_WANTED
#define STARTING  HL_API_CONTAINER_STATE_STARTING
#define RUNNING   HL_API_CONTAINER_STATE_RUNNING
#define SUCCEEDED HL_API_CONTAINER_STATE_SUCCEEDED
#define FAILED    HL_API_CONTAINER_STATE_FAILED
#define LOST      HL_API_CONTAINER_STATE_LOST

TEST(a_pod_changes_its_container_or_takes_it_away)
{
    static const struct {
        enum hl_api_container_state have;
        bool is_there;
        enum hl_api_container_state pod;
        enum hl_pod_turn turn;
    } rows[] = {
        {WANTED, false, RUNNING, HL_POD_SAME}, /* not created yet */
        {STARTING, false, RUNNING, HL_POD_GONE},  {RUNNING, false, RUNNING, HL_POD_GONE},
        {SUCCEEDED, false, RUNNING, HL_POD_SAME}, /* it has ended, and its pod may be deleted */
        {FAILED, true, LOST, HL_POD_SAME},        {WANTED, true, WANTED, HL_POD_SAME},
        {WANTED, true, RUNNING, HL_POD_NEWS},     {WANTED, true, SUCCEEDED, HL_POD_NEWS},
        {WANTED, true, LOST, HL_POD_LOST},        {RUNNING, true, LOST, HL_POD_LOST},
        {RUNNING, true, WANTED, HL_POD_REPLACED}, {RUNNING, true, RUNNING, HL_POD_SAME},
        {RUNNING, true, FAILED, HL_POD_NEWS},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_pod_judge(rows[i].have, rows[i].is_there, rows[i].pod), rows[i].turn);
}

TEST(a_job_of_kubernetes_goes_with_its_attempt_and_stays_after_success)
{
    static const struct {
        enum hl_api_job_state state;
        struct hl_gang_attempt a;
        bool goes;
    } rows[] = {
        {HL_API_JOB_STATE_RUNNING, {2, .there = true, .created = true}, false},
        {HL_API_JOB_STATE_STARTING, {2, .there = true, .created = true}, false},
        {HL_API_JOB_STATE_SUCCEEDED, {2, .there = true, .created = true}, false},
        {HL_API_JOB_STATE_STOPPING, {2, .there = true}, true},
        {HL_API_JOB_STATE_PENDING, {2, .there = true}, true},
        {HL_API_JOB_STATE_FAILED, {2, .there = true}, true},
        {HL_API_JOB_STATE_RUNNING, {1, .there = true}, true},
        {HL_API_JOB_STATE_RUNNING, {1, .created = true}, true}, /* the watch is behind */
        {HL_API_JOB_STATE_RUNNING, {.attempt = 1}, false},
        {HL_API_JOB_STATE_FAILED,
         {2, .there = true, .created = true, .deleted = true},
         false}, /* ordered already */
        {HL_API_JOB_STATE_SUCCEEDED, {2, .there = true, .over = true}, true},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_jobrun run = {.state = rows[i].state, .attempt = 2};
        assert_int_equal(hl_gang_goes(&rows[i].a, &run), rows[i].goes);
    }
}

TEST(a_container_without_a_pod_has_ended_when_nobody_makes_the_pod)
{
    assert_false(hl_gang_has_ended(&(struct hl_gang_attempt){.there = true, .deleted = true}));
    assert_false(hl_gang_has_ended(&(struct hl_gang_attempt){.created = true}));
    assert_true(hl_gang_has_ended(&(struct hl_gang_attempt){.created = true, .deleted = true}));
    assert_true(hl_gang_has_ended(&(struct hl_gang_attempt){.created = false}));
}

TEST(a_node_is_lost_when_it_was_silent_for_long_enough)
{
    const struct hl_gang_node silent = {.silent = true, .since_ns = 100};
    assert_false(hl_gang_node_lost(&silent, 20, 119));
    assert_true(hl_gang_node_lost(&silent, 20, 120));
    assert_false(hl_gang_node_lost(&(struct hl_gang_node){.since_ns = 100}, 20, 1000));
}

TEST(a_pod_that_nobody_ends_is_forced_and_then_given_up)
{
    const uint64_t gone = 7, grace = 2 * HL_NS_PER_S, confirm = HL_GANG_CONFIRM_NS;

    const struct {
        bool node_lost;
        uint64_t passed;
        enum hl_pod_end end;
    } rows[] = {
        {false, 0, HL_POD_END_WAIT},
        {false, grace + confirm - 1, HL_POD_END_WAIT},
        {false, grace + confirm, HL_POD_END_FORCE},
        {false, grace + 2 * confirm - 1, HL_POD_END_FORCE},
        {false, grace + 2 * confirm, HL_POD_END_GIVE_UP},
        {true, 0, HL_POD_END_FORCE},
        {true, confirm - 1, HL_POD_END_FORCE},
        {true, confirm, HL_POD_END_GIVE_UP},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_gang_ending e = {gone, grace, rows[i].node_lost};
        assert_int_equal(hl_gang_pod_end(&e, gone + rows[i].passed), rows[i].end);
    }
}

TEST(each_request_for_an_attempt_is_sent_once)
{
    static const struct {
        enum hl_api_job_state state;
        struct hl_gang_attempt now;
        struct hl_gang_done done;
        enum hl_gang_step step;
    } rows[] = {
        {HL_API_JOB_STATE_PENDING, {0}, {.table_is_ours = true}, HL_GANG_REST},
        {HL_API_JOB_STATE_STARTING, {0}, {.table_is_ours = true}, HL_GANG_CREATE},
        /* the record says that it is created, before its ConfigMaps let ranks begin */
        {HL_API_JOB_STATE_STARTING, {.created = true}, {0}, HL_GANG_RECORD},
        {HL_API_JOB_STATE_STARTING,
         {.there = true},
         {0},
         HL_GANG_RECORD}, /* created by an earlier Controller */
        {HL_API_JOB_STATE_STARTING, {.created = true, .made = true}, {0}, HL_GANG_REST},
        {HL_API_JOB_STATE_STARTING, {.there = true, .made = true}, {0}, HL_GANG_PUT_MAPS},
        {HL_API_JOB_STATE_STARTING,
         {.there = true, .made = true},
         {.maps_sent = true},
         HL_GANG_REST},
        {HL_API_JOB_STATE_STARTING, {.made = true}, {0}, HL_GANG_REST}, /* it has gone */
        {HL_API_JOB_STATE_RUNNING, {0}, {.table_is_ours = true}, HL_GANG_PUT_TABLE},
        {HL_API_JOB_STATE_RUNNING, {0}, {.table_is_ours = false}, HL_GANG_REST},
        {HL_API_JOB_STATE_RUNNING, {0}, {.table_is_ours = true, .table_sent = true}, HL_GANG_REST},
        {HL_API_JOB_STATE_SUCCEEDED, {0}, {.table_is_ours = true}, HL_GANG_KEEP_LOGS},
        {HL_API_JOB_STATE_SUCCEEDED, {0}, {.logs_kept = true}, HL_GANG_REST},
        {HL_API_JOB_STATE_FAILED, {0}, {.table_is_ours = true}, HL_GANG_REST},
        {HL_API_JOB_STATE_STOPPING, {0}, {.table_is_ours = true}, HL_GANG_REST},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_jobrun run = {.state = rows[i].state, .attempt = 1};
        assert_int_equal(hl_gang_next(&run, &rows[i].now, &rows[i].done), rows[i].step);
    }
}

TEST(an_end_of_its_job_that_no_pod_explains_fails_the_attempt_after_three_seconds)
{
    const uint64_t begin = 100;
    uint64_t since = 0;
    assert_false(hl_gang_trouble(&since, false, begin));
    assert_false(hl_gang_trouble(&since, true, begin));
    assert_false(hl_gang_trouble(&since, true, begin + 3 * HL_NS_PER_S - 1));
    assert_true(hl_gang_trouble(&since, true, begin + 3 * HL_NS_PER_S));
    /* reported once: the next trouble counts anew */
    assert_false(hl_gang_trouble(&since, true, begin + 4 * HL_NS_PER_S));
    assert_false(hl_gang_trouble(&since, false, begin + 5 * HL_NS_PER_S));
    assert_false(hl_gang_trouble(&since, true, begin + 9 * HL_NS_PER_S));
    assert_int_equal(since, begin + 9 * HL_NS_PER_S);
}

TEST(a_gang_that_went_while_nobody_looked_is_told_from_one_that_never_was)
{
    static const struct {
        enum hl_api_job_state state;
        struct hl_gang_attempt a;
        bool has_pods, vanished;
    } rows[] = {
        {HL_API_JOB_STATE_RUNNING, {.made = true}, false, true},
        {HL_API_JOB_STATE_RUNNING, {0}, false, true}, /* of a record that does not say */
        {HL_API_JOB_STATE_STARTING, {.made = true}, false, true},
        {HL_API_JOB_STATE_STARTING, {0}, false, false},
        {HL_API_JOB_STATE_STARTING, {.made = true, .there = true}, false, false},
        {HL_API_JOB_STATE_STARTING, {.made = true}, true, false}, /* they report how they ended */
        {HL_API_JOB_STATE_STOPPING, {.made = true}, false, false},
        {HL_API_JOB_STATE_SUCCEEDED, {.made = true}, false, false},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_jobrun run = {.state = rows[i].state, .attempt = 1};
        assert_int_equal(hl_gang_vanished(&rows[i].a, &run, rows[i].has_pods), rows[i].vanished);
    }
}
