/* The state machine in a world that loses, repeats and reorders messages and loses nodes. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/core/job/jobstate_rig.h"

#define NODES      3
#define CONTAINERS 4
#define ATTEMPTS   64

struct body {
    int exists, alive, orphan; /* orphan: its node was lost while it lived */
    enum hl_api_container_state state;
    int node;
};

struct world {
    uint64_t seed;
    struct hl_jobrun run;
    struct body bodies[ATTEMPTS][CONTAINERS];
    int down[NODES];
    int want_place;
    int held; /* how many attempts hold slots */
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

/* Actions that apply at once are checked at once; starts and stops travel in the queue. */
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
    int holding = w->run.state == HL_API_JOB_STATE_STARTING ||
                  w->run.state == HL_API_JOB_STATE_RUNNING ||
                  w->run.state == HL_API_JOB_STATE_STOPPING;
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
    if (!w->want_place || w->run.state != HL_API_JOB_STATE_PENDING)
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
        *b = (struct body){
            .exists = 1, .alive = 1, .state = HL_API_CONTAINER_STATE_STARTING, .node = node};
        /* The call was in flight when its node was given up, and arrives after all. */
        b->orphan = x->attempt != w->run.attempt || hl_job_state_ended(w->run.state) ||
                    w->run.containers[x->index].state == HL_API_CONTAINER_STATE_LOST;
    }
    if (x->kind == HL_JOB_DO_STOP && b->exists && b->alive) {
        b->alive = 0;
        b->state = dice(w, 4) == 0 ? HL_API_CONTAINER_STATE_FAILED : HL_API_CONTAINER_STATE_STOPPED;
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
    if (b->state == HL_API_CONTAINER_STATE_STARTING) {
        b->state = HL_API_CONTAINER_STATE_RUNNING;
        return;
    }
    b->alive = 0;
    b->state = failures > 0 && dice(w, failures) == 0 ? HL_API_CONTAINER_STATE_FAILED
                                                      : HL_API_CONTAINER_STATE_SUCCEEDED;
}

/* An Agent reports a container, sometimes with outdated facts. */
static void report(struct world *w)
{
    int a, i;
    struct body *b = any_body(w, &a, &i);
    if (b->exists && !w->down[b->node]) {
        enum hl_api_container_state st = b->state;
        if (dice(w, 8) == 0)
            st = HL_API_CONTAINER_STATE_STARTING;
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
    if (w->next < w->queue.count || w->run.state == HL_API_JOB_STATE_PENDING)
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
                    w->bodies[a][i].state = HL_API_CONTAINER_STATE_FAILED;
            }
    feed(w, (struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = node_name(node)});
}

/* kill -9 of the Controller: undelivered messages are lost, the record is read back. */
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

/* From now on nothing fails: the job must end and leave nothing behind. */
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
    fail_msg("job is %s with %d containers alive", hl_api_job_state_name(w->run.state),
             bodies_alive(w));
}

TEST(whatever_happens_a_job_ends_and_leaves_nothing)
{
    unsigned ends[HL_API_JOB_STATE_COUNT] = {0};
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct world *w = calloc(1, sizeof(*w));
        struct hl_jobrun_opts opts = {.id = "j",
                                      .max_restarts = 3,
                                      .start_timeout_ms = 20000,
                                      .stop_resend_ms = 500,
                                      .restart_lost = true,
                                      .policy = {.backoff_ms = 40, .backoff_max_ms = 300}};
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
    assert_true(ends[HL_API_JOB_STATE_SUCCEEDED] > 20);
    assert_true(ends[HL_API_JOB_STATE_FAILED] > 20);
    assert_true(ends[HL_API_JOB_STATE_CANCELLED] > 20);
}
