/* The real helios-agent against a Controller of the test's own. */
#include "support/test.h"

#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/json.h"
#include "os/file.h"
#include "os/loop.h"
#include "os/process.h"
#include "os/step_page.h"
#include "rpc/rpc.h"
#include "support/process_state.h"
#include "support/rpc_json.h"

#define DEADLINE_MS 20000
#define CALL_MS     10000
#define WORKERS     4 /* of libuv's pool */

struct controller {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_rpc_server *server;
    pthread_t thread;
    pthread_mutex_t lock;
    char address[64];
    int heartbeat_ms;
    int known;
    int registered; /* how often */
    int beats;
    json_t *node;      /* of the last registration */
    json_t *last;      /* parameters of the last heartbeat or registration */
    json_t *telemetry; /* of the last heartbeat */
};

struct world {
    struct controller c;
    char dir[64];
    const char *listen;
    pid_t agent;
    struct hl_rpc_peer *peer;
};

static void keep(json_t **slot, const json_t *value)
{
    json_decref(*slot);
    *slot = json_deep_copy(value);
}

static void handle(void *arg, struct hl_rpc_call *call, const char *method, const json_t *params)
{
    struct controller *c = arg;
    json_t *answer = NULL;
    pthread_mutex_lock(&c->lock);
    keep(&c->last, params);
    if (strcmp(method, "registerNode") == 0) {
        c->registered++;
        c->known = 1;
        keep(&c->node, json_object_get(params, "node"));
        answer = json_pack("{si}", "heartbeatMs", c->heartbeat_ms);
    } else if (strcmp(method, "heartbeat") == 0) {
        c->beats++;
        keep(&c->telemetry, json_object_get(params, "telemetry"));
        answer = json_pack("{sb}", "known", c->known);
    }
    pthread_mutex_unlock(&c->lock);
    if (answer != NULL)
        rpc_json_reply(call, answer);
    else
        hl_rpc_reject(call, HL_EUNSUPPORTED, "not in this test");
}

static void *run_loop(void *arg)
{
    struct controller *c = arg;
    if (hl_loop_run(c->loop) != HL_OK)
        abort();
    hl_rpc_server_close(c->server);
    return NULL;
}

static void serve(struct controller *c, const char *address)
{
    struct hl_rpc_serve_opts opts = {.address = address, .arg = c};
    assert_int_equal(hl_loop_create(&c->loop), HL_OK);
    opts.loop = c->loop;
    assert_int_equal(rpc_json_serve(c->rpc, "Controller", &opts, handle, &c->server), HL_OK);
    snprintf(c->address, sizeof(c->address), "%s", hl_rpc_server_address(c->server));
    assert_int_equal(pthread_create(&c->thread, NULL, run_loop, c), 0);
}

static void stop_serving(struct controller *c)
{
    if (c->loop == NULL)
        return;
    hl_loop_stop(c->loop);
    pthread_join(c->thread, NULL);
    hl_loop_destroy(c->loop);
    c->loop = NULL;
}

/* ---- the agent as a process ---- */

static const char *agent_program(void)
{
    static char path[PATH_MAX];
    const char *build = getenv("HELIOS_BUILD");
    snprintf(path, sizeof(path), "%s/bin/helios-agent", build != NULL ? build : "build");
    return path;
}

static const char *in_dir(const struct world *w, const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    return path;
}

static pid_t spawn_agent(struct world *w, const char *listen, const char *state, const char *flag)
{
    char ready[256];
    snprintf(ready, sizeof(ready), "%s", in_dir(w, "ready"));
    const char *argv[] = {"helios-agent", "--name",       "n0",      "--controller",
                          w->c.address,   "--listen",     listen,    "--state",
                          state,          "--ready-file", ready,     "--share",
                          "0/1x2",        "--python",     "/opt/py", "--rank-address",
                          "127.0.0.1",    flag,           NULL};
    FILE *log = fopen(in_dir(w, "agent.log"), "ae");
    assert_non_null(log);
    struct hl_spawn spawn = {.program = agent_program(),
                             .argv = (char *const *)argv,
                             .env = environ,
                             .std = {-1, fileno(log), fileno(log)},
                             .die_with_parent = 1};
    pid_t pid = -1;
    hl_status st = hl_process_spawn(&spawn, &pid);
    fclose(log);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return pid;
}

