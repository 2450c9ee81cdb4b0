/* Stops in this order: containers, Controller, Agents, L3. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/lists.h"
#include "auth/secret.h"
#include "base/clock.h"
#include "cli/local/local_private.h"
#include "hw/executor.h"
#include "rpc/agent_calls.h"
#include "rpc/controller_calls.h"

#define STOP_GRACE_MS 2000
#define COUNT_MS      2000

static bool is_running(const struct hl_api_container_status *container)
{
    return container->state == HL_API_CONTAINER_STATE_RUNNING ||
           container->state == HL_API_CONTAINER_STATE_STARTING;
}

/* Whose containers are stopped: those of an Agent, or those that an Agent has left in its
 * directory. */
struct host {
    const char *name;
    struct hl_rpc_peer *agent; /* NULL: ask the executor */
    struct hl_executor *executor;
};

static hl_status host_list(const struct host *h, struct hl_arena *arena,
                           struct hl_api_container_status_list *out)
{
    struct hl_api_agent_list_containers_results all;
    if (h->agent == NULL)
        return hl_executor_list(h->executor, arena, out);
    HL_TRY(hl_call_agent_list_containers(h->agent, NULL, LOCAL_CALL_MS, arena, &all));
    *out = all.containers;
    return HL_OK;
}

static hl_status host_stop(const struct host *h, const char *id)
{
    const struct hl_api_agent_stop_container_params p = {.id = id, .grace_ms = STOP_GRACE_MS};
    return h->agent == NULL ? hl_executor_stop(h->executor, id, STOP_GRACE_MS)
                            : hl_call_agent_stop_container(h->agent, &p, LOCAL_CALL_MS, NULL, NULL);
}

/* Counts the running ones; with `stop`, tells each of them to stop. */
static hl_status host_look(const struct host *h, bool stop, size_t *running)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list list = {0};
    HL_TRY(host_list(h, &arena, &list));
    *running = 0;
    for (size_t i = 0; i < list.count; i++) {
        if (!is_running(&list.items[i]))
            continue;
        ++*running;
        if (stop)
            HL_TRY(host_stop(h, list.items[i].id));
    }
    return HL_OK;
}

/* Stops every container and waits until all have ended. */
static hl_status host_stop_all(const struct host *h)
{
    uint64_t end = hl_now_ns() + LOCAL_END_MS * HL_NS_PER_MS;
    size_t running = 0;
    HL_TRY(host_look(h, true, &running));
    while (running > 0) {
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "%zu containers of %s are still running after %d s",
                           running, h->name, LOCAL_END_MS / 1000);
        poll(NULL, 0, LOCAL_LOOK_MS);
        HL_TRY(host_look(h, false, &running));
    }
    return HL_OK;
}

static hl_status stop_containers(struct hl_rpc *rpc, const char *address)
{
    struct host h = {.name = address};
    HL_TRY(hl_rpc_open(rpc, address, "Agent", &h.agent));
    hl_status st = host_stop_all(&h);
    hl_rpc_peer_close(h.agent);
    return st;
}

/* Stops what an Agent that died, or did not respond, has left running. */
static hl_status stop_left(const char *executor, const char *state)
{
    bool image = strcmp(executor, "docker") == 0 || strcmp(executor, "podman") == 0;
    struct host h = {.name = state};
    if (access(state, F_OK) != 0)
        return HL_OK;
    HL_TRY(hl_executor_open(
        &(struct hl_executor_opts){.name = image ? executor : "process", .state_dir = state},
        &h.executor));
    hl_status st = host_stop_all(&h);
    hl_executor_close(h.executor);
    return st;
}

/* Ends a daemon, and adds its name to the result if this call has ended it. */
static void stop_daemon(const struct hl_api_local_cluster *doc, const char *name,
                        struct hl_arena *arena, struct hl_api_local_stop *result)
{
    if (local_end_daemon(doc, name))
        hl_api_text_add(arena, &result->stopped, name);
}

