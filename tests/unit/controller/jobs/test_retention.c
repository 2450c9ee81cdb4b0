/* Which lost nodes and ended jobs the Controller forgets, and that its store forgets them, too. */
#include "support/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/jobs_private.h"
#include "controller/nodes/nodes_private.h"
#include "os/loop.h"
#include "store/store.h"
#include "store/writer.h"

/* A Controller with a store and nothing else. */
struct world {
    struct hl_controller c;
    struct hl_timer *look;
    uint64_t until_ns;
};

static const char *needed = ""; /* a node that a job still needs */
static char forgotten[512];     /* names, in the order in which the modules were notified */

static bool node_needed(const struct hl_controller *c, const struct node *n)
{
    (void)c;
    return strcmp(n->name, needed) == 0;
}

static void node_forgotten(struct hl_controller *c, struct node *n)
{
    size_t at = strlen(forgotten);
    (void)c;
    snprintf(forgotten + at, sizeof(forgotten) - at, "%s ", n->name);
}

static const struct node_events events = {.needed = node_needed, .forgotten = node_forgotten};

static const struct job *held; /* a job of which the executor still has something */

static bool job_held(const struct job *j)
{
    return j == held;
}

static void job_forgotten(const struct job *j)
{
    size_t at = strlen(forgotten);
    snprintf(forgotten + at, sizeof(forgotten) - at, "%s ", j->id);
}

static const struct job_executor executor = {.needs = job_held, .forget = job_forgotten};
static const struct job_executor *const executors[] = {&executor, NULL};

