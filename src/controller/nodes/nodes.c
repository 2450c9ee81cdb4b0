/* Nodes: who is there, what they report. A node is remembered over a Controller restart so that its
 * running containers are not taken for lost before it had the time to register again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_private.h"
#include "controller/copies/copies.h"

struct node *node_find(struct hl_controller *c, const char *name)
{
    struct node *n;
    HASH_FIND_STR(c->nodes, name, n);
    return n;
}

int node_ready(const struct node *n)
{
    return n->seen_ns != 0 && !n->lost && n->incarnation[0] != '\0';
}

int64_t node_silent_ms(const struct node *n)
{
    return (int64_t)((n->controller->listening.listened_ns - n->seen_ns) / HL_NS_PER_MS);
}

int nodes_expected(const struct hl_controller *c)
{
    for (const struct node *n = c->nodes; n != NULL; n = n->hh.next)
        if (!n->lost && n->incarnation[0] == '\0')
            return 1;
    return 0;
}

static void node_free(struct node *n)
{
    json_decref(n->info);
    json_decref(n->written);
    json_decref(n->telemetry);
    json_decref(n->containers);
    free(n);
}

void nodes_disconnect(struct hl_controller *c)
{
    for (struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        hl_rpc_peer_close(n->agent);
        n->agent = NULL;
    }
    for (struct node *n = c->gone; n != NULL; n = n->next_gone) {
        hl_rpc_peer_close(n->agent);
        n->agent = NULL;
    }
}

static void bury(struct hl_controller *c)
{
    while (c->gone != NULL) {
        struct node *n = c->gone;
        c->gone = n->next_gone;
        hl_rpc_peer_close(n->agent);
        node_free(n);
    }
}

void nodes_bury(struct hl_controller *c)
{
    if (c->refs == 1) /* calls hold pointers to nodes */
        bury(c);
}

void nodes_fini(struct hl_controller *c)
{
    struct node *n, *next;
    HASH_ITER (hh, c->nodes, n, next) {
        HASH_DEL(c->nodes, n);
        node_free(n);
    }
    bury(c);
    hl_cluster_fini(&c->cluster);
}

/* The node's record; NULL: there is none any more. */
static hl_status node_write(struct node *n, const json_t *record, hl_store_written done, void *arg)
{
    struct hl_records records = {0};
    json_t *value = json_incref((json_t *)record);
    hl_status st = hl_records_add(&records, value, "node/%s", n->name);
    if (st == HL_OK)
        st = controller_write(n->controller, &records, done, arg);
    hl_records_fini(&records);
    json_decref(n->written);
    n->written = NULL; /* until `done` says so */
    return st;
}

static hl_status node_set_info(struct hl_controller *c, struct node *n, const json_t *info)
{
    const char *address = hl_json_str(info, "agentAddress", "");
    if (n->agent == NULL || strcmp(hl_rpc_peer_address(n->agent), address) != 0) {
        struct hl_rpc_peer *agent;
        HL_TRY(hl_rpc_open(c->opts.rpc, address, "Agent", &agent));
        hl_rpc_peer_close(n->agent);
        n->agent = agent;
    }
    HL_TRY(hl_cluster_put(&c->cluster, info));
    json_decref(n->info);
    n->info = json_deep_copy(info);
    return HL_OK;
}

static hl_status node_add(struct hl_controller *c, const json_t *info, struct node **out)
{
    const char *name = hl_json_str(info, "name", "");
    if (name[0] == '\0' || strlen(name) >= sizeof((*out)->name) || strchr(name, '/') != NULL)
        return hl_fail(HL_EINVAL, "node name '%.140s' must have 1 to 127 bytes and no '/'", name);
    struct node *n = node_find(c, name);
    if (n != NULL) {
        *out = n;
        return node_set_info(c, n, info);
    }
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "node record");
    snprintf(n->name, sizeof(n->name), "%s", name);
    n->controller = c;
    hl_status st = node_set_info(c, n, info);
    if (st != HL_OK) {
        hl_rpc_peer_close(n->agent);
        free(n);
        return st;
    }
    HASH_ADD_STR(c->nodes, name, n);
    *out = n;
    return HL_OK;
}

