/* The Controller over real RPC and SQLite, against an L3 and an Agent that do what the test says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/controller.h"
#include "core/json.h"
#include "os/file.h"
#include "os/loop.h"
#include "rpc/rpc.h"

#define CALL_MS 5000
#define WAIT_MS 10000

struct world {
    int grace_ms; /* of the Controller */
    char dir[64];
    char store[128];
    struct hl_rpc *rpc;
    struct hl_loop *loop;
    pthread_t thread;
    struct hl_rpc_server *l3, *agent;
    struct hl_controller *controller;
    struct hl_rpc_peer *peer;
    /* what the fakes, on the loop's thread, do and saw */
    const char *_Atomic import_state; /* next importProgress: running, done, failed */
    json_t *inventory;                /* ids the pool holds; under inventory_lock */
    atomic_int freed, started, stopped, inventories;
    const char *_Atomic container_state; /* what startContainer answers; NULL = unavailable */
};

static pthread_mutex_t inventory_lock = PTHREAD_MUTEX_INITIALIZER;

static struct world w;

/* ---- fakes ---- */

static json_t *extent(const char *id)
{
    return json_pack("{s:s s:i s:i}", "id", id, "offset", 65536, "sizeBytes", 100);
}

static json_t *import_progress(void)
{
    json_t *shards = json_array();
    if (strcmp(w.import_state, "done") == 0) {
        const char *id = "000000000000000000000000000000a1";
        json_array_append_new(w.inventory, json_string(id));
        json_array_append_new(shards,
                              json_pack("{s:s s:s s:i s:i s:i}", "id", id, "part", "embedding",
                                        "sizeBytes", 100, "crc32", 7, "tensors", 1));
    }
    return json_pack("{s:{s:s s:s s:s s:o s:s s:f}}", "progress", "state", w.import_state, "error",
                     strcmp(w.import_state, "failed") == 0 ? "config.json: bad" : "", "errorStatus",
                     strcmp(w.import_state, "failed") == 0 ? "EINVAL" : "", "shards", shards,
                     "config", "{\"architecture\":\"llama\"}", "seconds", 0.1);
}

static void free_ids(const json_t *params)
{
    size_t i, k;
    json_t *id, *have;
    json_array_foreach (hl_json_list(params, "ids"), i, id) {
        json_array_foreach (w.inventory, k, have) {
            if (json_equal(id, have)) {
                json_array_remove(w.inventory, k);
                w.freed++;
                break;
            }
        }
    }
}

static void l3_handler(void *arg, struct hl_rpc_call *call, const char *method,
                       const json_t *params)
{
    (void)arg;
    pthread_mutex_lock(&inventory_lock);
    if (strcmp(method, "poolInfo") == 0) {
        hl_rpc_reply(call, json_pack("{s:{s:s s:s}}", "pool", "uuid", "u", "incarnation", "1"));
    } else if (strcmp(method, "importProgress") == 0) {
        hl_rpc_reply(call, import_progress());
    } else if (strcmp(method, "inventory") == 0) {
        json_t *list = json_array(), *id;
        size_t i;
        w.inventories++;
        json_array_foreach (w.inventory, i, id) {
            json_array_append_new(list, extent(json_string_value(id)));
        }
        hl_rpc_reply(call, json_pack("{s:o s:i}", "extents", list, "next", 0));
    } else {
        if (strcmp(method, "free") == 0)
            free_ids(params);
        hl_rpc_reply(call, NULL);
    }
    pthread_mutex_unlock(&inventory_lock);
}

static void agent_handler(void *arg, struct hl_rpc_call *call, const char *method,
                          const json_t *params)
{
    (void)arg;
    if (strcmp(method, "startContainer") == 0) {
        const char *id = hl_json_str(json_object_get(params, "spec"), "id", "");
        w.started++;
        if (w.container_state == NULL) {
            hl_rpc_reject(call, HL_EUNAVAIL, "the node is short of something");
            return;
        }
        hl_rpc_reply(call,
                     json_pack("{s:{s:s s:s}}", "status", "id", id, "state", w.container_state));
        return;
    }
    w.stopped += strcmp(method, "stopContainer") == 0;
    hl_rpc_reply(call, NULL);
}

/* ---- set up ---- */

static void *loop_thread(void *arg)
{
    (void)arg;
    (void)!hl_loop_run(w.loop);
    return NULL;
}

/* Run fn on the loop and wait for it. */
struct errand {
    void (*fn)(void);
    volatile int done;
};

