/* A running gang that changes its size: containers of an attempt come and go, by their index. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/planner/resize.h"
#include "jobstate_rig.h"

struct gang {
    struct hl_jobrun run;
    struct hl_job_actions actions;
    int64_t now;
};

static void gang_step(struct gang *g, struct hl_job_event ev)
{
    ev.now_ms = g->now += 1000;
    g->actions.count = 0;
    assert_int_equal(hl_jobrun_step(&g->run, &ev, &g->actions), HL_OK);
}

static void gang_status(struct gang *g, int index, enum hl_api_container_state state)
{
    gang_step(g, (struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                       .attempt = 1,
                                       .index = index,
                                       .node = "x",
                                       .container = state});
}

static void gang_free(struct gang *g, int index)
{
    gang_step(g, (struct hl_job_event){.kind = HL_JOB_EV_FREED, .attempt = 1, .index = index});
}

/* "start 3, stop 1": requested changes of containers. */
static const char *gang_asked(const struct gang *g)
{
    static char text[256];
    static const char *const words[] = {[HL_JOB_DO_START] = "start",
                                        [HL_JOB_DO_STOP] = "stop",
                                        [HL_JOB_DO_FREE] = "free",
                                        [HL_JOB_DO_RELEASE] = "release"};
    text[0] = '\0';
    for (size_t i = 0; i < g->actions.count; i++) {
        const struct hl_job_action *a = &g->actions.list[i];
        size_t n = strlen(text);
        if (a->kind == HL_JOB_DO_RELEASE)
            snprintf(text + n, sizeof(text) - n, "%srelease", n > 0 ? ", " : "");
        else if (a->kind != HL_JOB_DO_RECORD && a->kind != HL_JOB_DO_PLACE)
            snprintf(text + n, sizeof(text) - n, "%s%s %d", n > 0 ? ", " : "", words[a->kind],
                     a->index);
    }
    return text;
}

