#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/core/job/jobstate_rig.h"

/* ---- help ------------------------------------------------------------------------------------ */

/* The actions of one step as text: "start 1.0 node-0; release 1; ". Plain words stand for
 * records. */
static char said[2048];

static void tell(const struct hl_job_actions *a)
{
    static const char *const verbs[] = {"place", "start", "stop", "release", "record"};
    said[0] = '\0';
    for (size_t i = 0; i < a->count; i++) {
        const struct hl_job_action *x = &a->list[i];
        char line[128];
        if (x->kind == HL_JOB_DO_RECORD)
            snprintf(line, sizeof(line), "%s; ", x->word);
        else if (x->kind == HL_JOB_DO_START || x->kind == HL_JOB_DO_STOP)
            snprintf(line, sizeof(line), "%s %d.%d %s; ", verbs[x->kind], x->attempt, x->index,
                     x->node);
        else
            snprintf(line, sizeof(line), "%s %d; ", verbs[x->kind], x->attempt);
        strncat(said, line, sizeof(said) - strlen(said) - 1);
    }
}

static hl_status step(struct hl_jobrun *run, struct hl_job_event ev)
{
    struct hl_job_actions a = {0};
    if (ev.now_ms == 0)
        ev.now_ms = 1000;
    hl_status st = hl_jobrun_step(run, &ev, &a);
    tell(&a);
    hl_job_actions_fini(&a);
    return st;
}

#define STEP(...) assert_int_equal(step(&run, (struct hl_job_event){__VA_ARGS__}), HL_OK)
#define STATUS(a, i, s, ...)                                                                       \
    STEP(.kind = HL_JOB_EV_CONTAINER, .attempt = (a), .index = (i), .node = "node-x",              \
         .container = HL_API_CONTAINER_STATE_##s, ##__VA_ARGS__)

static bool restart_lost = true;

static struct hl_jobrun_policy policy;

static struct hl_jobrun started(int containers, int restarts)
{
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j",
                                  .max_restarts = restarts,
                                  .restart_lost = restart_lost,
                                  .policy = policy,
                                  .start_timeout_ms = 60000,
                                  .run_timeout_ms = 0,
                                  .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(containers));
    return run;
}

/* ---- by hand --------------------------------------------------------------------------------- */