static void run_errand(void *arg)
{
    struct errand *e = arg;
    e->fn();
    __atomic_store_n(&e->done, 1, __ATOMIC_RELEASE);
}

static void on_loop(void (*fn)(void))
{
    struct errand e = {fn, 0};
    hl_loop_post(w.loop, run_errand, &e);
    while (!__atomic_load_n(&e.done, __ATOMIC_ACQUIRE))
        poll(NULL, 0, 1);
}

static void start_fakes(void)
{
    assert_int_equal(
        hl_rpc_serve(w.rpc,
                     &(struct hl_rpc_serve_opts){"127.0.0.1:0", "L3", w.loop, l3_handler, NULL},
                     &w.l3),
        HL_OK);
    assert_int_equal(hl_rpc_serve(w.rpc,
                                  &(struct hl_rpc_serve_opts){"127.0.0.1:0", "Agent", w.loop,
                                                              agent_handler, NULL},
                                  &w.agent),
                     HL_OK);
}

static void start_controller(void)
{
    hl_status st =
        hl_controller_start(&(struct hl_controller_opts){.loop = w.loop,
                                                         .rpc = w.rpc,
                                                         .listen = "127.0.0.1:0",
                                                         .store_url = w.store,
                                                         .l3_address = hl_rpc_server_address(w.l3),
                                                         .heartbeat_ms = 100,
                                                         .node_lost_ms = 60000,
                                                         .gc_interval_ms = 100,
                                                         .gc_grace_ms = w.grace_ms,
                                                         .versions_keep = 2,
                                                         .rpc_timeout_ms = CALL_MS,
                                                         .stop_grace_ms = 100,
                                                         .stop_resend_ms = 1000,
                                                         .start_timeout_ms = 60000},
                            &w.controller);
    assert_int_equal(st, HL_OK);
}

static void stop_controller(void)
{
    hl_controller_stop(w.controller);
    w.controller = NULL;
}

static void stop_fakes(void)
{
    hl_rpc_server_close(w.l3);
    hl_rpc_server_close(w.agent);
}

static void open_peer(void)
{
    hl_rpc_peer_close(w.peer);
    assert_int_equal(hl_rpc_open(w.rpc, hl_controller_address(w.controller), "Controller", &w.peer),
                     HL_OK);
}

static int setup(void **state)
{
    (void)state;
    memset(&w, 0, sizeof(w));
    snprintf(w.dir, sizeof(w.dir), "/tmp/helios-test-XXXXXX");
    assert_non_null(mkdtemp(w.dir));
    snprintf(w.store, sizeof(w.store), "sqlite:%s/c.db", w.dir);
    w.inventory = json_array();
    w.import_state = "running";
    w.container_state = "running";
    w.grace_ms = 300;
    assert_int_equal(hl_rpc_create(&w.rpc), HL_OK);
    assert_int_equal(hl_loop_create(&w.loop), HL_OK);
    pthread_create(&w.thread, NULL, loop_thread, NULL);
    on_loop(start_fakes);
    on_loop(start_controller);
    open_peer();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hl_rpc_peer_close(w.peer);
    on_loop(stop_controller);
    on_loop(stop_fakes);
    hl_loop_stop(w.loop);
    pthread_join(w.thread, NULL);
    hl_rpc_destroy(w.rpc);
    hl_loop_destroy(w.loop);
    json_decref(w.inventory);
    return hl_dir_remove(w.dir) == HL_OK ? 0 : -1;
}

/* ---- helpers ---- */

static hl_status call(const char *method, json_t *params, json_t **result)
{
    hl_status st = hl_rpc_call(w.peer, method, params, CALL_MS, result);
    json_decref(params);
    return st;
}

static json_t *ask(const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(method, params, &result) != HL_OK)
        fail_msg("%s: %s", method, hl_error_text());
    return result;
}

static json_t *import_now(const char *name)
{
    return json_pack("{s:{s:s s:s s:i s:i}}", "request", "dir", "/data/x", "name", name, "tp", 1,
                     "pp", 1);
}

static char *state_of(const char *import_id, json_t **out)
{
    static char text[32];
    json_t *r = ask("importProgress", json_pack("{s:s}", "importId", import_id));
    snprintf(text, sizeof(text), "%s", hl_json_str(json_object_get(r, "progress"), "state", ""));
    if (out != NULL)
        *out = json_incref(json_object_get(r, "progress"));
    json_decref(r);
    return text;
}

static void import_until(const char *name, const char *wanted)
{
    json_t *r = ask("importModel", import_now(name));
    char id[64];
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(state_of(id, NULL), wanted) != 0) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
}

