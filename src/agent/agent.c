#include "agent/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "base/plane.h"
#include "os/cond.h"
#include "os/file.h"
#include "os/process.h"
#include "os/socket.h"

#define DRAIN_MS     1000
#define SOCKET_AGE_S 60 /* an Agent listens on its own socket much sooner */

static void changed_on_loop(void *arg)
{
    link_tell(arg);
}

/* Called from a thread of the executor. */
static void on_change(void *arg, const char *id)
{
    struct hl_agent *a = arg;
    (void)id;
    pthread_mutex_lock(&a->changes.lock);
    a->changes.count++;
    pthread_cond_broadcast(&a->changes.cond);
    pthread_mutex_unlock(&a->changes.lock);
    hl_loop_post(a->loop, changed_on_loop, a);
}

static unsigned changes_count(struct agent_changes *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned count = c->count;
    pthread_mutex_unlock(&c->lock);
    return count;
}

/* Waits until there were more changes than `seen`, or until the deadline. */
static void changes_await(struct agent_changes *c, unsigned seen, uint64_t deadline)
{
    struct timespec t = {(time_t)(deadline / HL_NS_PER_S), (long)(deadline % HL_NS_PER_S)};
    pthread_mutex_lock(&c->lock);
    while (c->count == seen && pthread_cond_timedwait(&c->cond, &c->lock, &t) == 0)
        ;
    pthread_mutex_unlock(&c->lock);
}

/* Called from a thread of the store. */
static void on_store_change(void *arg)
{
    struct hl_agent *a = arg;
    hl_loop_post(a->loop, changed_on_loop, a);
}

/* Removes sockets that killed Agents have left beside their pools. */
static void sweep_sockets(void)
{
    char head[32];
    snprintf(head, sizeof(head), "helios-%u-", (unsigned)getuid());
    size_t n = hl_socket_sweep("/dev/shm", head, ".l2.sock", SOCKET_AGE_S);
    if (n > 0)
        hl_info("removed %zu socket%s of dead Agents from /dev/shm", n, n == 1 ? "" : "s");
}

static hl_status open_store(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    struct store_opts o = opts->store;
    char pool[320];
    sweep_sockets();
    snprintf(pool, sizeof(pool), "/dev/shm/helios-%u-%s.l2", (unsigned)getuid(), a->name);
    snprintf(a->host_id, sizeof(a->host_id), "%s", o.host_id);
    if (a->host_id[0] == '\0')
        hl_host_id(a->host_id, sizeof(a->host_id));
    o.loop = a->loop;
    o.rpc = a->rpc;
    o.node = a->name;
    o.host_id = a->host_id;
    o.machine = opts->machine != NULL ? opts->machine : opts->slots;
    o.machine_foreign = opts->foreign_topology;
    o.data = opts->data;
    o.retry = opts->read->retry;
    o.rpc_address = a->address;
    o.changed = on_store_change;
    o.arg = a;
    if (o.l2_pool[0] == '\0')
        o.l2_pool = pool;
    return store_open(&o, &a->store);
}

static void open_chunks(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    if (chunks_open(a->name, opts->state_dir, opts->slots, opts->chunk_memory, &a->chunks) != HL_OK)
        hl_warn("HybridPS chunks of this node's ranks are not counted: %s", hl_error_text());
}

static void open_telemetry(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    char backbone[HL_PLANE_PLACE];
    const uint64_t backbone_bits = hl_plane_line(HL_PLANE_BACKBONE, backbone);
    const struct hl_telemetry_opts o = {
        .proc = "/proc",
        .sys = "/sys",
        .nvml = opts->nvml,
        .slots = opts->slots,
        .own_numa = !opts->foreign_topology && opts->share[0] == '\0',
        .log_dir = opts->state_dir,
        .log_free_bytes = opts->log_free_bytes,
        .backbone = backbone,
        .backbone_bits = backbone_bits,
        .period_ms = opts->telemetry_period_ms,
    };
    if (hl_telemetry_open(&o, &a->telemetry) != HL_OK)
        hl_warn("this node is not measured: %s", hl_error_text());
}