TEST(a_job_goes_from_submitted_to_succeeded)
{
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j", .start_timeout_ms = 60000, .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    assert_string_equal(said, "submitted; place 1; ");
    STEP(.kind = HL_JOB_EV_NOT_PLACED, .text = "needs 2 slots");
    assert_string_equal(said, "waiting; ");
    assert_string_equal(run.reason, "needs 2 slots");
    STEP(.kind = HL_JOB_EV_NOT_PLACED, .text = "needs 2 slots");
    assert_string_equal(said, ""); /* reported once */
    STEP(.kind = HL_JOB_EV_SLOTS);
    assert_string_equal(said, "place 1; ");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(2));
    assert_string_equal(said, "placed; start 1.0 node-0; start 1.1 node-1; ");
    assert_int_equal(hl_jobrun_next_ms(&run), 61000);
    STATUS(1, 0, STARTING);
    STATUS(1, 0, RUNNING);
    assert_int_equal(run.state, HL_API_JOB_STATE_STARTING);
    STATUS(1, 1, RUNNING, .now_ms = 2000);
    assert_string_equal(said, "running; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.started_ms, 2000);
    assert_true(hl_jobrun_next_ms(&run) == INT64_MAX);
    STATUS(1, 0, SUCCEEDED);
    STATUS(1, 1, SUCCEEDED, .now_ms = 3000);
    assert_string_equal(said, "release 1; succeeded; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
    assert_int_equal(run.finished_ms, 3000);
    hl_jobrun_fini(&run);
}

TEST(one_failed_container_restarts_the_whole_gang)
{
    struct hl_jobrun run = started(3, 1);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STATUS(1, 2, RUNNING);
    STATUS(1, 1, FAILED, .exit_code = 3, .text = "rank 1 exited with 3");
    assert_string_equal(said, "container-failed; stop 1.0 node-0; stop 1.2 node-2; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
    STATUS(1, 0, STOPPED);
    assert_string_equal(said, "");
    STATUS(1, 2, FAILED, .signal = 9); /* killed while stopping: no second failure */
    assert_string_equal(said, "release 1; restarting; place 2; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    assert_int_equal(run.attempt, 2);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    assert_string_equal(said, "placed; start 2.0 node-0; ");
    STATUS(2, 0, FAILED, .exit_code = 4);
    assert_string_equal(said, "container-failed; release 2; failed; ");
    assert_string_equal(run.reason, "container 0 on node-0 failed with exit code 4");
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    hl_jobrun_fini(&run);
}

TEST(a_failed_job_keeps_the_message_of_the_first_failure)
{
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 1, FAILED, .exit_code = 1, .text = "rank 1: ModuleNotFoundError: no module 'x'");
    STATUS(1, 0, FAILED, .exit_code = 1, .text = "rank 0: lost its peer");
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_string_equal(run.reason, "container 1 on node-1 failed: rank 1: ModuleNotFoundError: no "
                                    "module 'x'");
    hl_jobrun_fini(&run);
}

TEST(late_and_repeated_statuses_change_nothing)
{
    struct hl_jobrun run = started(1, 3);
    STATUS(1, 0, RUNNING);
    STATUS(1, 0, RUNNING);
    assert_string_equal(said, "");
    STATUS(1, 0, STARTING);
    assert_int_equal(run.containers[0].state, HL_API_CONTAINER_STATE_RUNNING);
    STATUS(1, 0, FAILED);
    assert_int_equal(run.attempt, 2);
    STATUS(1, 0, FAILED);
    assert_string_equal(said, "");
    STATUS(1, 0, RUNNING); /* from the old attempt, which is not wanted any more */
    assert_string_equal(said, "stop 1.0 node-x; ");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STATUS(1, 0, SUCCEEDED);
    assert_int_equal(run.state, HL_API_JOB_STATE_STARTING);
    STATUS(2, 7, RUNNING); /* no such container */
    assert_string_equal(said, "stop 2.7 node-x; ");
    STATUS(2, 0, SUCCEEDED);
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
    STATUS(2, 0, RUNNING);
    assert_string_equal(said, "stop 2.0 node-x; ");
    STEP(.kind = HL_JOB_EV_CANCEL);
    assert_string_equal(said, "");
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
    hl_jobrun_fini(&run);

    run = started(2, 0);
    STATUS(1, 0, SUCCEEDED);
    STATUS(1, 0, FAILED); /* an end is final */
    assert_int_equal(run.state, HL_API_JOB_STATE_STARTING);
    STATUS(1, 1, SUCCEEDED);
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
    hl_jobrun_fini(&run);
}

TEST(cancel_works_in_every_state)
{
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j", .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    STEP(.kind = HL_JOB_EV_CANCEL, .text = "by ana");
    assert_string_equal(said, "cancelled; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_CANCELLED);
    assert_string_equal(run.reason, "by ana");
    hl_jobrun_fini(&run);

    run = started(2, 5);
    STATUS(1, 0, RUNNING);
    STEP(.kind = HL_JOB_EV_CANCEL);
    assert_string_equal(said, "cancelling; stop 1.0 node-0; stop 1.1 node-1; ");
    STEP(.kind = HL_JOB_EV_CANCEL);
    assert_string_equal(said, "");
    STATUS(1, 0, STOPPED);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 1, .node = "node-1");
    assert_string_equal(said, "release 1; cancelled; ");
    hl_jobrun_fini(&run);

    run = started(2, 5); /* in the middle of a restart */
    STATUS(1, 0, FAILED);
    STEP(.kind = HL_JOB_EV_CANCEL);
    assert_string_equal(said, "cancelling; ");
    STATUS(1, 1, STOPPED);
    assert_int_equal(run.state, HL_API_JOB_STATE_CANCELLED);
    hl_jobrun_fini(&run);
}

TEST(a_gang_that_is_stopped_for_another_waits_again_and_uses_no_restart)
{
    struct hl_jobrun run = started(2, 0);
    struct hl_job_event ev = {.kind = HL_JOB_EV_PREEMPT,
                              .attempt = 3,
                              .preemptor = "urgent-7",
                              .text = "urgent-7 needs its slots"};
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING, .now_ms = 2000);
    ev.now_ms = 4000;
    assert_int_equal(step(&run, ev), HL_OK);
    assert_string_equal(said, "preempted; stop 1.0 node-0; stop 1.1 node-1; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
    STEP(.kind = HL_JOB_EV_PREEMPT, .attempt = 3, .preemptor = "other-8", .text = "x");
    assert_string_equal(said, ""); /* it is stopping already */
    STATUS(1, 0, SUCCEEDED);       /* it has saved and ended */
    STATUS(1, 1, FAILED, .now_ms = 5000);
    assert_string_equal(said, "release 1; restarting; place 2; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    assert_int_equal(run.attempt, 2);
    assert_int_equal(run.failed.used, 0);
    assert_string_equal(run.preemptor, "urgent-7");
    assert_int_equal(run.preemptor_attempt, 3);
    assert_string_equal(run.cause, "urgent-7 needs its slots");
    assert_int_equal(run.placed_ms, 1000);
    assert_int_equal(run.released_ms, 5000);
    json_t *doc = hl_jobrun_to_json(&run);
    hl_jobrun_fini(&run);
    assert_int_equal(hl_jobrun_from_json(doc, &run), HL_OK); /* the Controller was restarted */
    json_decref(doc);
    assert_string_equal(run.preemptor, "urgent-7");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(2), .now_ms = 9000);
    assert_string_equal(run.preemptor, "");
    assert_int_equal(run.placed_ms, 9000);
    assert_int_equal(run.released_ms, 0);
    assert_int_equal(run.used_slot_ms, 2 * 4000);
    hl_jobrun_fini(&run);
}

TEST(only_a_gang_that_has_slots_is_stopped_for_another_and_it_says_for_whom)
{
    struct hl_jobrun run = started(1, 0);
    assert_int_equal(step(&run, (struct hl_job_event){.kind = HL_JOB_EV_PREEMPT, .text = "x"}),
                     HL_EINVAL);
    STATUS(1, 0, RUNNING);
    STATUS(1, 0, SUCCEEDED);
    STEP(.kind = HL_JOB_EV_PREEMPT, .preemptor = "k", .text = "x");
    assert_string_equal(said, "");
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
    hl_jobrun_fini(&run);
}

TEST(a_lost_node_restarts_the_gang_without_using_up_restarts)
{
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "elsewhere");
    assert_string_equal(said, "");
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-1");
    assert_string_equal(said, "node-lost; stop 1.0 node-0; ");
    STATUS(1, 1,
           RUNNING); /* the node is back before the gang has stopped: its container must end, too */
    assert_string_equal(said, "stop 1.1 node-1; ");
    STATUS(1, 0, STOPPED);
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
    STATUS(1, 1, STOPPED);
    assert_string_equal(said, "release 1; restarting; place 2; ");
    assert_int_equal(run.failed.used, 0);
    for (int i = 2; i <= HL_JOB_NODE_LOSSES_MAX; i++) {
        STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
        STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-0");
        assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    }
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-0", .text = "it was evicted");
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_string_equal(run.reason, "node node-0 was lost with 1 of 1 containers: it was evicted");
    hl_jobrun_fini(&run);
}

TEST(a_job_that_may_not_be_repeated_fails_with_its_node)
{
    restart_lost = false;
    struct hl_jobrun run = started(2, 0);
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-1");
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART); /* none of its ranks has started */
    hl_jobrun_fini(&run);

    run = started(2, 0);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-1", .text = "silent for 2 min");
    assert_string_equal(said, "node-lost; stop 1.0 node-0; ");
    STATUS(1, 0, STOPPED);
    assert_string_equal(said, "release 1; failed; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_int_equal(run.attempt, 1);
    assert_non_null(strstr(run.reason, "node-1"));
    assert_non_null(strstr(run.reason, "onNodeLost"));
    STATUS(1, 1, RUNNING, .now_ms = 9000); /* it comes back: its ranks are not needed any more */
    assert_string_equal(said, "stop 1.1 node-x; ");
    hl_jobrun_fini(&run);
    restart_lost = true;
}

TEST(a_node_that_is_silent_for_a_while_costs_nothing)
{
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STEP(.kind = HL_JOB_EV_NODE_SILENT, .node = "elsewhere");
    assert_string_equal(said, "");
    STEP(.kind = HL_JOB_EV_NODE_SILENT, .node = "node-1", .text = "lost after 2 min");
    assert_string_equal(said, "node-silent; ");
    STEP(.kind = HL_JOB_EV_NODE_BACK, .node = "node-1");
    assert_string_equal(said, "node-back; ");
    STATUS(1, 1, RUNNING);
    assert_string_equal(said, "");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.attempt, 1);
    assert_int_equal(run.node_losses, 0);
    hl_jobrun_fini(&run);
}

