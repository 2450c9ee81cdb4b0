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
    hl_arena_fini(&n->info_arena);
    json_decref(n->written);
    hl_arena_fini(&n->report_arena);
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

static hl_status node_set_info(struct hl_controller *c, struct node *n,
                               const struct hl_api_node_info *info)
{
    const char *address = info->agent_address;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_node_info kept;
    HL_TRY(hl_api_copy(&hl_api_node_info_type, info, &arena, &kept));
    if (n->agent == NULL || strcmp(hl_rpc_peer_address(n->agent), address) != 0) {
        struct hl_rpc_peer *agent;
        HL_TRY(hl_rpc_open(c->opts.rpc, address, "Agent", &agent));
        hl_rpc_peer_close(n->agent);
        n->agent = agent;
    }
    HL_TRY(hl_cluster_put(&c->cluster, info));
    hl_arena_fini(&n->info_arena);
    hl_arena_move(&n->info_arena, &arena);
    n->info = kept;
    return HL_OK;
}

static hl_status node_add(struct hl_controller *c, const struct hl_api_node_info *info,
                          struct node **out)
{
    const char *name = info->name;
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

/* A record is NodeInfo, and of a lost node since when it is lost. */
static hl_status record_read(const json_t *record, struct hl_arena *arena,
                             struct hl_api_node_info *out)
{
    json_t *info = json_copy((json_t *)record);
    json_object_del(info, "lostMs");
    json_object_del(info, "seenMs");
    hl_status st = hl_api_from_json(&hl_api_node_info_type, info, arena, out);
    json_decref(info);
    return st;
}

hl_status nodes_load(struct hl_controller *c, const json_t *record)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_node_info info;
    struct node *n;
    HL_TRY(record_read(record, &arena, &info));
    HL_TRY(node_add(c, &info, &n));
    n->lost_ms = hl_json_int(record, "lostMs", 0);
    n->seen_ms = hl_json_int(record, "seenMs", 0);
    int64_t now = controller_steady_ms(c); /* the wall clock, at a start */
    n->lost_steady_ms = n->lost_ms < now ? n->lost_ms : now;
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
    hl_cluster_set_ready(&c->cluster, n->name, !n->held && node_ready(n));
    c->slots_changed |= !n->held;
}

static void node_report(struct hl_controller *c, struct node *n,
                        const struct hl_api_controller_heartbeat_params *report)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_heartbeat_params kept;
    n->store_epoch = report->store_epoch;
    if (hl_api_copy(&hl_api_controller_heartbeat_params_type, report, &arena, &kept) == HL_OK) {
        hl_arena_fini(&n->report_arena);
        hl_arena_move(&n->report_arena, &arena);
        n->report = kept;
    } else {
        hl_warn("report of a node is not remembered node=%s error=\"%s\"", n->name,
                hl_error_text());
    }
    hold_for_damaged(c, n, &report->containers);
    jobs_containers(c, n, &report->containers);
    retention_strays(c, n, &report->containers);
}

void node_container(struct node *n, const struct hl_api_container_status *status)
{
    struct hl_api_container_status_list *list = &n->report.containers;
    struct hl_api_container_status kept;
    size_t at = 0;
    while (at < list->count && strcmp(list->items[at].id, status->id) != 0)
        at++;
    if (hl_api_copy(&hl_api_container_status_type, status, &n->report_arena, &kept) != HL_OK)
        return; /* the next heartbeat tells it */
    if (at == list->count) {
        struct hl_api_container_status *more =
            hl_arena_array(&n->report_arena, at + 1, sizeof(*more));
        if (more == NULL)
            return;
        if (at > 0)
            memcpy(more, list->items, at * sizeof(*more));
        *list = (struct hl_api_container_status_list){more, at + 1};
    }
    list->items[at] = kept;
}

const struct hl_api_container_status *node_reported(const struct node *n, const char *id)
{
    for (size_t i = 0; i < n->report.containers.count; i++)
        if (strcmp(n->report.containers.items[i].id, id) == 0)
            return &n->report.containers.items[i];
    return NULL;
}

