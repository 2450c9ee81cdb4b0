/* The Controller while its store's disk is slow or refuses: fdatasync() and fsync() of this process
 * wait at a gate. */
#include "support/test.h"

#include <stdbool.h>

#include "integration/controller_world.h"

#define SEEN_BY_LIBRARIES __attribute__((visibility("default")))

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static bool gate_closed;
static int gate_waiting;

static int pass_gate(void)
{
    pthread_mutex_lock(&gate_lock);
    gate_waiting++;
    pthread_cond_broadcast(&gate_moved);
    while (gate_closed)
        pthread_cond_wait(&gate_moved, &gate_lock);
    gate_waiting--;
    pthread_mutex_unlock(&gate_lock);
    return 0;
}

/* SQLite resolves to these before libc's. */
SEEN_BY_LIBRARIES int fdatasync(int fd)
{
    (void)fd;
    return pass_gate();
}

SEEN_BY_LIBRARIES int fsync(int fd)
{
    (void)fd;
    return pass_gate();
}

static void gate_set(bool closed)
{
    pthread_mutex_lock(&gate_lock);
    gate_closed = closed;
    pthread_cond_broadcast(&gate_moved);
    pthread_mutex_unlock(&gate_lock);
}

/* Waits until a commit has reached the disk. */
static void gate_wait(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&gate_lock);
    int rc = 0;
    while (gate_waiting == 0 && rc == 0)
        rc = pthread_cond_timedwait(&gate_moved, &gate_lock, &until);
    pthread_mutex_unlock(&gate_lock);
    assert_int_equal(rc, 0);
}

static int open_teardown(void **state)
{
    gate_set(false);
    return teardown(state);
}

/* A running call. */
struct asked {
    pthread_t thread;
    const char *method;
    json_t *params, *result;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    atomic_bool answered;
};

static void *ask_thread(void *arg)
{
    struct asked *a = arg;
    a->st = rpc_json_call(w.peer, a->method, a->params, WAIT_MS, &a->result);
    snprintf(a->text, sizeof(a->text), "%s", hl_error_text());
    a->answered = true;
    return NULL;
}

/* Takes params. */
static void ask_begin(struct asked *a, const char *method, json_t *params)
{
    *a = (struct asked){.method = method, .params = params};
    assert_int_equal(pthread_create(&a->thread, NULL, ask_thread, a), 0);
}

static void ask_end(struct asked *a)
{
    pthread_join(a->thread, NULL);
    json_decref(a->params);
}

static json_t *submission(const char *key)
{
    return json_pack("{s:s s:s s:s s:s}", "yaml", JOB_YAML, "source", "job.yaml", "idempotencyKey",
                     key, "cwd", "/tmp");
}

static size_t count_jobs(void)
{
    json_t *r = ask("listJobs", NULL);
    size_t n = json_array_size(hl_json_list(r, "jobs"));
    json_decref(r);
    return n;
}

static json_t *beginning(int rank)
{
    char token[16];
    snprintf(token, sizeof(token), "%d", rank + 1);
    return json_pack("{s:s s:s s:s s:s s:i s:I s:i s:i}", "token", token, "check", "unchecked",
                     "model", "m", "job", "elsewhere-1", "attempt", 1, "step", (json_int_t)5,
                     "rank", rank, "world", 2);
}

TEST_IN(setup, open_teardown, a_controller_that_waits_for_its_disk_is_not_deaf)
{
    struct asked a, same;
    register_node(NULL);
    gate_set(true);
    ask_begin(&a, "submitJob", submission("k"));
    gate_wait();
    ask_begin(&same, "submitJob", submission("k")); /* the CLI tries again */
    heartbeat(json_array());
    json_decref(ask("listNodes", NULL));
    assert_int_equal(count_jobs(), 0); /* a crash would lose all of them */
    json_t *r = NULL;
    assert_int_equal(call("getJob", json_pack("{s:s}", "id", "one-1"), &r), HL_ENOENT);
    assert_false(a.answered);
    assert_false(same.answered);
    gate_set(false);
    ask_end(&a);
    ask_end(&same);
    assert_int_equal(a.st, HL_OK);
    assert_string_equal(hl_json_str(a.result, "id", ""), "one-1");
    assert_string_equal(hl_json_str(same.result, "id", ""), "one-1");
    json_decref(a.result);
    json_decref(same.result);
    wait_state("one-1", "running");
    assert_int_equal(count_jobs(), 1);
}