static int32_t exit_of(pid_t pid)
{
    uint64_t deadline = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;
    int how;
    while (waitpid(pid, &how, WNOHANG) != pid) {
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 5);
    }
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static void start_agent(struct world *w, const char *flag)
{
    char state[256], path[256];
    snprintf(state, sizeof(state), "%s", in_dir(w, "state"));
    snprintf(path, sizeof(path), "%s", in_dir(w, "ready"));
    unlink(path);
    w->agent = spawn_agent(w, w->listen, state, flag);
    uint64_t deadline = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;
    struct hl_buf text = HL_BUF(4096);
    while (hl_file_read(path, &text) != HL_OK) {
        if (waitpid(w->agent, NULL, WNOHANG) == w->agent || hl_now_ns() > deadline) {
            w->agent = 0;
            fail_msg("the agent does not come up; see %s", in_dir(w, "agent.log"));
        }
        poll(NULL, 0, 5);
    }
    json_t *ready = json_loads(text.data, 0, NULL);
    hl_buf_fini(&text);
    assert_int_equal(hl_json_int(ready, "pid", 0), w->agent);
    assert_string_equal(hl_json_str(ready, "name", ""), "n0");
    hl_rpc_peer_close(w->peer);
    w->peer = NULL;
    assert_int_equal(hl_rpc_open(w->c.rpc, hl_json_str(ready, "address", ""), "Agent", &w->peer),
                     HL_OK);
    json_decref(ready);
}

static void kill_agent(struct world *w, int signum)
{
    if (w->agent <= 0)
        return;
    kill(w->agent, signum);
    exit_of(w->agent);
    w->agent = 0;
}

static json_t *call(struct world *w, const char *method, json_t *take, hl_status expected)
{
    json_t *result = NULL;
    hl_status st = rpc_json_call(w->peer, method, take, CALL_MS, &result);
    json_decref(take);
    if (st != expected)
        print_error("%s: %s\n", method, hl_error_text());
    assert_int_equal(st, expected);
    return result;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-agent-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    pthread_mutex_init(&w->c.lock, NULL);
    w->c.heartbeat_ms = 100;
    w->listen = "127.0.0.1:0";
    assert_int_equal(hl_rpc_create(&w->c.rpc), HL_OK);
    serve(&w->c, "127.0.0.1:0");
    *state = w;
    return 0;
}

/* Cleans up after a failed test: starts an agent if needed, to stop the containers. */
static int teardown(void **state)
{
    struct world *w = *state;
    kill_agent(w, SIGKILL);
    start_agent(w, "--stop-containers-on-exit");
    json_t *list = call(w, "listContainers", NULL, HL_OK), *c;
    size_t i;
    json_array_foreach (hl_json_list(list, "containers"), i, c) {
        json_decref(call(w, "stopContainer",
                         json_pack("{ss si}", "id", hl_json_str(c, "id", ""), "graceMs", 0),
                         HL_OK));
    }
    json_decref(list);
    kill_agent(w, SIGTERM);
    hl_rpc_peer_close(w->peer);
    stop_serving(&w->c);
    hl_rpc_destroy(w->c.rpc);
    json_decref(w->c.node);
    json_decref(w->c.last);
    json_decref(w->c.telemetry);
    pthread_mutex_destroy(&w->c.lock);
    assert_int_equal(hl_dir_remove(w->dir), HL_OK);
    free(w);
    return 0;
}

/* ---- waiting ---- */

