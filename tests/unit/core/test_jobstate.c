#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/jobstate.h"

/* ---- help ------------------------------------------------------------------------------------ */

/* A plan of n containers, container i on node-i. */
static struct hl_plan *plan_of(int n)
{
    json_t *list = json_array();
    struct hl_plan *plan = NULL;
    for (int i = 0; i < n; i++) {
        char node[32];
        snprintf(node, sizeof(node), "node-%d", i);
        json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:s}", "index", i, "node", node,
                                              "numaId", 8, "cpus", "0"));
    }
    json_t *doc = json_pack("{s:o, s:b, s:s, s:s}", "containers", list, "feasible", 1, "masterNode",
                            "node-0", "masterAddress", "10.0.0.1");
    assert_int_equal(hl_plan_from_json(doc, &plan), HL_OK);
    json_decref(doc);
    return plan;
}

/* The actions of one step as text: "start 1.0 node-0; release 1; ". Words stand for records. */
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
         .container = HL_CONTAINER_##s, ##__VA_ARGS__)

static struct hl_jobrun started(int containers, int restarts)
{
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j",
                                  .max_restarts = restarts,
                                  .start_timeout_ms = 60000,
                                  .run_timeout_ms = 0,
                                  .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(containers));
    return run;
}

/* ---- by hand --------------------------------------------------------------------------------- */

static void a_job_goes_from_submitted_to_succeeded(void **state)
{
    (void)state;
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j", .start_timeout_ms = 60000, .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    assert_string_equal(said, "submitted; place 1; ");
    STEP(.kind = HL_JOB_EV_NOT_PLACED, .text = "needs 2 slots");
    assert_string_equal(said, "waiting; ");
    assert_string_equal(run.reason, "needs 2 slots");
    STEP(.kind = HL_JOB_EV_NOT_PLACED, .text = "needs 2 slots");
    assert_string_equal(said, ""); /* said once */
    STEP(.kind = HL_JOB_EV_SLOTS);
    assert_string_equal(said, "place 1; ");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(2));
    assert_string_equal(said, "placed; start 1.0 node-0; start 1.1 node-1; ");
    assert_int_equal(hl_jobrun_next_ms(&run), 61000);
    STATUS(1, 0, STARTING);
    STATUS(1, 0, RUNNING);
    assert_int_equal(run.state, HL_JOB_STARTING);
    STATUS(1, 1, RUNNING, .now_ms = 2000);
    assert_string_equal(said, "running; ");
    assert_int_equal(run.state, HL_JOB_RUNNING);
    assert_int_equal(run.started_ms, 2000);
    assert_true(hl_jobrun_next_ms(&run) == INT64_MAX);
    STATUS(1, 0, SUCCEEDED);
    STATUS(1, 1, SUCCEEDED, .now_ms = 3000);
    assert_string_equal(said, "release 1; succeeded; ");
    assert_int_equal(run.state, HL_JOB_SUCCEEDED);
    assert_int_equal(run.finished_ms, 3000);
    hl_jobrun_fini(&run);
}

static void one_failed_container_restarts_the_whole_gang(void **state)
{
    (void)state;
    struct hl_jobrun run = started(3, 1);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STATUS(1, 2, RUNNING);
    STATUS(1, 1, FAILED, .exit_code = 3, .text = "rank 1 exited with 3");
    assert_string_equal(said, "container-failed; stop 1.0 node-0; stop 1.2 node-2; ");
    assert_int_equal(run.state, HL_JOB_STOPPING);
    STATUS(1, 0, STOPPED);
    assert_string_equal(said, "");
    STATUS(1, 2, FAILED, .signal = 9); /* killed while stopping: no second failure */
    assert_string_equal(said, "release 1; restarting; place 2; ");
    assert_int_equal(run.state, HL_JOB_PENDING);
    assert_int_equal(run.attempt, 2);
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    assert_string_equal(said, "placed; start 2.0 node-0; ");
    STATUS(2, 0, FAILED, .exit_code = 4);
    assert_string_equal(said, "container-failed; release 2; failed; ");
    assert_string_equal(run.reason, "container 0 on node-0 failed with exit code 4");
    assert_int_equal(run.state, HL_JOB_FAILED);
    hl_jobrun_fini(&run);
}

