/* The Controller over real RPC and SQLite, against an L3 and an Agent that do what the test says.
 */
#ifndef TESTS_INTEGRATION_CONTROLLER_WORLD_H
#define TESTS_INTEGRATION_CONTROLLER_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/controller.h"
#include "core/json.h"
#include "os/file.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"

#define CALL_MS 5000
#define WAIT_MS 10000

struct world {
    int grace_ms, node_lost_ms; /* of the Controller */
    int jobs_keep, nodes_keep, queue_pending;
    int64_t keep_age_ms; /* of jobs and nodes */
    int64_t half_life_ms;
    const char *durability;
    int durability_timeout_ms;
    char dir[64];
    char store[128];
    struct hl_rpc *rpc;
    struct hl_loop *loop;
    pthread_t thread;
    struct hl_rpc_server *l3, *agent;
    struct hl_controller *controller;
    struct hl_rpc_peer *peer;
    /* what the fakes, on the loop's thread, do and saw */
    const char *_Atomic claim_state; /* what L3.claim answers; NULL = it knows no claims, "away" =
                                        it fails */
    atomic_llong told_revision;      /* of the last claim */
    atomic_int adoptions, claims, imports; /* calls of L3 */
    const char *_Atomic import_state;      /* next importProgress: running, done, failed */
    const char *_Atomic full_for;          /* the import of that name finds no place; NULL = none */
    const char *_Atomic mute_for;   /* that one is not answered, until a test answers `mute` */
    struct hl_rpc_call *mute;       /* it; the loop's */
    char asked[64];                 /* names of importModel, in order; inventory_lock */
    atomic_int polls;               /* calls of importProgress */
    json_t *inventory;              /* ids the pool holds; under inventory_lock */
    atomic_int look_size, look_crc; /* of each of them, by `look` */
    atomic_int look_fails;          /* so many times */
    atomic_int freed, cancels, started, stopped, forgotten, inventories, refused;
    char master_port[16];                  /* of the last start; port_lock */
    char model[64];                        /* likewise */
    atomic_int port_questions, ports_busy; /* how many of them find no port */
    bool counts_ports;                     /* each finds another one */
    const char *_Atomic container_state;   /* what startContainer answers; NULL = unavailable */
    atomic_bool holds_start;               /* the next startContainer is not answered: `held` */
    struct hl_rpc_call *held;              /* the loop's */
    atomic_bool has_archive;               /* of L3 */
    atomic_bool refuses;                   /* storeCopy and archive fail */
    atomic_int copy_crc;                   /* of what storeCopy makes */
    json_t *stored; /* ids of storeCopy and of archive that went well; under inventory_lock */
};

static pthread_mutex_t inventory_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t port_lock = PTHREAD_MUTEX_INITIALIZER;

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

/* Under inventory_lock. */
static bool holds(const char *id)
{
    size_t i;
    const json_t *have;
    json_array_foreach (w.inventory, i, have) {
        if (strcmp(json_string_value(have), id) == 0)
            return true;
    }
    return false;
}

