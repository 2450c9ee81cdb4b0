/* What a node's report or silence means for a job of two containers on two nodes. */
#include "support/test.h"

#include <stdio.h>

#include "core/job/jobnodes.h"

static struct hl_jobrun_container containers[2];

static struct hl_jobrun run_of(enum hl_api_job_state state, enum hl_api_container_state first,
                               enum hl_api_container_state second)
{
    for (int i = 0; i < 2; i++)
        snprintf(containers[i].node, sizeof(containers[i].node), "node-%d", i);
    containers[0].state = first;
    containers[1].state = second;
    return (struct hl_jobrun){
        .state = state, .attempt = 3, .containers = containers, .container_count = 2};
}

static int64_t waits(const struct hl_jobrun *run, const char *node, int64_t job_ms)
{
    const struct hl_patience p = {.job_ms = job_ms, .default_ms = 120000, .lost_ms = 5000};
    return hl_jobrun_patience_ms(run, node, &p);
}

TEST(a_running_job_waits_as_it_says_or_as_everybody_does)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_RUNNING);
    assert_int_equal(waits(&run, "node-0", -1), 120000);
    assert_int_equal(waits(&run, "node-0", 600000), 600000);
    assert_int_equal(waits(&run, "node-0", 0),
                     5000); /* but no less than the time until it is lost */
    assert_int_equal(waits(&run, "node-0", 4999), 5000);
    assert_int_equal(waits(&run, "node-0", 5001), 5001);
}

TEST(where_nothing_is_to_be_saved_nobody_waits)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_STARTING, HL_API_CONTAINER_STATE_STARTING,
                                  HL_API_CONTAINER_STATE_WANTED);
    assert_int_equal(waits(&run, "node-0", -1), 120000); /* a rank has started there */
    assert_int_equal(waits(&run, "node-1", -1), 5000);
    assert_int_equal(waits(&run, "node-2", -1), 5000);
    run.state = HL_API_JOB_STATE_STOPPING;
    assert_int_equal(waits(&run, "node-0", -1), 5000);
}

TEST(a_confirmed_container_that_is_not_reported_is_gone)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_STARTING);
    assert_true(hl_jobrun_is_absent(&run, 0, "node-0", false));
    assert_true(hl_jobrun_is_absent(&run, 1, "node-1", false));
    assert_false(hl_jobrun_is_absent(&run, 0, "node-1", false)); /* it was never there */
    containers[0].state = HL_API_CONTAINER_STATE_SUCCEEDED;
    assert_false(hl_jobrun_is_absent(&run, 0, "node-0", false));
}

TEST(a_wanted_container_is_gone_only_when_nobody_starts_it_again)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_STARTING, HL_API_CONTAINER_STATE_WANTED,
                                  HL_API_CONTAINER_STATE_WANTED);
    assert_false(hl_jobrun_is_absent(&run, 0, "node-0", false)); /* the next tick starts it */
    run.state = HL_API_JOB_STATE_STOPPING;
    assert_true(hl_jobrun_is_absent(&run, 0, "node-0", false));
    assert_false(hl_jobrun_is_absent(&run, 0, "node-0", true)); /* the call may have arrived */
}

TEST(a_container_of_nobody_or_of_another_attempt_is_a_stray)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_RUNNING);
    assert_false(hl_container_is_stray(&run, 3, HL_API_CONTAINER_STATE_RUNNING));
    assert_true(hl_container_is_stray(&run, 2, HL_API_CONTAINER_STATE_RUNNING));
    assert_true(hl_container_is_stray(NULL, 3, HL_API_CONTAINER_STATE_STARTING));
    run.state = HL_API_JOB_STATE_FAILED;
    assert_true(hl_container_is_stray(&run, 3, HL_API_CONTAINER_STATE_RUNNING));
    run.state = HL_API_JOB_STATE_STOPPING; /* the job tells it to stop */
    assert_false(hl_container_is_stray(&run, 3, HL_API_CONTAINER_STATE_RUNNING));
}

