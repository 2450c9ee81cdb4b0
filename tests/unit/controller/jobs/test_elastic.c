/* Jobs with a range of data parallel sizes: how the Controller uses free slots and reacts to lost
 * nodes. Its store, line and planner are real; no containers are started. */
#include "support/test.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/jobs/queue.h"
#include "core/job/elastic.h"
#include "os/loop.h"
#include "rpc/agent_calls.h"
#include "rpc/controller_calls.h"
#include "store/store.h"
#include "store/writer.h"

struct world {
    struct hl_controller c;
    struct hl_timer *look;
    uint64_t until_ns;
};

static hl_status plan_job(struct hl_controller *c, const struct hl_job *spec, const char *id,
                          int attempt, struct hl_plan **out)
{
    (void)id;
    (void)attempt;
    return hl_plan_make(spec, nodes_cluster(c), out);
}

static bool frees = true; /* if false, nothing is carried out, as after a crash */

static void carry_out(struct job *j, const struct hl_job_actions *actions)
{
    for (size_t i = 0; i < actions->count; i++)
        if (frees && actions->list[i].kind == HL_JOB_DO_FREE)
            elastic_free_slot(j, &actions->list[i]);
}

static bool nothing_needed(const struct job *j)
{
    (void)j;
    return false;
}

static void nothing_kept(const struct job *j)
{
    (void)j;
}

static const struct job_executor executor = {
    .plan = plan_job, .carry_out = carry_out, .needs = nothing_needed, .forget = nothing_kept};
static const struct job_executor *const executors[] = {&executor, NULL};
static const struct node_events events = {0};

/* Nodes n0, n1, ... of one slot each. */
static void world_start(struct world *w, int nodes, const char *queues)
{
    *w = (struct world){.c = {.refs = 1}};
    struct hl_controller *c = &w->c;
    c->opts.queue_list = queues;
    hl_listening_init(&c->listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    assert_int_equal(hl_loop_create(&c->opts.loop), HL_OK);
    assert_int_equal(hl_store_open("mem:", &c->store), HL_OK);
    assert_int_equal(hl_store_writer_start(c->store, c->opts.loop, &c->writer), HL_OK);
    assert_int_equal(nodes_create(c, &events), HL_OK);
    assert_int_equal(jobs_create(c, executors, &executor), HL_OK);
    assert_int_equal(queue_create(c), HL_OK);
    for (int i = 0; i < nodes; i++) {
        char name[16], address[32];
        struct hl_api_slot slot = {.cpus = "0", .memory_bytes = 1 << 30};
        snprintf(name, sizeof(name), "n%d", i);
        snprintf(address, sizeof(address), "10.0.0.%d", i);
        const struct hl_api_node_info info = {
            .name = name, .rank_address = address, .host_id = name, .slots = {&slot, 1}};
        assert_int_equal(hl_cluster_put(nodes_cluster(c), &info), HL_OK);
    }
}

static void world_end(struct world *w)
{
    struct hl_controller *c = &w->c;
    queue_destroy(c);
    jobs_fini(c);
    nodes_fini(c);
    hl_store_writer_stop(c->writer);
    hl_store_close(c->store);
    hl_loop_destroy(c->opts.loop);
}

static void on_look(void *arg)
{
    struct world *w = arg;
    if ((w->c.refs == 1 && w->c.jobs->queue->timer == NULL) || hl_now_ns() > w->until_ns)
        uv_stop(hl_loop_uv(w->c.opts.loop));
}

/* Runs until everything is written and the line was examined. */
static void world_run(struct world *w)
{
    w->until_ns = hl_now_ns() + TEST_PATIENCE_NS;
    assert_int_equal(hl_timer_create(w->c.opts.loop, 0, 1, on_look, w, &w->look), HL_OK);
    assert_int_equal(hl_loop_run(w->c.opts.loop), HL_OK);
    hl_timer_destroy(w->look);
    assert_null(w->c.jobs->queue->timer);
}

static struct job *job_put(struct world *w, const char *sizes, const char *more)
{
    struct job *j = calloc(1, sizeof(*j));
    char text[512];
    json_error_t err;
    assert_non_null(j);
    snprintf(text, sizeof(text),
             "{\"jobName\": \"x\", \"command\": [\"x\"], \"parallelism\": {\"data_parallel_size\": "
             "%s}, \"resources\": {\"ranks_per_slot\": 1}%s}",
             sizes, more);
    json_t *doc = json_loads(text, 0, &err);
    assert_int_equal(hl_job_parse(doc, NULL, &j->spec), HL_OK);
    json_decref(doc);
    j->controller = &w->c;
    j->executor = &executor;
    j->seq = ++w->c.jobs->seq;
    j->load_version = -1;
    snprintf(j->id, sizeof(j->id), "x-%d", (int)j->seq);
    j->events = json_array();
    assert_int_equal(job_doc_make(j), HL_OK);
    const struct hl_jobrun_opts opts = {
        .id = j->id, .restart_lost = true, .policy = hl_job_policy(&j->spec)};
    assert_int_equal(hl_jobrun_init(&j->run, &opts), HL_OK);
    jobs_add(j);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
    world_run(w);
    return j;
}

#define REPLACE ", \"recovery\": {\"mode\": \"replace\", \"growAfter\": \"100ms\"}"

/* All containers that should run do. */
static void job_runs(struct world *w, struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++)
        if (j->run.containers[i].state == HL_API_CONTAINER_STATE_WANTED)
            job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                                .attempt = j->run.attempt,
                                                .index = hl_jobrun_index(&j->run, i),
                                                .node = j->run.containers[i].node,
                                                .container = HL_API_CONTAINER_STATE_RUNNING});
    world_run(w);
    assert_int_equal(j->run.state, HL_API_JOB_STATE_RUNNING);
}

