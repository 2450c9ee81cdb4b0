/* A gang with parked containers on other servers. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/job/jobnodes.h"
#include "core/planner/resize.h"
#include "core/planner/spares.h"
#include "unit/core/job/jobstate_rig.h"

#define GANG   2
#define PARKED GANG /* the first parked container */

static struct hl_jobrun run;
static char said[2048];

static void step(struct hl_job_event ev)
{
    static const char *const verbs[] = {"place", "start", "stop", "release", "free"};
    struct hl_job_actions a = {0};
    ev.now_ms = 1000;
    assert_int_equal(hl_jobrun_step(&run, &ev, &a), HL_OK);
    said[0] = '\0';
    for (size_t i = 0; i < a.count; i++) {
        char line[128];
        if (a.list[i].kind == HL_JOB_DO_RECORD)
            snprintf(line, sizeof(line), "%s; ", a.list[i].word);
        else
            snprintf(line, sizeof(line), "%s %d; ", verbs[a.list[i].kind], a.list[i].index);
        strncat(said, line, sizeof(said) - strlen(said) - 1);
    }
    hl_job_actions_fini(&a);
}

static void container(int index, enum hl_api_container_state state, bool parked)
{
    step((struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                               .attempt = 1,
                               .index = index,
                               .node = run.containers[index].node,
                               .container = state,
                               .is_parked = parked});
}

/* The process that watched its ranks was killed with them. */
static void lose_container(int index)
{
    step((struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                               .attempt = 1,
                               .index = index,
                               .container = HL_API_CONTAINER_STATE_FAILED,
                               .failure = HL_API_FAILURE_KIND_LOST,
                               .text = "its shim ended",
                               .exit_code = 137,
                               .signal = 9});
}

static void lose(const char *node)
{
    step((struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = node, .text = "silent"});
}