static void a_failed_job_keeps_the_message_of_the_first_failure(void **state)
{
    (void)state;
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 1, FAILED, .exit_code = 1, .text = "rank 1: ModuleNotFoundError: no module 'x'");
    STATUS(1, 0, FAILED, .exit_code = 1, .text = "rank 0: lost its peer");
    assert_int_equal(run.state, HL_JOB_FAILED);
    assert_string_equal(run.reason, "container 1 on node-1 failed: rank 1: ModuleNotFoundError: no "
                                    "module 'x'");
    hl_jobrun_fini(&run);
}

static void late_and_repeated_statuses_change_nothing(void **state)
{
    (void)state;
    struct hl_jobrun run = started(1, 3);
    STATUS(1, 0, RUNNING);
    STATUS(1, 0, RUNNING);
    assert_string_equal(said, "");
    STATUS(1, 0, STARTING);
    assert_int_equal(run.containers[0].state, HL_CONTAINER_RUNNING);
    STATUS(1, 0, FAILED);
    assert_int_equal(run.attempt, 2);
    STATUS(1, 0, FAILED);
    assert_string_equal(said, "");
    STATUS(1, 0, RUNNING); /* of the old attempt: nobody wants it any more */
    assert_string_equal(said, "stop 1.0 node-x; ");
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STATUS(1, 0, SUCCEEDED);
    assert_int_equal(run.state, HL_JOB_STARTING);
    STATUS(2, 7, RUNNING); /* no such container */
    assert_string_equal(said, "stop 2.7 node-x; ");
    STATUS(2, 0, SUCCEEDED);
    assert_int_equal(run.state, HL_JOB_SUCCEEDED);
    STATUS(2, 0, RUNNING);
    assert_string_equal(said, "stop 2.0 node-x; ");
    STEP(.kind = HL_JOB_EV_CANCEL);
    assert_string_equal(said, "");
    assert_int_equal(run.state, HL_JOB_SUCCEEDED);
    hl_jobrun_fini(&run);

    run = started(2, 0);
    STATUS(1, 0, SUCCEEDED);
    STATUS(1, 0, FAILED); /* an end is final */
    assert_int_equal(run.state, HL_JOB_STARTING);
    STATUS(1, 1, SUCCEEDED);
    assert_int_equal(run.state, HL_JOB_SUCCEEDED);
    hl_jobrun_fini(&run);
}

static void cancel_works_in_every_state(void **state)
{
    (void)state;
    struct hl_jobrun run;
    struct hl_jobrun_opts opts = {.id = "j", .stop_resend_ms = 5000};
    assert_int_equal(hl_jobrun_init(&run, &opts), HL_OK);
    STEP(.kind = HL_JOB_EV_SUBMITTED);
    STEP(.kind = HL_JOB_EV_CANCEL, .text = "by ana");
    assert_string_equal(said, "cancelled; ");
    assert_int_equal(run.state, HL_JOB_CANCELLED);
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
    assert_int_equal(run.state, HL_JOB_CANCELLED);
    hl_jobrun_fini(&run);
}

static void a_lost_node_restarts_the_gang_without_using_up_restarts(void **state)
{
    (void)state;
    struct hl_jobrun run = started(2, 0);
    STATUS(1, 0, RUNNING);
    STATUS(1, 1, RUNNING);
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "elsewhere");
    assert_string_equal(said, "");
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-1");
    assert_string_equal(said, "node-lost; stop 1.0 node-0; ");
    STATUS(1, 1,
           RUNNING); /* the node is back before the gang is down: its container must end too */
    assert_string_equal(said, "stop 1.1 node-1; ");
    STATUS(1, 0, STOPPED);
    assert_int_equal(run.state, HL_JOB_STOPPING);
    STATUS(1, 1, STOPPED);
    assert_string_equal(said, "release 1; restarting; place 2; ");
    assert_int_equal(run.restarts, 0);
    for (int i = 2; i <= HL_JOB_NODE_LOSSES_MAX; i++) {
        STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
        STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-0");
        assert_int_equal(run.state, HL_JOB_PENDING);
    }
    STEP(.kind = HL_JOB_EV_PLACED, .plan = plan_of(1));
    STEP(.kind = HL_JOB_EV_NODE_LOST, .node = "node-0", .text = "it was evicted");
    assert_int_equal(run.state, HL_JOB_FAILED);
    assert_string_equal(run.reason, "node node-0 was lost with 1 of 1 containers: it was evicted");
    hl_jobrun_fini(&run);
}

