/* What Agents report: registrations and heartbeats; their silence means that a node is lost. Other
 * wings are informed through node_events. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/damaged.h"
#include "controller/nodes/nodes_private.h"
#include "core/job/jobnodes.h"

static void node_seen(struct node *n)
{
    bool was_lost = n->lost;
    n->seen_ns = n->controller->listening.listened_ns;
    n->seen_ms = hl_wall_ms();
    n->lost = false;
    n->lost_ms = 0;
    strays_clear(n);
    if (was_lost) {
        n->controller->nodes->arrivals++;
        hl_info("node is back node=%s", n->name);
        n->controller->nodes->events->back(n->controller, n);
    }
}

/* It is unknown which slots such a container has, so none of the node's slots are given away. */
static void hold_for_damaged(struct hl_controller *c, struct node *n,
                             const struct hl_api_container_status_list *containers)
{
    const char *id = job_damaged_container(c, containers);
    if (id == NULL && !n->held)
        return;
    if (id != NULL && !n->held)
        hl_warn("node gets no new containers while it runs one of a job whose record is damaged; "
                "`helios cancel JOB` ends that node=%s container=%s",
                n->name, id);
    n->held = id != NULL;
}

static void node_report(struct hl_controller *c, struct node *n,
                        const struct hl_api_controller_heartbeat_params *report)
{
    n->store_epoch = report->store_epoch;
    if (node_keep_report(n, report) != HL_OK)
        hl_warn("report of a node is not remembered node=%s error=\"%s\"", n->name,
                hl_error_text());
    hold_for_damaged(c, n, &report->containers);
    gate_apply(n);
    c->nodes->events->reported(c, n, &report->containers);
}

/* True if both texts are known and equal. */
static bool same_text(const char *a, const char *b)
{
    return a[0] != '\0' && strcmp(a, b) == 0;
}

/* Two Agents with the same name would displace each other for ever. A restarted Agent is recognized
 * by its address; or by its state directory, which its predecessor has released; or, after a reboot
 * of its machine, by the containers it holds. Any other Agent gets the name only once the old one
 * is lost to every job: until then the containers of the old one would be taken for gone although
 * they still run. */
static hl_status check_name_is_free(struct hl_controller *c,
                                    const struct hl_api_controller_register_node_params *p)
{
    const struct hl_api_node_info *info = &p->node;
    const struct node *n = node_find(c, info->name);
    if (n == NULL || same_text(n->info.agent_address, info->agent_address) ||
        (same_text(n->info.host_id, info->host_id) &&
         same_text(n->info.state_directory, info->state_directory)))
        return HL_OK;
    if (node_ready(n))
        return hl_fail(HL_EEXIST,
                       "node '%s' is in use by the Agent at %s; give this one another --name, or "
                       "stop that one",
                       n->name, n->info.agent_address);
    if (!c->nodes->events->needed(c, n) || c->nodes->events->holds(c, n, &p->containers))
        return HL_OK;
    return hl_fail(HL_EEXIST,
                   "node '%s' is silent, and containers of jobs may run on with its Agent at %s; "
                   "this one has none of them: give it another --name, or wait until they count "
                   "as lost (nodeLostAfter)",
                   n->name, n->info.agent_address);
}

/* Refuses an Agent whose name was given to another one while it was silent, and tells it which
 * containers to end: the jobs have given them up, and no other Agent can end them. False: it runs
 * no such containers, or is a version that would take the answer for a registration. */
static bool refuse_with_strays(struct hl_controller *c, struct hl_rpc_call *call,
                               const struct hl_api_controller_register_node_params *p)
{
    struct hl_arena *arena = hl_rpc_call_arena(call);
    const struct hl_id_text cluster = claim_cluster(c);
    if (!p->ends_strays)
        return false;
    struct hl_api_controller_register_node_results r = {
        .heartbeat_ms = c->opts.heartbeat_ms,
        .cluster = cluster.s,
        .epoch = c->claim.epoch,
        .refused = hl_arena_strdup(arena, hl_error_text())};
    r.strays.items = hl_arena_array(arena, p->containers.count, sizeof(*r.strays.items));
    for (size_t i = 0; i < p->containers.count && !hl_arena_failed(arena); i++) {
        const struct hl_api_container_status *k = &p->containers.items[i];
        if (node_runs_stray(c, k))
            r.strays.items[r.strays.count++] = k->id;
    }
    if (r.strays.count == 0 || hl_arena_failed(arena))
        return false;
    hl_warn("an Agent has lost its name and is ordered to end its containers node=%s address=%s "
            "containers=%zu",
            p->node.name, p->node.agent_address, r.strays.count);
    hl_reply_controller_register_node(call, &r);
    return true;
}

/* Jobs are checked against the cluster's executor at submission. A node with a different executor
 * could not keep what that check promised. */
static hl_status check_executor(const struct hl_controller *c, const struct hl_api_node_info *info)
{
    const char *want = hl_job_executor_name(controller_agents_kind(c));
    if (c->opts.kube != NULL || info->executor == NULL || strcmp(info->executor, want) == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "node '%s' runs containers by %s, jobs of this cluster are for %s; start "
                   "helios-agent with --executor %s, or the Controller with --executor %s",
                   info->name, info->executor, want, want,
                   strcmp(info->executor, "process") == 0 ? "agents" : info->executor);
}

struct registration {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    const struct hl_api_controller_register_node_params *p; /* valid until the call is answered */
    json_t *record;                                         /* NULL: the record exists already */
};