static int count_busy(const struct world *w)
{
    const struct hl_cluster *c = nodes_cluster(&w->c);
    int n = 0;
    for (size_t i = 0; i < c->count; i++)
        n += c->nodes[i].ready && c->nodes[i].slots[0].busy;
    return n;
}

/* The job's state has settled long ago. */
static void job_settle(struct job *j)
{
    j->run.placed_ms -= 60000;
    j->run.resized_ms -= j->run.resized_ms > 0 ? 60000 : 0;
}

static void line_look(struct world *w)
{
    w->c.jobs->want_pass(&w->c);
    world_run(w);
}

TEST(a_gang_starts_with_the_largest_size_that_has_slots)
{
    struct world w;
    world_start(&w, 3, NULL);
    struct job *j = job_put(&w, "{\"min\": 1, \"max\": 5}", "");
    assert_int_equal(j->run.state, HL_API_JOB_STATE_STARTING);
    assert_int_equal(j->run.plan->world_size, 3);
    assert_int_equal(j->spec.grid.dp, 3);
    assert_int_equal(count_busy(&w), 3);
    struct job *next = job_put(&w, "{\"min\": 2, \"max\": 3}", "");
    assert_int_equal(next->run.state, HL_API_JOB_STATE_PENDING);
    assert_int_equal(next->spec.grid.dp, 2);
    assert_string_equal(next->run.reason, "needs 2 slots, 0 are free of 3 on 3 ready servers");
    world_end(&w);
}

TEST(a_size_stays_within_the_quota_and_leaves_slots_to_those_who_wait)
{
    struct world w;
    world_start(&w, 5, "main quota=4");
    struct job *fixed = job_put(&w, "1", "");
    assert_int_equal(fixed->run.container_count, 1);
    struct job *j = job_put(&w, "{\"min\": 1, \"max\": 5}", "");
    assert_int_equal(j->run.container_count, 3); /* within the quota of 4, on 4 free slots */
    assert_int_equal(count_busy(&w), 4);
    world_end(&w);
}