static int64_t begin(int64_t step)
{
    json_t *r = ask("beginVersion", json_pack("{s:s s:s s:i s:I s:i}", "model", "m", "job", "j-1",
                                              "attempt", 1, "step", (json_int_t)step, "world", 2));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    return v;
}

static int commit_part(int64_t version, int rank, const char *id)
{
    json_t *shard = json_pack("{s:s s:i s:i s:s s:i s:i s:i}", "id", id, "pp", 0, "tp", rank,
                              "part", "embedding", "sizeBytes", 50, "crc32", 1, "tensors", 1);
    json_t *r = ask("commitPart",
                    json_pack("{s:s s:I s:i s:[o] s:s}", "model", "m", "version",
                              (json_int_t)version, "rank", rank, "shards", shard, "meta", "{}"));
    int visible = hl_json_bool(r, "visible", 0);
    json_decref(r);
    return visible;
}

static void wait_count(atomic_int *seen, int n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (*seen < n) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
}

static void put(const char *id)
{
    pthread_mutex_lock(&inventory_lock);
    json_array_append_new(w.inventory, json_string(id));
    pthread_mutex_unlock(&inventory_lock);
}

static size_t pool_count(void)
{
    pthread_mutex_lock(&inventory_lock);
    size_t n = json_array_size(w.inventory);
    pthread_mutex_unlock(&inventory_lock);
    return n;
}

/* ---- tests ---- */

static void an_import_is_visible_only_when_l3_is_done_and_survives_a_restart(void **state)
{
    (void)state;
    json_t *r = ask("importModel", import_now("m"));
    char id[64];
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    r = ask("listModels", NULL);
    assert_int_equal(json_array_size(json_object_get(r, "models")), 0);
    json_decref(r);
    assert_int_equal(call("importModel", import_now("m"), NULL), HL_EBUSY);
    w.import_state = "done";
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(state_of(id, NULL), "done") != 0)
        assert_true(hl_now_ns() < end);
    on_loop(stop_controller);
    on_loop(start_controller);
    open_peer();
    r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    assert_int_equal(hl_json_int(r, "version", 0), 1);
    assert_int_equal(json_array_size(json_object_get(r, "shards")), 1);
    json_decref(r);
    assert_int_equal(call("importModel", import_now("m"), NULL), HL_EEXIST);
}

static void a_failed_import_leaves_nothing(void **state)
{
    (void)state;
    w.import_state = "failed";
    import_until("m", "failed");
    json_t *r = ask("listModels", NULL);
    assert_int_equal(json_array_size(json_object_get(r, "models")), 0);
    json_decref(r);
    w.import_state = "done";
    import_until("m", "done"); /* the name is free */
}

static void an_incomplete_version_is_never_served(void **state)
{
    (void)state;
    w.import_state = "done";
    import_until("m", "done");
    put("000000000000000000000000000000b0");
    put("000000000000000000000000000000b1");
    int64_t v = begin(10);
    assert_int_equal(begin(10), v); /* every rank gets the same number */
    assert_false(commit_part(v, 0, "000000000000000000000000000000b0"));
    assert_int_equal(
        call("requestShards", json_pack("{s:s s:I}", "model", "m", "version", (json_int_t)v), NULL),
        HL_EBUSY);
    on_loop(stop_controller); /* a restart between two commits loses neither */
    on_loop(start_controller);
    open_peer();
    assert_false(commit_part(v, 0, "000000000000000000000000000000b0")); /* repeated */
    assert_true(commit_part(v, 1, "000000000000000000000000000000b1"));
    json_t *r =
        ask("requestShards", json_pack("{s:s s:i s:i}", "model", "m", "version", -1, "tp", 1));
    assert_int_equal(hl_json_int(r, "version", 0), v);
    json_decref(r);
}

static void only_the_newest_versions_of_a_job_stay(void **state)
{
    (void)state;
    char id[33];
    w.import_state = "done";
    import_until("m", "done");
    for (int i = 0; i < 4; i++) {
        int64_t v = begin(10 * i);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(id, sizeof(id), "%032x", 0x100 + 2 * i + rank);
            put(id);
            commit_part(v, rank, id);
        }
    }
    json_t *r = ask("getModel", json_pack("{s:s}", "name", "m"));
    json_t *versions = json_object_get(json_object_get(r, "model"), "versions");
    assert_int_equal(json_array_size(versions), 3); /* two of the job and the import */
    assert_int_equal(hl_json_int(json_array_get(versions, 0), "version", 0), 5);
    assert_int_equal(hl_json_int(json_array_get(versions, 2), "version", 0), 1);
    json_decref(r);
    wait_count(&w.freed, 4);
}