/* Whether both are one text that is known. */
static bool same(const char *a, const char *b)
{
    return a[0] != '\0' && strcmp(a, b) == 0;
}

/* Two Agents of one name would put each other out for ever. One that was restarted is known by its
 * address, or by its state directory, which its old self has given up; any other is taken once the
 * old one has been silent long enough. */
static hl_status check_name_is_free(struct hl_controller *c, const struct hl_api_node_info *info)
{
    const struct node *n = node_find(c, info->name);
    if (n == NULL || !node_ready(n) || same(n->info.agent_address, info->agent_address) ||
        (same(n->info.host_id, info->host_id) &&
         same(n->info.state_directory, info->state_directory)))
        return HL_OK;
    return hl_fail(
        HL_EEXIST,
        "node '%s' is in use by the Agent at %s; give this one another --name, or stop that one",
        n->name, n->info.agent_address);
}

struct registration {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    const struct hl_api_controller_register_node_params *p; /* until the call is answered */
    json_t *record;                                         /* NULL: it is there already */
};

static hl_status register_written(const struct registration *r)
{
    struct hl_controller *c = r->c;
    const struct hl_api_node_info *info = &r->p->node;
    struct node *n;
    HL_TRY(check_name_is_free(c, info)); /* while its record was written another may have come */
    HL_TRY(node_add(c, info, &n));
    if (r->record != NULL) {
        json_decref(n->written);
        n->written = json_incref(r->record);
    }
    snprintf(n->incarnation, sizeof(n->incarnation), "%s", info->incarnation);
    node_seen(n);
    n->listed = 0;
    n->list_again = 1;
    hl_info("node registered node=%s slots=%zu address=%s", n->name, info->slots.count,
            info->agent_address);
    hl_cluster_set_ready(&c->cluster, n->name, 1);
    c->slots_changed = 1;
    rank_tables_node(c, n->name);
    node_report(c, n,
                &(struct hl_api_controller_heartbeat_params){.telemetry = n->report.telemetry,
                                                             .containers = r->p->containers,
                                                             .tiers = info->tiers,
                                                             .store_epoch = info->store_epoch});
    return HL_OK;
}

/* Takes what `r` owns. */
static void registration_end(const struct registration *r, hl_status st)
{
    if (st == HL_OK)
        st = register_written(r);
    json_decref(r->record);
    if (st == HL_OK)
        hl_reply_controller_register_node(r->call,
                                          &(struct hl_api_controller_register_node_results){
                                              .heartbeat_ms = r->c->opts.heartbeat_ms});
    else
        reject(r->call, st);
}