TEST(a_lost_node_takes_its_replica_and_a_free_slot_brings_one_back)
{
    struct world w;
    world_start(&w, 3, NULL);
    struct job *j = job_put(&w, "{\"min\": 2, \"max\": 3}", REPLACE);
    job_runs(&w, j);
    char lost[64];
    snprintf(lost, sizeof(lost), "%s", j->run.plan->master_node);
    hl_cluster_set_ready(nodes_cluster(&w.c), lost, false);
    elastic_lose_node(j, lost, "silent for 1s");
    world_run(&w);
    assert_int_equal(j->run.state, HL_API_JOB_STATE_RUNNING);
    assert_int_equal(j->spec.grid.dp, 2);
    assert_int_equal(j->run.container_count, 2);
    assert_string_not_equal(j->run.plan->master_node, lost);
    assert_string_equal(j->run.plan->arithmetic[0], "now 2 replicas of PP 1 × TP 1 = 1 rank");
    assert_int_equal(j->port.settled.attempt, 0); /* rank 0 moved: it needs another port */
    assert_non_null(strstr(j->elastic.lost, "LOST=10.0.0."));

    hl_cluster_set_ready(nodes_cluster(&w.c), lost, true);
    line_look(&w);
    assert_int_equal(j->run.container_count, 2); /* not so early */
    job_settle(j);
    line_look(&w);
    assert_int_equal(j->run.container_count, 3);
    assert_int_equal(j->spec.grid.dp, 2); /* a starting container is not yet part of the gang */
    assert_int_equal(j->run.plan->containers[2].joining, 1);
    assert_int_equal(count_busy(&w), 3);
    job_runs(&w, j);
    assert_int_equal(j->run.resizes, 1);
    world_end(&w);
}

TEST(what_has_left_holds_no_slot_after_a_restart)
{
    struct world w;
    world_start(&w, 3, NULL);
    struct job *j = job_put(&w, "{\"min\": 1, \"max\": 3}", REPLACE);
    job_runs(&w, j);
    frees = false;
    elastic_lose_node(j, "n1", "silent for 1s");
    world_run(&w);
    frees = true;
    assert_int_equal(j->run.container_count, 3);
    jobs_resume(&w.c); /* the slot of n1 may belong to another job by now: it is left alone */
    world_run(&w);
    assert_int_equal(j->run.container_count, 2);
    assert_int_equal(count_busy(&w), 3);
    world_end(&w);
}

TEST(below_the_least_size_the_gang_waits_with_the_reason)
{
    struct world w;
    world_start(&w, 2, NULL);
    struct job *j = job_put(&w, "{\"min\": 2, \"max\": 3}", REPLACE);
    job_runs(&w, j);
    hl_cluster_set_ready(nodes_cluster(&w.c), "n1", false);
    elastic_lose_node(j, "n1", "silent for 1s");
    world_run(&w);
    assert_int_equal(j->run.state, HL_API_JOB_STATE_STOPPING);
    assert_string_equal(j->run.reason, "node n1 was lost with 1 of 2 containers: silent for 1s; "
                                       "fewer than 2 whole replicas are left");
    world_end(&w);
}

TEST(a_gang_that_runs_grows_behind_all_that_wait)
{
    struct world w;
    world_start(&w, 1, NULL);
    struct job *j = job_put(&w, "{\"min\": 1, \"max\": 2}", REPLACE);
    job_runs(&w, j);
    struct job *next = job_put(&w, "1", "");
    assert_int_equal(next->run.state, HL_API_JOB_STATE_PENDING);
    job_settle(j);
    struct hl_api_slot slot = {.cpus = "0", .memory_bytes = 1 << 30};
    const struct hl_api_node_info info = {
        .name = "n1", .rank_address = "10.0.0.1", .host_id = "n1", .slots = {&slot, 1}};
    assert_int_equal(hl_cluster_put(nodes_cluster(&w.c), &info), HL_OK);
    line_look(&w);
    assert_int_equal(next->run.state, HL_API_JOB_STATE_STARTING);
    assert_int_equal(j->run.container_count, 1);
    world_end(&w);
}