/* A running gang of two, and as many parked containers. */
static int begin(void **state)
{
    static const struct hl_jobrun_opts opts = {.id = "j",
                                               .max_restarts = 2,
                                               .restart_lost = true,
                                               .stop_resend_ms = 5000,
                                               .policy = {.replaces = true}};
    (void)state;
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    step((struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
    step((struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan_with_spares(GANG, 2)});
    for (int i = 0; i < GANG; i++)
        container(i, HL_API_CONTAINER_STATE_RUNNING, false);
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_jobrun_fini(&run);
    return 0;
}

TEST_IN(begin, end, a_gang_runs_without_waiting_for_what_is_parked)
{
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    container(PARKED, HL_API_CONTAINER_STATE_FAILED, true);
    assert_string_equal(said, "spare-lost; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
}

TEST_IN(begin, end, a_parked_container_takes_the_place_of_a_lost_one_in_the_same_attempt)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-0");
    assert_string_equal(said, "node-lost; spare-used; start 2; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.attempt, 1);
    assert_int_equal(run.node_losses, 0);
    assert_string_equal(run.reason, "");
    assert_int_equal(run.plan->containers[PARKED].ranks[0].rank, 0);
    assert_int_equal(run.plan->containers[0].rank_count, 0);
    assert_string_equal(run.plan->master_node, "node-2"); /* where rank 0 is now */
    assert_string_equal(run.plan->master_address, "10.0.1.2");

    container(PARKED, HL_API_CONTAINER_STATE_RUNNING,
              true); /* reported before it knew of its ranks */
    assert_int_equal(run.containers[PARKED].state, HL_API_CONTAINER_STATE_WANTED);
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, false);
    assert_int_equal(run.containers[PARKED].state, HL_API_CONTAINER_STATE_RUNNING);
    assert_true(hl_jobrun_has_ranks(&run, PARKED));
    container(PARKED, HL_API_CONTAINER_STATE_FAILED,
              false); /* it now counts as any container of the gang */
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
}

TEST_IN(begin, end, a_lost_container_that_comes_back_is_stopped_and_its_slot_free)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-1");
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, false);
    assert_string_equal(run.plan->master_node, "node-0");
    container(1, HL_API_CONTAINER_STATE_RUNNING, false);
    assert_string_equal(said, "stop 1; ");
    container(1, HL_API_CONTAINER_STATE_STOPPED, false);
    assert_string_equal(said, "free 1; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
}

TEST_IN(begin, end, with_fewer_parked_than_lost_the_gang_begins_again)
{
    lose("node-1"); /* none is parked yet */
    assert_string_equal(said, "node-lost; stop 0; stop 2; stop 3; ");
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
    assert_int_equal(run.node_losses, 1);
}

TEST_IN(begin, end, a_server_that_had_only_parked_containers_is_no_loss_of_the_gang)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-2");
    assert_string_equal(said, "node-lost; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    lose("node-1"); /* the other one never came up */
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
}

TEST_IN(begin, end, a_gang_that_is_done_ends_what_is_parked_and_has_succeeded)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    container(0, HL_API_CONTAINER_STATE_SUCCEEDED, false);
    container(1, HL_API_CONTAINER_STATE_SUCCEEDED, false);
    assert_string_equal(said, "stop 2; stop 3; ");
    step((struct hl_job_event){.kind = HL_JOB_EV_CANCEL}); /* too late */
    container(3, HL_API_CONTAINER_STATE_STOPPED, true);
    container(PARKED, HL_API_CONTAINER_STATE_STOPPED, true);
    assert_string_equal(said, "release 0; succeeded; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_SUCCEEDED);
}

TEST_IN(begin, end, a_gang_with_a_spare_in_use_comes_back_from_its_record)
{
    struct hl_jobrun back;
    struct hl_job_actions a = {0};
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-0");
    json_t *doc = hl_jobrun_to_json(&run);
    assert_int_equal(hl_jobrun_from_json(doc, &back), HL_OK);
    json_decref(doc);
    assert_true(hl_jobrun_has_ranks(&back, PARKED));
    assert_false(hl_jobrun_has_ranks(&back, 0));
    assert_true(hl_jobrun_is_parked(&back, PARKED + 1));
    assert_false(hl_jobrun_is_parked(&back, 0));
    assert_int_equal(hl_jobrun_resume(&back, &a), HL_OK); /* the start is repeated */
    assert_int_equal(a.list[0].kind, HL_JOB_DO_START);
    assert_int_equal(a.list[0].index, PARKED);
    hl_job_actions_fini(&a);
    hl_jobrun_fini(&back);
}

/* The present plan with one more parked container, of index `index` on `node`. */
static struct hl_plan *plan_refilled(int index, const char *node)
{
    struct hl_plan *plan = NULL;
    json_t *doc = hl_plan_to_json(run.plan);
    json_array_append_new(json_object_get(doc, "containers"),
                          json_pack("{s:i, s:s, s:i, s:s, s:[], s:s}", "index", index, "node", node,
                                    "numaId", 8, "cpus", "0", "ranks", "address", "10.0.1.9"));
    assert_int_equal(hl_plan_from_json(doc, &plan), HL_OK);
    json_decref(doc);
    return plan;
}

TEST_IN(begin, end, a_spare_that_was_used_is_missing_until_another_one_is_parked)
{
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 0);
    assert_int_equal(hl_jobrun_missing_spares(&run, 3), 1); /* none was found at the start */
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    container(PARKED + 1, HL_API_CONTAINER_STATE_FAILED, true);
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 0); /* it would only be lost again */
    lose("node-0");
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 1);
    step((struct hl_job_event){.kind = HL_JOB_EV_GROW, .plan = plan_refilled(4, "node-9")});
    assert_string_equal(said, "start 4; spare-added; ");
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 0);
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);

    container(4, HL_API_CONTAINER_STATE_RUNNING, true);
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, false);
    lose("node-2"); /* where the ranks of node-0 went on */
    assert_string_equal(said, "node-lost; spare-used; start 4; ");
    assert_int_equal(run.plan->containers[4].ranks[0].rank, 0);
    assert_string_equal(run.plan->master_node, "node-9");
    assert_int_equal(run.attempt, 1);
}

TEST_IN(begin, end, a_parked_container_that_is_lost_with_its_server_is_missing)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-2");
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 1);
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true); /* its server is back */
    assert_string_equal(said, "stop 2; ");
    assert_int_equal(hl_jobrun_next_parked(&run, 0), -1); /* it is leaving */
    container(PARKED, HL_API_CONTAINER_STATE_STOPPED, true);
    assert_string_equal(said, "free 2; ");
}

