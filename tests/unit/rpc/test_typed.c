/* Handlers and callers that take structs: everything passes through a real server. */
#include "support/test.h"

#include "unit/rpc/rig.h"

#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

struct typed {
    struct hl_rpc *rpc;
    struct hl_loop *loop;
    pthread_t thread;
    struct hl_rpc_server *server;
    struct hl_rpc_peer *peer;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    hl_status done; /* HL_EINTERNAL until the asynchronous answer */
    char seen[64];
};

static void start_container(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_agent_start_container_params *params)
{
    (void)arg;
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_agent_start_container_results r = {
        .status = {.id = params->spec.id, .exit_code = INT32_MIN, .started_ms = INT64_MAX}};
    r.status.ranks.count = params->spec.ranks.count;
    r.status.ranks.items =
        hl_arena_array(arena, r.status.ranks.count, sizeof(*r.status.ranks.items));
    for (size_t i = 0; i < r.status.ranks.count; i++)
        r.status.ranks.items[i].rank = params->spec.ranks.items[i].rank;
    if (params->spec.command.count > 0)
        r.status.message =
            hl_arena_printf(arena, "%zu words, the last '%s'", params->spec.command.count,
                            params->spec.command.items[params->spec.command.count - 1]);
    hl_reply_agent_start_container(call, &r);
}

static void stop_container(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_agent_stop_container_params *params)
{
    (void)arg;
    hl_rpc_reject(call, HL_ENOENT, params->id);
}

static void read_log(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_agent_read_log_params *params)
{
    (void)arg;
    struct hl_api_agent_read_log_results r = {.data = {"\0\xFFz", 3}, .offset = params->offset};
    hl_reply_agent_read_log(call, &r);
}

static void find_port(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_agent_find_port_params *params)
{
    (void)arg;
    struct hl_api_agent_find_port_results r = {.port =
                                                   params->ports.items[params->ports.count - 1]};
    hl_reply_agent_find_port(call, &r);
}

static const struct hl_agent_handlers handlers = {.start_container = start_container,
                                                  .stop_container = stop_container,
                                                  .read_log = read_log,
                                                  .find_port = find_port};

static void *run_loop(void *loop)
{
    return hl_loop_run(loop) == HL_OK ? NULL : loop;
}

static int setup(void **state)
{
    struct typed *t = calloc(1, sizeof(*t));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    assert_int_equal(hl_rpc_create(&t->rpc), HL_OK);
    assert_int_equal(hl_loop_create(&t->loop), HL_OK);
    assert_int_equal(pthread_create(&t->thread, NULL, run_loop, t->loop), 0);
    struct hl_rpc_serve_opts opts = {.address = "127.0.0.1:0", .loop = t->loop, .arg = t};
    assert_int_equal(hl_serve_agent(t->rpc, &opts, &handlers, &t->server), HL_OK);
    assert_int_equal(hl_rpc_open(t->rpc, hl_rpc_server_address(t->server), "Agent", &t->peer),
                     HL_OK);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct typed *t = *state;
    hl_rpc_peer_close(t->peer);
    hl_loop_stop(t->loop);
    pthread_join(t->thread, NULL);
    hl_rpc_server_close(t->server);
    hl_rpc_destroy(t->rpc);
    hl_loop_destroy(t->loop);
    free(t);
    return 0;
}

TEST_IN(setup, teardown, structs_arrive_and_come_back_whole)
{
    struct typed *t = *state;
    const char *command[] = {"train", "", "\xC3\xA4"};
    struct hl_api_rank_spec ranks[] = {{.rank = 3}, {.rank = INT32_MAX}};
    struct hl_api_agent_start_container_params p = {
        .spec = {.id = "j.1.0", .command = {command, 3}, .ranks = {ranks, 2}}};
    struct hl_api_agent_start_container_results r;
    struct hl_arena arena = {0};
    assert_int_equal(hl_call_agent_start_container(t->peer, &p, RIG_PATIENCE_MS, &arena, &r),
                     HL_OK);
    assert_string_equal(r.status.id, "j.1.0");
    assert_int_equal(r.status.exit_code, INT32_MIN);
    assert_int_equal(r.status.started_ms, INT64_MAX);
    assert_int_equal(r.status.ranks.count, 2);
    assert_int_equal(r.status.ranks.items[1].rank, INT32_MAX);
    assert_string_equal(r.status.message, "3 words, the last '\xC3\xA4'");
    assert_string_equal(r.status.binding, ""); /* never NULL */
    hl_arena_fini(&arena);
}