static hl_status make_node(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    char data[HL_HOST_PORT_MAX] = "", migrate[HL_HOST_PORT_MAX] = "", state[64];
    /* successive Agents in this directory have the same identity; the executor's lock keeps them
     * apart */
    hl_dir_identity(opts->state_dir, state, sizeof(state));
    if (store_data_address(a->store)[0] != '\0')
        hl_host_port_reach(store_data_address(a->store), a->rank_address, data);
    if (store_migrate_address(a->store)[0] != '\0')
        hl_host_port_reach(store_migrate_address(a->store), a->rank_address, migrate);
    const struct hl_api_node_info node = {
        .name = a->name,
        .agent_address = a->address,
        .host_id = a->host_id,
        .incarnation = hl_id_format(hl_id_random()).s,
        .executor = a->executor->ops->name,
        .version = HELIOS_VERSION,
        .slots = *opts->slots,
        .rank_address = a->rank_address,
        .data_address = data,
        .migrate_address = migrate,
        .store_socket = store_socket(a->store),
        .host_address = a->host_address,
        .state_directory = state,
        .device_addresses = opts->device_addresses,
        .leaf = opts->leaf,
        .spine = opts->spine,
    };
    return hl_api_copy(&hl_api_node_info_type, &node, &a->arena, &a->node);
}

static hl_status set_names(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    if (opts->name[0] == '\0' && gethostname(a->name, sizeof(a->name)) != 0)
        return hl_fail(HL_EIO, "the host has no name: give --name");
    if (opts->name[0] != '\0' &&
        (size_t)snprintf(a->name, sizeof(a->name), "%s", opts->name) >= sizeof(a->name))
        return hl_fail(HL_EINVAL, "--name has more than %zu bytes", sizeof(a->name) - 1);
    a->name[sizeof(a->name) - 1] = '\0';
    a->auth = opts->auth;
    a->data = opts->data;
    a->read = opts->read;
    a->python_dir = strdup(opts->python_dir);
    a->library = strdup(opts->library != NULL ? opts->library : "");
    if (a->python_dir == NULL || a->library == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Agent");
    env_find_addresses(a, opts->calls->agent_controller, opts->rank_address);
    if (opts->device_addresses != NULL)
        HL_TRY(env_check_addresses(opts->device_addresses));
    return env_find_gpus(a, opts->machine != NULL ? opts->machine : opts->slots);
}

static hl_status agent_start(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    HL_TRY(set_names(a, opts));
    struct hl_executor_opts executor = {
        .name = opts->executor,
        .state_dir = opts->state_dir,
        .foreign_topology = opts->foreign_topology,
        .log_max_bytes = opts->log_max_bytes,
        .on_change = on_change,
        .arg = a,
    };
    HL_TRY(hl_executor_open(&executor, &a->executor));
    HL_TRY(orders_open(&a->orders, &a->obeyed, a->executor));
    HL_TRY(hl_image_pulls_open(executor.name, &a->pulls));
    HL_TRY(steps_open(a, opts->state_dir));
    HL_TRY(open_store(a, opts));
    open_chunks(a, opts);
    open_telemetry(a, opts);
    const struct hl_rpc_serve_opts serve = {
        .address = opts->listen,
        .loop = opts->loop,
        .arg = a,
    };
    HL_TRY(hl_serve_agent(opts->rpc, &serve, &calls_handlers, &a->server));
    hl_host_port_reach(hl_rpc_server_address(a->server), a->rank_address, a->address);
    HL_TRY(make_node(a, opts));
    HL_TRY(health_init(a, opts));
    HL_TRY(link_start(a, opts->calls->agent_controller));
    return health_begin(a, link_tell);
}

hl_status hl_agent_start(const struct hl_agent_opts *opts, struct hl_agent **out)
{
    struct hl_agent *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Agent");
    pthread_mutex_init(&a->ports.lock, NULL);
    pthread_mutex_init(&a->changes.lock, NULL);
    pthread_mutex_init(&a->health.lock, NULL);
    pthread_mutex_init(&a->orders.lock, NULL);
    hl_cond_init(&a->changes.cond);
    a->loop = opts->loop;
    a->rpc = opts->rpc;
    a->rpc_timeout_ms = opts->calls->timeout_ms;
    a->verbs_dir = "/sys/class/infiniband";
    obeyed_init(&a->obeyed, opts->state_dir);
    hl_status st = agent_start(a, opts);
    if (st != HL_OK) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        hl_agent_stop(a);
        return hl_fail(st, "%s", text);
    }
    *out = a;
    return HL_OK;
}