hl_status nodes_load(struct hl_controller *c, const json_t *info)
{
    struct node *n;
    HL_TRY(node_add(c, info, &n));
    n->lost_ms = hl_json_int(info, "lostMs", 0);
    n->seen_ms = hl_json_int(info, "seenMs", 0);
    int64_t now = controller_steady_ms(c); /* the wall clock, at a start */
    n->lost_steady_ms = n->lost_ms < now ? n->lost_ms : now;
    json_object_del(n->info, "lostMs"); /* of the record, not of the node */
    json_object_del(n->info, "seenMs");
    hl_cluster_set_ready(&c->cluster, n->name, 0); /* until it registers again */
    n->seen_ns = c->listening.listened_ns;         /* gets a whole node_lost_ms to show up */
    return HL_OK;
}

static void node_seen(struct node *n)
{
    int was_lost = n->lost;
    n->seen_ns = n->controller->listening.listened_ns;
    n->seen_ms = hl_wall_ms();
    n->lost = 0;
    n->lost_ms = 0;
    if (was_lost) {
        hl_info("node is back node=%s", n->name);
        jobs_node_back(n->controller, n);
    }
}

/* Which slots such a container has is not known: none of the node is given away. */
static void hold_for_damaged(struct hl_controller *c, struct node *n, const json_t *containers)
{
    const char *id = job_damaged_container(c, containers);
    if (id == NULL && !n->held)
        return;
    if (id != NULL && !n->held)
        hl_warn("node gets no new containers while it runs one of a job whose record is damaged; "
                "`helios cancel JOB` ends that node=%s container=%s",
                n->name, id);
    n->held = id != NULL;
    hl_cluster_set_ready(&c->cluster, n->name, !n->held && node_ready(n));
    c->slots_changed |= !n->held;
}

static void node_containers(struct hl_controller *c, struct node *n, const json_t *params)
{
    json_t *list = hl_json_list(params, "containers");
    json_decref(n->containers);
    n->containers = json_incref(list);
    hold_for_damaged(c, n, list);
    jobs_containers(c, n, list);
    retention_strays(c, n, list);
}

void node_container(struct node *n, json_t *status)
{
    size_t i;
    json_t *old;
    if (n->containers == NULL)
        n->containers = json_array();
    json_array_foreach (n->containers, i, old) {
        if (strcmp(hl_json_str(old, "id", ""), hl_json_str(status, "id", "?")) == 0) {
            json_array_set(n->containers, i, status);
            return;
        }
    }
    json_array_append(n->containers, status);
}

/* Whether both are of one text that is known. */
static int same(const json_t *a, const json_t *b, const char *key)
{
    const char *text = hl_json_str(a, key, "");
    return text[0] != '\0' && strcmp(text, hl_json_str(b, key, "")) == 0;
}

/* Two Agents of one name would put each other out for ever. One that was restarted is known by its
 * address, or by its state directory, which its old self has given up; any other is taken once the
 * old one has been silent long enough. */
static hl_status check_name_is_free(struct hl_controller *c, const json_t *info)
{
    struct node *n = node_find(c, hl_json_str(info, "name", ""));
    if (n == NULL || !node_ready(n) || same(n->info, info, "agentAddress") ||
        (same(n->info, info, "hostId") && same(n->info, info, "stateDirectory")))
        return HL_OK;
    return hl_fail(
        HL_EEXIST,
        "node '%s' is in use by the Agent at %s; give this one another --name, or stop that one",
        n->name, hl_json_str(n->info, "agentAddress", ""));
}

struct registration {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    const json_t *params; /* of the call, valid until it is answered */
};

static hl_status register_written(struct hl_controller *c, const json_t *params)
{
    const json_t *info = json_object_get(params, "node");
    struct node *n;
    HL_TRY(check_name_is_free(c, info)); /* while its record was written another may have come */
    HL_TRY(node_add(c, info, &n));
    json_decref(n->written);
    n->written = json_deep_copy(info);
    snprintf(n->incarnation, sizeof(n->incarnation), "%s", hl_json_str(info, "incarnation", ""));
    node_seen(n);
    n->store_epoch = (uint64_t)hl_json_int(info, "storeEpoch", 0);
    n->listed = 0;
    n->list_again = 1;
    hl_info("node registered node=%s slots=%zu address=%s", n->name,
            json_array_size(hl_json_list(info, "slots")), hl_json_str(info, "agentAddress", ""));
    hl_cluster_set_ready(&c->cluster, n->name, 1);
    c->slots_changed = 1;
    rank_tables_node(c, n->name);
    node_containers(c, n, params);
    return HL_OK;
}