#define AWAIT(w, condition)                                                                        \
    do {                                                                                           \
        uint64_t until_ = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;                                \
        for (;;) {                                                                                 \
            pthread_mutex_lock(&(w)->c.lock);                                                      \
            int met_ = (condition);                                                                \
            pthread_mutex_unlock(&(w)->c.lock);                                                    \
            if (met_)                                                                              \
                break;                                                                             \
            if (hl_now_ns() > until_)                                                              \
                fail_msg("waited in vain for %s", #condition);                                     \
            poll(NULL, 0, 5);                                                                      \
        }                                                                                          \
    } while (0)

/* The state last reported of a container; "" if nothing was reported. Needs the lock. */
static const char *reported(struct world *w, const char *id)
{
    json_t *c;
    size_t i;
    json_array_foreach (hl_json_list(w->c.last, "containers"), i, c) {
        if (strcmp(hl_json_str(c, "id", ""), id) == 0)
            return hl_json_str(c, "state", "");
    }
    return "";
}

static json_t *spec_of(const char *id, const char *script)
{
    return json_pack("{s{ss s[sss] s[{si}] si}}", "spec", "id", id, "command", "/bin/sh", "-c",
                     script, "ranks", "rank", 0, "stopGraceMs", 1000);
}

static pid_t pid_in(const json_t *status)
{
    return (pid_t)hl_json_int(json_array_get(hl_json_list(status, "ranks"), 0), "pid", 0);
}

static json_t *start_container(struct world *w, const char *id, const char *script)
{
    json_t *result = call(w, "startContainer", spec_of(id, script), HL_OK);
    json_t *status = json_incref(json_object_get(result, "status"));
    json_decref(result);
    return status;
}

/* ---- tests ---- */

TEST_IN(setup, teardown, a_node_registers_and_sends_heartbeats_with_telemetry)
{
    struct world *w = *state;
    start_agent(w, NULL);
    AWAIT(w, w->c.beats >= 2);
    pthread_mutex_lock(&w->c.lock);
    json_t *node = json_deep_copy(w->c.node);
    json_t *telemetry = json_deep_copy(w->c.telemetry);
    pthread_mutex_unlock(&w->c.lock);
    assert_string_equal(hl_json_str(node, "name", ""), "n0");
    assert_string_equal(hl_json_str(node, "executor", ""), "process");
    assert_string_equal(hl_json_str(node, "rankAddress", ""), "127.0.0.1");
    assert_string_equal(hl_json_str(node, "agentAddress", ""), hl_rpc_peer_address(w->peer));
    assert_int_equal(strlen(hl_json_str(node, "incarnation", "")), 32);
    assert_true(strlen(hl_json_str(node, "hostId", "")) > 0);
    assert_int_equal(json_array_size(hl_json_list(node, "slots")), 2);
    assert_true(hl_json_int(telemetry, "memoryTotalBytes", 0) > 0);
    assert_true(hl_json_int(telemetry, "timeMs", 0) > 0);
    json_decref(node);
    json_decref(telemetry);
    json_t *info = call(w, "info", NULL, HL_OK);
    assert_string_equal(hl_json_str(json_object_get(info, "node"), "name", ""), "n0");
    json_decref(info);
}

TEST_IN(setup, teardown, a_wildcard_is_no_address_to_give_away)
{
    struct world *w = *state;
    w->listen = "0.0.0.0:0";
    start_agent(w, NULL);
    AWAIT(w, w->c.registered == 1);
    pthread_mutex_lock(&w->c.lock);
    json_t *node = json_deep_copy(w->c.node);
    pthread_mutex_unlock(&w->c.lock);
    assert_memory_equal(hl_json_str(node, "agentAddress", ""), "127.0.0.1:", 10);
    assert_string_equal(hl_json_str(node, "agentAddress", ""), hl_rpc_peer_address(w->peer));
    json_decref(node);
    json_decref(call(w, "info", NULL, HL_OK));
}

TEST_IN(setup, teardown, a_forgotten_node_registers_again)
{
    struct world *w = *state;
    start_agent(w, NULL);
    AWAIT(w, w->c.registered == 1 && w->c.beats >= 1);
    pthread_mutex_lock(&w->c.lock);
    w->c.known = 0;
    pthread_mutex_unlock(&w->c.lock);
    AWAIT(w, w->c.registered == 2);
}

TEST_IN(setup, teardown, an_absent_controller_is_waited_for)
{
    struct world *w = *state;
    char address[64];
    snprintf(address, sizeof(address), "%s", w->c.address);
    stop_serving(&w->c);
    start_agent(w, NULL);
    json_decref(start_container(w, "early", "exit 0"));
    serve(&w->c, address);
    AWAIT(w, w->c.registered >= 1);
    AWAIT(w, strcmp(reported(w, "early"), "succeeded") == 0);
}

TEST_IN(setup, teardown, a_change_of_a_container_is_told_at_once)
{
    struct world *w = *state;
    pthread_mutex_lock(&w->c.lock);
    w->c.heartbeat_ms = 600000; /* only changes make a heartbeat */
    pthread_mutex_unlock(&w->c.lock);
    start_agent(w, NULL);
    AWAIT(w, w->c.registered == 1);
    char script[512];
    snprintf(script, sizeof(script), "while [ ! -e %s ]; do sleep 0.01; done; exit 5",
             in_dir(w, "gate"));
    json_t *status = start_container(w, "job.0.0", script);
    assert_string_equal(hl_json_str(status, "state", ""), "running");
    json_decref(status);
    AWAIT(w, strcmp(reported(w, "job.0.0"), "running") == 0);
    assert_int_equal(hl_file_write_atomic(in_dir(w, "gate"), "", 0), HL_OK);
    AWAIT(w, strcmp(reported(w, "job.0.0"), "failed") == 0);
}

TEST_IN(setup, teardown, a_rank_knows_its_node_and_finds_the_bindings)
{
    struct world *w = *state;
    setenv("HELIOS_READ_TIMEOUT", "15s", 1);
    setenv("HELIOS_READ_RETRIES", "0", 1);
    start_agent(w, NULL);
    unsetenv("HELIOS_READ_TIMEOUT");
    unsetenv("HELIOS_READ_RETRIES");
    json_decref(
        start_container(w, "env", "echo $HELIOS_NODE $GLOO_SOCKET_IFNAME; echo $PYTHONPATH"));
    AWAIT(w, strcmp(reported(w, "env"), "succeeded") == 0);
    json_t *slice =
        call(w, "readLog",
             json_pack("{ss si si si}", "id", "env", "rank", 0, "offset", 0, "maxBytes", 6), HL_OK);
    assert_string_equal(hl_json_str(slice, "data", ""), "bjAgbG8K"); /* "n0 lo\n" */
    assert_int_equal(hl_json_int(slice, "size", 0), 14);
    assert_false(hl_json_bool(slice, "finished", 1));
    json_decref(slice);
    slice = call(w, "readLog",
                 json_pack("{ss si si si}", "id", "env", "rank", 0, "offset", -8, "maxBytes", 100),
                 HL_OK);
    assert_string_equal(hl_json_str(slice, "data", ""), "L29wdC9weQo="); /* "/opt/py\n" */
    assert_true(hl_json_bool(slice, "finished", 0));
    assert_int_equal(hl_json_int(slice, "offset", 0), 6);
    json_decref(slice);
    json_decref(start_container(w, "env2", "echo $HELIOS_READ_TIMEOUT $HELIOS_READ_RETRIES"));
    AWAIT(w, strcmp(reported(w, "env2"), "succeeded") == 0);
    slice = call(w, "readLog",
                 json_pack("{ss si si si}", "id", "env2", "rank", 0, "offset", 0, "maxBytes", 99),
                 HL_OK);
    assert_string_equal(hl_json_str(slice, "data", ""), "MTUwMDBtcyAwCg=="); /* "15000ms 0\n" */
    json_decref(slice);
}

/* The trouble that the Controller has last heard of the container's rank. With the lock. */
static const char *reported_trouble(struct world *w, const char *id)
{
    json_t *c;
    size_t i;
    json_array_foreach (hl_json_list(w->c.last, "containers"), i, c) {
        const json_t *rank = json_array_get(hl_json_list(c, "ranks"), 0);
        if (strcmp(hl_json_str(c, "id", ""), id) == 0)
            return hl_json_str(json_object_get(rank, "progress"), "trouble", "");
    }
    return "";
}

/* Else one rank would have its node lost, with all jobs there. */
TEST_IN(setup, teardown, heartbeats_go_on_whatever_a_rank_writes_into_its_page)
{
    struct world *w = *state;
    struct hl_step_pages pages = {0};
    start_agent(w, NULL);
    json_decref(start_container(w, "odd", "exec sleep 1000"));
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/steps/odd", in_dir(w, "state"));
    assert_int_equal(hl_step_pages_open(path, &pages), HL_OK);
    struct hl_step_page *page = hl_step_page_at(&pages, 0);
    memset(page, 0xFE, sizeof(*page)); /* an even turn: it reads as complete */
    AWAIT(w, strncmp(reported_trouble(w, "odd"), "\xEF\xBF\xBD", 3) == 0);
    memset(page, 0x80, sizeof(*page));
    hl_step_begin(page, 1, 1);
    hl_step_trouble(page, "bad \xFF");
    AWAIT(w, strcmp(reported_trouble(w, "odd"), "bad \xEF\xBF\xBD") == 0);
    hl_step_pages_close(&pages);
}

TEST_IN(setup, teardown, ranks_survive_a_killed_agent_and_their_results_are_kept)
{
    struct world *w = *state;
    start_agent(w, NULL);
    char script[512];
    snprintf(script, sizeof(script), "while [ ! -e %s ]; do sleep 0.01; done; exit 6",
             in_dir(w, "gate"));
    json_t *before = start_container(w, "live", "exec sleep 1000");
    json_decref(start_container(w, "away", script));
    kill_agent(w, SIGKILL);
    assert_int_equal(kill(pid_in(before), 0), 0);
    assert_int_equal(hl_file_write_atomic(in_dir(w, "gate"), "", 0), HL_OK);

    start_agent(w, NULL);
    AWAIT(w, strcmp(reported(w, "away"), "failed") == 0);
    AWAIT(w, strcmp(reported(w, "live"), "running") == 0);
    json_t *after = start_container(w, "live", "exec sleep 1000"); /* idempotent */
    assert_int_equal(pid_in(after), pid_in(before));
    json_decref(
        call(w, "stopContainer", json_pack("{ss si}", "id", "live", "graceMs", 5000), HL_OK));
    AWAIT(w, strcmp(reported(w, "live"), "stopped") == 0);
    json_decref(call(w, "forgetContainer", json_pack("{ss}", "id", "live"), HL_OK));
    AWAIT(w, strcmp(reported(w, "live"), "") == 0);
    json_decref(before);
    json_decref(after);
}

TEST_IN(setup, teardown, sigterm_ends_the_agent_soon_and_leaves_the_ranks)
{
    struct world *w = *state;
    start_agent(w, NULL);
    json_t *status = start_container(w, "stay", "exec sleep 1000");
    uint64_t t0 = hl_now_ns();
    kill(w->agent, SIGTERM);
    assert_int_equal(exit_of(w->agent), 0);
    w->agent = 0;
    assert_true(hl_now_ns() - t0 < TEST_PATIENCE_NS);
    assert_int_equal(kill(pid_in(status), 0), 0);

    start_agent(w, "--stop-containers-on-exit");
    kill(w->agent, SIGTERM);
    assert_int_equal(exit_of(w->agent), 0);
    w->agent = 0;
    assert_int_equal(kill(pid_in(status), 0), -1);
    json_decref(status);
}

static json_t *ask_ports(int first)
{
    return json_pack("{s:[iii]}", "ports", first, first + 1, first + 2);
}

TEST_IN(setup, teardown, a_port_that_somebody_has_or_was_told_is_not_found)
{
    struct world *w = *state;
    start_agent(w, NULL);
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(taken);
    int first, fd; /* a port that is already taken */
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&taken, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&taken, &len), 0);
    first = ntohs(taken.sin_port); /* the ports after it are free, or with bad luck none is */
    json_t *r = call(w, "findPort", ask_ports(first), HL_OK);
    int found = (int)hl_json_int(r, "port", 0);
    assert_true(found == first + 1 || found == first + 2);
    json_decref(r);
    r = call(w, "findPort", json_pack("{s:[ii]}", "ports", first, found), HL_EBUSY);
    json_decref(r);
    close(fd);
    r = call(w, "findPort", json_pack("{s:[ii]}", "ports", first, found), HL_OK);
    assert_int_equal(hl_json_int(r, "port", 0), first);
    json_decref(r);
}

