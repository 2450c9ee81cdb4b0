/* Order of stop: containers, Controller, Agents, L3. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/clock.h"
#include "cli/local/local_private.h"
#include "core/json.h"
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

/* Stop every container of an Agent and wait until they have ended. */
static hl_status stop_containers(struct hl_rpc *rpc, const char *address)
{
    struct hl_rpc_peer *peer;
    HL_TRY(hl_rpc_open(rpc, address, "Agent", &peer));
    uint64_t end = hl_now_ns() + LOCAL_END_MS * HL_NS_PER_MS;
    hl_status st = HL_OK;
    for (int round = 0; st == HL_OK; round++) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_agent_list_containers_results all = {0};
        st = hl_call_agent_list_containers(peer, NULL, LOCAL_CALL_MS, &arena, &all);
        int running = 0;
        for (size_t i = 0; i < all.containers.count; i++) {
            struct hl_api_agent_stop_container_params stop = {.id = all.containers.items[i].id,
                                                              .grace_ms = STOP_GRACE_MS};
            if (!is_running(&all.containers.items[i]))
                continue;
            running++;
            if (round == 0)
                st = hl_call_agent_stop_container(peer, &stop, LOCAL_CALL_MS, NULL, NULL);
        }
        if (running == 0)
            break;
        if (hl_now_ns() > end)
            st = hl_fail(HL_ETIMEDOUT, "%d containers of %s still run after %d s", running, address,
                         LOCAL_END_MS / 1000);
        poll(NULL, 0, 50);
    }
    hl_rpc_peer_close(peer);
    return st;
}

/* What an Agent that died, or did not answer, has left running. */
static hl_status stop_left(const char *state)
{
    if (access(state, F_OK) != 0)
        return HL_OK;
    struct hl_executor *ex;
    HL_TRY(
        hl_executor_open(&(struct hl_executor_opts){.name = "process", .state_dir = state}, &ex));
    uint64_t end = hl_now_ns() + LOCAL_END_MS * HL_NS_PER_MS;
    hl_status st = HL_OK;
    for (int round = 0; st == HL_OK; round++) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_container_status_list list = {0};
        st = hl_executor_list(ex, &arena, &list);
        int running = 0;
        for (size_t i = 0; i < list.count; i++) {
            if (!is_running(&list.items[i]))
                continue;
            running++;
            if (round == 0)
                st = hl_executor_stop(ex, list.items[i].id, STOP_GRACE_MS);
        }
        if (running == 0)
            break;
        if (hl_now_ns() > end)
            st = hl_fail(HL_ETIMEDOUT, "%d containers of %s still run after %d s", running, state,
                         LOCAL_END_MS / 1000);
        poll(NULL, 0, 50);
    }
    hl_executor_close(ex);
    return st;
}