/* ---- how often, and how soon ----------------------------------------------------------------- */

/* The waiting attempt is placed, runs from `at` on and fails after `ms`. */
static void run_and_fail(struct hl_jobrun *r, int64_t at, int64_t ms, int code, int64_t reached)
{
    struct hl_jobrun run = *r;
    if (run.state == HL_API_JOB_STATE_PENDING)
        STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1), .now_ms = at);
    STATUS(run.attempt, 0, RUNNING, .now_ms = at);
    STATUS(run.attempt, 0, FAILED, .exit_code = code, .reached = reached, .now_ms = at + ms);
    *r = run;
}

TEST(attempts_that_bring_no_new_step_are_waited_for_longer_each_time)
{
    policy =
        (struct hl_jobrun_policy){.stable_ms = 60000, .backoff_ms = 1000, .backoff_max_ms = 3000};
    struct hl_jobrun run = started(1, 9);
    run_and_fail(&run, 1000, 10, 1, 0);
    assert_string_equal(said, "container-failed; release 1; restarting; place 2; ");
    run_and_fail(&run, 2000, 10, 1, 0);
    assert_string_equal(said, "container-failed; release 2; restarting; back-off; ");
    assert_int_equal(hl_jobrun_next_ms(&run), 2010 + 1000);
    assert_true(hl_jobrun_backs_off(&run, 3009));
    STEP(.kind = HL_JOB_EV_SLOTS, .now_ms = 2500);
    assert_string_equal(said, ""); /* although slots are free */
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 3009);
    assert_string_equal(said, "");
    struct hl_job_actions again = {0}; /* a restarted Controller goes on waiting */
    assert_int_equal(hl_jobrun_resume(&run, &again), HL_OK);
    assert_int_equal(again.count, 0);
    hl_job_actions_fini(&again);
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 3010);
    assert_string_equal(said, "place 3; ");
    assert_false(hl_jobrun_backs_off(&run, 3010));
    run_and_fail(&run, 4000, 0, 1, 0);
    assert_int_equal(hl_jobrun_next_ms(&run), 4000 + 2000);
    run_and_fail(&run, 6000, 0, 1, 0);
    assert_int_equal(hl_jobrun_next_ms(&run), 6000 + 3000); /* the limit */
    run_and_fail(&run, 9000, 500, 1, 20);
    assert_string_equal(said, "container-failed; release 5; restarting; place 6; "); /* new steps */
    run_and_fail(&run, 9600, 500, 1, 20);
    assert_int_equal(hl_jobrun_next_ms(&run), 10100 + 1000); /* the same ones again */
    assert_int_equal(run.failed.used, 6);
    STEP(.kind = HL_JOB_EV_CANCEL, .now_ms = 10200);
    assert_int_equal(run.state, HL_API_JOB_STATE_CANCELLED);
    hl_jobrun_fini(&run);
    policy = (struct hl_jobrun_policy){0};
}