TEST_IN(setup, teardown, lists_of_numbers_and_bytes)
{
    struct typed *t = *state;
    struct hl_arena arena = {0};
    uint16_t ports[] = {1, 65535};
    struct hl_api_agent_find_port_results port;
    assert_int_equal(hl_call_agent_find_port(
                         t->peer, &(struct hl_api_agent_find_port_params){.ports = {ports, 2}},
                         RIG_PATIENCE_MS, &arena, &port),
                     HL_OK);
    assert_int_equal(port.port, 65535);
    struct hl_api_agent_read_log_results log;
    assert_int_equal(hl_call_agent_read_log(
                         t->peer, &(struct hl_api_agent_read_log_params){.id = "x", .offset = -5},
                         RIG_PATIENCE_MS, &arena, &log),
                     HL_OK);
    assert_int_equal(log.offset, -5);
    assert_int_equal(log.data.size, 3);
    assert_memory_equal(log.data.bytes, "\0\xFFz", 3);
    hl_arena_fini(&arena);
}

TEST_IN(setup, teardown, a_parameter_that_is_not_utf8_is_not_sent)
{
    struct typed *t = *state;
    const char *command[] = {"train", "--name=\xFF"};
    struct hl_api_agent_start_container_params p = {
        .spec = {.id = "j.1.0", .command = {command, 2}}};
    assert_int_equal(hl_call_agent_start_container(t->peer, &p, RIG_PATIENCE_MS, NULL, NULL),
                     HL_EINVAL);
    if (strstr(hl_error_text(), "spec.command[1]") == NULL)
        fail_msg("'%s' does not name the field", hl_error_text());
}

TEST_IN(setup, teardown, failures_keep_status_and_text)
{
    struct typed *t = *state;
    struct hl_api_agent_stop_container_params p = {.id = "the reason"};
    assert_int_equal(hl_call_agent_stop_container(t->peer, &p, RIG_PATIENCE_MS, NULL, NULL),
                     HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "the reason"));
    /* What has no handler, and what belongs to another interface. */
    struct hl_arena arena = {0};
    struct hl_api_agent_metrics_results metrics;
    assert_int_equal(hl_call_agent_metrics(t->peer, &(struct hl_api_agent_metrics_params){0},
                                           RIG_PATIENCE_MS, &arena, &metrics),
                     HL_EUNSUPPORTED);
    assert_int_equal(
        hl_call_l3_touch(t->peer, &(struct hl_api_l3_touch_params){0}, RIG_PATIENCE_MS, NULL, NULL),
        HL_EINVAL);
    hl_arena_fini(&arena);
}

static void port_found(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_find_port_results *results)
{
    struct typed *t = arg;
    pthread_mutex_lock(&t->lock);
    snprintf(t->seen, sizeof(t->seen), "%d %s", results != NULL ? results->port : -1, text);
    t->done = st;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

TEST_IN(setup, teardown, asynchronous_answers_come_on_the_loop)
{
    struct typed *t = *state;
    uint16_t port = 7;
    t->done = HL_EINTERNAL;
    hl_call_agent_find_port_async(t->peer,
                                  &(struct hl_api_agent_find_port_params){.ports = {&port, 1}},
                                  RIG_PATIENCE_MS, t->loop, port_found, t);
    pthread_mutex_lock(&t->lock);
    while (t->done == HL_EINTERNAL)
        pthread_cond_wait(&t->changed, &t->lock);
    assert_int_equal(t->done, HL_OK);
    assert_string_equal(t->seen, "7 ");
    pthread_mutex_unlock(&t->lock);
}
