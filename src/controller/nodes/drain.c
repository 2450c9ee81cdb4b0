/* Draining: nothing new is placed on a drained node, and what runs there stays. A drain takes
 * effect at once and is answered when it is durable; if the store refuses it, it is taken back. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/nodes/nodes_private.h"

struct drain_call {
    struct hl_controller *c;
    struct hl_rpc_call *call; /* NULL: no call asked for it */
    char name[sizeof(((struct node *)0)->name)];
    struct node_drained now;
    bool changed; /* false: an earlier call, not yet durable, has asked for the same */
};

static void node_set_drained(struct node *n, const struct node_drained *d)
{
    n->drained_ms = d->since_ms;
    memcpy(n->drain_reason, d->reason, sizeof(n->drain_reason));
    hl_cluster_set_draining(&n->controller->nodes->cluster, n->name, d->since_ms != 0);
    n->controller->slots_changed |= d->since_ms == 0;
}

/* A later drain that is still being written stays in effect. */
static void drain_ended(struct node *n, const struct node_drained *now, hl_status st)
{
    if (n->drains > 0) /* 0: the node was forgotten and has come back meanwhile */
        n->drains--;
    if (st == HL_OK)
        n->drain_kept = *now;
    if (st == HL_OK || n->drains > 0)
        return;
    node_set_drained(n, &n->drain_kept);
    node_restore(n);
}

static void drain_reply(struct hl_rpc_call *call, bool changed)
{
    hl_reply_controller_drain_node(
        call, &(struct hl_api_controller_drain_node_results){.changed = changed});
}

static void drain_reject(struct hl_rpc_call *call, hl_status st)
{
    if (call != NULL)
        call_reject(call, st);
    else
        hl_error("node is not drained error=\"%s\"", hl_error_text());
}

static void on_drain_written(void *arg, hl_status st, const char *text)
{
    struct drain_call d = *(struct drain_call *)arg;
    free(arg);
    struct node *n = controller_stopped(d.c) ? NULL : node_find(d.c, d.name);
    if (n == NULL) {
        drain_reject(d.call,
                     hl_fail(HL_ECANCELED, "the Controller was stopped, or the node was removed"));
        return;
    }
    drain_ended(n, &d.now, st);
    if (st != HL_OK) {
        drain_reject(d.call, hl_fail(st, "%s", text));
        return;
    }
    hl_info("node is %s node=%s reason=\"%s\"", d.now.since_ms != 0 ? "drained" : "undrained",
            n->name, d.now.reason);
    if (d.call != NULL)
        drain_reply(d.call, d.changed);
}

static hl_status drain_check(const struct hl_controller *c,
                             const struct hl_api_controller_drain_node_params *p, struct node **out)
{
    if (c->opts.kube != NULL)
        return hl_fail(HL_EUNSUPPORTED, "Kubernetes places this cluster's jobs; use kubectl drain");
    *out = node_find(c, p->name);
    if (*out == NULL)
        return hl_fail(HL_ENOENT, "no node '%.128s'; `helios nodes` lists them", p->name);
    if (strlen(p->reason) >= sizeof((*out)->drain_reason))
        return hl_fail(HL_EINVAL, "the reason has more than %zu bytes",
                       sizeof((*out)->drain_reason) - 1);
    return HL_OK;
}

static hl_status drain_begin(struct node *n, const struct node_drained *now, bool changed,
                             struct hl_rpc_call *call)
{
    struct drain_call *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory to drain a node");
    *d = (struct drain_call){.c = n->controller, .call = call, .now = *now, .changed = changed};
    snprintf(d->name, sizeof(d->name), "%s", n->name);
    if (n->drains++ == 0) { /* what is in effect is durable */
        n->drain_kept.since_ms = n->drained_ms;
        memcpy(n->drain_kept.reason, n->drain_reason, sizeof(n->drain_kept.reason));
    }
    node_set_drained(n, now);
    json_t *record = node_record(n, &n->info, n->lost);
    hl_status st = record != NULL ? node_write(n, record, on_drain_written, d)
                                  : hl_fail(HL_ENOMEM, "out of memory to drain a node");
    json_decref(record);
    if (st != HL_OK) {
        drain_ended(n, now, st);
        free(d);
    }
    return st;
}

hl_status node_drain(struct node *n, bool drained, const char *reason, struct hl_rpc_call *call)
{
    struct node_drained now = {.since_ms = drained ? hl_wall_ms() : 0};
    snprintf(now.reason, sizeof(now.reason), "%s", drained ? reason : "");
    return drain_begin(n, &now, true, call);
}

/* For a call that asks for what is in effect but may not be durable yet. */
static hl_status drain_again(struct node *n, struct hl_rpc_call *call)
{
    struct node_drained now = {.since_ms = n->drained_ms};
    memcpy(now.reason, n->drain_reason, sizeof(now.reason));
    return drain_begin(n, &now, false, call);
}

void method_drain_node(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_drain_node_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct node *n = NULL;
    hl_status st = drain_check(c, p, &n);
    bool same = st == HL_OK && (n->drained_ms != 0) == p->drained &&
                (!p->drained || p->reason[0] == '\0' || strcmp(p->reason, n->drain_reason) == 0);
    if (same && n->drains == 0) {
        drain_reply(call, false);
        return;
    }
    if (st == HL_OK)
        st = same ? drain_again(n, call) : node_drain(n, p->drained, p->reason, call);
    if (st != HL_OK)
        call_reject(call, st);
}