TEST(a_gang_that_trained_long_enough_has_all_of_its_restarts_again)
{
    policy =
        (struct hl_jobrun_policy){.stable_ms = 60000, .backoff_ms = 1000, .backoff_max_ms = 3000};
    struct hl_jobrun run = started(1, 1);
    run_and_fail(&run, 1000, 10, 1, 5);
    assert_int_equal(run.failed.used, 1);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1),
         .now_ms = 500000); /* no free slots until then */
    run_and_fail(&run, 500000, 60000, 1, 6);
    assert_int_equal(run.failed.used, 1);
    assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    run_and_fail(&run, 600000, 59999, 1, 7); /* a little too short */
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    hl_jobrun_fini(&run);

    run = started(1, 1);
    run_and_fail(&run, 1000, 10, 1, 5);
    run_and_fail(&run, 2000, 90000, 1, 5); /* long, but the same steps again: it would never end */
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    hl_jobrun_fini(&run);

    run = started(1, 1);
    run_and_fail(&run, 1000, 10, 1, 0);
    run_and_fail(&run, 2000, 90000, 1, 0); /* its ranks report no steps */
    assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    hl_jobrun_fini(&run);
    policy = (struct hl_jobrun_policy){0};
}

TEST(what_follows_from_a_failure_is_the_jobs_to_say)
{
    struct hl_jobrun run = started(1, 5);
    run_and_fail(&run, 1000, 10, 2, 0); /* a mistake, also if the file does not say so */
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_int_equal(run.last_failure, HL_API_FAILURE_KIND_MISTAKE);
    assert_non_null(strstr(run.reason, "not repeated: onFailure ends the job after mistake"));
    hl_jobrun_fini(&run);

    assert_int_equal(hl_failure_rules_set(&policy.on_failure, "memory", "fail"), HL_OK);
    assert_int_equal(hl_failure_rules_set(&policy.on_failure, "7", "ignore"), HL_OK);
    run = started(1, 0);
    run_and_fail(&run, 1000, 10, 7, 0); /* without any restarts */
    assert_int_equal(run.state, HL_API_JOB_STATE_PENDING);
    assert_int_equal(run.failed.used, 0);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STATUS(2, 0, FAILED, .signal = 9, .failure = HL_API_FAILURE_KIND_MEMORY);
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_int_equal(run.last_failure, HL_API_FAILURE_KIND_MEMORY);
    hl_jobrun_fini(&run);
    policy = (struct hl_jobrun_policy){0};
}