static void orphans_are_freed_after_their_grace_and_known_shards_are_not(void **state)
{
    (void)state;
    w.import_state = "done";
    import_until("m", "done");
    put("000000000000000000000000000000ff");
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (pool_count() > 1) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
    assert_string_equal(json_string_value(json_array_get(w.inventory, 0)),
                        "000000000000000000000000000000a1");
}

static void what_a_dead_import_left_is_freed_at_once_where_nobody_writes(void **state)
{
    (void)state;
    on_loop(stop_controller);
    w.grace_ms = 600000;
    on_loop(start_controller);
    open_peer();
    put("000000000000000000000000000000fe");
    wait_count(&w.freed, 1);
}

static void a_shard_that_the_pool_lost_is_shown_as_lost(void **state)
{
    (void)state;
    w.import_state = "done";
    import_until("m", "done");
    pthread_mutex_lock(&inventory_lock);
    json_array_clear(w.inventory);
    pthread_mutex_unlock(&inventory_lock);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    char shown[16] = "";
    while (strcmp(shown, "lost") != 0) {
        json_t *r = ask("listShards", json_pack("{s:i}", "version", -1));
        snprintf(shown, sizeof(shown), "%s",
                 hl_json_str(json_array_get(json_object_get(r, "shards"), 0), "state", ""));
        json_decref(r);
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
}

static void register_node(const char *container)
{
    json_t *slot = json_pack("{s:i s:s s:i}", "numaId", 0, "cpus", "0", "memoryBytes", 1 << 30);
    json_t *node = json_pack("{s:s s:s s:s s:s s:[o] s:s}", "name", "n0", "agentAddress",
                             hl_rpc_server_address(w.agent), "incarnation", "1", "executor",
                             "process", "slots", slot, "rankAddress", "127.0.0.1");
    json_t *list = json_array();
    if (container != NULL)
        json_array_append_new(list, json_pack("{s:s s:s}", "id", container, "state", "running"));
    json_decref(ask("registerNode", json_pack("{s:o s:o}", "node", node, "containers", list)));
}

static void heartbeat(const char *container, const char *state)
{
    json_t *list = json_array();
    if (container != NULL)
        json_array_append_new(list, json_pack("{s:s s:s s:s}", "id", container, "state", state,
                                              "message", "from a test"));
    json_t *r = ask("heartbeat", json_pack("{s:s s:s s:o}", "name", "n0", "incarnation", "1",
                                           "containers", list));
    assert_true(hl_json_bool(r, "known", 0));
    json_decref(r);
}

static const char *job_state(const char *id)
{
    static char text[32];
    json_t *r = ask("getJob", json_pack("{s:s}", "id", id));
    snprintf(text, sizeof(text), "%s", hl_json_str(json_object_get(r, "job"), "state", ""));
    json_decref(r);
    return text;
}

static void wait_state(const char *id, const char *wanted)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(job_state(id), wanted) != 0) {
        if (hl_now_ns() > end)
            fail_msg("job is %s, not %s", job_state(id), wanted);
        poll(NULL, 0, 10);
    }
}

#define JOB_YAML                                                                                   \
    "jobName: one\nparallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, "             \
    "data_parallel_size: 1}\ncommand: [/bin/true]\nresources: {ranks_per_slot: 1}\n"

static void submit(const char *key, char *id, size_t cap)
{
    json_t *r = ask("submitJob", json_pack("{s:s s:s s:s s:s}", "yaml", JOB_YAML, "source",
                                           "job.yaml", "idempotencyKey", key, "cwd", "/tmp"));
    snprintf(id, cap, "%s", hl_json_str(r, "id", ""));
    json_decref(r);
}