TEST(a_spare_slot_that_was_used_is_filled_again_within_the_quota)
{
    struct world w;
    world_start(&w, 4, "main quota=3");
    struct job *j = job_put(&w, "1", ", \"recovery\": {\"mode\": \"replace\"}, \"spareSlots\": 1");
    job_runs(&w, j);
    assert_int_equal(count_busy(&w), 2);
    char lost[64];
    snprintf(lost, sizeof(lost), "%s", j->run.containers[0].node);
    hl_cluster_set_ready(nodes_cluster(&w.c), lost, false);
    elastic_lose_node(j, lost, "silent for 1s");
    world_run(&w);
    job_runs(&w, j);
    assert_int_equal(j->run.attempt, 1);
    line_look(&w);
    assert_int_equal(j->run.container_count, 3);
    assert_true(hl_jobrun_is_parked(&j->run, 2));
    assert_int_equal(count_busy(&w), 2); /* on ready nodes */
    job_runs(&w, j);
    line_look(&w);
    assert_int_equal(j->run.container_count, 3);

    /* Another one would be the fourth: the quota counts the lost container until its node is
     * back. */
    snprintf(lost, sizeof(lost), "%s", j->run.containers[2].node);
    hl_cluster_set_ready(nodes_cluster(&w.c), lost, false);
    elastic_lose_node(j, lost, "silent for 1s");
    world_run(&w);
    line_look(&w);
    assert_int_equal(j->run.container_count, 3);
    hl_cluster_set_ready(nodes_cluster(&w.c), lost, true);
    job_event(j, &(struct hl_job_event){
                     .kind = HL_JOB_EV_ABSENT, .attempt = 1, .index = 2, .node = lost});
    world_run(&w);
    line_look(&w);
    assert_int_equal(j->run.container_count, 3);
    assert_int_equal(hl_jobrun_index(&j->run, 2), 3);
    assert_true(hl_jobrun_is_parked(&j->run, 2));
    world_end(&w);
}

static void job_cancel(struct world *w, struct job *j)
{
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL});
    for (int i = 0; i < j->run.container_count; i++)
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                            .attempt = j->run.attempt,
                                            .index = hl_jobrun_index(&j->run, i),
                                            .node = j->run.containers[i].node,
                                            .container = HL_API_CONTAINER_STATE_STOPPED});
    world_run(w);
    line_look(w);
}

#define SPARE ", \"recovery\": {\"mode\": \"replace\"}, \"spareSlots\": 1"

TEST(a_gang_does_not_wait_for_spare_slots)
{
    struct world w;
    world_start(&w, 2, NULL);
    struct job *first = job_put(&w, "1", SPARE); /* gangs of its shape have found a spare slot */
    assert_int_equal(count_busy(&w), 2);
    struct job *plain = job_put(&w, "1", ""), *second = job_put(&w, "1", SPARE);
    job_cancel(&w, first);
    assert_int_equal(plain->run.state, HL_API_JOB_STATE_STARTING);
    assert_int_equal(second->run.state, HL_API_JOB_STATE_STARTING);
    assert_int_equal(second->run.container_count, 1);
    world_end(&w);
}

TEST(spare_slots_found_at_the_start_stay_within_the_quota)
{
    struct world w;
    world_start(&w, 4, "main quota=3");
    struct job *first = job_put(&w, "1", SPARE), *second = job_put(&w, "1", SPARE);
    assert_int_equal(first->run.container_count, 2);
    assert_int_equal(second->run.container_count, 1);
    assert_int_equal(count_busy(&w), 3);
    world_end(&w);
}

/* Its slots are those of the job's plan, however often the record is reloaded. */
TEST(a_gang_that_ends_frees_the_slots_that_it_got_later)
{
    struct world w;
    world_start(&w, 3, NULL);
    struct job *j = job_put(&w, "1", ", \"recovery\": {\"mode\": \"replace\"}, \"spareSlots\": 1");
    job_runs(&w, j);
    elastic_lose_node(j, j->run.containers[0].node, "silent for 1s");
    world_run(&w);
    line_look(&w);
    assert_int_equal(count_busy(&w), 3);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL});
    for (int i = 0; i < j->run.container_count; i++)
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                            .attempt = 1,
                                            .index = hl_jobrun_index(&j->run, i),
                                            .node = j->run.containers[i].node,
                                            .container = HL_API_CONTAINER_STATE_STOPPED});
    world_run(&w);
    assert_int_equal(j->run.state, HL_API_JOB_STATE_CANCELLED);
    assert_int_equal(count_busy(&w), 0);
    world_end(&w);
}

/* ---- a rank asks for its place ----------------------------------------------------------------
 */

static struct hl_api_controller_join_gang_results said;
static struct hl_arena said_arena;

static hl_status ask(struct world *w, int attempt, int container, int local)
{
    const struct hl_api_controller_join_gang_params p = {
        .job = "x-1", .attempt = attempt, .container = container, .local_rank = local};
    hl_arena_fini(&said_arena);
    said = (struct hl_api_controller_join_gang_results){0};
    return elastic_join(&w->c, &p, &said_arena, &said);
}