TEST(a_job_counts_on_the_containers_of_its_attempt_that_may_run_and_on_no_others)
{
    struct hl_plan_container planned[] = {{.index = 4}, {.index = 2}};
    struct hl_plan plan = {.containers = planned, .container_count = 2};
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_WANTED);
    run.plan = &plan;
    assert_true(hl_jobrun_wants(&run, 3, 4));
    assert_true(hl_jobrun_wants(&run, 3, 2));  /* its start may have arrived */
    assert_false(hl_jobrun_wants(&run, 3, 1)); /* replaced: no longer in the plan */
    assert_false(hl_jobrun_wants(&run, 2, 4));
    assert_false(hl_jobrun_wants(NULL, 3, 4));
    containers[0].state = HL_API_CONTAINER_STATE_LOST; /* given up while the gang goes on */
    assert_false(hl_jobrun_wants(&run, 3, 4));
    assert_true(hl_jobrun_wants(&run, 3, 2));
    run.state = HL_API_JOB_STATE_STOPPING; /* the job tells it to stop */
    assert_true(hl_jobrun_wants(&run, 3, 2));
    run.state = HL_API_JOB_STATE_FAILED;
    assert_false(hl_jobrun_wants(&run, 3, 2));
    run.plan = NULL; /* the next attempt waits for slots */
    run.state = HL_API_JOB_STATE_PENDING;
    assert_false(hl_jobrun_wants(&run, 3, 2));
}

TEST(what_has_ended_is_no_stray)
{
    static const enum hl_api_container_state over[] = {
        HL_API_CONTAINER_STATE_SUCCEEDED, HL_API_CONTAINER_STATE_FAILED,
        HL_API_CONTAINER_STATE_STOPPED, HL_API_CONTAINER_STATE_LOST};

    for (size_t i = 0; i < sizeof(over) / sizeof(over[0]); i++)
        assert_false(hl_container_is_stray(NULL, 1, over[i]));
}

TEST(records_of_containers_that_are_over_are_kept_as_long_as_their_jobs)
{
    assert_false(hl_container_is_stale(1000, 61000, 60000));
    assert_true(hl_container_is_stale(1000, 61001, 60000));
    assert_false(hl_container_is_stale(0, 61001, 60000));     /* it runs */
    assert_false(hl_container_is_stale(1000, 1 << 30, 0));    /* for ever */
    assert_false(hl_container_is_stale(90000, 61001, 60000)); /* its clock is ahead */
}

TEST(a_node_is_needed_while_a_container_may_run_there)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_SUCCEEDED,
                                  HL_API_CONTAINER_STATE_RUNNING);
    assert_false(hl_jobrun_needs_node(&run, "node-0"));
    assert_true(hl_jobrun_needs_node(&run, "node-1"));
    assert_false(hl_jobrun_needs_node(&run, "node-2"));
    run.state = HL_API_JOB_STATE_FAILED; /* whatever was last reported of it */
    assert_false(hl_jobrun_needs_node(&run, "node-1"));
}

TEST(a_container_may_run_from_its_order_until_its_end)
{
    static const struct {
        enum hl_api_container_state state;
        bool may_run;
    } rows[] = {{HL_API_CONTAINER_STATE_WANTED, true},
                {HL_API_CONTAINER_STATE_STARTING, true},
                {HL_API_CONTAINER_STATE_RUNNING, true},
                {HL_API_CONTAINER_STATE_SUCCEEDED, false},
                {HL_API_CONTAINER_STATE_FAILED, false}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_jobrun run =
            run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_SUCCEEDED, rows[i].state);
        assert_int_equal(hl_jobrun_may_run(&run, 1), rows[i].may_run);
    }
}

TEST(an_attempt_is_over_with_the_next_one_and_with_the_job)
{
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_RUNNING);
    assert_true(hl_jobrun_attempt_is_over(&run, 2));
    assert_false(hl_jobrun_attempt_is_over(&run, 3));
    run.state = HL_API_JOB_STATE_CANCELLED;
    assert_true(hl_jobrun_attempt_is_over(&run, 3));
}

TEST(a_silent_node_is_lost_after_its_time_and_no_sooner)
{
    assert_false(hl_node_is_lost(5000, 5000));
    assert_true(hl_node_is_lost(5001, 5000));
}