static hl_status start_of(struct world *w, const char *id, int epoch)
{
    json_t *spec = spec_of(id, "exec sleep 1000"), *result = NULL;
    json_object_set_new(json_object_get(spec, "spec"), "epoch", json_integer(epoch));
    hl_status st = rpc_json_call(w->peer, "startContainer", spec, CALL_MS, &result);
    json_decref(spec);
    json_decref(result);
    return st;
}

TEST_IN(setup, teardown, a_start_that_comes_too_late_starts_nothing)
{
    struct world *w = *state;
    start_agent(w, NULL);
    json_decref(call(w, "stopContainer", json_pack("{ss si}", "id", "j.1.0", "epoch", 7), HL_OK));
    assert_int_equal(start_of(w, "j.1.0", 7), HL_EPERM); /* cancelled in the meantime */
    assert_non_null(strstr(hl_error_text(), "it has been stopped"));
    assert_int_equal(access(in_dir(w, "state/steps/j.1.0"), F_OK), -1);
    kill_agent(w, SIGKILL);
    start_agent(w, NULL);
    assert_int_equal(start_of(w, "k.1.0", 6), HL_EPERM); /* from an earlier Controller */
    assert_non_null(
        strstr(hl_error_text(), "belongs to Controller epoch 6, and epoch 7 has begun"));
    assert_int_equal(start_of(w, "k.1.0", 7), HL_OK);
    json_decref(
        call(w, "stopContainer", json_pack("{ss si}", "id", "k.1.0", "epoch", 6), HL_EPERM));
    json_t *list = call(w, "listContainers", NULL, HL_OK);
    const json_t *only = json_array_get(hl_json_list(list, "containers"), 0);
    assert_int_equal(json_array_size(hl_json_list(list, "containers")), 1);
    assert_string_equal(hl_json_str(only, "id", ""), "k.1.0");
    assert_string_equal(hl_json_str(only, "state", ""), "running");
    json_decref(list);
}