/* Its value of `key`; "-": it has no place yet. */
static const char *place_of(struct world *w, int container, const char *key)
{
    assert_int_equal(ask(w, 1, container, 0), HL_OK);
    assert_int_equal(said.waits[0] == '\0', said.env.count > 0);
    for (size_t i = 0; i < said.env.count; i++)
        if (strcmp(said.env.items[i].key, key) == 0)
            return said.env.items[i].value;
    return "-";
}

/* One rank runs, on n0; another one starts, on n1. */
static struct job *gang_that_grows(struct world *w)
{
    struct job *j = job_put(w, "{\"min\": 1, \"max\": 2}", REPLACE);
    job_runs(w, j);
    j->port.number = 7777;
    j->port.settled.attempt = 1;
    job_settle(j);
    struct hl_api_slot slot = {.cpus = "0", .memory_bytes = 1 << 30};
    const struct hl_api_node_info info = {
        .name = "n1", .rank_address = "10.0.0.1", .host_id = "n1", .slots = {&slot, 1}};
    assert_int_equal(hl_cluster_put(nodes_cluster(&w->c), &info), HL_OK);
    line_look(w);
    assert_int_equal(j->run.container_count, 2);
    job_runs(w, j);
    return j;
}

/* Containers get the Controller's address. */
static void world_serve(struct world *w)
{
    static const struct hl_controller_handlers none = {0};
    assert_int_equal(hl_rpc_create(&w->c.opts.rpc), HL_OK);
    assert_int_equal(hl_serve_controller(w->c.opts.rpc,
                                         &(struct hl_rpc_serve_opts){.address = "127.0.0.1:0",
                                                                     .loop = w->c.opts.loop},
                                         &none, &w->c.server),
                     HL_OK);
}

static void world_end_served(struct world *w)
{
    hl_rpc_server_close(w->c.server);
    hl_rpc_destroy(w->c.opts.rpc);
    hl_arena_fini(&said_arena);
    world_end(w);
}

TEST(who_has_asked_is_taken_in_when_one_of_the_gang_asks)
{
    struct world w;
    world_start(&w, 1, NULL);
    world_serve(&w);
    struct job *j = gang_that_grows(&w);
    assert_string_equal(place_of(&w, 0, "WORLD_SIZE"), "1"); /* the other rank has not asked */
    assert_int_equal(said.number, 0);
    assert_string_equal(place_of(&w, 1, "RANK"), "-");
    assert_string_equal(said.waits, "the gang accepts it after its next save, or when it re-forms");
    assert_int_equal(j->run.resizes, 0); /* the new rank does not decide when */
    assert_string_equal(place_of(&w, 0, "RANK"), "-");
    assert_string_equal(said.waits, "the size of the gang is being stored");
    assert_int_equal(said.number, 1);
    world_run(&w);
    assert_string_equal(place_of(&w, 0, "WORLD_SIZE"), "2");
    assert_string_equal(place_of(&w, 0, "RANK"), "0");
    assert_string_equal(place_of(&w, 0, "MASTER_PORT"), "7777");
    assert_string_equal(place_of(&w, 1, "DATA_PARALLEL_RANK"), "1");
    assert_string_equal(place_of(&w, 1, "MASTER_ADDR"), "10.0.0.0");
    assert_int_equal(said.number, 1);
    world_end_served(&w);
}

TEST(who_is_left_of_a_lost_server_gets_another_place_and_the_lost_one_none)
{
    struct world w;
    world_start(&w, 1, NULL);
    world_serve(&w);
    struct job *j = gang_that_grows(&w);
    assert_int_equal(ask(&w, 1, 1, 0), HL_OK);
    assert_int_equal(ask(&w, 1, 0, 0), HL_OK);
    world_run(&w);
    hl_cluster_set_ready(nodes_cluster(&w.c), "n0", false);
    elastic_lose_node(j, "n0", "silent for 1s");
    world_run(&w);
    assert_int_equal(ask(&w, 1, 0, 0), HL_ENOENT);
    assert_string_equal(hl_error_text(),
                        "container 0 of attempt 1 no longer belongs to the gang of job 'x-1'");
    assert_string_equal(place_of(&w, 1, "RANK"), "-");
    assert_string_equal(said.waits, "the node of rank 0 looks for a port");
    assert_int_equal(said.number, 2);
    j->port.settled = (struct master_place){.attempt = 1, .container = 1};
    assert_string_equal(place_of(&w, 1, "RANK"), "0");
    assert_string_equal(place_of(&w, 1, "WORLD_SIZE"), "1");
    assert_string_equal(place_of(&w, 1, "MASTER_ADDR"), "10.0.0.1");
    assert_int_equal(ask(&w, 1, 1, 1), HL_ENOENT); /* a rank that it never had */
    assert_int_equal(ask(&w, 2, 1, 0), HL_ENOENT); /* another attempt's */
    world_end_served(&w);
}