static void deadlines_are_kept(void **state)
{
    (void)state;
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
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 66000); /* told again until it ends */
    assert_string_equal(said, "stop 1.1 node-1; ");
    assert_int_equal(hl_jobrun_next_ms(&run), 71000);
    STATUS(1, 1, STOPPED, .now_ms = 67000);
    assert_int_equal(run.state, HL_JOB_FAILED);
    hl_jobrun_fini(&run);

    run = started(1, 5);
    run.run_timeout_ms = 1000;
    STATUS(1, 0, RUNNING, .now_ms = 5000);
    STEP(.kind = HL_JOB_EV_TIMER, .now_ms = 6000);
    assert_string_equal(said, "timeout; stop 1.0 node-0; ");
    STATUS(1, 0, STOPPED);
    assert_int_equal(run.state, HL_JOB_FAILED); /* a second time would take as long */
    hl_jobrun_fini(&run);
}

static void a_container_that_vanishes_counts_as_failed(void **state)
{
    (void)state;
    struct hl_jobrun run = started(1, 0);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0");
    assert_string_equal(said, "start 1.0 node-0; "); /* the start had not arrived */
    STATUS(1, 0, RUNNING, .now_ms = 2000);
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 4999);
    assert_int_equal(run.state, HL_JOB_RUNNING); /* the list may be older than the status */
    STEP(.kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 0, .node = "node-0", .now_ms = 5000);
    assert_int_equal(run.state, HL_JOB_FAILED);
    assert_string_equal(run.reason, "container 0 on node-0 failed: it vanished from its node");
    hl_jobrun_fini(&run);
    run = started(1, 0);
    STATUS(1, 0, STOPPED);
    assert_string_equal(run.reason, "container 0 on node-0 was stopped from outside");
    hl_jobrun_fini(&run);
}

static void a_plan_nobody_asked_for_is_not_taken(void **state)
{
    (void)state;
    struct hl_jobrun run = started(1, 0);
    struct hl_plan *plan = plan_of(1);
    assert_int_equal(step(&run, (struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan}),
                     HL_ECONFLICT);
    hl_plan_free(plan);
    assert_int_equal(run.container_count, 1);
    hl_jobrun_fini(&run);
}

static void a_run_survives_the_controllers_restart(void **state)
{
    (void)state;
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
    json_t *list = hl_jobrun_containers_to_json(&back);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "id")), "j.1.1");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "state")),
                        "failed");
    json_decref(list);
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

static void a_long_message_is_cut_between_characters(void **state)
{
    (void)state;
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

/* ---- a random world -------------------------------------------------------------------------- */

#define NODES      3
#define CONTAINERS 4
#define ATTEMPTS   64

struct body {
    int exists, alive, orphan; /* orphan: its node was lost while it lived */
    enum hl_container_state state;
    int node;
};

struct world {
    uint64_t seed;
    struct hl_jobrun run;
    struct body bodies[ATTEMPTS][CONTAINERS];
    int down[NODES];
    int want_place;
    int held; /* slots of how many attempts are held */
    struct hl_job_actions queue;
    size_t next; /* of the queue */
    int64_t now;
};

static unsigned dice(struct world *w, unsigned sides)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return (unsigned)(w->seed >> 11) % sides;
}

static void no_old_attempt_lives(const struct world *w, int attempt)
{
    for (int a = 0; a < attempt; a++)
        for (int i = 0; i < CONTAINERS; i++)
            assert_false(w->bodies[a][i].alive && !w->bodies[a][i].orphan);
}

/* What the step asked for at once is checked at once; starts and stops travel in the queue. */
static void check_actions(struct world *w, const struct hl_job_actions *out, size_t from)
{
    for (size_t i = from; i < out->count; i++) {
        const struct hl_job_action *x = &out->list[i];
        if (x->kind == HL_JOB_DO_PLACE)
            w->want_place = 1;
        if (x->kind == HL_JOB_DO_RELEASE) {
            w->held--;
            assert_int_equal(hl_jobrun_active(&w->run), 0);
        }
        if (x->kind == HL_JOB_DO_START)
            no_old_attempt_lives(w, x->attempt);
        assert_true(w->held >= 0 && w->held <= 1);
    }
    int holding = w->run.state == HL_JOB_STARTING || w->run.state == HL_JOB_RUNNING ||
                  w->run.state == HL_JOB_STOPPING;
    assert_int_equal(w->run.slots_held, holding);
    assert_int_equal(w->held, holding);
}

static hl_status feed(struct world *w, struct hl_job_event ev)
{
    size_t from = w->queue.count;
    ev.now_ms = w->now;
    if (ev.kind == HL_JOB_EV_PLACED)
        w->held++;
    hl_status st = hl_jobrun_step(&w->run, &ev, &w->queue);
    assert_int_equal(st, HL_OK);
    check_actions(w, &w->queue, from);
    return st;
}