TEST(a_job_gives_up_what_may_run_on_a_lost_node_when_it_has_waited_long_enough)
{
    const struct hl_patience patience = {.job_ms = -1, .default_ms = 120000, .lost_ms = 5000};
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_RUNNING, HL_API_CONTAINER_STATE_RUNNING,
                                  HL_API_CONTAINER_STATE_SUCCEEDED);
    struct hl_node_silence silence = {.lost = true, .silent_ms = 119999};
    assert_false(hl_jobrun_gives_up(&run, 0, &silence, &patience));
    silence.silent_ms = 120000;
    assert_true(hl_jobrun_gives_up(&run, 0, &silence, &patience));
    assert_false(hl_jobrun_gives_up(&run, 1, &silence, &patience)); /* it has ended */
    silence.lost = false;                                           /* it answers again */
    assert_false(hl_jobrun_gives_up(&run, 0, &silence, &patience));
    run.state = HL_API_JOB_STATE_STOPPING; /* there is nothing to save */
    silence = (struct hl_node_silence){.lost = true, .silent_ms = 5000};
    assert_true(hl_jobrun_gives_up(&run, 0, &silence, &patience));
}

TEST(the_rank_that_failed_first_is_the_one_that_is_told)
{
    struct hl_api_rank_status ranks[] = {
        {.rank = 4, .state = HL_API_CONTAINER_STATE_FAILED, .finished_ms = 700},
        {.rank = 5, .state = HL_API_CONTAINER_STATE_SUCCEEDED, .finished_ms = 100},
        {.rank = 6, .state = HL_API_CONTAINER_STATE_FAILED, .finished_ms = 300},
        {.rank = 7, .state = HL_API_CONTAINER_STATE_FAILED, .finished_ms = 300}};
    const struct hl_api_container_status status = {.ranks = {ranks, HL_ARRAY_LEN(ranks)}};
    struct hl_rank_failure first = HL_RANK_FAILURE_NONE;
    hl_rank_fails_first(&(struct hl_api_container_status){0}, &first);
    assert_int_equal(first.rank, -1);
    hl_rank_fails_first(&status, &first);
    assert_int_equal(first.rank, 6);
    first = (struct hl_rank_failure){1, 200}; /* of another container */
    hl_rank_fails_first(&status, &first);
    assert_int_equal(first.rank, 1);
}

TEST(a_message_names_the_rank_that_failed_if_its_container_holds_it)
{
    struct hl_plan_rank ranks[2][1] = {{{.rank = 0}}, {{.rank = 1}}};
    struct hl_plan_container of[2] = {{.ranks = ranks[0], .rank_count = 1},
                                      {.ranks = ranks[1], .rank_count = 1}};
    struct hl_plan plan = {.containers = of, .container_count = 2};
    struct hl_jobrun run = run_of(HL_API_JOB_STATE_FAILED, HL_API_CONTAINER_STATE_FAILED,
                                  HL_API_CONTAINER_STATE_FAILED);
    run.plan = &plan;
    containers[0].finished_ms = 900;
    containers[1].finished_ms = 800;
    snprintf(containers[0].message, sizeof(containers[0].message), "rank 0: exit code 1");
    snprintf(containers[1].message, sizeof(containers[1].message), "rank 1: killed");
    assert_int_equal(hl_jobrun_failed_rank(&run).rank, 1);
    /* another container's rank, or none: it is ignored */
    snprintf(containers[1].message, sizeof(containers[1].message), "rank 5: killed");
    assert_int_equal(hl_jobrun_failed_rank(&run).rank, 0);
    snprintf(containers[1].message, sizeof(containers[1].message), "its node is lost");
    assert_int_equal(hl_jobrun_failed_rank(&run).rank, 0);
    containers[0].state = HL_API_CONTAINER_STATE_SUCCEEDED;
    assert_int_equal(hl_jobrun_failed_rank(&run).rank, -1);
    run.plan = NULL;
    assert_int_equal(hl_plan_container_of(run.plan, 0), -1);
}