static struct hl_rpc_call *questions[2]; /* about a port, unanswered */
static size_t question_count;

static void on_find_port(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_agent_find_port_params *p)
{
    (void)arg;
    (void)p;
    assert_true(question_count < HL_ARRAY_LEN(questions));
    questions[question_count++] = call;
}

static bool master_port_is(const struct job *j, int port)
{
    return master_port(j) == port;
}

static bool is_asked(const struct job *j, int count)
{
    (void)j;
    return question_count == (size_t)count;
}

static bool is_quiet(const struct job *j, int refs)
{
    return j->controller->refs == (unsigned)refs && job_is_saved(j);
}

static void run_until(struct world *w, bool (*is_true)(const struct job *, int),
                      const struct job *j, int what)
{
    uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
    while (!is_true(j, what) && hl_now_ns() < end) {
        uv_run(hl_loop_uv(w->c.opts.loop), UV_RUN_NOWAIT);
        poll(NULL, 0, 1);
    }
    assert_true(is_true(j, what));
}

/* One Agent server stands for all nodes. */
static struct hl_rpc_server *agent_serve(struct world *w)
{
    static const struct hl_agent_handlers handlers = {.find_port = on_find_port};
    struct hl_rpc_server *agent;
    const struct hl_rpc_serve_opts opts = {.address = "127.0.0.1:0", .loop = w->c.opts.loop};
    struct hl_api_slot slot = {.cpus = "0", .memory_bytes = 1 << 30};
    assert_int_equal(hl_serve_agent(w->c.opts.rpc, &opts, &handlers, &agent), HL_OK);
    for (int i = 0; i < (int)nodes_cluster(&w->c)->count; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        json_t *record =
            hl_api_to_json(&hl_api_node_info_type,
                           &(struct hl_api_node_info){.name = name,
                                                      .agent_address = hl_rpc_server_address(agent),
                                                      .rank_address = name,
                                                      .host_id = name,
                                                      .slots = {&slot, 1}});
        assert_int_equal(nodes_load(&w->c, record), HL_OK);
        json_decref(record);
        hl_cluster_set_ready(nodes_cluster(&w->c), name, true);
    }
    return agent;
}

TEST(a_port_is_asked_for_where_rank_0_is_now_though_nobody_answered_where_it_was)
{
    struct world w;
    world_start(&w, 2, NULL);
    world_serve(&w);
    w.c.opts.rpc_timeout_ms = (int)(TEST_PATIENCE_NS / HL_NS_PER_MS);
    struct hl_rpc_server *agent = agent_serve(&w);
    struct job *j = job_put(&w, "{\"min\": 1, \"max\": 2}", REPLACE);
    job_runs(&w, j);
    question_count = 0;
    assert_false(master_port_ready(j));
    run_until(&w, is_asked, j, 1);
    assert_false(master_port_ready(j)); /* asked only once */
    hl_cluster_set_ready(nodes_cluster(&w.c), "n0", false);
    elastic_lose_node(j, "n0", "silent for 1s");
    run_until(&w, is_quiet, j, 2); /* written; one question is unanswered */
    assert_int_equal(question_count, 1);
    assert_false(master_port_ready(j));
    run_until(&w, is_asked, j, 2);
    hl_reply_agent_find_port(questions[1], &(struct hl_api_agent_find_port_results){.port = 5555});
    run_until(&w, master_port_is, j, 5555);
    assert_true(master_port_ready(j));
    hl_reply_agent_find_port(questions[0], &(struct hl_api_agent_find_port_results){.port = 4444});
    run_until(&w, is_quiet, j, 1);
    assert_int_equal(master_port(j), 5555);
    nodes_disconnect(&w.c);
    hl_rpc_server_close(agent);
    world_end_served(&w);
}