TEST_IN(setup, open_teardown, the_end_of_a_job_is_told_when_it_is_durable)
{
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    gate_set(true);
    heartbeat(json_pack("[{s:s s:s}]", "id", "one-1.1.0", "state", "succeeded"));
    gate_wait();
    assert_string_equal(job_state(id), "running");
    gate_set(false);
    wait_state(id, "succeeded");
}

TEST_IN(setup, open_teardown, a_cancel_is_answered_when_it_is_durable)
{
    char id[64];
    struct asked a;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    int stopped = w.stopped;
    gate_set(true);
    ask_begin(&a, "cancelJob", json_pack("{s:s}", "id", id));
    gate_wait();
    heartbeat(json_pack("[{s:s s:s}]", "id", "one-1.1.0", "state", "running"));
    assert_false(a.answered);
    assert_int_equal(w.stopped, stopped); /* and nothing is carried out */
    gate_set(false);
    ask_end(&a);
    assert_int_equal(a.st, HL_OK);
    assert_string_equal(hl_json_str(a.result, "state", ""), "stopping");
    json_decref(a.result);
    wait_count(&w.stopped, stopped + 1);
}

TEST_IN(setup, open_teardown, ranks_that_begin_while_the_disk_is_slow_get_one_version)
{
    struct asked a[2];
    w.import_state = "done";
    w.grace_ms = 10 * WAIT_MS; /* the job is unknown here, its version stays */
    restart_controller();
    import_until("m", "done");
    gate_set(true);
    ask_begin(&a[0], "beginVersion", beginning(0));
    gate_wait();
    ask_begin(&a[1], "beginVersion", beginning(1));
    json_t *r = ask("getModel", json_pack("{s:s}", "name", "m"));
    assert_int_equal(json_array_size(hl_json_list(json_object_get(r, "model"), "versions")), 1);
    json_decref(r);
    gate_set(false);
    for (int i = 0; i < 2; i++) {
        ask_end(&a[i]);
        assert_int_equal(a[i].st, HL_OK);
        assert_int_equal(hl_json_int(a[i].result, "version", 0), 2);
        json_decref(a[i].result);
    }
    assert_false(commit_part(2, 0, "00000000000000000000000000000101"));
    assert_true(commit_part(2, 1, "00000000000000000000000000000102"));
}

static json_t *beginning_at(int rank, int step)
{
    json_t *b = beginning(rank);
    json_object_set_new(b, "step", json_integer(step));
    return b;
}

static bool has_version(int64_t number)
{
    size_t i;
    json_t *v, *r = ask("getModel", json_pack("{s:s}", "name", "m"));
    bool found = false;
    json_array_foreach (hl_json_list(json_object_get(r, "model"), "versions"), i, v)
        found |= hl_json_int(v, "version", -1) == number;
    json_decref(r);
    return found;
}

/* Meanwhile the disk is slow: the rank's call arrives before the version is abandoned, and its
 * begin is carried out after that. */
TEST_IN(setup, open_teardown, a_version_that_a_rank_has_begun_meanwhile_is_not_dropped)
{
    struct asked blocks, joins;
    w.import_state = "done";
    w.grace_ms = 4000;
    restart_controller();
    import_until("m", "done");
    json_decref(ask("beginVersion", beginning(0)));
    gate_set(true);
    ask_begin(&blocks, "beginVersion", beginning_at(0, 6));
    gate_wait();
    poll(NULL, 0, 3000);
    ask_begin(&joins, "beginVersion", beginning(1));
    poll(NULL, 0, 2000); /* its first begin is longer ago than the grace: the drop waits, too */
    gate_set(false);
    ask_end(&blocks);
    json_decref(blocks.result);
    ask_end(&joins);
    assert_int_equal(hl_json_int(joins.result, "version", 0), 2);
    json_decref(joins.result);
    json_decref(ask("beginVersion", beginning_at(1, 6))); /* after the drop */
    assert_true(has_version(2));
}

