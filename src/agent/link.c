/* The way to the Controller: register, then heartbeat; one call under way at a time. What it tells
 * is gathered by a thread of its own: the workers may all be busy for long, reading copies through
 * or waiting for a disk, and a node that is silent meanwhile would be taken for lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/log.h"
#include "core/json.h"

#define BACKOFF_MIN_MS       100
#define BACKOFF_MAX_MS       5000
#define HEARTBEAT_DEFAULT_MS 1000

/* One round: gathered by its thread, sent from the loop. */
struct round {
    pthread_t thread;
    struct hl_agent *agent;
    json_t *containers;
    json_t *telemetry;
    json_t *tiers;
    uint64_t store_epoch; /* read before tiers: what came between is told next time */
    int registering;
};

static void on_timer(uv_timer_t *timer);

static void arm(struct hl_agent *a, uint64_t delay_ms)
{
    if (!a->closing)
        uv_timer_start(&a->link.timer, on_timer, delay_ms, 0);
}

static void set_state(struct hl_agent *a, enum link_state state, const char *text)
{
    if (a->link.state == state)
        return;
    a->link.state = state;
    const char *address = hl_rpc_peer_address(a->link.peer);
    if (state == LINK_REGISTERED)
        hl_info("registered controller=%s node=%s heartbeat_ms=%llu", address, a->name,
                (unsigned long long)a->link.heartbeat_ms);
    else if (state == LINK_AWAY)
        hl_warn("controller is away, trying again until it is back controller=%s why=\"%s\"",
                address, text);
    else
        hl_warn("controller refuses, trying again controller=%s why=\"%s\"", address, text);
}

static void on_answer(void *arg, hl_status st, const char *text, json_t *result)
{
    struct round *r = arg;
    struct hl_agent *a = r->agent;
    struct link *l = &a->link;
    int registering = r->registering;
    free(r);
    a->pending--;
    l->in_flight = 0;
    if (a->closing)
        return;
    if (st != HL_OK) {
        set_state(a, hl_status_retryable(st) ? LINK_AWAY : LINK_REFUSED, text);
        l->backoff_ms = l->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : l->backoff_ms * 2;
        arm(a, l->registered && l->heartbeat_ms < l->backoff_ms ? l->heartbeat_ms : l->backoff_ms);
        return;
    }
    l->backoff_ms = BACKOFF_MIN_MS;
    if (registering) {
        int64_t ms = hl_json_int(result, "heartbeatMs", 0);
        l->heartbeat_ms = ms > 0 ? (uint64_t)ms : HEARTBEAT_DEFAULT_MS;
        l->registered = 1;
    } else if (!hl_json_bool(result, "known", 1)) {
        hl_info("controller does not know this node any more, registering again");
        l->registered = 0;
        l->state = LINK_NEW;
        arm(a, 0);
        return;
    }
    set_state(a, LINK_REGISTERED, "");
    arm(a, l->again || registering ? 0 : l->heartbeat_ms);
    l->again = 0;
}

static int call_timeout(const struct hl_agent *a)
{
    uint64_t ms = a->link.heartbeat_ms * 3 < 2000 ? 2000 : a->link.heartbeat_ms * 3;
    return ms < (uint64_t)a->rpc_timeout_ms ? (int)ms : a->rpc_timeout_ms;
}

static void send_round(void *arg);

static void *gather(void *arg)
{
    struct round *r = arg;
    if (hl_executor_list(r->agent->executor, &r->containers) != HL_OK) {
        hl_error("%s", hl_error_text());
        r->containers = NULL;
    }
    r->store_epoch = store_epoch(r->agent->store);
    r->tiers = agent_tiers(r->agent);
    if (r->agent->telemetry != NULL)
        r->telemetry = r->agent->telemetry(r->agent->telemetry_arg);
    hl_loop_post(r->agent->loop, send_round, r);
    return NULL;
}

static void send_round(void *arg)
{
    struct round *r = arg;
    struct hl_agent *a = r->agent;
    pthread_join(r->thread, NULL);
    if (a->closing || r->containers == NULL) {
        json_decref(r->containers);
        json_decref(r->telemetry);
        json_decref(r->tiers);
        free(r);
        a->pending--;
        a->link.in_flight = 0;
        arm(a, a->link.heartbeat_ms);
        return;
    }
    json_t *params = json_pack("{so}", "containers", r->containers);
    json_t *epoch = json_integer((json_int_t)r->store_epoch);
    r->registering = !a->link.registered;
    if (r->registering) {
        json_t *node = json_copy(a->node);
        json_object_set_new(node, "storeEpoch", epoch);
        json_object_set_new(node, "tiers", r->tiers);
        json_object_set_new(params, "node", node);
        json_decref(r->telemetry);
    } else {
        json_object_set_new(params, "name", json_string(a->name));
        json_object_set(params, "incarnation", json_object_get(a->node, "incarnation"));
        json_object_set_new(params, "tiers", r->tiers);
        json_object_set_new(params, "storeEpoch", epoch);
        if (r->telemetry != NULL)
            json_object_set_new(params, "telemetry", r->telemetry);
    }
    hl_rpc_call_async(a->link.peer, r->registering ? "registerNode" : "heartbeat", params,
                      call_timeout(a), a->loop, on_answer, r);
    json_decref(params);
}

static void on_timer(uv_timer_t *timer)
{
    struct hl_agent *a = timer->data;
    if (a->link.in_flight || a->closing)
        return;
    struct round *r = calloc(1, sizeof(*r));
    if (r != NULL)
        r->agent = a;
    if (r == NULL || pthread_create(&r->thread, NULL, gather, r) != 0) {
        free(r);
        arm(a, HEARTBEAT_DEFAULT_MS);
        return;
    }
    a->link.in_flight = 1;
    a->link.again = 0;
    a->pending++;
}

void link_tell(struct hl_agent *a)
{
    HL_ON_LOOP(a->loop);
    if (a->closing)
        return;
    if (a->link.in_flight)
        a->link.again = 1;
    else if (a->link.state == LINK_REGISTERED)
        arm(a, 0);
}

hl_status link_start(struct hl_agent *a, const char *controller)
{
    a->link.heartbeat_ms = HEARTBEAT_DEFAULT_MS;
    a->link.backoff_ms = BACKOFF_MIN_MS;
    HL_TRY(hl_rpc_open(a->rpc, controller, "Controller", &a->link.peer));
    int rc = uv_timer_init(hl_loop_uv(a->loop), &a->link.timer);
    if (rc != 0)
        return hl_fail(HL_EIO, "timer: %s", uv_strerror(rc));
    a->link.timer.data = a;
    arm(a, 0);
    return HL_OK;
}

void link_stop(struct hl_agent *a)
{
    if (a->link.timer.data != NULL)
        uv_timer_stop(&a->link.timer);
    hl_rpc_peer_close(a->link.peer);
    a->link.peer = NULL;
}