/* Three containers that run, container i on node-i. */
static void gang_init(struct gang *g)
{
    *g = (struct gang){.now = 1000000};
    assert_int_equal(hl_jobrun_init(&g->run, &(struct hl_jobrun_opts){.id = "x-1",
                                                                      .restart_lost = true,
                                                                      .max_restarts = 1}),
                     HL_OK);
    gang_step(g, (struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
    gang_step(g, (struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan_of(3)});
    for (int i = 0; i < 3; i++)
        gang_status(g, i, HL_API_CONTAINER_STATE_RUNNING);
    assert_int_equal(g->run.state, HL_API_JOB_STATE_RUNNING);
}

static void gang_fini(struct gang *g)
{
    hl_job_actions_fini(&g->actions);
    hl_jobrun_fini(&g->run);
}

static void container_leave(struct hl_plan *plan, int at)
{
    free(plan->containers[at].ranks[0].gpu);
    plan->containers[at].rank_count = 0;
    plan->containers[at].leaves = true;
}

/* node-1 is lost, and the others go on. */
static void gang_shrink(struct gang *g)
{
    struct hl_plan *plan = NULL;
    assert_int_equal(hl_plan_copy(g->run.plan, &plan), HL_OK);
    container_leave(plan, 1);
    plan->world_size = 2;
    gang_step(g,
              (struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = "node-1", .plan = plan});
}

/* A container on `node` is going to join. */
static void gang_grow(struct gang *g, const char *node)
{
    struct hl_plan *plan = NULL, *more = plan_of(1);
    static const struct hl_job job = {.grid = {.pp = 1, .tp = 1, .dp = 2, .cp = 1}};
    assert_int_equal(hl_plan_copy(g->run.plan, &plan), HL_OK);
    snprintf(more->containers[0].node, sizeof(more->containers[0].node), "%s", node);
    assert_int_equal(hl_plan_grow(plan, &job, more), HL_OK);
    hl_plan_free(more);
    gang_step(g, (struct hl_job_event){.kind = HL_JOB_EV_GROW, .plan = plan});
}

TEST(a_gang_that_loses_a_node_goes_on_without_another_attempt)
{
    struct gang g;
    gang_init(&g);
    gang_shrink(&g);
    assert_int_equal(g.run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(g.run.attempt, 1);
    assert_int_equal(g.run.node_losses, 0);
    assert_int_equal(g.run.resizes, 1);
    assert_string_equal(gang_asked(&g), "free 1");
    gang_free(&g, 0); /* it has not left */
    assert_int_equal(g.run.container_count, 3);
    gang_free(&g, 1);
    assert_int_equal(g.run.container_count, 2);
    assert_string_equal(g.run.containers[1].node, "node-2");
    gang_status(&g, 1, HL_API_CONTAINER_STATE_RUNNING); /* the node is back with it */
    assert_string_equal(gang_asked(&g), "stop 1");
    gang_status(&g, 0, HL_API_CONTAINER_STATE_SUCCEEDED);
    gang_status(&g, 2, HL_API_CONTAINER_STATE_SUCCEEDED);
    assert_int_equal(g.run.state, HL_API_JOB_STATE_SUCCEEDED);
    gang_fini(&g);
}

TEST(without_a_plan_the_loss_of_a_node_begins_another_attempt)
{
    struct gang g;
    gang_init(&g);
    gang_step(&g, (struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = "node-1"});
    assert_int_equal(g.run.state, HL_API_JOB_STATE_STOPPING);
    assert_string_equal(gang_asked(&g), "stop 0, stop 2");
    gang_fini(&g);
}

TEST(a_container_that_leaves_keeps_its_slot_until_it_has_ended)
{
    struct gang g;
    struct hl_plan *plan = NULL;
    gang_init(&g);
    assert_int_equal(hl_plan_copy(g.run.plan, &plan), HL_OK);
    container_leave(plan, 1);
    container_leave(plan, 2);
    gang_step(&g,
              (struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = "node-1", .plan = plan});
    assert_string_equal(gang_asked(&g), "free 1, stop 2");
    gang_free(&g, 2);
    assert_int_equal(g.run.container_count, 3);
    gang_status(
        &g, 2,
        HL_API_CONTAINER_STATE_FAILED); /* caused by the stop: without consequence for the gang */
    assert_string_equal(gang_asked(&g), "free 2");
    assert_int_equal(g.run.state, HL_API_JOB_STATE_RUNNING);
    gang_free(&g, 2);
    gang_free(&g, 1);
    assert_int_equal(g.run.container_count, 1);
    gang_fini(&g);
}

TEST(containers_join_under_new_indices_and_then_count)
{
    struct gang g;
    struct hl_plan *plan = NULL;
    gang_init(&g);
    gang_shrink(&g);
    gang_free(&g, 1);
    gang_grow(&g, "node-9");
    assert_string_equal(gang_asked(&g), "start 3");
    assert_int_equal(g.run.container_count, 3);
    gang_status(&g, 3, HL_API_CONTAINER_STATE_RUNNING);
    assert_string_equal(gang_asked(&g), "");
    assert_int_equal(hl_plan_copy(g.run.plan, &plan), HL_OK);
    plan->containers[2].rank_count = plan->containers[2].joining;
    plan->containers[2].joining = 0;
    gang_step(&g, (struct hl_job_event){.kind = HL_JOB_EV_RESIZED, .plan = plan});
    assert_int_equal(g.run.resizes, 2);
    json_t *doc = hl_jobrun_to_json(&g.run);
    struct hl_jobrun again;
    assert_int_equal(hl_jobrun_from_json(doc, &again), HL_OK);
    assert_int_equal(again.resizes, 2);
    assert_int_equal(again.resized_ms, g.now);
    assert_int_equal(hl_jobrun_index(&again, 2), 3);
    hl_jobrun_fini(&again);
    json_decref(doc);
    gang_status(&g, 3, HL_API_CONTAINER_STATE_FAILED);
    assert_int_equal(g.run.state, HL_API_JOB_STATE_STOPPING);
    assert_string_equal(gang_asked(&g), "stop 0, stop 2");
    gang_fini(&g);
}

TEST(what_fails_before_it_has_joined_leaves_and_the_gang_stays)
{
    struct gang g;
    gang_init(&g);
    gang_grow(&g, "node-9");
    gang_status(&g, 3, HL_API_CONTAINER_STATE_FAILED);
    assert_string_equal(gang_asked(&g), "free 3");
    assert_int_equal(g.run.state, HL_API_JOB_STATE_RUNNING);
    gang_free(&g, 3);
    gang_grow(&g, "node-8");
    assert_string_equal(gang_asked(&g), "start 4");
    gang_step(&g, (struct hl_job_event){.kind = HL_JOB_EV_DISMISS, .text = "it took too long"});
    assert_string_equal(gang_asked(&g), "stop 4");
    gang_step(&g, (struct hl_job_event){
                      .kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 4, .node = "node-8"});
    assert_string_equal(gang_asked(&g), "free 4"); /* and it is not started again */
    gang_fini(&g);
}

TEST(slots_are_counted_for_the_time_in_which_they_were_held)
{
    struct gang g;
    gang_init(&g);
    int64_t placed = g.run.placed_ms;
    gang_shrink(&g);
    gang_free(&g, 1);
    assert_int_equal(g.run.used_slot_ms, 3 * (g.now - placed));
    int64_t fewer = g.now, used = g.run.used_slot_ms;
    assert_int_equal(hl_jobrun_counted_ms(&g.run), fewer);
    gang_grow(&g, "node-9");
    assert_int_equal(g.run.used_slot_ms, used + 2 * (g.now - fewer));
    assert_int_equal(hl_jobrun_counted_ms(&g.run), g.now);
    gang_fini(&g);
}

TEST(a_plan_that_does_not_belong_to_the_gang_is_refused)
{
    struct gang g;
    struct hl_plan *plan = plan_of(3);
    gang_init(&g);
    const struct hl_job_event same = {.kind = HL_JOB_EV_GROW, .plan = plan},
                              none = {.kind = HL_JOB_EV_RESIZED};
    assert_int_equal(hl_jobrun_step(&g.run, &same, &g.actions), HL_ECONFLICT);
    assert_int_equal(hl_jobrun_step(&g.run, &none, &g.actions), HL_ECONFLICT);
    hl_plan_free(plan);
    gang_fini(&g);
}