static json_t *look(const json_t *params)
{
    json_t *shards = json_array();
    size_t i;
    const json_t *id;
    json_array_foreach (hl_json_list(params, "ids"), i, id) {
        if (holds(json_string_value(id)))
            json_array_append_new(
                shards, json_pack("{s:s s:i s:i s:b s:s}", "id", json_string_value(id), "sizeBytes",
                                  w.look_size, "crc32", w.look_crc, "crc32Known", 1, "tier", "L3"));
    }
    return json_pack("{s:o}", "shards", shards);
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

/* An adoption ends the state "unclaimed". */
static void claim(struct hl_rpc_call *call, const json_t *params)
{
    static const char *const other = "0123456789abcdef0123456789abcdef";
    w.told_revision = hl_json_int(params, "revision", 0);
    w.claims++;
    if (strcmp(hl_json_str(params, "mode", ""), "adopt") == 0) {
        w.adoptions++;
        w.claim_state = "claimed";
    }
    const char *state = w.claim_state;
    if (state == NULL) {
        hl_rpc_reject(call, HL_EUNSUPPORTED, "this L3 daemon does not know the method");
        return;
    }
    if (strcmp(state, "away") == 0) {
        hl_rpc_reject(call, HL_EUNAVAIL, "the daemon is away");
        return;
    }
    const char *cluster = strcmp(state, "unclaimed") == 0 ? ""
                          : strcmp(state, "other") == 0   ? other
                                                          : hl_json_str(params, "cluster", "");
    rpc_json_reply(call, json_pack("{s:s s:s s:i s:I}", "state", state, "cluster", cluster,
                                   "revision", strcmp(state, "newer") == 0 ? 1000 : 1, "shards",
                                   (json_int_t)json_array_size(w.inventory)));
}

static json_t *pool_info(void)
{
    json_t *tiers = w.has_archive ? json_pack("[{s:s s:s}]", "tier", "L4", "name", "dir:/archive")
                                  : json_array();
    return json_pack("{s:{s:s s:s s:s s:o}}", "pool", "uuid", "u", "incarnation", "1", "hostId",
                     "here", "tiers", tiers);
}

/* Under inventory_lock. False: it was refused. */
static bool store(struct hl_rpc_call *call, const char *id)
{
    if (w.refuses) {
        hl_rpc_reject(call, HL_ENOSPC, "there is no room");
        w.refused++;
        return false;
    }
    json_array_append_new(w.stored, json_string(id));
    return true;
}

static void import_model(struct hl_rpc_call *call, const json_t *params)
{
    const char *name = hl_json_str(json_object_get(params, "request"), "name", "");
    size_t n = strlen(w.asked);
    snprintf(w.asked + n, sizeof(w.asked) - n, "%s ", name);
    w.imports++;
    if (w.mute_for != NULL && strcmp(name, w.mute_for) == 0)
        w.mute = call;
    else if (w.full_for != NULL && strcmp(name, w.full_for) == 0)
        hl_rpc_reject(call, HL_EBUSY, "4 imports are running already");
    else
        rpc_json_reply(call, NULL);
}

static void l3_handler(void *arg, struct hl_rpc_call *call, const char *method,
                       const json_t *params)
{
    (void)arg;
    pthread_mutex_lock(&inventory_lock);
    if (strcmp(method, "poolInfo") == 0) {
        rpc_json_reply(call, pool_info());
    } else if (strcmp(method, "archive") == 0) {
        if (store(call, json_string_value(json_array_get(hl_json_list(params, "ids"), 0))))
            rpc_json_reply(call, json_pack("{s:i}", "archived", 1));
    } else if (strcmp(method, "claim") == 0) {
        claim(call, params);
    } else if (strcmp(method, "importProgress") == 0) {
        w.polls++;
        rpc_json_reply(call, import_progress());
    } else if (strcmp(method, "importModel") == 0) {
        import_model(call, params);
    } else if (strcmp(method, "look") == 0 && w.look_fails > 0) {
        w.look_fails--;
        hl_rpc_reject(call, HL_EUNAVAIL, "the daemon is away");
    } else if (strcmp(method, "look") == 0) {
        rpc_json_reply(call, look(params));
    } else if (strcmp(method, "inventory") == 0) {
        json_t *list = json_array(), *id;
        size_t i;
        w.inventories++;
        json_array_foreach (w.inventory, i, id) {
            json_array_append_new(list, extent(json_string_value(id)));
        }
        rpc_json_reply(call, json_pack("{s:o s:i}", "extents", list, "next", 0));
    } else {
        if (strcmp(method, "free") == 0)
            free_ids(params);
        w.cancels += strcmp(method, "cancelImport") == 0;
        rpc_json_reply(call, NULL);
    }
    pthread_mutex_unlock(&inventory_lock);
}

static void note_port(const json_t *env)
{
    size_t i;
    const json_t *v;
    pthread_mutex_lock(&port_lock);
    json_array_foreach (env, i, v) {
        if (strcmp(hl_json_str(v, "key", ""), "MASTER_PORT") == 0)
            snprintf(w.master_port, sizeof(w.master_port), "%s", hl_json_str(v, "value", ""));
        if (strcmp(hl_json_str(v, "key", ""), "HELIOS_MODEL") == 0)
            snprintf(w.model, sizeof(w.model), "%s", hl_json_str(v, "value", ""));
    }
    pthread_mutex_unlock(&port_lock);
}

/* The third of those asked for, or none. */
static void find_port(struct hl_rpc_call *call, const json_t *params)
{
    if (w.port_questions++ < w.ports_busy)
        hl_rpc_reject(call, HL_EBUSY, "all ports are in use");
    else
        rpc_json_reply(call,
                       json_pack("{s:O}", "port",
                                 json_array_get(hl_json_list(params, "ports"),
                                                w.counts_ports ? (size_t)w.port_questions : 2)));
}

static json_t *node_copy(const char *id)
{
    return json_pack("{s:s s:s s:s s:i s:i}", "id", id, "tier", "L2", "node", "n0", "sizeBytes",
                     w.look_size, "crc32", w.copy_crc);
}

static void store_copy(struct hl_rpc_call *call, const json_t *request)
{
    const char *id = hl_json_str(request, "id", "");
    pthread_mutex_lock(&inventory_lock);
    if (store(call, id))
        rpc_json_reply(call, json_pack("{s:o}", "copy", node_copy(id)));
    pthread_mutex_unlock(&inventory_lock);
}

/* What the node was given; where there is an archive it was that. */
static void store_list(struct hl_rpc_call *call)
{
    json_t *list = json_array();
    const json_t *id;
    size_t i;
    pthread_mutex_lock(&inventory_lock);
    json_array_foreach (w.stored, i, id) {
        if (!w.has_archive)
            json_array_append_new(list, node_copy(json_string_value(id)));
    }
    pthread_mutex_unlock(&inventory_lock);
    rpc_json_reply(call, json_pack("{s:o s:i}", "copies", list, "next", 0));
}

static void agent_handler(void *arg, struct hl_rpc_call *call, const char *method,
                          const json_t *params)
{
    (void)arg;
    if (strcmp(method, "startContainer") == 0) {
        const char *id = hl_json_str(json_object_get(params, "spec"), "id", "");
        bool holds = atomic_exchange(&w.holds_start, false);
        w.started++;
        note_port(json_object_get(json_object_get(params, "spec"), "env"));
        if (holds) {
            w.held = call;
            return;
        }
        if (w.container_state == NULL) {
            hl_rpc_reject(call, HL_EUNAVAIL, "the node is short of something");
            return;
        }
        rpc_json_reply(call,
                       json_pack("{s:{s:s s:s}}", "status", "id", id, "state", w.container_state));
        return;
    }
    if (strcmp(method, "storeCopy") == 0) {
        store_copy(call, json_object_get(params, "request"));
        return;
    }
    if (strcmp(method, "storeList") == 0) {
        store_list(call);
        return;
    }
    if (strcmp(method, "findPort") == 0) {
        find_port(call, params);
        return;
    }
    w.stopped += strcmp(method, "stopContainer") == 0;
    w.forgotten += strcmp(method, "forgetContainer") == 0;
    rpc_json_reply(call, NULL);
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
        rpc_json_serve(w.rpc, "L3",
                       &(struct hl_rpc_serve_opts){.address = "127.0.0.1:0", .loop = w.loop},
                       l3_handler, &w.l3),
        HL_OK);
    assert_int_equal(
        rpc_json_serve(w.rpc, "Agent",
                       &(struct hl_rpc_serve_opts){.address = "127.0.0.1:0", .loop = w.loop},
                       agent_handler, &w.agent),
        HL_OK);
}