static void stop_all(struct hl_rpc *rpc, const char *state, const json_t *doc, json_t *stopped)
{
    char name[64];
    int nodes = (int)hl_json_int(doc, "nodesEver", hl_json_int(doc, "nodes", 0));
    json_t *supervisor = json_array(); /* no daemon */
    local_end_daemon(doc, "supervisor", supervisor);
    json_decref(supervisor);
    local_end_daemon(doc, "controllerd", stopped); /* first: it would start replacements */
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        const json_t *agent = json_object_get(doc, name);
        if (!local_daemon_runs(agent))
            continue;
        if (stop_containers(rpc, hl_json_str(agent, "address", "")) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        local_end_daemon(doc, name, stopped);
        char dir[PATH_MAX];
        snprintf(dir, sizeof(dir), "%s/agents/%s", state, name);
        if (stop_left(dir) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    local_end_daemon(doc, "l3d", stopped);
}

/* {"models", "versions", "jobs"} as the Controller counts them; NULL when it does not answer. */
static json_t *count_content(struct hl_rpc *rpc, const json_t *doc)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const json_t *controller = json_object_get(doc, "controllerd");
    struct hl_api_controller_cluster_info_results r;
    struct hl_rpc_peer *peer;
    if (!local_daemon_runs(controller) ||
        hl_rpc_open(rpc, hl_json_str(controller, "address", ""), "Controller", &peer) != HL_OK)
        return NULL;
    hl_status st = hl_call_controller_cluster_info(
        peer, &(struct hl_api_controller_cluster_info_params){0}, COUNT_MS, &arena, &r);
    hl_rpc_peer_close(peer);
    return st != HL_OK ? NULL
                       : json_pack("{s:I s:I s:I}", "models", (json_int_t)r.info.models, "versions",
                                   (json_int_t)r.info.versions, "jobs", (json_int_t)r.info.jobs);
}

/* What there is to keep or to remove. */
static json_t *content_of(struct hl_rpc *rpc, const char *state, const json_t *doc)
{
    struct stat sb;
    const char *pool = hl_json_str(doc, "pool", "");
    json_t *content = json_pack("{s:s s:s}", "state", state, "pool", pool);
    json_t *counts = count_content(rpc, doc);
    json_object_update(content, counts != NULL ? counts : json_object_get(doc, "kept"));
    json_decref(counts);
    const json_t *settings = json_object_get(json_object_get(doc, "settings"), "l3");
    uint64_t size = strtoull(hl_json_str(settings, "l3.size", "0"), NULL, 10);
    if (stat(pool, &sb) != 0)
        size = 0; /* it is gone with a reboot */
    json_object_set_new(content, "poolBytes", json_integer((json_int_t)size));
    return content;
}

/* The counts stand in cluster.json while no Controller can be asked. Without them, on a full disk,
 * everything is kept all the same. */
static void note_kept(const char *state, json_t *doc, const json_t *content)
{
    static const char *const keys[] = {"models", "versions", "jobs"};
    json_t *kept = json_object();
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        if (json_object_get(content, keys[i]) != NULL)
            json_object_set(kept, keys[i], json_object_get(content, keys[i]));
    json_object_set_new(doc, "kept", kept);
    if (local_save(state, doc) != HL_OK)
        fprintf(stderr, "helios: how much is kept could not be noted: %s\n", hl_error_text());
}

/* Nothing is removed from under a daemon that could not be stopped. */
static hl_status check_ended(const json_t *doc)
{
    const char *name;
    json_t *entry;
    json_object_foreach ((json_t *)doc, name, entry)
        if (json_is_object(entry) && local_daemon_runs(entry))
            return hl_fail(HL_EBUSY, "%s (process %d) could not be stopped; nothing was removed",
                           name, (int)hl_json_int(entry, "pid", 0));
    return HL_OK;
}

static hl_status take_down(struct hl_rpc *rpc, const char *state, json_t *doc, bool remove,
                           json_t *stopped)
{
    json_t *content = content_of(rpc, state, doc);
    hl_status st = remove ? local_end_gangs(rpc, doc) : HL_OK;
    if (st == HL_OK) {
        stop_all(rpc, state, doc, stopped);
        st = check_ended(doc);
    }
    if (st == HL_OK && remove)
        st = local_remove(state, doc, true);
    else if (st == HL_OK)
        note_kept(state, doc, content);
    json_object_update(doc, content);
    json_decref(content);
    return st;
}

static json_t *result_of(const json_t *doc, json_t *stopped, bool removed, bool kept)
{
    static const char *const keys[] = {"state", "pool", "poolBytes", "models", "versions", "jobs"};
    json_t *result =
        json_pack("{s:O s:b s:b}", "stopped", stopped, "removed", removed, "kept", kept);
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        if (json_object_get(doc, keys[i]) != NULL)
            json_object_set(result, keys[i], json_object_get(doc, keys[i]));
    return result;
}

/* To ask the daemons; those that can't be asked are ended all the same. */
static void use_secret(const json_t *doc)
{
    if (hl_auth_use_file(hl_json_str(doc, "secretFile", "")) != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
}

hl_status local_down(struct hl_rpc *rpc, const char *state, enum local_down mode, json_t **out)
{
    json_t *doc = NULL;
    HL_AUTO(local_unlock) int lock = -1;
    hl_status st = local_find(state, &doc);
    if (st == HL_ENOENT) {
        *out = json_pack("{s:[] s:b s:b s:s}", "stopped", "removed", 0, "kept", 0, "state", state);
        return HL_OK;
    }
    if (st == HL_OK)
        st = local_lock(state, LOCAL_LOCK_MS, &lock);
    if (st == HL_OK) { /* the supervisor may have started something before */
        json_decref(doc);
        doc = NULL;
        st = local_find(state, &doc);
    }
    json_t *stopped = json_array();
    bool remove = mode == LOCAL_DOWN_PURGE || (mode == LOCAL_DOWN && local_runs(doc));
    if (st == HL_OK) {
        use_secret(doc);
        st = take_down(rpc, state, doc, remove, stopped);
    }
    if (st == HL_OK)
        *out = result_of(doc, stopped, remove, !remove);
    json_decref(stopped);
    json_decref(doc);
    return st;
}