static const char *node_name(int node)
{
    static const char *const names[NODES] = {"node-0", "node-1", "node-2"};
    return names[node];
}

static void try_place(struct world *w)
{
    int n = 1 + (int)dice(w, CONTAINERS), up = 0;
    if (!w->want_place || w->run.state != HL_JOB_PENDING)
        return;
    for (int i = 0; i < NODES; i++)
        up += !w->down[i];
    if (up == 0) {
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_NOT_PLACED, .text = "no node"});
        return;
    }
    w->want_place = 0;
    struct hl_plan *plan = plan_of(n);
    for (int i = 0; i < n; i++) {
        int node = (int)dice(w, NODES);
        while (w->down[node])
            node = (node + 1) % NODES;
        snprintf(plan->containers[i].node, sizeof(plan->containers[i].node), "%s", node_name(node));
    }
    feed(w, (struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan});
}

/* The next start or stop reaches its Agent, if that is up. */
static void deliver(struct world *w)
{
    if (w->next >= w->queue.count)
        return;
    struct hl_job_action *x = &w->queue.list[w->next++];
    if (x->kind != HL_JOB_DO_START && x->kind != HL_JOB_DO_STOP)
        return;
    int node = x->node[5] - '0';
    struct body *b = &w->bodies[x->attempt][x->index];
    if (w->down[node])
        return;
    if (x->kind == HL_JOB_DO_START && !b->exists) {
        *b = (struct body){.exists = 1, .alive = 1, .state = HL_CONTAINER_STARTING, .node = node};
        /* The call was under way when its node was given up, and arrives after all. */
        b->orphan = x->attempt != w->run.attempt || hl_job_state_ended(w->run.state) ||
                    w->run.containers[x->index].state == HL_CONTAINER_LOST;
    }
    if (x->kind == HL_JOB_DO_STOP && b->exists && b->alive) {
        b->alive = 0;
        b->state = dice(w, 4) == 0 ? HL_CONTAINER_FAILED : HL_CONTAINER_STOPPED;
    }
}

static struct body *any_body(struct world *w, int *attempt, int *index)
{
    *attempt = 1 + (int)dice(w, (unsigned)w->run.attempt);
    *index = (int)dice(w, CONTAINERS);
    return &w->bodies[*attempt][*index];
}

static void live(struct world *w, unsigned failures)
{
    int a, i;
    struct body *b = any_body(w, &a, &i);
    if (!b->exists || !b->alive)
        return;
    if (b->state == HL_CONTAINER_STARTING) {
        b->state = HL_CONTAINER_RUNNING;
        return;
    }
    b->alive = 0;
    b->state =
        failures > 0 && dice(w, failures) == 0 ? HL_CONTAINER_FAILED : HL_CONTAINER_SUCCEEDED;
}

/* An Agent reports a container, sometimes with what was true earlier. */
static void report(struct world *w)
{
    int a, i;
    struct body *b = any_body(w, &a, &i);
    if (b->exists && !w->down[b->node]) {
        enum hl_container_state st = b->state;
        if (dice(w, 8) == 0)
            st = HL_CONTAINER_STARTING;
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                      .attempt = a,
                                      .index = i,
                                      .node = node_name(b->node),
                                      .container = st});
    }
}

/* Only an Agent with nothing in flight can say that it doesn't have a container. */
static void report_absent(struct world *w)
{
    if (w->next < w->queue.count || w->run.state == HL_JOB_PENDING)
        return;
    int attempt = w->run.attempt;
    for (int i = 0; i < w->run.container_count && w->run.attempt == attempt; i++) {
        int node = w->run.containers[i].node[5] - '0';
        if (!w->bodies[attempt][i].exists && !w->down[node])
            feed(w, (struct hl_job_event){.kind = HL_JOB_EV_ABSENT,
                                          .attempt = attempt,
                                          .index = i,
                                          .node = node_name(node)});
    }
}

static void lose_or_find_a_node(struct world *w)
{
    int node = (int)dice(w, NODES);
    w->down[node] = !w->down[node];
    if (!w->down[node]) {
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_SLOTS});
        return;
    }
    for (int a = 0; a < ATTEMPTS; a++)
        for (int i = 0; i < CONTAINERS; i++)
            if (w->bodies[a][i].node == node && w->bodies[a][i].alive) {
                w->bodies[a][i].orphan = 1;
                w->bodies[a][i].alive = dice(w, 2) == 0; /* power, or only the network */
                if (!w->bodies[a][i].alive)
                    w->bodies[a][i].state = HL_CONTAINER_FAILED;
            }
    feed(w, (struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = node_name(node)});
}

