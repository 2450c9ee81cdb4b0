/* The table of nodes: which nodes have ever registered, the address of each one's Agent, and its
 * last report. Nodes are remembered across a Controller restart, so that their running containers
 * are not taken for lost before the node had time to register again. */
#include "controller/nodes/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "controller/commits.h"
#include "controller/nodes/nodes_private.h"
#include "controller/records.h"
#include "core/job/jobstate.h"
#include "os/file.h"

#define SWITCHES_BYTES_MAX (16u << 20) /* 10,000 nodes take less than 1 MiB */

static hl_status switches_load(struct hl_controller *c)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(SWITCHES_BYTES_MAX);
    const char *path = c->opts.switches;
    if (path == NULL || path[0] == '\0')
        return HL_OK;
    HL_TRY(hl_file_read(path, &text));
    if (text.len == 0 || strlen((const char *)text.data) != text.len)
        return hl_fail(HL_EINVAL, "%s: is empty or not a text", path);
    return hl_switches_parse((const char *)text.data, path, &c->nodes->switches);
}

hl_status nodes_create(struct hl_controller *c, const struct node_events *events)
{
    c->nodes = calloc(1, sizeof(*c->nodes));
    if (c->nodes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the table of nodes");
    c->nodes->events = events;
    c->nodes->arrivals = 1;
    return switches_load(c);
}

struct node *nodes_first(const struct hl_controller *c)
{
    return c->nodes->table;
}

unsigned nodes_count(const struct hl_controller *c)
{
    return HASH_COUNT(c->nodes->table);
}

struct hl_cluster *nodes_cluster(const struct hl_controller *c)
{
    return &c->nodes->cluster;
}

struct node *node_find(const struct hl_controller *c, const char *name)
{
    struct node *n;
    HASH_FIND_STR(c->nodes->table, name, n);
    return n;
}

bool node_ready(const struct node *n)
{
    return !n->lost && n->incarnation[0] != '\0';
}

const char *node_why_not(const struct node *n)
{
    return n->lost ? "" : n->why; /* what it last reported may have been mended since */
}

hl_status node_takes(const struct node *n)
{
    if (!node_ready(n))
        return hl_fail(HL_EUNAVAIL, "node %s is unreachable", n->name);
    if (n->drained_ms != 0)
        return hl_fail(HL_EUNAVAIL, "node %s takes no new containers or shards: it is drained",
                       n->name);
    if (node_why_not(n)[0] != '\0')
        return hl_fail(HL_EUNAVAIL, "node %s takes no new containers or shards: %s", n->name,
                       node_why_not(n));
    return HL_OK;
}

int64_t node_silent_ms(const struct node *n)
{
    return (int64_t)((n->controller->listening.listened_ns - n->seen_ns) / HL_NS_PER_MS);
}

bool node_is_reserved(const struct node *n)
{
    return hl_wall_ms() < n->reserved.window.until_ms;
}

bool nodes_expected(const struct hl_controller *c)
{
    for (const struct node *n = c->nodes->table; n != NULL; n = n->hh.next)
        if (!n->lost && n->incarnation[0] == '\0')
            return true;
    return false;
}

static void node_free(struct node *n)
{
    hl_arena_fini(&n->info_arena);
    json_decref(n->written);
    hl_arena_fini(&n->report_arena);
    hl_arena_fini(&n->answered_arena);
    hl_arena_fini(&n->health_arena);
    hl_arena_fini(&n->strays.arena);
    free(n);
}

static void node_disconnect(struct node *n)
{
    hl_rpc_peer_close(n->agent);
    n->agent = NULL;
}

void nodes_disconnect(struct hl_controller *c)
{
    if (c->nodes == NULL)
        return;
    for (struct node *n = c->nodes->table; n != NULL; n = n->hh.next)
        node_disconnect(n);
    for (struct node *n = c->nodes->gone; n != NULL; n = n->next_gone)
        node_disconnect(n);
}

static void gone_free(struct hl_controller *c)
{
    while (c->nodes->gone != NULL) {
        struct node *n = c->nodes->gone;
        c->nodes->gone = n->next_gone;
        hl_rpc_peer_close(n->agent);
        node_free(n);
    }
}

void nodes_reap(struct hl_controller *c)
{
    if (c->refs == 1) /* calls hold pointers to nodes */
        gone_free(c);
}

void nodes_fini(struct hl_controller *c)
{
    struct node *n, *next;
    if (c->nodes == NULL)
        return;
    HASH_ITER (hh, c->nodes->table, n, next) {
        HASH_DEL(c->nodes->table, n);
        node_free(n);
    }
    gone_free(c);
    hl_cluster_fini(&c->nodes->cluster);
    hl_switches_fini(&c->nodes->switches);
    free(c->nodes);
    c->nodes = NULL;
}

hl_status node_write(struct node *n, const json_t *record, hl_store_written done, void *arg)
{
    struct hl_records records = {0};
    json_t *value = json_incref((json_t *)record);
    hl_status st = hl_records_add(&records, value, "node/%s", n->name);
    if (st == HL_OK)
        st = controller_write(n->controller, &records, done, arg);
    hl_records_fini(&records);
    n->forgetting = st == HL_OK && record == NULL;
    json_decref(n->written);
    n->written = NULL; /* until `done` reports success */
    return st;
}

static void on_restored(void *arg, hl_status st, const char *text)
{
    struct node *n = arg; /* the Controller is held, so it exists even if it was forgotten */
    if (controller_stopped(n->controller) || st == HL_OK)
        return;
    n->unrestored = true;
    hl_debug("record of a node may have what was refused node=%s error=\"%s\"", n->name, text);
}

void node_restore(struct node *n)
{
    json_t *record = node_record(n, &n->info, n->lost);
    n->unrestored = record == NULL || node_write(n, record, on_restored, n) != HL_OK;
    json_decref(record);
}

/* NULL counts as "". */
static bool texts_differ(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") != 0;
}

static bool has_other_addresses(const struct hl_api_node_info *a, const struct hl_api_node_info *b)
{
    return texts_differ(a->rank_address, b->rank_address) ||
           texts_differ(a->host_address, b->host_address) ||
           texts_differ(a->device_addresses, b->device_addresses);
}

static hl_status node_set_info(struct hl_controller *c, struct node *n,
                               const struct hl_api_node_info *info)
{
    const char *address = info->agent_address;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_node_info kept;
    HL_TRY(hl_api_copy(&hl_api_node_info_type, info, &arena, &kept));
    (void)hl_switches_find(&c->nodes->switches, kept.name, &kept.leaf, &kept.spine);
    if (n->agent == NULL || strcmp(hl_rpc_peer_address(n->agent), address) != 0) {
        struct hl_rpc_peer *agent;
        HL_TRY(hl_rpc_open(c->opts.rpc, address, "Agent", &agent));
        hl_rpc_peer_close(n->agent);
        n->agent = agent;
    }
    HL_TRY(hl_cluster_put(&c->nodes->cluster, &kept));
    hl_cluster_set_draining(&c->nodes->cluster, n->name, n->drained_ms != 0);
    if (n->info.name != NULL && has_other_addresses(&n->info, &kept))
        n->readdressed = true;
    hl_arena_fini(&n->info_arena);
    hl_arena_move(&n->info_arena, &arena);
    n->info = kept;
    return HL_OK;
}

/* A name is shown in logs and on terminals. */
static bool is_node_name(const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++)
        if (name[i] == '/' || hl_utf8_control(name + i, len - i) > 0)
            return false;
    return len > 0 && len < sizeof(((struct node *)NULL)->name);
}

