/* Reservations of nodes for maintenance. A gang whose time limit would reach into a reservation
 * does not start on its nodes (core/planner/cluster.h); what runs there stays. A reservation takes
 * effect at once, on all its nodes or on none, and is answered when it is durable; if the store
 * refuses it, it is taken back. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/commits.h"
#include "controller/nodes/nodes_private.h"

#define RESERVED_MAX_MS (INT64_C(3650) * 24 * 3600 * 1000)

struct reserved_node {
    char name[sizeof(((struct node *)0)->name)];
};

struct reserve_call {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    struct node_reservation now;
    size_t count;
    struct reserved_node nodes[];
};

static void node_set_reserved(struct node *n, const struct node_reservation *r)
{
    n->reserved = *r;
    hl_cluster_set_window(&n->controller->nodes->cluster, n->name, r->window);
    n->controller->slots_changed = true; /* shorter or gone: some gang may start */
}

/* If the store refused it, each node gets back what the store has, unless a later reservation is
 * still being written. A node that was named twice counts twice. */
static void reserve_ended(const struct reserve_call *r, hl_status st)
{
    for (size_t i = 0; i < r->count; i++) {
        struct node *n = node_find(r->c, r->nodes[i].name);
        if (n == NULL)
            continue;
        if (n->reserves > 0) /* 0: the node was forgotten and has come back meanwhile */
            n->reserves--;
        if (st == HL_OK)
            n->reserve_kept = r->now;
        if (st == HL_OK || n->reserves > 0)
            continue;
        node_set_reserved(n, &n->reserve_kept);
        node_restore(n);
    }
}

static void on_reserved(void *arg, hl_status st, const char *text)
{
    struct reserve_call *r = arg;
    if (controller_stopped(r->c)) {
        call_reject(r->call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
    } else if (st != HL_OK) {
        reserve_ended(r, st);
        call_reject(r->call, hl_fail(st, "%s", text));
    } else {
        const struct hl_node_window w = r->now.window;
        reserve_ended(r, st);
        for (size_t i = 0; i < r->count; i++)
            hl_info("node's reservation is changed node=%s from_ms=%" PRId64 " until_ms=%" PRId64
                    " reason=\"%s\"",
                    r->nodes[i].name, w.from_ms, w.until_ms, r->now.reason);
        hl_reply_controller_reserve_nodes(
            r->call, &(struct hl_api_controller_reserve_nodes_results){w.from_ms, w.until_ms});
    }
    free(r);
}

static hl_status reserve_check(const struct hl_controller *c,
                               const struct hl_api_controller_reserve_nodes_params *p)
{
    const struct node *n = NULL;
    if (c->opts.kube != NULL)
        return hl_fail(HL_EUNSUPPORTED, "Kubernetes places this cluster's jobs; use kubectl cordon "
                                        "and taints");
    if (p->names.count == 0)
        return hl_fail(HL_EINVAL, "name at least one node");
    if (p->in_ms < 0 || p->for_ms < 0 || p->in_ms > RESERVED_MAX_MS || p->for_ms > RESERVED_MAX_MS)
        return hl_fail(HL_EINVAL, "a reservation begins and ends within ten years");
    if (strlen(p->reason) >= sizeof(n->reserved.reason))
        return hl_fail(HL_EINVAL, "the reason has more than %zu bytes",
                       sizeof(n->reserved.reason) - 1);
    for (size_t i = 0; i < p->names.count; i++)
        if (node_find(c, p->names.items[i]) == NULL)
            return hl_fail(HL_ENOENT,
                           "no node '%.128s', so nothing is changed; `helios nodes` "
                           "lists them",
                           p->names.items[i]);
    return HL_OK;
}

/* Writes the nodes' records, which include the reservation. */
static hl_status reserve_write(struct reserve_call *r)
{
    struct hl_records records = {0};
    hl_status st = HL_OK;
    for (size_t i = 0; i < r->count && st == HL_OK; i++) {
        struct node *n = node_find(r->c, r->nodes[i].name);
        json_t *record = node_record(n, &n->info, n->lost);
        st = record != NULL ? hl_records_add(&records, record, "node/%s", n->name)
                            : hl_fail(HL_ENOMEM, "out of memory to reserve a node");
        json_decref(n->written);
        n->written = NULL; /* differs from what was read or written last */
        n->forgetting = false;
    }
    if (st == HL_OK)
        st = controller_write(r->c, &records, on_reserved, r);
    hl_records_fini(&records);
    return st;
}

void method_reserve_nodes(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_reserve_nodes_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    int64_t from = hl_wall_ms() + p->in_ms;
    struct reserve_call *r = NULL;
    hl_status st = reserve_check(c, p);
    if (st == HL_OK && (r = calloc(1, sizeof(*r) + p->names.count * sizeof(r->nodes[0]))) == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory to reserve nodes");
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    r->c = c;
    r->call = call;
    if (p->for_ms > 0) {
        r->now.window = (struct hl_node_window){from, from + p->for_ms};
        snprintf(r->now.reason, sizeof(r->now.reason), "%s", p->reason);
    }
    for (size_t i = 0; i < p->names.count; i++) {
        struct node *n = node_find(c, p->names.items[i]);
        struct reserved_node *kept = &r->nodes[r->count++];
        memcpy(kept->name, n->name, sizeof(kept->name));
        if (n->reserves++ == 0) /* what is in effect is durable */
            n->reserve_kept = n->reserved;
        node_set_reserved(n, &r->now);
    }
    st = reserve_write(r);
    if (st != HL_OK) {
        reserve_ended(r, st);
        free(r);
        call_reject(call, st);
    }
}