/* kill -9 of the Controller: what was not delivered is lost, the record is read back. */
static void restart_controller(struct world *w)
{
    json_t *doc = hl_jobrun_to_json(&w->run);
    assert_non_null(doc);
    hl_jobrun_fini(&w->run);
    assert_int_equal(hl_jobrun_from_json(doc, &w->run), HL_OK);
    json_decref(doc);
    w->queue.count = w->next = 0;
    w->want_place = 0;
    assert_int_equal(hl_jobrun_resume(&w->run, &w->queue), HL_OK);
    check_actions(w, &w->queue, 0);
}

static void storm(struct world *w)
{
    switch (dice(w, 16)) {
    case 0:
        lose_or_find_a_node(w);
        return;
    case 1:
        restart_controller(w);
        return;
    case 2:
        w->now += dice(w, 4000);
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_TIMER});
        return;
    case 3:
        if (dice(w, 40) == 0)
            feed(w, (struct hl_job_event){.kind = HL_JOB_EV_CANCEL});
        return;
    case 4:
    case 5:
        try_place(w);
        return;
    case 6:
        report_absent(w);
        return;
    case 7:
    case 8:
        live(w, 6);
        return;
    case 9:
    case 10:
    case 11:
        report(w);
        return;
    default:
        deliver(w);
    }
}

static int bodies_alive(const struct world *w)
{
    int n = 0;
    for (int a = 0; a < ATTEMPTS; a++)
        for (int i = 0; i < CONTAINERS; i++)
            n += w->bodies[a][i].alive;
    return n;
}

/* Nothing breaks any more: the job must come to an end and leave nothing behind. */
static void calm(struct world *w)
{
    memset(w->down, 0, sizeof(w->down));
    feed(w, (struct hl_job_event){.kind = HL_JOB_EV_SLOTS});
    for (int i = 0; i < 20000; i++) {
        if (hl_job_state_ended(w->run.state) && bodies_alive(w) == 0)
            return;
        try_place(w);
        deliver(w);
        live(w, 0);
        report(w);
        report_absent(w);
        w->now += 10;
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_TIMER});
    }
    fail_msg("job is %s with %d containers alive", hl_job_state_name(w->run.state),
             bodies_alive(w));
}

static void whatever_happens_a_job_ends_and_leaves_nothing(void **state)
{
    (void)state;
    unsigned ends[HL_JOB_STATE_COUNT] = {0};
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct world *w = calloc(1, sizeof(*w));
        struct hl_jobrun_opts opts = {
            .id = "j", .max_restarts = 3, .start_timeout_ms = 20000, .stop_resend_ms = 500};
        w->seed = seed * 0x9e3779b97f4a7c15ull;
        w->now = 1000;
        assert_int_equal(hl_jobrun_init(&w->run, &opts), HL_OK);
        feed(w, (struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
        for (int i = 0; i < 400; i++)
            storm(w);
        assert_true(w->run.attempt <= 1 + 3 + HL_JOB_NODE_LOSSES_MAX);
        calm(w);
        ends[w->run.state]++;
        assert_int_equal(w->held, 0);
        hl_jobrun_fini(&w->run);
        hl_job_actions_fini(&w->queue);
        free(w);
    }
    assert_true(ends[HL_JOB_SUCCEEDED] > 20);
    assert_true(ends[HL_JOB_FAILED] > 20);
    assert_true(ends[HL_JOB_CANCELLED] > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_from_submitted_to_succeeded),
        cmocka_unit_test(one_failed_container_restarts_the_whole_gang),
        cmocka_unit_test(a_failed_job_keeps_the_message_of_the_first_failure),
        cmocka_unit_test(late_and_repeated_statuses_change_nothing),
        cmocka_unit_test(cancel_works_in_every_state),
        cmocka_unit_test(a_lost_node_restarts_the_gang_without_using_up_restarts),
        cmocka_unit_test(deadlines_are_kept),
        cmocka_unit_test(a_container_that_vanishes_counts_as_failed),
        cmocka_unit_test(a_plan_nobody_asked_for_is_not_taken),
        cmocka_unit_test(a_run_survives_the_controllers_restart),
        cmocka_unit_test(a_long_message_is_cut_between_characters),
        cmocka_unit_test(whatever_happens_a_job_ends_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