TEST_IN(setup, open_teardown, what_was_under_way_at_a_stop_is_there_after_the_start)
{
    struct asked a;
    register_node(NULL);
    gate_set(true);
    ask_begin(&a, "submitJob", submission(""));
    gate_wait();
    gate_set(false);
    restart_controller(); /* waits for the commit, whichever call comes first */
    ask_end(&a);
    json_decref(a.result);
    assert_int_equal(count_jobs(), 1);
}

/* Another connection holds the database locked: the store waits a second and gives up. */
static sqlite3 *lock_store(void)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(w.store + strlen("sqlite:"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

TEST_IN(setup, open_teardown, a_job_that_the_store_refuses_never_was)
{
    char id[64];
    struct asked a;
    register_node(NULL);
    sqlite3 *db = lock_store();
    ask_begin(&a, "submitJob", submission("k"));
    ask_end(&a);
    sqlite3_close(db);
    assert_int_equal(a.st, HL_EBUSY);
    assert_int_equal(count_jobs(), 0);
    submit("k", id, sizeof(id)); /* the same key: nothing is left of the first submission */
    wait_state(id, "running");
}

TEST_IN(setup, open_teardown, a_version_that_the_store_refuses_never_was)
{
    struct asked a;
    w.import_state = "done";
    w.grace_ms = 10 * WAIT_MS;
    restart_controller();
    import_until("m", "done");
    sqlite3 *db = lock_store();
    ask_begin(&a, "beginVersion", beginning(0));
    ask_end(&a);
    assert_int_equal(a.st, HL_EBUSY);
    ask_begin(&a, "removeModel", json_pack("{s:s s:i}", "name", "m", "version", -1));
    ask_end(&a);
    assert_int_equal(a.st, HL_EBUSY);
    sqlite3_close(db);
    json_t *r = ask("beginVersion", beginning(0));
    assert_int_equal(hl_json_int(r, "version", 0), 2);
    json_decref(r);
}

/* ---- drains and reservations ----------------------------------------------------------------- */

static json_t *drain_of(const char *reason)
{
    return json_pack("{s:s s:b s:s}", "name", "n0", "drained", 1, "reason", reason);
}

/* For ten minutes from now. */
static json_t *reservation_of(const char *reason)
{
    return json_pack("{s:[s] s:i s:i s:s}", "names", "n0", "inMs", 0, "forMs", 600000, "reason",
                     reason);
}

/* A text of the only node as it is listed. */
static void node_text(const char *field, char *out, size_t cap)
{
    json_t *r = ask("listNodes", NULL);
    snprintf(out, cap, "%s",
             hl_json_str(json_array_get(hl_json_list(r, "nodes"), 0), field, "missing"));
    json_decref(r);
}

static void wait_node_text(const char *field, const char *wanted)
{
    char text[256] = "";
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (; strcmp(text, wanted) != 0; poll(NULL, 0, 10)) {
        assert_true(hl_now_ns() < end);
        node_text(field, text, sizeof(text));
    }
}

/* Two calls that both take effect in memory before the store refuses them. */
static void refuse_two(const char *method, json_t *first, json_t *second, const char *field)
{
    struct asked a, b;
    char text[256];
    sqlite3 *db = lock_store();
    ask_begin(&a, method, first);
    wait_node_text(field, "first");
    ask_begin(&b, method, second);
    wait_node_text(field, "second");
    ask_end(&a);
    ask_end(&b);
    sqlite3_close(db);
    assert_int_equal(a.st, HL_EBUSY);
    assert_int_equal(b.st, HL_EBUSY);
    node_text(field, text, sizeof(text));
    assert_string_equal(text, "");
}

TEST_IN(setup, open_teardown, two_drains_that_the_store_refuses_leave_nothing)
{
    register_node(NULL);
    refuse_two("drainNode", drain_of("first"), drain_of("second"), "drainReason");
}

TEST_IN(setup, open_teardown, two_reservations_that_the_store_refuses_leave_nothing)
{
    register_node(NULL);
    refuse_two("reserveNodes", reservation_of("first"), reservation_of("second"), "reservedReason");
}

/* The registration is written while the change is in effect, so the node's record includes it. */
static void refuse_before_registration(const char *method, json_t *change, const char *field)
{
    struct asked refused, accepted;
    char text[256];
    register_node(NULL);
    sqlite3 *db = lock_store();
    ask_begin(&refused, method, change);
    wait_node_text(field, "first");
    ask_begin(&accepted, "registerNode",
              registration(hl_rpc_server_address(w.agent), "here", "1:2", NULL));
    ask_end(&refused);
    sqlite3_close(db);
    ask_end(&accepted);
    assert_int_equal(refused.st, HL_EBUSY);
    json_decref(accepted.result);
    restart_controller();
    node_text(field, text, sizeof(text));
    assert_string_equal(text, "");
}

TEST_IN(setup, open_teardown, a_refused_drain_is_not_stored_by_a_registration)
{
    refuse_before_registration("drainNode", drain_of("first"), "drainReason");
}

TEST_IN(setup, open_teardown, a_refused_reservation_is_not_stored_by_a_registration)
{
    refuse_before_registration("reserveNodes", reservation_of("first"), "reservedReason");
}

/* A call of this thread, whose answer arrives on `loop`. */
struct awaited {
    struct hl_loop *loop;
    bool answered, changed;
};

static void on_drained(void *arg, hl_status st, const char *text, json_t *result)
{
    struct awaited *x = arg;
    (void)text;
    assert_int_equal(st, HL_OK);
    x->answered = true;
    x->changed = hl_json_bool(result, "changed", 1);
    hl_loop_stop(x->loop);
}

static void on_looked(void *arg)
{
    hl_loop_stop(((struct awaited *)arg)->loop);
}

TEST_IN(setup, open_teardown, a_repeated_drain_is_answered_when_it_is_durable)
{
    struct asked a;
    struct awaited same = {0};
    json_t *drain = drain_of("first");
    register_node(NULL);
    assert_int_equal(hl_loop_create(&same.loop), HL_OK);
    gate_set(true);
    ask_begin(&a, "drainNode", drain_of("first"));
    gate_wait();
    rpc_json_call_async(w.peer, "drainNode", drain, WAIT_MS, same.loop, on_drained, &same);
    json_decref(drain);
    json_decref(ask("listNodes", NULL)); /* an early answer is before this one */
    hl_loop_post(same.loop, on_looked, &same);
    assert_int_equal(hl_loop_run(same.loop), HL_OK);
    assert_false(same.answered);
    gate_set(false);
    assert_int_equal(hl_loop_run(same.loop), HL_OK);
    assert_true(same.answered);
    assert_false(same.changed);
    ask_end(&a);
    assert_true(hl_json_bool(a.result, "changed", 0));
    json_decref(a.result);
    hl_loop_destroy(same.loop);
    wait_node_text("drainReason", "first");
}

TEST_IN(setup, open_teardown, a_cancel_that_is_not_stored_says_that_it_is_tried_again)
{
    char id[64];
    struct asked a;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    sqlite3 *db = lock_store();
    ask_begin(&a, "cancelJob", json_pack("{s:s}", "id", id));
    ask_end(&a);
    sqlite3_close(db);
    assert_int_equal(a.st, HL_EBUSY);
    assert_non_null(strstr(a.text, "the Controller tries again"));
    wait_state(id, "stopping");
}