TEST_IN(setup, teardown, wrong_calls_are_answered_with_a_sentence)
{
    struct world *w = *state;
    start_agent(w, NULL);
    json_t *bad = spec_of("far", "true");
    json_object_set_new(json_object_get(bad, "spec"), "cpus", json_string("4000"));
    json_decref(call(w, "startContainer", bad, HL_EINVAL));
    assert_non_null(
        strstr(hl_error_text(), "container far asks for CPUs 4000, but this machine has"));
    json_decref(call(w, "startContainer", spec_of("../x", "true"), HL_EINVAL));
    assert_non_null(strstr(hl_error_text(), "id '../x'"));
    json_decref(call(w, "readLog", json_pack("{ss}", "id", "nope"), HL_ENOENT));
    assert_non_null(strstr(hl_error_text(), "there is no container nope on this node"));
    json_decref(call(w, "stopContainer", json_pack("{ss}", "id", "nope"), HL_OK));
    json_decref(call(w, "forgetContainer", json_pack("{ss}", "id", "nope"), HL_OK));
    assert_int_equal(hl_file_write_atomic(in_dir(w, "state/other"), "", 0), HL_OK);
    json_decref(call(w, "forgetContainer", json_pack("{ss}", "id", "../other"), HL_OK));
    assert_int_equal(access(in_dir(w, "state/other"), F_OK), 0);
}