hl_status node_add(struct hl_controller *c, const struct hl_api_node_info *info, struct node **out)
{
    const char *name = info->name;
    if (!is_node_name(name))
        return hl_fail(
            HL_EINVAL,
            "node name '%.140s' must have 1 to 127 bytes, no '/' and no control character", name);
    struct node *n = node_find(c, name);
    if (n != NULL) {
        *out = n;
        return node_set_info(c, n, info);
    }
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a node record");
    snprintf(n->name, sizeof(n->name), "%s", name);
    n->controller = c;
    n->seen_ns = c->listening.listened_ns; /* it gets the whole node_lost_ms to be heard of */
    hl_status st = node_set_info(c, n, info);
    if (st != HL_OK) {
        hl_rpc_peer_close(n->agent);
        free(n);
        return st;
    }
    HASH_ADD_STR(c->nodes->table, name, n);
    *out = n;
    return HL_OK;
}

/* A record is NodeInfo plus, where they apply: NodeAbsence of a lost node, NodeDrain of a drained
 * one, NodeReservation of a reserved one, NodeFailure of one that failed a test. */
struct stored_node {
    struct hl_api_node_info info;
    struct hl_api_node_absence absence;
    struct hl_api_node_drain drain;
    struct hl_api_node_reservation reserved;
    struct hl_api_node_failure failure;
};