TEST(the_cause_of_an_attempt_is_kept)
{
    struct hl_jobrun run = started(1, 0), back;
    STATUS(1, 0, RUNNING);
    assert_string_equal(run.cause, "");
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-0");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STATUS(2, 0, RUNNING);
    assert_string_equal(run.reason, "");
    assert_string_equal(run.cause, "node node-0 was lost with 1 of 1 containers");
    json_t *doc = hl_jobrun_to_json(&run);
    assert_int_equal(hl_jobrun_from_json(doc, &back), HL_OK);
    assert_string_equal(back.cause, run.cause);
    assert_true(back.restart_lost);
    json_decref(doc);
    hl_jobrun_fini(&back);
    hl_jobrun_fini(&run);
}

TEST(deadlines_are_kept)
{
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 0, RUNNING);
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 60999);
    assert_string_equal(said, "");
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 61000);
    assert_string_equal(said, "timeout; stop 1.0 node-0; stop 1.1 node-1; ");
    assert_string_equal(run.reason, "only 1 of 2 containers started within 60000 ms");
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 65999);
    assert_string_equal(said, "");
    STATUS(1, 0, STOPPED, .now_ms = 66000);
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 66000); /* repeated until it ends */
    assert_string_equal(said, "stop 1.1 node-1; ");
    assert_int_equal(hl_jobrun_next_ms(&run), 71000);
    STATUS(1, 1, STOPPED, .now_ms = 67000);
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    hl_jobrun_fini(&run);

    run = started(1, 5);
    run.run_timeout_ms = 1000;
    STATUS(1, 0, RUNNING, .now_ms = 5000);
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 6000);
    assert_string_equal(said, "timeout; stop 1.0 node-0; ");
    STATUS(1, 0, STOPPED);
    assert_int_equal(run.state,
                     HL_API_JOB_STATE_FAILED); /* a second time would take just as long */
    hl_jobrun_fini(&run);
}

TEST(a_container_that_vanishes_counts_as_failed)
{
    struct hl_jobrun run = started(1, 0);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0");
    assert_string_equal(said, "start 1.0 node-0; "); /* the start had not arrived */
    STATUS(1, 0, RUNNING, .now_ms = 2000);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 4999);
    assert_int_equal(run.state,
                     HL_API_JOB_STATE_RUNNING); /* the list may be older than the status */
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 5000);
    assert_int_equal(run.state, HL_API_JOB_STATE_FAILED);
    assert_string_equal(run.reason, "container 0 on node-0 failed: it vanished from its node");
    hl_jobrun_fini(&run);
    run = started(1, 0);
    STATUS(1, 0, STOPPED);
    assert_string_equal(run.reason, "container 0 on node-0 was stopped from outside");
    hl_jobrun_fini(&run);
}