static void on_read(void *arg, hl_status st, const char *text, json_t *result)
{
    (void)st, (void)text, (void)result;
    atomic_fetch_sub((atomic_int *)arg, 1);
}

/* A log that cannot be opened now, as on a disk that does not answer: it blocks every worker. It is
 * one of which this process has a lease. */
TEST_IN(setup, teardown, heartbeats_go_on_while_all_workers_wait_for_a_disk)
{
    struct world *w = *state;
    char path[256];
    atomic_int waiting = 8;
    int beats;
    start_agent(w, NULL);
    json_decref(start_container(w, "done", "true"));
    AWAIT(w, strcmp(reported(w, "done"), "succeeded") == 0);
    snprintf(path, sizeof(path), "%s", in_dir(w, "state/containers/done/rank-0.log"));
    signal(SIGIO, SIG_IGN); /* tells of who waits for the lease */
    int lease = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(lease >= 0);
    AWAIT(w, fcntl(lease, F_SETLEASE, F_WRLCK) == 0); /* its shim may not have closed it yet */
    json_t *params = json_pack("{ss}", "id", "done");
    for (int i = 0; i < 8; i++)
        rpc_json_call_async(w->peer, "readLog", params, CALL_MS, w->c.loop, on_read, &waiting);
    json_decref(params);
    AWAIT(w, threads_in_call(w->agent, SYS_openat) == WORKERS);
    pthread_mutex_lock(&w->c.lock);
    beats = w->c.beats;
    pthread_mutex_unlock(&w->c.lock);
    AWAIT(w, w->c.beats >= beats + 5);
    assert_int_equal(atomic_load(&waiting), 8);
    kill_agent(w, SIGKILL);
    close(lease);
    AWAIT(w, atomic_load(&waiting) == 0);
}