static hl_status register_written(const struct registration *r)
{
    struct hl_controller *c = r->c;
    const struct hl_api_node_info *info = &r->p->node;
    struct node *n;
    HL_TRY(check_name_is_free(c, r->p)); /* another may have come while the record was written */
    HL_TRY(node_add(c, info, &n));
    if (r->record != NULL) {
        json_decref(n->written);
        n->written = json_incref(r->record);
    }
    snprintf(n->incarnation, sizeof(n->incarnation), "%s", info->incarnation);
    node_seen(n);
    c->nodes->arrivals++;
    hl_info("node registered node=%s slots=%zu address=%s", n->name, info->slots.count,
            info->agent_address);
    gate_take_test(n, &info->health);
    gate_apply(n);
    c->slots_changed = true;
    c->nodes->events->registered(c, n);
    node_report(c, n,
                &(struct hl_api_controller_heartbeat_params){.telemetry = n->report.telemetry,
                                                             .containers = r->p->containers,
                                                             .tiers = info->tiers,
                                                             .store_epoch = info->store_epoch});
    return HL_OK;
}

/* Takes over what `r` owns. */
static void registration_end(const struct registration *r, hl_status st)
{
    if (st == HL_OK)
        st = register_written(r);
    json_decref(r->record);
    const struct hl_id_text cluster = claim_cluster(r->c);
    if (st == HL_OK)
        hl_reply_controller_register_node(r->call,
                                          &(struct hl_api_controller_register_node_results){
                                              .heartbeat_ms = r->c->opts.heartbeat_ms,
                                              .cluster = cluster.s,
                                              .epoch = r->c->claim.epoch,
                                              .lost_ms = r->c->opts.node_lost_ms});
    else
        call_reject(r->call, st);
}

static void on_node_written(void *arg, hl_status st, const char *text)
{
    struct registration r = *(struct registration *)arg;
    free(arg);
    if (controller_stopped(r.c)) {
        json_decref(r.record);
        call_reject(r.call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
    } else {
        registration_end(&r, st == HL_OK ? st : hl_fail(st, "%s", text));
    }
}

void method_register_node(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_register_node_params *p)
{
    struct registration now = {.c = controller_enter(arg), .call = call, .p = p};
    struct node *n = NULL;
    hl_status st = check_name_is_free(now.c, p);
    if (st == HL_EEXIST && refuse_with_strays(now.c, call, p))
        return;
    if (st == HL_OK)
        st = check_executor(now.c, &p->node);
    if (st == HL_OK)
        st = node_add(now.c, &p->node, &n);
    json_t *record = st == HL_OK ? node_record(n, &p->node, false) : NULL;
    if (st == HL_OK && record == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory to register a node");
    if (st == HL_OK && !json_equal(n->written, record)) {
        struct registration *r = malloc(sizeof(*r));
        now.record = json_incref(record);
        if (r != NULL)
            *r = now;
        st = r != NULL ? node_write(n, record, on_node_written, r)
                       : hl_fail(HL_ENOMEM, "out of memory to register a node");
        if (st == HL_OK) {
            json_decref(record);
            return;
        }
        free(r);
    }
    json_decref(record);
    registration_end(&now, st);
}

void method_heartbeat(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_heartbeat_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct node *n = node_find(c, p->name);
    struct hl_api_chunk_request_list requests = {0};
    bool known =
        n != NULL && n->incarnation[0] != '\0' && strcmp(n->incarnation, p->incarnation) == 0;
    if (known) {
        node_seen(n);
        gate_take_clock(n, p->telemetry.time_ms);
        if (p->health.time_ms != 0)
            gate_take_test(n, &p->health);
        node_report(c, n, p);
        requests = c->nodes->events->asks(c, n, hl_rpc_call_arena(call));
    }
    hl_reply_controller_heartbeat(call, &(struct hl_api_controller_heartbeat_results){
                                            .known = known,
                                            .shards_left = c->catalog.shards_left,
                                            .requests = requests}); /* p ends here */
}

static void on_loss_written(void *arg, hl_status st, const char *text)
{
    if (!controller_stopped(arg) && st != HL_OK)
        hl_warn("loss of a node was not stored, its age counts from the next start error=\"%s\"",
                text);
}

/* Saves since when the node has been away, so that it is known after a restart. */
static void save_loss(struct hl_controller *c, struct node *n)
{
    json_t *record = node_record(n, &n->info, true);
    if (record == NULL || node_write(n, record, on_loss_written, c) != HL_OK)
        hl_warn("loss was not stored, its age counts from the next start node=%s", n->name);
    json_decref(record);
}

static void node_lose(struct hl_controller *c, struct node *n)
{
    n->lost = true;
    n->incarnation[0] = '\0'; /* it must register again */
    hl_cluster_set_ready(&c->nodes->cluster, n->name, 0);
    hl_warn("node is lost node=%s silent_ms=%" PRId64, n->name, node_silent_ms(n));
    if (n->lost_ms == 0) { /* otherwise it was lost before this start */
        n->lost_ms = hl_wall_ms();
        n->lost_steady_ms = controller_steady_ms(c);
        save_loss(c, n);
    }
    c->nodes->events->silent(c, n);
}

void nodes_tick(struct hl_controller *c)
{
    for (struct node *n = c->nodes->table; n != NULL; n = n->hh.next) {
        if (n->unrestored)
            node_restore(n);
        if (!n->lost && hl_node_is_lost(node_silent_ms(n), c->opts.node_lost_ms))
            node_lose(c, n);
    }
    strays_round(c);
}
