/* The link to the Controller: it registers, then sends heartbeats, with one call in flight at a
 * time. A thread of its own gathers the reports. The workers may all be busy for long, reading
 * through copies or waiting for a disk, and a node that is silent meanwhile would be taken for
 * lost.
 *
 *     loop      on_timer ----------------> send_round --call--> on_registered, on_heartbeat
 *                  |  in_flight             ^ joins               | in_flight ends, timer again
 *     thread       '--> gather_reports -----'
 *
 * A round (struct round) has one owner at a time: the thread until it posts, then the loop, which
 * frees it when the call is sent. The loop owns the rest of `link`.
 *
 *     NEW --registered--> REGISTERED --the Controller does not know the node--> NEW
 *     any --no answer--> AWAY    any --refused--> REFUSED    both --a good answer--> REGISTERED
 *
 * heartbeat.h decides whether the next call registers or is a heartbeat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "rpc/controller_calls.h"

/* One round: gathered by the thread, sent from the loop. */
struct round {
    pthread_t thread;
    struct hl_agent *agent;
    struct hl_arena arena; /* of the fields below */
    bool gathered;
    struct hl_api_container_status_list containers;
    struct hl_api_node_info node;
    struct hl_api_telemetry telemetry;
};

static void on_timer(uv_timer_t *timer);

static void heartbeat_arm(struct hl_agent *a, uint64_t delay_ms)
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
                (unsigned long long)a->link.heartbeat.period_ms);
    else if (state == LINK_AWAY)
        hl_warn("controller unreachable, trying again until it answers controller=%s why=\"%s\"",
                address, text);
    else
        hl_warn("controller refuses, trying again controller=%s why=\"%s\"", address, text);
}

/* What a Controller asks for ends with the Controller. */
static void withdraw_requests(struct hl_agent *a)
{
    chunks_ask(a->chunks, &(struct hl_api_chunk_request_list){0});
}

/* Ends the round; false: there is nothing more to do. */
static bool call_answered(struct hl_agent *a, hl_status st, const char *text)
{
    struct link *l = &a->link;
    a->pending--;
    l->in_flight = false;
    if (a->closing)
        return false;
    if (st != HL_OK) {
        set_state(a, hl_status_retryable(st) ? LINK_AWAY : LINK_REFUSED, text);
        if (hl_now_ns() / HL_NS_PER_MS >= heartbeat_lapses_ms(&l->heartbeat))
            withdraw_requests(a);
        heartbeat_arm(a, heartbeat_failed(&l->heartbeat));
        return false;
    }
    return true;
}

/* Ends containers that the jobs gave up while this Agent was silent, after another Agent has taken
 * its name. */
static void end_strays(struct hl_agent *a, const struct hl_api_controller_register_node_results *r)
{
    for (size_t i = 0; i < r->strays.count; i++) {
        hl_warn("container is no longer wanted and is stopped id=%s", r->strays.items[i]);
        if (orders_stop(&a->orders, r->epoch, r->strays.items[i], -1) != HL_OK)
            hl_warn("container %s: %s", r->strays.items[i], hl_error_text());
    }
}

static void on_registered(void *arg, hl_status st, const char *text,
                          const struct hl_api_controller_register_node_results *r)
{
    struct hl_agent *a = arg;
    if (!call_answered(a, st, text))
        return;
    if (obeyed_hear(&a->obeyed, r->cluster, r->epoch) != HL_OK) {
        set_state(a, LINK_REFUSED, hl_error_text());
        heartbeat_arm(a, heartbeat_failed(&a->link.heartbeat));
        return;
    }
    if (r->refused[0] != '\0') {
        end_strays(a, r);
        set_state(a, LINK_REFUSED, r->refused);
        heartbeat_arm(a, heartbeat_failed(&a->link.heartbeat));
        return;
    }
    a->link.test_told = a->link.test_sent;
    heartbeat_arm(
        a, heartbeat_registered(&a->link.heartbeat, a->link.sent_ms, r->heartbeat_ms, r->lost_ms));
    set_state(a, LINK_REGISTERED, "");
}

static int call_timeout(const struct hl_agent *a)
{
    return heartbeat_timeout_ms(&a->link.heartbeat, a->rpc_timeout_ms);
}

/* ---- kept copies of what the catalogue has lost ---- */

/* The Controller reports how many shards have ever left its catalogue. When that number changes, we
 * ask which of the kept ones are gone. We ask once more later, because readers may have been
 * loading such shards at the time. */
#define LOOK_AGAIN_NS (60 * HL_NS_PER_S)

static void kept_checked(struct kept_check *k)
{
    k->again_ns = k->known && k->seen == k->asked ? 0 : hl_now_ns() + LOOK_AGAIN_NS;
    k->seen = k->asked;
    k->known = true;
}

static void on_gone(void *arg, hl_status st, const char *text,
                    const struct hl_api_controller_gone_shards_results *r)
{
    struct hl_agent *a = arg;
    struct kept_check *k = &a->link.kept;
    a->pending--;
    k->asking = false;
    if (st != HL_OK) { /* the next heartbeat asks again */
        hl_debug("can't tell which kept shards no longer exist: %s", text);
        return;
    }
    if (!a->closing)
        store_keep_gone(a->store, &r->gone);
    kept_checked(k);
}