static void expect_refusal(struct world *w, const char *listen, const char *dir, const char *why)
{
    struct hl_buf text = HL_BUF(1 << 20);
    unlink(in_dir(w, "agent.log"));
    pid_t pid = spawn_agent(w, listen, dir, NULL);
    assert_int_equal(exit_of(pid), 1);
    assert_int_equal(hl_file_read(in_dir(w, "agent.log"), &text), HL_OK);
    if (strstr(text.data, why) == NULL)
        fail_msg("'%s' does not say '%s'", text.data, why);
    hl_buf_fini(&text);
}

TEST_IN(setup, teardown, an_agent_that_cannot_serve_says_why)
{
    struct world *w = *state;
    char dir[256], other[256];
    start_agent(w, NULL);
    snprintf(dir, sizeof(dir), "%s", in_dir(w, "state"));
    snprintf(other, sizeof(other), "%s", in_dir(w, "other"));
    expect_refusal(w, "127.0.0.1:0", dir, "is used by another agent");
    expect_refusal(w, hl_rpc_peer_address(w->peer), other, "in use");
    expect_refusal(w, "127.0.0.1:0", "/proc/helios", "/proc/helios");
}

int main(int argc, char **argv)
{
    hl_log_set_level(HL_LOG_WARN);
    if (access(agent_program(), X_OK) != 0) {
        fprintf(stderr, "%s is not there: build it first\n", agent_program());
        return 1;
    }
    return tests_run(argc, argv);
}