static void start_controller(void)
{
    hl_status st = hl_controller_start(
        &(struct hl_controller_opts){.loop = w.loop,
                                     .rpc = w.rpc,
                                     .listen = "127.0.0.1:0",
                                     .store_url = w.store,
                                     .l3_address = hl_rpc_server_address(w.l3),
                                     .heartbeat_ms = 100,
                                     .node_lost_ms = w.node_lost_ms,
                                     .lost_after_ms = w.node_lost_ms,
                                     .gc_interval_ms = 100,
                                     .gc_grace_ms = w.grace_ms,
                                     .versions_keep = 2,
                                     .durability = w.durability,
                                     .durability_timeout_ms = w.durability_timeout_ms,
                                     .copy_timeout_ms = CALL_MS,
                                     .jobs_keep = w.jobs_keep,
                                     .nodes_keep = w.nodes_keep,
                                     .jobs_keep_age_ms = w.keep_age_ms,
                                     .queue_half_life_ms = w.half_life_ms,
                                     .queue_pending = w.queue_pending,
                                     .nodes_keep_age_ms = w.keep_age_ms,
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
    w.stored = json_array();
    w.copy_crc = 1;
    w.durability_timeout_ms = WAIT_MS;
    w.look_size = 50; /* as commit_part states */
    w.look_crc = 1;
    w.claim_state = "claimed";
    w.import_state = "running";
    w.container_state = "running";
    w.grace_ms = 300;
    w.node_lost_ms = 60000;
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
    json_decref(w.stored);
    return hl_dir_remove(w.dir) == HL_OK ? 0 : -1;
}

/* ---- helpers ---- */

static hl_status call(const char *method, json_t *params, json_t **result)
{
    hl_status st = rpc_json_call(w.peer, method, params, CALL_MS, result);
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

static void wait_import(const char *id, const char *wanted)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(state_of(id, NULL), wanted) != 0) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
}

static inline void import_until(const char *name, const char *wanted)
{
    json_t *r = ask("importModel", import_now(name));
    char id[64];
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    wait_import(id, wanted);
}

static inline void put(const char *id)
{
    pthread_mutex_lock(&inventory_lock);
    if (!holds(id))
        json_array_append_new(w.inventory, json_string(id));
    pthread_mutex_unlock(&inventory_lock);
}

static inline json_t *part(int64_t version, int rank, const char *id)
{
    json_t *shard = json_pack("{s:s s:i s:i s:s s:i s:i s:i}", "id", id, "pp", 0, "tp", rank,
                              "part", "embedding", "sizeBytes", 50, "crc32", 1, "tensors", 1);
    return json_pack("{s:s s:I s:i s:[o] s:s}", "model", "m", "version", (json_int_t)version,
                     "rank", rank, "shards", shard, "meta", "{}");
}

static inline int commit_part(int64_t version, int rank, const char *id)
{
    put(id);
    json_t *r = ask("commitPart", part(version, rank, id));
    int visible = hl_json_bool(r, "visible", 0);
    json_decref(r);
    return visible;
}

static inline void wait_count(atomic_int *seen, int n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (*seen < n) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
}

static inline void restart_controller(void)
{
    on_loop(stop_controller);
    on_loop(start_controller);
    open_peer();
}

/* What an Agent of the node n0 says that serves at `address`; at most one container runs there. */
static json_t *registration(const char *address, const char *host, const char *directory,
                            const char *container)
{
    json_t *slot = json_pack("{s:i s:s s:i}", "numaId", 0, "cpus", "0", "memoryBytes", 1 << 30);
    json_t *node =
        json_pack("{s:s s:s s:s s:s s:[o] s:s s:s s:s}", "name", "n0", "agentAddress", address,
                  "incarnation", "1", "executor", "process", "slots", slot, "rankAddress",
                  "127.0.0.1", "hostId", host, "stateDirectory", directory);
    json_t *list = json_array();
    if (container != NULL)
        json_array_append_new(list, json_pack("{s:s s:s}", "id", container, "state", "running"));
    return json_pack("{s:o s:o s:b}", "node", node, "containers", list, "endsStrays", 1);
}

static inline void register_node(const char *container)
{
    json_decref(ask("registerNode",
                    registration(hl_rpc_server_address(w.agent), "here", "1:2", container)));
}

static inline void heartbeat(json_t *containers)
{
    json_t *r = ask("heartbeat", json_pack("{s:s s:s s:o}", "name", "n0", "incarnation", "1",
                                           "containers", containers));
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

static inline void wait_state(const char *id, const char *wanted)
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
    "data_parallel_size: 1}\ncommand: [/bin/true]\nresources: {ranks_per_slot: 1}\n"               \
    "onNodeLost: restart\n"

/* more: lines of the job file. */
static inline void submit_with(const char *more, const char *key, char *id, size_t cap)
{
    char yaml[1024];
    snprintf(yaml, sizeof(yaml), "%s%s", JOB_YAML, more);
    json_t *r = ask("submitJob", json_pack("{s:s s:s s:s s:s}", "yaml", yaml, "source", "job.yaml",
                                           "idempotencyKey", key, "cwd", "/tmp"));
    snprintf(id, cap, "%s", hl_json_str(r, "id", ""));
    json_decref(r);
}

static inline void submit(const char *key, char *id, size_t cap)
{
    submit_with("", key, id, cap);
}

#endif