static void on_node_written(void *arg, hl_status st, const char *text)
{
    struct registration r = *(struct registration *)arg;
    free(arg);
    if (controller_landed(r.c)) {
        json_decref(r.record);
        reject(r.call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
    } else {
        registration_end(&r, st == HL_OK ? st : hl_fail(st, "%s", text));
    }
}

/* Usage changes all the time and is not part of the record. */
static json_t *record_of(const struct hl_api_node_info *info)
{
    struct hl_api_node_info lasting = *info;
    lasting.tiers.count = 0;
    lasting.store_epoch = 0;
    return hl_api_to_json(&hl_api_node_info_type, &lasting);
}

void method_register_node(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_register_node_params *p)
{
    struct registration now = {.c = controller_enter(arg), .call = call, .p = p};
    struct node *n = NULL;
    hl_status st = check_name_is_free(now.c, &p->node);
    if (st == HL_OK)
        st = node_add(now.c, &p->node, &n);
    json_t *record = st == HL_OK ? record_of(&p->node) : NULL;
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
    bool known =
        n != NULL && n->incarnation[0] != '\0' && strcmp(n->incarnation, p->incarnation) == 0;
    if (known) {
        node_seen(n);
        node_report(c, n, p);
    }
    hl_reply_controller_heartbeat(
        call, &(struct hl_api_controller_heartbeat_results){.known = known}); /* p ends here */
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
    json_t *record = record_of(&n->info);
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

static struct hl_api_node_state node_state(const struct hl_controller *c, const struct node *n,
                                           struct hl_arena *arena)
{
    const struct hl_api_slot_list *own = &n->info.slots;
    struct hl_api_slot_state *slots = hl_arena_array(arena, own->count, sizeof(*slots));
    for (size_t i = 0; slots != NULL && i < own->count; i++) {
        char container[HL_JOB_ID_MAX + 24];
        slots[i].numa_id = own->items[i].numa_id;
        jobs_slot_holder(c, n->name, slots[i].numa_id, &slots[i].job, container, sizeof(container));
        slots[i].container = hl_arena_strdup(arena, container);
    }
    struct hl_api_node_state state = {.node = n->info,
                                      .state = node_ready(n) ? HL_API_NODE_LIFE_READY
                                                             : HL_API_NODE_LIFE_LOST,
                                      .last_heartbeat_ms = n->seen_ms,
                                      .telemetry = n->report.telemetry,
                                      .slots = {slots, own->count}};
    state.node.tiers = n->report.tiers;
    state.node.store_epoch = n->store_epoch;
    return state;
}

void method_list_nodes(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_nodes_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_list_nodes_results r = {0};
    (void)p;
    r.nodes.items = hl_arena_array(arena, HASH_COUNT(c->nodes), sizeof(*r.nodes.items));
    for (const struct node *n = c->nodes; r.nodes.items != NULL && n != NULL; n = n->hh.next)
        r.nodes.items[r.nodes.count++] = node_state(c, n, arena);
    hl_reply_controller_list_nodes(call, &r);
}

static struct hl_api_text_list damaged_list(const struct hl_controller *c, struct hl_arena *arena)
{
    struct hl_api_text_list list = {
        .items = hl_arena_array(arena, json_object_size(c->damaged), sizeof(*list.items))};
    json_t *why;
    const char *key;
    json_object_foreach (c->damaged, key, why)
        if (list.items != NULL)
            list.items[list.count++] =
                hl_arena_printf(arena, "%s: %s", key, json_string_value(why));
    return list;
}

static struct hl_api_path_count_list reads_list(const struct hl_controller *c,
                                                struct hl_arena *arena)
{
    struct hl_api_path_count_list list = {
        .items = hl_arena_array(arena, HL_ARRAY_LEN(c->paths), sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < HL_ARRAY_LEN(c->paths); i++)
        if (c->paths[i].path[0] != '\0')
            list.items[list.count++] = (struct hl_api_path_count){
                .path = c->paths[i].path, .ops = c->paths[i].ops, .bytes = c->paths[i].bytes};
    return list;
}

void method_cluster_info(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_cluster_info_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    const struct hl_id_text cluster = claim_cluster(c);
    char gangs[256] = "";
    uint32_t versions = 0;
    (void)p;
    for (struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            versions++;
    struct hl_api_cluster_info info = {
        .version = HELIOS_VERSION,
        .l3_address = c->opts.l3_address,
        .l3_state = pool_state(c),
        .models = HASH_COUNT(c->catalog.models),
        .versions = versions,
        .shards = HASH_COUNT(c->catalog.shards),
        .jobs = HASH_COUNT(c->jobs),
        .nodes = HASH_COUNT(c->nodes),
        .crc_failures = c->crc_failures,
        .crc_retries = c->crc_retries,
        .lost_reads = c->lost_reads,
        .reads = reads_list(c, arena),
        .cluster = cluster.s,
        .revision = c->claim.revision,
        .claim = claim_state(c),
        .damaged_records = damaged_list(c, arena),
    };
    if (c->pool != NULL)
        info.pool = *c->pool;
    if (c->gangs != NULL) {
        gangs_state(c->gangs, gangs, sizeof(gangs));
        info.kubernetes_server = gangs_server(c->gangs);
        info.kubernetes_state = gangs;
    }
    hl_reply_controller_cluster_info(
        call, &(struct hl_api_controller_cluster_info_results){.info = info});
}