TEST_IN(begin, end, a_lost_server_that_is_back_gets_the_slot_free)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose("node-0");
    assert_true(hl_jobrun_is_absent(&run, 0, "node-0", false));
    step((struct hl_job_event){
        .kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0"});
    assert_string_equal(said, "free 0; ");
    step((struct hl_job_event){.kind = HL_JOB_EV_FREED, .attempt = 1, .index = 0});
    assert_int_equal(run.container_count, 3);
    assert_int_equal(hl_jobrun_index(&run, 0), 1); /* the others keep their numbers */
    container(1, HL_API_CONTAINER_STATE_RUNNING, false);
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
}

/* ---- a container is lost, and its server answers --------------------------------------------- */

TEST_IN(begin, end, a_lost_container_goes_on_in_a_parked_one_and_its_slot_is_free)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose_container(0);
    assert_string_equal(said, "container-lost; spare-used; start 2; free 0; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.attempt, 1);
    assert_int_equal(run.failed.losses, 0); /* none of its restarts is used up */
    assert_int_equal(run.plan->containers[PARKED].ranks[0].rank, 0);
    assert_string_equal(run.plan->master_node, "node-2");
    step((struct hl_job_event){.kind = HL_JOB_EV_FREED, .attempt = 1, .index = 0});
    assert_int_equal(run.container_count, 3);
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 1); /* which may get that slot */
    assert_int_equal(run.containers[0].state, HL_API_CONTAINER_STATE_RUNNING);
}

TEST_IN(begin, end, a_lost_container_without_a_parked_one_gets_another_in_its_slot)
{
    lose_container(1); /* the new parked containers have not come up */
    assert_string_equal(said, "container-lost; container-replaced; start 4; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.container_count, 4);
    assert_string_equal(run.containers[1].node, "node-1");
    assert_int_equal(run.containers[1].state, HL_API_CONTAINER_STATE_WANTED);
    assert_string_equal(run.containers[1].message, "");
    assert_int_equal(run.plan->containers[1].ranks[0].rank, 1);
    assert_int_equal(hl_plan_position(run.plan, 1), -1);

    container(1, HL_API_CONTAINER_STATE_RUNNING, false); /* a late report of the previous one */
    assert_string_equal(said, "stop 1; ");
    step((struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                               .attempt = 1,
                               .index = 4,
                               .container = HL_API_CONTAINER_STATE_RUNNING});
    assert_int_equal(run.containers[1].state, HL_API_CONTAINER_STATE_RUNNING);
    lose_container(4);
    assert_string_equal(said, "container-lost; container-replaced; start 5; ");
}

TEST_IN(begin, end, a_parked_container_that_is_lost_alone_is_parked_again_in_its_slot)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose_container(PARKED);
    assert_string_equal(said, "container-lost; container-replaced; start 4; ");
    assert_true(hl_jobrun_is_parked(&run, PARKED));
    assert_int_equal(hl_jobrun_missing_spares(&run, 2), 0);
}

TEST_IN(begin, end, a_container_that_is_lost_again_and_again_fails_in_the_end)
{
    for (int i = 0; i < HL_JOB_CONTAINER_LOSSES_MAX; i++)
        lose_container(hl_jobrun_index(&run, 1));
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    lose_container(hl_jobrun_index(&run, 1));
    assert_int_equal(run.state, HL_API_JOB_STATE_STOPPING);
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
    assert_int_equal(run.last_failure, HL_API_FAILURE_KIND_LOST);
    assert_int_equal(run.failed.used, 1);
    assert_non_null(strstr(run.reason, "its shim ended"));
}

TEST_IN(begin, end, how_often_a_container_was_lost_goes_with_its_ranks_and_into_the_record)
{
    struct hl_jobrun back;
    lose_container(0);
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    lose_container(hl_jobrun_index(&run, 0));
    assert_int_equal(run.containers[PARKED].lost, 2);
    json_t *doc = hl_jobrun_to_json(&run);
    assert_int_equal(hl_jobrun_from_json(doc, &back), HL_OK);
    json_decref(doc);
    assert_int_equal(back.containers[PARKED].lost, 2);
    hl_jobrun_fini(&back);
}