static void a_job_waits_for_a_node_runs_and_is_readopted_after_a_restart(void **state)
{
    (void)state;
    char id[64], again[64];
    submit("k", id, sizeof(id));
    submit("k", again, sizeof(again));
    assert_string_equal(id, again);
    assert_string_equal(job_state(id), "pending");
    register_node(NULL);
    wait_state(id, "running");
    on_loop(stop_controller);
    on_loop(start_controller);
    open_peer();
    assert_string_equal(job_state(id), "running");
    register_node("one-1.1.0");
    heartbeat("one-1.1.0", "running");
    assert_string_equal(job_state(id), "running");
    heartbeat("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    assert_int_equal(w.started, 1);
}

static void a_container_nobody_wants_is_stopped(void **state)
{
    (void)state;
    register_node(NULL);
    heartbeat("ghost-7.1.0", "running");
    wait_count(&w.stopped, 1);
}

static void a_failed_container_fails_the_job_with_its_message_and_frees_the_slot(void **state)
{
    (void)state;
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    heartbeat("one-1.1.0", "failed");
    wait_state(id, "failed");
    json_t *r = ask("getJob", json_pack("{s:s}", "id", "one")); /* by name */
    assert_non_null(strstr(hl_json_str(json_object_get(r, "job"), "reason", ""), "from a test"));
    json_decref(r);
    submit("", id, sizeof(id));
    wait_state(id, "running");
}

static void a_cancelled_job_whose_start_failed_ends(void **state)
{
    (void)state;
    char id[64];
    w.container_state = NULL;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "starting");
    while (w.started < 2) /* the first call is answered */
        poll(NULL, 0, 10);
    json_decref(ask("cancelJob", json_pack("{s:s}", "id", id)));
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(job_state(id), "cancelled") != 0) {
        assert_true(hl_now_ns() < end);
        heartbeat(NULL, "");
        poll(NULL, 0, 10);
    }
    w.container_state = "running";
    submit("", id, sizeof(id)); /* the slot is free */
    wait_state(id, "running");
}

static void a_slot_is_freed_though_the_store_refused_the_end_of_its_job(void **state)
{
    (void)state;
    char id[64];
    sqlite3 *db;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    assert_int_equal(sqlite3_open(w.store + strlen("sqlite:"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    heartbeat("one-1.1.0", "failed"); /* the store waits for the lock and gives up */
    sqlite3_close(db);
    submit("", id, sizeof(id));
    wait_state(id, "running");
}

static void an_open_version_that_outlives_the_others_goes_with_its_model(void **state)
{
    (void)state;
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    json_decref(ask("beginVersion", json_pack("{s:s s:s s:i s:i s:i}", "model", "m", "job", id,
                                              "attempt", 1, "step", 5, "world", 2)));
    json_decref(ask("removeModel", json_pack("{s:s s:i}", "name", "m", "version", 1)));
    heartbeat("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    json_t *r = ask("listModels", NULL);
    assert_int_equal(json_array_size(json_object_get(r, "models")), 0);
    json_decref(r);
}

static void an_attempt_that_is_over_begins_no_version(void **state)
{
    (void)state;
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    heartbeat("one-1.1.0", "failed");
    wait_state(id, "failed");
    assert_int_equal(call("beginVersion",
                          json_pack("{s:s s:s s:i s:i s:i}", "model", "m", "job", id, "attempt", 1,
                                    "step", 5, "world", 2),
                          NULL),
                     HL_ECONFLICT);
}

static void wait_sweeps(int n)
{
    wait_count(&w.inventories, w.inventories + n);
}

static void a_shard_of_a_version_being_written_outlives_the_grace(void **state)
{
    (void)state;
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    put("000000000000000000000000000000e0"); /* older than the version: nobody's */
    wait_sweeps(2);
    json_t *r = ask("beginVersion", json_pack("{s:s s:s s:i s:i s:i}", "model", "m", "job", id,
                                              "attempt", 1, "step", 5, "world", 1));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    put("000000000000000000000000000000e1");
    wait_count(&w.freed, 1);
    wait_sweeps(4); /* they are further apart than the grace */
    assert_int_equal(w.freed, 1);
    assert_true(commit_part(v, 0, "000000000000000000000000000000e1"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_import_is_visible_only_when_l3_is_done_and_survives_a_restart),
        CASE(a_failed_import_leaves_nothing),
        CASE(an_incomplete_version_is_never_served),
        CASE(only_the_newest_versions_of_a_job_stay),
        CASE(orphans_are_freed_after_their_grace_and_known_shards_are_not),
        CASE(what_a_dead_import_left_is_freed_at_once_where_nobody_writes),
        CASE(a_shard_that_the_pool_lost_is_shown_as_lost),
        CASE(a_job_waits_for_a_node_runs_and_is_readopted_after_a_restart),
        CASE(a_container_nobody_wants_is_stopped),
        CASE(a_failed_container_fails_the_job_with_its_message_and_frees_the_slot),
        CASE(a_cancelled_job_whose_start_failed_ends),
        CASE(a_slot_is_freed_though_the_store_refused_the_end_of_its_job),
        CASE(an_open_version_that_outlives_the_others_goes_with_its_model),
        CASE(an_attempt_that_is_over_begins_no_version),
        CASE(a_shard_of_a_version_being_written_outlives_the_grace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