static void check_kept(struct hl_agent *a, uint64_t shards_left)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct kept_check *k = &a->link.kept;
    struct hl_api_text_list ids;
    bool again = k->again_ns != 0 && hl_now_ns() >= k->again_ns;
    if (k->asking || (k->known && k->seen == shards_left && !again) ||
        store_keep_list(a->store, &arena, &ids) != HL_OK)
        return;
    k->asked = shards_left;
    if (ids.count == 0) {
        kept_checked(k);
        return;
    }
    k->asking = true;
    a->pending++;
    hl_call_controller_gone_shards_async(a->link.peer,
                                         &(struct hl_api_controller_gone_shards_params){ids},
                                         call_timeout(a), a->loop, on_gone, a);
}

static void on_heartbeat(void *arg, hl_status st, const char *text,
                         const struct hl_api_controller_heartbeat_results *r)
{
    struct hl_agent *a = arg;
    if (!call_answered(a, st, text))
        return;
    heartbeat_arm(a, heartbeat_answered(&a->link.heartbeat, a->link.sent_ms, r->known));
    if (r->known) {
        a->link.test_told = a->link.test_sent;
        set_state(a, LINK_REGISTERED, "");
        chunks_ask(a->chunks, &r->requests);
        check_kept(a, r->shards_left);
        return;
    }
    withdraw_requests(a);
    hl_info("controller no longer knows this node, registering again");
    a->link.kept.known = false;
    a->link.state = LINK_NEW;
}

static void send_round(void *arg);

static void *gather_reports(void *arg)
{
    struct round *r = arg;
    struct hl_agent *a = r->agent;
    hl_status st = hl_executor_list(a->executor, &r->arena, &r->containers);
    if (st == HL_OK) {
        steps_tell(a, &r->arena, &r->containers);
        st = agent_node(a, &r->arena, &r->node);
    }
    if (st == HL_OK)
        st = health_tell(a, &r->arena, &r->node.health);
    if (st != HL_OK)
        hl_error("%s", hl_error_text());
    agent_telemetry(a, &r->containers, &r->arena, &r->telemetry);
    r->gathered = st == HL_OK;
    hl_loop_post(a->loop, send_round, r);
    return NULL;
}

static void send_round(void *arg)
{
    struct round *r = arg;
    struct hl_agent *a = r->agent;
    pthread_join(r->thread, NULL);
    a->link.test_sent = r->node.health.time_ms;
    bool tested = a->link.test_sent != a->link.test_told;
    a->link.sent_ms = hl_now_ns() / HL_NS_PER_MS;
    if (a->closing || !r->gathered) {
        a->pending--;
        a->link.in_flight = false;
        heartbeat_arm(a, a->link.heartbeat.period_ms);
    } else if (!a->link.heartbeat.registered) {
        hl_call_controller_register_node_async(
            a->link.peer,
            &(struct hl_api_controller_register_node_params){
                .node = r->node, .containers = r->containers, .ends_strays = true},
            call_timeout(a), a->loop, on_registered, a);
    } else {
        hl_call_controller_heartbeat_async(
            a->link.peer,
            &(struct hl_api_controller_heartbeat_params){
                .name = r->node.name,
                .incarnation = r->node.incarnation,
                .telemetry = r->telemetry,
                .containers = r->containers,
                .tiers = r->node.tiers,
                .store_epoch = r->node.store_epoch,
                .health = tested ? r->node.health : (struct hl_api_health){0}},
            call_timeout(a), a->loop, on_heartbeat, a);
    }
    hl_arena_fini(&r->arena);
    free(r);
}

static void on_timer(uv_timer_t *timer)
{
    struct hl_agent *a = timer->data;
    if (a->link.in_flight || a->closing)
        return;
    struct round *r = calloc(1, sizeof(*r));
    if (r != NULL)
        r->agent = a;
    if (r == NULL || pthread_create(&r->thread, NULL, gather_reports, r) != 0) {
        free(r);
        heartbeat_arm(a, HEARTBEAT_DEFAULT_MS);
        return;
    }
    a->link.in_flight = true;
    a->link.heartbeat.again = false;
    a->pending++;
}

uint64_t link_lapses_ms(const struct hl_agent *a)
{
    HL_ON_LOOP(a->loop);
    return heartbeat_lapses_ms(&a->link.heartbeat);
}

void link_tell(struct hl_agent *a)
{
    HL_ON_LOOP(a->loop);
    if (a->closing)
        return;
    if (a->link.in_flight)
        a->link.heartbeat.again = true;
    else if (a->link.state == LINK_REGISTERED)
        heartbeat_arm(a, 0);
}

hl_status link_start(struct hl_agent *a, const char *controller)
{
    heartbeat_init(&a->link.heartbeat);
    HL_TRY(hl_rpc_open(a->rpc, controller, "Controller", &a->link.peer));
    int rc = uv_timer_init(hl_loop_uv(a->loop), &a->link.timer);
    if (rc != 0)
        return hl_fail(HL_EIO, "timer: %s", uv_strerror(rc));
    a->link.timer.data = a;
    heartbeat_arm(a, 0);
    return HL_OK;
}

void link_stop(struct hl_agent *a)
{
    if (a->link.timer.data != NULL)
        uv_timer_stop(&a->link.timer);
    hl_rpc_peer_close(a->link.peer);
    a->link.peer = NULL;
}