static void registration_end(struct hl_controller *c, struct hl_rpc_call *call,
                             const json_t *params, hl_status st)
{
    if (st == HL_OK)
        st = register_written(c, params);
    if (st == HL_OK)
        hl_rpc_reply(call, json_pack("{s:i}", "heartbeatMs", c->opts.heartbeat_ms));
    else
        reject(call, st);
}

static void on_node_written(void *arg, hl_status st, const char *text)
{
    struct registration *r = arg;
    struct hl_rpc_call *call = r->call;
    struct hl_controller *c = r->c;
    const json_t *params = r->params;
    free(r);
    if (controller_landed(c))
        reject(call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
    else
        registration_end(c, call, params, st == HL_OK ? st : hl_fail(st, "%s", text));
}

void method_register_node(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    const json_t *info = json_object_get(params, "node");
    struct node *n = NULL;
    hl_status st = check_name_is_free(c, info);
    if (st == HL_OK)
        st = node_add(c, info, &n);
    struct registration *r = NULL;
    if (st == HL_OK && !json_equal(n->written, info)) {
        r = calloc(1, sizeof(*r));
        st = r != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory to register a node");
    }
    if (r != NULL) {
        *r = (struct registration){c, call, params};
        st = node_write(n, info, on_node_written, r);
        if (st == HL_OK)
            return;
        free(r);
    }
    registration_end(c, call, params, st);
}

static void node_store(struct node *n, const json_t *params)
{
    json_t *tiers = json_object_get(params, "tiers");
    n->store_epoch = (uint64_t)hl_json_int(params, "storeEpoch", 0);
    if (json_is_array(tiers))
        json_object_set(n->info, "tiers", tiers);
}

void method_heartbeat(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct node *n = node_find(c, hl_json_str(params, "name", ""));
    int known = n != NULL && n->incarnation[0] != '\0' &&
                strcmp(n->incarnation, hl_json_str(params, "incarnation", "")) == 0;
    if (known) {
        node_seen(n);
        json_decref(n->telemetry);
        n->telemetry = json_incref(json_object_get(params, "telemetry"));
        node_containers(c, n, params);
        node_store(n, params);
    }
    hl_rpc_reply(call, json_pack("{s:b}", "known", known)); /* params end here */
}

static void on_loss_written(void *arg, hl_status st, const char *text)
{
    if (!controller_landed(arg) && st != HL_OK)
        hl_warn("loss of a node was not written down, its age counts from the next start "
                "error=\"%s\"",
                text);
}

/* Since when it is away is known after a restart too. */
static void save_loss(struct hl_controller *c, struct node *n)
{
    json_t *record = json_copy(n->info);
    json_object_set_new(record, "lostMs", json_integer((json_int_t)n->lost_ms));
    json_object_set_new(record, "seenMs", json_integer((json_int_t)n->seen_ms));
    if (record == NULL || node_write(n, record, on_loss_written, c) != HL_OK)
        hl_warn("loss was not written down, its age counts from the next start node=%s", n->name);
    json_decref(record);
}

static void lose(struct hl_controller *c, struct node *n)
{
    n->lost = 1;
    n->incarnation[0] = '\0'; /* it must register again */
    hl_cluster_set_ready(&c->cluster, n->name, 0);
    hl_warn("node is lost node=%s silent_ms=%" PRId64, n->name, node_silent_ms(n));
    if (n->lost_ms == 0) { /* else it was lost before this start */
        n->lost_ms = hl_wall_ms();
        n->lost_steady_ms = controller_steady_ms(c);
        save_loss(c, n);
    }
    jobs_node_silent(c, n);
}

struct forgetting {
    struct hl_controller *c;
    char name[sizeof(((struct node *)0)->name)];
};

static void on_node_deleted(void *arg, hl_status st, const char *text)
{
    struct forgetting f = *(struct forgetting *)arg;
    free(arg);
    if (controller_landed(f.c))
        return;
    struct node *n = node_find(f.c, f.name);
    if (n == NULL)
        return;
    n->forgetting = false;
    if (st != HL_OK) {
        hl_error("lost node was not forgotten node=%s error=\"%s\"", n->name, text);
        return;
    }
    if (!n->lost) /* it came back; its record was written after this */
        return;
    hl_info("lost node is forgotten node=%s", n->name);
    hl_cluster_remove(&f.c->cluster, n->name);
    copies_forget_node(f.c, n);
    HASH_DEL(f.c->nodes, n);
    n->gone = 1;
    n->next_gone = f.c->gone;
    f.c->gone = n;
}

void node_forget(struct hl_controller *c, struct node *n)
{
    struct forgetting *f = n->forgetting ? NULL : calloc(1, sizeof(*f));
    if (f == NULL)
        return; /* the next round */
    f->c = c;
    snprintf(f->name, sizeof(f->name), "%s", n->name);
    n->forgetting = true;
    if (node_write(n, NULL, on_node_deleted, f) == HL_OK)
        return;
    hl_error("lost node was not forgotten node=%s error=\"%s\"", n->name, hl_error_text());
    n->forgetting = false;
    free(f);
}

void nodes_tick(struct hl_controller *c)
{
    for (struct node *n = c->nodes; n != NULL; n = n->hh.next)
        if (!n->lost && node_silent_ms(n) > c->opts.node_lost_ms)
            lose(c, n);
}

void method_list_nodes(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    json_t *nodes = json_array();
    for (struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        json_t *slots = json_array();
        size_t i;
        json_t *slot;
        json_array_foreach (hl_json_list(n->info, "slots"), i, slot) {
            int numa = (int)hl_json_int(slot, "numaId", 0);
            const char *job;
            char container[HL_JOB_ID_MAX + 24];
            jobs_slot_holder(c, n->name, numa, &job, container, sizeof(container));
            json_array_append_new(slots, json_pack("{s:i s:s s:s}", "numaId", numa, "job", job,
                                                   "container", container));
        }
        json_t *state = json_pack("{s:O s:s s:I s:o}", "node", n->info, "state",
                                  node_ready(n) ? "ready" : "lost", "lastHeartbeatMs",
                                  (json_int_t)n->seen_ms, "slots", slots);
        if (n->telemetry != NULL)
            json_object_set(state, "telemetry", n->telemetry);
        json_array_append_new(nodes, state);
    }
    hl_rpc_reply(call, json_pack("{s:o}", "nodes", nodes));
}

static json_t *damaged_list(const struct hl_controller *c)
{
    json_t *list = json_array(), *why;
    const char *key;
    json_object_foreach (c->damaged, key, why)
        json_array_append_new(list, json_sprintf("%s: %s", key, json_string_value(why)));
    return list;
}

void method_cluster_info(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    json_int_t versions = 0;
    for (struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            versions++;
    json_t *reads = json_array();
    for (size_t i = 0; i < HL_ARRAY_LEN(c->paths) && c->paths[i].path[0] != '\0'; i++)
        json_array_append_new(reads, json_pack("{s:s s:I s:I}", "path", c->paths[i].path, "ops",
                                               (json_int_t)c->paths[i].ops, "bytes",
                                               (json_int_t)c->paths[i].bytes));
    json_t *info = json_pack(
        "{s:s s:s s:s s:i s:I s:i s:i s:i s:I s:I s:I s:o}", "version", HELIOS_VERSION, "l3Address",
        c->opts.l3_address, "l3State", pool_state(c), "models", (int)HASH_COUNT(c->catalog.models),
        "versions", versions, "shards", (int)HASH_COUNT(c->catalog.shards), "jobs",
        (int)HASH_COUNT(c->jobs), "nodes", (int)HASH_COUNT(c->nodes), "crcFailures",
        (json_int_t)c->crc_failures, "crcRetries", (json_int_t)c->crc_retries, "lostReads",
        (json_int_t)c->lost_reads, "reads", reads);
    json_object_set_new(info, "cluster", json_string(claim_cluster(c).s));
    json_object_set_new(info, "claim", json_string(claim_word(c)));
    json_object_set_new(info, "revision", json_integer((json_int_t)c->claim.revision));
    if (c->pool != NULL)
        json_object_set(info, "pool", c->pool);
    json_object_set_new(info, "damagedRecords", damaged_list(c));
    if (c->gangs != NULL) {
        char state[256];
        gangs_state(c->gangs, state, sizeof(state));
        json_object_set_new(info, "kubernetesServer", json_string(gangs_server(c->gangs)));
        json_object_set_new(info, "kubernetesState", json_string(state));
    }
    hl_rpc_reply(call, json_pack("{s:o}", "info", info));
}
