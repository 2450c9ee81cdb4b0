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
    int64_t was_ms; /* the previous value, for taking it back */
    char was_reason[sizeof(((struct node *)0)->drain_reason)];
};

static void node_set_drained(struct node *n, int64_t since_ms, const char *reason)
{
    n->drained_ms = since_ms;
    snprintf(n->drain_reason, sizeof(n->drain_reason), "%s", reason);
    hl_cluster_set_draining(&n->controller->nodes->cluster, n->name, since_ms != 0);
    n->controller->slots_changed |= since_ms == 0;
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
    if (st != HL_OK) {
        node_set_drained(n, d.was_ms, d.was_reason);
        drain_reject(d.call, hl_fail(st, "%s", text));
        return;
    }
    hl_info("node is %s node=%s reason=\"%s\"", n->drained_ms != 0 ? "drained" : "undrained",
            n->name, n->drain_reason);
    if (d.call != NULL)
        drain_reply(d.call, true);
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

hl_status node_drain(struct node *n, bool drained, const char *reason, struct hl_rpc_call *call)
{
    struct drain_call *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory to drain a node");
    *d = (struct drain_call){.c = n->controller, .call = call, .was_ms = n->drained_ms};
    snprintf(d->name, sizeof(d->name), "%s", n->name);
    snprintf(d->was_reason, sizeof(d->was_reason), "%s", n->drain_reason);
    node_set_drained(n, drained ? hl_wall_ms() : 0, drained ? reason : "");
    json_t *record = node_record(n, &n->info, n->lost);
    hl_status st = record != NULL ? node_write(n, record, on_drain_written, d)
                                  : hl_fail(HL_ENOMEM, "out of memory to drain a node");
    json_decref(record);
    if (st != HL_OK) {
        node_set_drained(n, d->was_ms, d->was_reason);
        free(d);
    }
    return st;
}

void method_drain_node(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_drain_node_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct node *n = NULL;
    hl_status st = drain_check(c, p, &n);
    bool same = st == HL_OK && (n->drained_ms != 0) == p->drained &&
                (!p->drained || p->reason[0] == '\0' || strcmp(p->reason, n->drain_reason) == 0);
    if (same) {
        drain_reply(call, false);
        return;
    }
    if (st == HL_OK)
        st = node_drain(n, p->drained, p->reason, call);
    if (st != HL_OK)
        call_reject(call, st);
}