static void world_start_on(struct world *w, const char *store)
{
    *w = (struct world){.c = {.refs = 1}};
    struct hl_controller *c = &w->c;
    needed = "";
    held = NULL;
    forgotten[0] = '\0';
    hl_listening_init(&c->listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    assert_int_equal(hl_loop_create(&c->opts.loop), HL_OK);
    assert_int_equal(hl_store_open(store, &c->store), HL_OK);
    assert_int_equal(hl_store_writer_start(c->store, c->opts.loop, &c->writer), HL_OK);
    assert_int_equal(nodes_create(c, &events), HL_OK);
    assert_int_equal(jobs_create(c, executors, &executor), HL_OK);
    assert_int_equal(queue_create(c), HL_OK);
}

static void world_start(struct world *w)
{
    world_start_on(w, "mem:");
}

static void on_look(void *arg)
{
    struct world *w = arg;
    if (w->c.refs == 1 || hl_now_ns() > w->until_ns)
        uv_stop(hl_loop_uv(w->c.opts.loop));
}

/* Runs until everything is written. */
static void world_run(struct world *w)
{
    w->until_ns = hl_now_ns() + TEST_PATIENCE_NS;
    assert_int_equal(hl_timer_create(w->c.opts.loop, 0, 1, on_look, w, &w->look), HL_OK);
    assert_int_equal(hl_loop_run(w->c.opts.loop), HL_OK);
    hl_timer_destroy(w->look);
    assert_int_equal(w->c.refs, 1);
}

static void world_end(struct world *w)
{
    struct hl_controller *c = &w->c;
    queue_destroy(c);
    jobs_fini(c);
    nodes_fini(c);
    hl_catalog_fini(&c->catalog);
    hl_store_writer_stop(c->writer);
    hl_store_close(c->store);
    hl_loop_destroy(c->opts.loop);
}

static void record_put(struct world *w, const char *kind, const char *name)
{
    char key[80];
    json_t *value = json_object();
    snprintf(key, sizeof(key), "%s/%s", kind, name);
    const struct hl_store_op op = {HL_STORE_PUT, key, value};
    assert_int_equal(hl_store_commit(w->c.store, &op, 1), HL_OK);
    json_decref(value);
}

static bool record_is(struct world *w, const char *kind, const char *name)
{
    char key[80];
    json_t *value = NULL;
    snprintf(key, sizeof(key), "%s/%s", kind, name);
    bool there = hl_store_get(w->c.store, key, &value) == HL_OK;
    json_decref(value);
    return there;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Lost so many ms ago; 0: not lost. */
static struct node *node_put(struct world *w, const char *name, int64_t lost_ms)
{
    struct node *n = calloc(1, sizeof(*n));
    assert_non_null(n);
    *n = (struct node){.controller = &w->c, .lost = lost_ms > 0};
    snprintf(n->name, sizeof(n->name), "%s", name);
    n->lost_steady_ms = controller_steady_ms(&w->c) - lost_ms;
    HASH_ADD_STR(w->c.nodes->table, name, n);
    record_put(w, "node", name);
    return n;
}

TEST(the_nodes_that_are_lost_longest_go_first_and_leave_the_store)
{
    struct world w;
    world_start(&w);
    node_put(&w, "new", 10000);
    node_put(&w, "old", 30000);
    node_put(&w, "there", 0);
    node_put(&w, "older", 40000);
    w.c.opts.nodes_keep = 1;
    nodes_retain(&w.c);
    nodes_retain(&w.c);                /* a node that is being forgotten is not forgotten twice */
    assert_int_equal(w.c.refs, 1 + 2); /* records that are being deleted */
    assert_int_equal(nodes_count(&w.c), 4);
    world_run(&w);
    assert_string_equal(forgotten, "older old ");
    assert_non_null(node_find(&w.c, "there"));
    assert_non_null(node_find(&w.c, "new"));
    assert_false(record_is(&w, "node", "older") || record_is(&w, "node", "old"));
    assert_true(record_is(&w, "node", "there") && record_is(&w, "node", "new"));
    world_end(&w);
}

TEST(a_lost_node_goes_by_its_age_unless_a_job_needs_it)
{
    struct world w;
    world_start(&w);
    node_put(&w, "young", 10000);
    node_put(&w, "old", 60000 * 60);
    node_put(&w, "needed", 60000 * 60);
    w.c.opts.nodes_keep_age_ms = 60000 * 30;
    needed = "needed";
    nodes_retain(&w.c);
    world_run(&w);
    assert_string_equal(forgotten, "old ");
    assert_int_equal(nodes_count(&w.c), 2);
    world_end(&w);
}

TEST(a_node_that_comes_back_while_its_record_is_deleted_stays)
{
    struct world w;
    world_start(&w);
    struct node *n = node_put(&w, "a", 60000 * 60);
    w.c.opts.nodes_keep_age_ms = 1;
    nodes_retain(&w.c);
    n->lost = false;
    world_run(&w);
    assert_string_equal(forgotten, "");
    assert_ptr_equal(node_find(&w.c, "a"), n);
    assert_false(n->forgetting); /* in case it is lost again */
    world_end(&w);
}

static void on_node_written(void *arg, hl_status st, const char *text)
{
    (void)text;
    assert_int_equal(st, HL_OK);
    assert_false(controller_stopped(arg));
}

/* For example a drain. Forgotten, the node would be back after the next start. */
TEST(a_node_whose_record_is_written_while_it_is_deleted_stays)
{
    struct world w;
    world_start(&w);
    struct node *n = node_put(&w, "a", 60000 * 60);
    json_t *record = json_object();
    w.c.opts.nodes_keep_age_ms = 1;
    nodes_retain(&w.c);
    assert_int_equal(node_write(n, record, on_node_written, &w.c), HL_OK);
    json_decref(record);
    world_run(&w);
    assert_true(record_is(&w, "node", "a"));
    assert_ptr_equal(node_find(&w.c, "a"), n);
    nodes_retain(&w.c);
    world_run(&w);
    assert_string_equal(forgotten, "a ");
    assert_false(record_is(&w, "node", "a"));
    world_end(&w);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Ended so many ms ago. */
static struct job *job_put(struct world *w, const char *id, int64_t ended_ms)
{
    struct job *j = calloc(1, sizeof(*j));
    assert_non_null(j);
    j->controller = &w->c;
    j->executor = &executor;
    j->seq = ++w->c.jobs->seq;
    j->run.state = ended_ms > 0 ? HL_API_JOB_STATE_SUCCEEDED : HL_API_JOB_STATE_RUNNING;
    j->ended_steady_ms = controller_steady_ms(&w->c) - ended_ms;
    j->saved.run = json_object();
    snprintf(j->id, sizeof(j->id), "%s", id);
    HASH_ADD_STR(w->c.jobs->table, id, j);
    record_put(w, "job", id);
    return j;
}

TEST(the_jobs_that_ended_first_go_and_the_last_number_stays)
{
    struct world w;
    world_start(&w);
    job_put(&w, "a-1", 30000);
    job_put(&w, "b-2", 0);
    job_put(&w, "c-3", 40000);
    job_put(&w, "d-4", 10000);
    w.c.opts.jobs_keep = 1;
    jobs_retain(&w.c);
    jobs_retain(&w.c);
    world_run(&w);
    assert_string_equal(forgotten, "c-3 a-1 ");
    assert_int_equal(jobs_count(&w.c), 2);
    assert_false(record_is(&w, "job", "a-1") || record_is(&w, "job", "c-3"));
    assert_true(record_is(&w, "job", "b-2") && record_is(&w, "job", "d-4"));
    assert_true(record_is(&w, "seq", "job")); /* an id is never reused */
    world_end(&w);
}

TEST(an_ended_job_stays_while_anything_names_it)
{
    static const char *const reasons[] = {"a log of it is read", "it is not saved",
                                          "it holds slots", "a version of it can be loaded",
                                          "its executor has something of it"};
    for (size_t i = 0; i <= HL_ARRAY_LEN(reasons); i++) {
        struct world w;
        world_start(&w);
        struct job *j = job_put(&w, "a-1", 60000);
        struct hl_version_rec version = {.job = "a-1"};
        struct hl_model_rec model = {.name = "tiny", .versions = &version};
        w.c.opts.jobs_keep_age_ms = 1;
        j->read_ns = i == 0 ? hl_now_ns() : 0;
        j->unsaved = i == 1;
        j->run.slots_held = i == 2;
        w.c.catalog.models = i == 3 ? &model : NULL;
        held = i == 4 ? j : NULL;
        jobs_retain(&w.c);
        world_run(&w);
        w.c.catalog.models = NULL;
        if (i < HL_ARRAY_LEN(reasons) && job_by_id(&w.c, "a-1") == NULL)
            fail_msg("the job is forgotten though %s", reasons[i]);
        if (i == HL_ARRAY_LEN(reasons))
            assert_null(job_by_id(&w.c, "a-1"));
        world_end(&w);
    }
}

/* ---- a store that refuses -------------------------------------------------------------------- */

/* Forbids files to grow, or allows it again. */
static void disk_is_full(bool full)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 0 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The number of lines that a round logs; `errors`: of hl_log_count. */
static void round_logs(struct world *w, void (*retain)(struct hl_controller *c), unsigned errors)
{
    unsigned before = hl_log_count(HL_LOG_ERROR);
    retain(&w->c);
    world_run(w);
    assert_int_equal(hl_log_count(HL_LOG_ERROR) - before, errors);
}

TEST(a_store_that_refuses_is_logged_once_until_it_takes_something)
{
    char dir[] = "/tmp/helios-test-retention-XXXXXX", url[64], command[64];
    struct world w;
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof(url), "sqlite:%s/state", dir);
    world_start_on(&w, url);
    node_put(&w, "a", 60000);
    node_put(&w, "b", 60000);
    job_put(&w, "j-1", 60000);
    w.c.opts.nodes_keep_age_ms = w.c.opts.jobs_keep_age_ms = 1;
    disk_is_full(true);
    for (unsigned i = 0; i < 3; i++) {
        round_logs(&w, nodes_retain, i == 0);
        round_logs(&w, jobs_retain, i == 0);
    }
    disk_is_full(false);
    round_logs(&w, nodes_retain, 0);
    round_logs(&w, jobs_retain, 0);
    assert_string_equal(forgotten, "a b j-1 ");
    node_put(&w, "c", 60000);
    job_put(&w, "j-2", 60000);
    disk_is_full(true);
    round_logs(&w, nodes_retain, 1);
    round_logs(&w, jobs_retain, 1);
    disk_is_full(false);
    world_end(&w);
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}