/* A watch reports a pod's end in order after its beginning. */
TEST(what_is_told_in_order_is_believed_at_once)
{
    struct hl_jobrun run = started(1, 0);
    STATUS(1, 0, RUNNING, .now_ms = 2000);
    STEP(.kind = HL_JOB_EV_CANCEL, .now_ms = 2001);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 2002);
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 2002,
         .is_in_order = true);
    assert_int_equal(run.state, HL_API_JOB_STATE_CANCELLED);
    hl_jobrun_fini(&run);
}

TEST(deadlines_that_judge_others_move_by_a_pause_and_all_by_a_step_of_the_clock)
{
    struct hl_jobrun run = started(1, 0); /* at 0 ms; has 60 s to start */
    int64_t due = run.deadline_ms;
    hl_jobrun_shift(&run, 20000, 0);
    assert_int_equal(run.deadline_ms, due + 20000);
    STATUS(1, 0, RUNNING, .now_ms = 2000);
    hl_jobrun_shift(&run, 20000, 0); /* a list from before the pause waited in the queue */
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 23000);
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    hl_jobrun_fini(&run);

    run = started(1, 0);
    run.run_timeout_ms = 1000;
    STATUS(1, 0, RUNNING, .now_ms = 5000);
    hl_jobrun_shift(&run, 20000, 0); /* the job has run on */
    assert_int_equal(run.deadline_ms, 6000);
    hl_jobrun_shift(&run, 0, 86400000);
    assert_int_equal(run.deadline_ms, 86406000);
    hl_jobrun_shift(&run, 0, -86400000);
    assert_int_equal(run.deadline_ms, 6000);
    hl_jobrun_fini(&run);
}

TEST(a_plan_nobody_asked_for_is_not_taken)
{
    struct hl_jobrun run = started(1, 0);
    struct hl_plan *plan = plan_of(1);
    assert_int_equal(step(&run, (struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan}),
                     HL_ECONFLICT);
    hl_plan_free(plan);
    assert_int_equal(run.container_count, 1);
    hl_jobrun_fini(&run);
}

TEST(a_run_survives_the_controllers_restart)
{
    struct hl_jobrun run = started(3, 2), back;
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, FAILED, .exit_code = 1, .text = "caf\xc3\xa9");
    json_t *one = hl_jobrun_to_json(&run);
    assert_int_equal(hl_jobrun_from_json(one, &back), HL_OK);
    json_t *two = hl_jobrun_to_json(&back);
    assert_true(json_equal(one, two));
    assert_string_equal(back.plan->master_address, "10.0.0.1");
    struct hl_job_actions a = {0};
    assert_int_equal(hl_jobrun_resume(&back, &a), HL_OK);
    tell(&a);
    assert_string_equal(said, "stop 1.0 node-0; stop 1.2 node-2; ");
    hl_job_actions_fini(&a);
    struct hl_arena arena = {0};
    struct hl_api_container_status_list list = hl_jobrun_containers(&back, &arena);
    assert_string_equal(list.items[1].id, "j.1.1");
    assert_int_equal(list.items[1].state, HL_API_CONTAINER_STATE_FAILED);
    hl_arena_fini(&arena);
    json_object_set_new(one, "state", json_string("asleep"));
    struct hl_jobrun bad;
    assert_int_equal(hl_jobrun_from_json(one, &bad), HL_ECORRUPT);
    json_decref(one);
    json_decref(two);
    hl_jobrun_fini(&run);
    hl_jobrun_fini(&back);

    run = started(2, 0);
    STATUS(1, 1, RUNNING);
    assert_int_equal(hl_jobrun_resume(&run, &a), HL_OK);
    tell(&a);
    assert_string_equal(said, "start 1.0 node-0; ");
    hl_job_actions_fini(&a);
    hl_jobrun_fini(&run);
}

TEST(a_long_message_is_cut_between_characters)
{
    char text[601] = "x";
    for (size_t i = 1; i + 2 < sizeof(text); i += 2)
        memcpy(text + i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 2; shift++) {
        struct hl_jobrun run = started(1, 0);
        STATUS(1, 0, FAILED, .text = text + shift);
        json_t *doc = hl_jobrun_to_json(&run);
        assert_non_null(doc);
        assert_non_null(json_object_get(doc, "reason"));
        json_decref(doc);
        hl_jobrun_fini(&run);
    }
}