static hl_status record_read(const json_t *record, struct hl_arena *arena, struct stored_node *out)
{
    json_t *rest = json_copy((json_t *)record);
    hl_status st = record_take(rest, &hl_api_node_absence_type, arena, &out->absence);
    if (st == HL_OK)
        st = record_take(rest, &hl_api_node_drain_type, arena, &out->drain);
    if (st == HL_OK)
        st = record_take(rest, &hl_api_node_reservation_type, arena, &out->reserved);
    if (st == HL_OK)
        st = record_take(rest, &hl_api_node_failure_type, arena, &out->failure);
    if (st == HL_OK)
        st = hl_api_from_json(&hl_api_node_info_type, rest, arena, &out->info);
    json_decref(rest);
    return st == HL_OK ? st : hl_fail_prefix(st, "record of a node: ");
}

/* Takes over `more`. */
static json_t *record_join(json_t *record, json_t *more)
{
    if (json_object_update(record, more) != 0) {
        json_decref(record);
        record = NULL;
    }
    json_decref(more);
    return record;
}

json_t *node_record(const struct node *n, const struct hl_api_node_info *info, bool lost)
{
    struct hl_api_node_info lasting = *info;
    const struct hl_api_node_absence absence = {n->lost_ms, n->seen_ms};
    const struct hl_api_node_drain drain = {n->drained_ms, n->drain_reason};
    const struct node_reservation *r = &n->reserved;
    const struct hl_api_node_reservation reserved = {r->window.from_ms, r->window.until_ms,
                                                     r->reason};
    const struct hl_api_node_failure failure = {n->failed_ms, n->failed_test_ms};
    lasting.tiers.count = 0; /* usage changes all the time, so it is not part of the record */
    lasting.store_epoch = 0;
    lasting.health = (struct hl_api_health){0}; /* the node reports it with every registration */
    json_t *record = hl_api_to_json(&hl_api_node_info_type, &lasting);
    if (lost && n->lost_ms != 0)
        record = record_join(record, hl_api_to_json(&hl_api_node_absence_type, &absence));
    if (n->drained_ms != 0)
        record = record_join(record, hl_api_to_json(&hl_api_node_drain_type, &drain));
    if (node_is_reserved(n))
        record = record_join(record, hl_api_to_json(&hl_api_node_reservation_type, &reserved));
    if (n->failed_ms != 0)
        record = record_join(record, hl_api_to_json(&hl_api_node_failure_type, &failure));
    return record;
}