/* Its node lists its containers, and this one is missing: its record was removed. */
static void vanish(int index)
{
    step((struct hl_job_event){.kind = HL_JOB_EV_ABSENT,
                               .attempt = 1,
                               .index = index,
                               .node = "node-0",
                               .is_in_order = true});
}

TEST_IN(begin, end, a_container_that_vanished_is_replaced_as_any_lost_one)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    vanish(0);
    assert_string_equal(said, "container-lost; spare-used; start 2; free 0; ");
    vanish(1); /* nothing is parked any more */
    assert_string_equal(said, "container-lost; container-replaced; start 4; ");
    vanish(4); /* before it came up there */
    assert_string_equal(said, "start 4; ");
    assert_int_equal(run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(run.attempt, 1);
    assert_int_equal(run.failed.losses, 0);
}

TEST_IN(begin, end, what_can_not_be_replaced_fails_the_attempt_and_says_why)
{
    for (int i = 0; i < HL_JOB_CONTAINER_LOSSES_MAX; i++)
        lose_container(hl_jobrun_index(&run, 1));
    run.containers[1].state = HL_API_CONTAINER_STATE_RUNNING;
    vanish(hl_jobrun_index(&run, 1));
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
    assert_int_equal(run.last_failure, HL_API_FAILURE_KIND_LOST);
    assert_string_equal(run.reason,
                        "container 11 on node-1 failed: it vanished from its node; it is not "
                        "replaced: containers of these ranks were lost too often in this attempt");
}

TEST_IN(begin, end, a_gang_that_starts_replaces_no_lost_container)
{
    run.state = HL_API_JOB_STATE_STARTING;
    vanish(1);
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
    assert_non_null(strstr(run.reason, "it is not replaced: the gang was still starting"));
}

/* What is reported about a run, and what its record then says. */
static void told_as_lost(int index, bool lost)
{
    struct hl_jobrun back;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    json_t *doc = hl_jobrun_to_json(&run);
    assert_int_equal(hl_jobrun_from_json(doc, &back), HL_OK);
    json_decref(doc);
    assert_int_equal(hl_jobrun_containers(&run, &arena).items[index].lost, lost);
    assert_int_equal(hl_jobrun_containers(&back, &arena).items[index].lost, lost);
    assert_int_equal(back.containers[index].failure, run.containers[index].failure);
    hl_jobrun_fini(&back);
}

TEST_IN(begin, end, a_container_that_its_agent_reports_as_lost_is_told_as_lost)
{
    run.policy.replaces = false;
    lose_container(1);
    assert_string_equal(run.containers[1].message, "its shim ended");
    told_as_lost(1, true);
    told_as_lost(0, false);
}

TEST_IN(begin, end, a_container_that_vanished_is_told_as_lost)
{
    run.policy.replaces = false;
    vanish(1);
    told_as_lost(1, true);
    told_as_lost(0, false);
}

TEST_IN(begin, end, what_a_rank_says_makes_no_lost_container)
{
    step((struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                               .attempt = 1,
                               .container = HL_API_CONTAINER_STATE_FAILED,
                               .text = "it vanished from its node",
                               .exit_code = 1});
    told_as_lost(0, false);
    assert_int_equal(run.containers[0].failure,
                     HL_API_FAILURE_KIND_EXIT); /* a failure of its code */
}

TEST_IN(begin, end, a_container_that_replaces_a_lost_one_is_not_lost)
{
    lose_container(0);
    assert_string_equal(said, "container-lost; container-replaced; start 4; ");
    told_as_lost(0, false);
}

TEST_IN(begin, end, a_gang_that_replaces_nothing_begins_again_after_a_lost_container)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    run.policy.replaces = false;
    lose_container(0);
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
    assert_int_equal(run.failed.used, 1);
}

TEST_IN(begin, end, a_rank_that_has_failed_is_no_lost_container)
{
    container(PARKED, HL_API_CONTAINER_STATE_RUNNING, true);
    container(0, HL_API_CONTAINER_STATE_FAILED, false);
    assert_int_equal(run.goal, HL_API_JOB_GOAL_RESTART);
}