static void stop_all(struct hl_rpc *rpc, const struct hl_api_local_cluster *doc,
                     struct hl_arena *arena, struct hl_api_local_stop *result)
{
    char name[64], dir[PATH_MAX];
    int nodes = local_nodes_ever(doc);
    local_end_supervisor(doc);
    stop_daemon(doc, "controllerd", arena, result); /* first, because it would start replacements */
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        const struct hl_api_local_daemon *agent = local_daemon_find(doc, name);
        if (local_daemon_runs(agent) && !local_daemon_stopped(agent) &&
            stop_containers(rpc, local_daemon_address(agent)) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        stop_daemon(doc, name, arena, result);
        snprintf(dir, sizeof(dir), "%s/agents/%s", result->state, name);
        if (stop_left(doc->executor, dir) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    stop_daemon(doc, "l3d", arena, result);
}

/* The Controller's counts; -1 if it does not respond. */
static struct hl_api_local_content count_content(struct hl_rpc *rpc,
                                                 const struct hl_api_local_cluster *doc)
{
    static const struct hl_api_local_content unknown = {-1, -1, -1};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_local_daemon *controller = local_daemon_find(doc, "controllerd");
    struct hl_api_controller_cluster_info_results r;
    struct hl_rpc_peer *peer;
    if (!local_daemon_runs(controller) || local_daemon_stopped(controller) ||
        hl_rpc_open(rpc, local_daemon_address(controller), "Controller", &peer) != HL_OK)
        return unknown;
    hl_status st = hl_call_controller_cluster_info(
        peer, &(struct hl_api_controller_cluster_info_params){0}, COUNT_MS, &arena, &r);
    hl_rpc_peer_close(peer);
    return st != HL_OK ? unknown
                       : (struct hl_api_local_content){r.info.models, r.info.versions, r.info.jobs};
}

/* Collects what there is to keep or to remove. */
static void describe_content(struct hl_rpc *rpc, const struct hl_api_local_cluster *doc,
                             struct hl_api_local_stop *result)
{
    struct stat sb;
    uint64_t size = 0;
    struct hl_api_local_content counts = count_content(rpc, doc);
    if (counts.models < 0)
        counts = doc->kept;
    if (stat(doc->pool, &sb) == 0) /* otherwise a reboot has removed it */
        (void)hl_parse_number(hl_api_pair_find(&doc->settings.l3, "l3.size", "0"), INT64_MAX,
                              &size);
    result->pool = doc->pool;
    result->pool_bytes = (int64_t)size;
    result->models = counts.models;
    result->versions = counts.versions;
    result->jobs = counts.jobs;
}

/* cluster.json stores the counts for the time when no Controller can be asked. If they can't be
 * stored, as on a full disk, everything is kept all the same. */
static void note_kept(struct hl_api_local_cluster *doc, const struct hl_api_local_stop *result)
{
    doc->kept = (struct hl_api_local_content){result->models, result->versions, result->jobs};
    if (local_save(result->state, doc) != HL_OK)
        fprintf(stderr, "helios: could not record how much is kept: %s\n", hl_error_text());
}

static hl_status fail_running(const char *name, int pid)
{
    return hl_fail(HL_EBUSY, "%s (process %d) could not be stopped; nothing was removed", name,
                   pid);
}

/* Fails if a daemon could not be stopped: nothing is removed while it runs. */
static hl_status check_ended(const struct hl_api_local_cluster *doc)
{
    for (size_t i = 0; i < doc->daemons.count; i++)
        if (local_daemon_runs(&doc->daemons.items[i]))
            return fail_running(doc->daemons.items[i].key, doc->daemons.items[i].pid);
    return local_supervisor_runs(doc) ? fail_running("supervisor", doc->supervisor.pid) : HL_OK;
}

static hl_status take_down(struct hl_rpc *rpc, struct hl_api_local_cluster *doc,
                           struct hl_arena *arena, struct hl_api_local_stop *result)
{
    describe_content(rpc, doc, result);
    if (result->removed)
        HL_TRY(local_end_gangs(rpc, doc));
    stop_all(rpc, doc, arena, result);
    HL_TRY(check_ended(doc));
    if (result->removed)
        return local_remove(result->state, doc, true);
    note_kept(doc, result);
    return HL_OK;
}

/* Loads the secret for asking the daemons; daemons that can't be asked are ended all the same. */
static void use_secret(const struct hl_api_local_cluster *doc)
{
    if (hl_auth_use_file(doc->secret_file != NULL ? doc->secret_file : "") != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
}

hl_status local_down(struct hl_rpc *rpc, const char *state, enum local_down mode,
                     struct hl_arena *arena, struct hl_api_local_stop *out)
{
    HL_AUTO(local_cluster_fini) struct local_cluster c = {0};
    HL_AUTO(local_unlock) int lock = -1;
    struct hl_api_local_stop result = {
        .state = state, .pool_bytes = -1, .models = -1, .versions = -1, .jobs = -1};
    hl_status st = local_find(state, &c);
    if (st == HL_OK)
        st = local_lock(state, LOCAL_LOCK_MS, &lock);
    if (st == HL_OK) { /* meanwhile a daemon was started, or another `down` has removed all */
        local_cluster_fini(&c);
        st = local_find(state, &c);
    }
    if (st == HL_ENOENT) {
        *out = result;
        return HL_OK;
    }
    HL_TRY(st);
    result.removed = mode == LOCAL_DOWN_PURGE || (mode == LOCAL_DOWN && local_runs(&c.doc));
    result.kept = !result.removed;
    use_secret(&c.doc);
    HL_TRY(take_down(rpc, &c.doc, arena, &result));
    hl_arena_move(arena, &c.arena);
    *out = result;
    return HL_OK;
}