const char *hl_agent_address(const struct hl_agent *agent)
{
    return agent->address;
}

const char *hl_agent_name(const struct hl_agent *agent)
{
    return agent->name;
}

const char *hl_agent_data_address(const struct hl_agent *agent)
{
    return agent->node.data_address;
}

const char *hl_agent_migrate_address(const struct hl_agent *agent)
{
    return agent->node.migrate_address;
}

const char *hl_agent_incarnation(const struct hl_agent *agent)
{
    return agent->node.incarnation;
}

const char *hl_agent_store_socket(const struct hl_agent *agent)
{
    return store_socket(agent->store);
}

/* How many containers run; `stop` asks them to stop, within grace_ms. */
static size_t containers_running(struct hl_agent *a, bool stop, int grace_ms)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list list;
    size_t n = 0;
    if (hl_executor_list(a->executor, &arena, &list) != HL_OK)
        return 0;
    for (size_t i = 0; i < list.count; i++) {
        enum hl_run_state state;
        const char *id = list.items[i].id;
        if (hl_run_state_of(list.items[i].state, &state) != HL_OK || hl_run_state_ended(state))
            continue;
        n++;
        if (stop && hl_executor_stop(a->executor, id, grace_ms) != HL_OK)
            hl_warn("container %s: %s", id, hl_error_text());
    }
    return n;
}

void hl_agent_stop_containers(struct hl_agent *agent, int grace_ms, int timeout_ms)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    unsigned seen = changes_count(&agent->changes);
    size_t left = containers_running(agent, true, grace_ms);
    while (left > 0 && hl_now_ns() < deadline) {
        changes_await(&agent->changes, seen, deadline);
        seen = changes_count(&agent->changes);
        left = containers_running(agent, false, 0);
    }
    if (left > 0)
        hl_warn("%zu containers still run after %d ms", left, timeout_ms);
}

static void on_drain_tick(uv_timer_t *timer)
{
    (void)timer; /* ends one turn of the loop */
}

/* Waits for workers and calls to finish. */
static bool calls_drain(struct hl_agent *a)
{
    uv_timer_t *tick = &a->link.timer;
    uint64_t deadline = hl_now_ns() + DRAIN_MS * HL_NS_PER_MS;
    while (a->pending + store_busy(a->store) > 0 && hl_now_ns() < deadline) {
        uv_timer_start(tick, on_drain_tick, 20, 0);
        uv_run(hl_loop_uv(a->loop), UV_RUN_ONCE);
    }
    uv_timer_stop(tick);
    return a->pending + store_busy(a->store) == 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    *(bool *)handle->data = true;
}

static void close_timer(struct hl_agent *a)
{
    bool closed = false;
    a->link.timer.data = &closed;
    uv_close((uv_handle_t *)&a->link.timer, on_timer_closed);
    while (!closed)
        uv_run(hl_loop_uv(a->loop), UV_RUN_NOWAIT);
}

bool hl_agent_stop(struct hl_agent *a)
{
    if (a == NULL)
        return true;
    a->closing = true;
    bool linked = a->link.timer.data != NULL;
    if (a->server != NULL)
        hl_rpc_server_close(a->server);
    link_stop(a);
    if (a->store != NULL)
        store_stop(a->store);
    if (linked && !calls_drain(a)) {
        hl_warn("%zu workers and %u copies are still busy", a->pending, store_busy(a->store));
        return false;
    }
    if (linked)
        close_timer(a);
    store_close(a->store);
    chunks_close(a->chunks);
    hl_telemetry_close(a->telemetry);
    health_fini(a);
    hl_image_pulls_close(a->pulls);
    hl_executor_close(a->executor);
    hl_loop_cancel(a->loop, a); /* its threads may have posted a change just before they ended */
    hl_arena_fini(&a->arena);
    free(a->python_dir);
    free(a->library);
    orders_fini(&a->orders);
    obeyed_fini(&a->obeyed);
    pthread_mutex_destroy(&a->ports.lock);
    pthread_cond_destroy(&a->changes.cond);
    pthread_mutex_destroy(&a->changes.lock);
    free(a);
    return true;
}