hl_status nodes_load(struct hl_controller *c, const json_t *record)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct stored_node was = {0};
    struct node *n;
    HL_TRY(record_read(record, &arena, &was));
    HL_TRY(node_add(c, &was.info, &n));
    n->lost_ms = was.absence.lost_ms;
    n->seen_ms = was.absence.seen_ms;
    n->drained_ms = was.drain.drained_ms;
    snprintf(n->drain_reason, sizeof(n->drain_reason), "%s",
             was.drain.drain_reason != NULL ? was.drain.drain_reason : "");
    n->reserved.window =
        (struct hl_node_window){was.reserved.reserved_from_ms, was.reserved.reserved_until_ms};
    snprintf(n->reserved.reason, sizeof(n->reserved.reason), "%s",
             was.reserved.reserved_reason != NULL ? was.reserved.reserved_reason : "");
    hl_cluster_set_window(&c->nodes->cluster, n->name, n->reserved.window);
    int64_t now = controller_steady_ms(c); /* the wall clock, at startup */
    n->lost_steady_ms = n->lost_ms < now ? n->lost_ms : now;
    n->failed_ms = was.failure.failed_ms < now ? was.failure.failed_ms : now;
    /* The node reports its last test again when it registers. */
    n->health.time_ms = n->failed_test_ms = was.failure.failed_test_ms;
    hl_cluster_set_draining(&c->nodes->cluster, n->name, n->drained_ms != 0);
    hl_cluster_set_ready(&c->nodes->cluster, n->name, 0); /* until it registers again */
    return HL_OK;
}

static struct hl_api_container_status *find_status(const struct hl_api_container_status_list *list,
                                                   const char *id)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, id) == 0)
            return &list->items[i];
    return NULL;
}

/* Adds a copy of the status, or replaces the one of the same container; out of memory, it does
 * neither, and the next heartbeat reports the container. */
static void put_status(struct hl_api_container_status_list *list, struct hl_arena *arena,
                       const struct hl_api_container_status *status)
{
    struct hl_api_container_status kept, *at = find_status(list, status->id);
    if (hl_api_copy(&hl_api_container_status_type, status, arena, &kept) != HL_OK)
        return;
    if (at == NULL) {
        struct hl_api_container_status *more =
            hl_arena_array(arena, list->count + 1, sizeof(*more));
        if (more == NULL)
            return;
        if (list->count > 0)
            memcpy(more, list->items, list->count * sizeof(*more));
        *list = (struct hl_api_container_status_list){more, list->count + 1};
        at = &more[list->count - 1];
    }
    *at = kept;
}

void node_container(struct node *n, const struct hl_api_container_status *status)
{
    put_status(&n->report.containers, &n->report_arena, status);
    put_status(&n->answered, &n->answered_arena, status);
    n->answered_ns = n->controller->listening.listened_ns;
}

/* Heartbeats and answers come over different connections. A heartbeat that does not know of a start
 * that was answered is older, and would take away the pids of a running container. */
static void keep_answers(struct node *n)
{
    size_t left = 0;
    bool may_be_older = n->controller->listening.listened_ns <
                        n->answered_ns + HL_JOB_ABSENT_GRACE_MS * HL_NS_PER_MS;
    for (size_t i = 0; i < n->answered.count && may_be_older; i++) {
        const struct hl_api_container_status *answer = &n->answered.items[i];
        const struct hl_api_container_status *now = find_status(&n->report.containers, answer->id);
        if (now != NULL && now->state != HL_API_CONTAINER_STATE_WANTED &&
            now->state != HL_API_CONTAINER_STATE_STARTING)
            continue;
        put_status(&n->report.containers, &n->report_arena, answer);
        n->answered.items[left++] = *answer;
    }
    n->answered.count = left;
    if (left == 0) {
        hl_arena_fini(&n->answered_arena);
        n->answered.items = NULL;
    }
}

hl_status node_keep_report(struct node *n, const struct hl_api_controller_heartbeat_params *report)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_heartbeat_params kept;
    HL_TRY(hl_api_copy(&hl_api_controller_heartbeat_params_type, report, &arena, &kept));
    hl_arena_fini(&n->report_arena);
    hl_arena_move(&n->report_arena, &arena);
    n->report = kept;
    keep_answers(n);
    return HL_OK;
}

const struct hl_api_container_status *node_reported(const struct node *n, const char *id)
{
    return find_status(&n->report.containers, id);
}
