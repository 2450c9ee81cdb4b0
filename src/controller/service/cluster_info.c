/* clusterInfo and listNodes: what `helios info` and `helios nodes` show of the cluster as a whole.
 */
#include "controller/copies/copies.h"
#include "controller/jobs/jobs.h"
#include "controller/nodes/nodes.h"
#include "controller/service/service_private.h"
#include "core/job/jobstate.h"

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
        .items = hl_arena_array(arena, HL_ARRAY_LEN(c->service->paths), sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < HL_ARRAY_LEN(c->service->paths); i++)
        if (c->service->paths[i].path[0] != '\0')
            list.items[list.count++] =
                (struct hl_api_path_count){.path = c->service->paths[i].path,
                                           .ops = c->service->paths[i].ops,
                                           .bytes = c->service->paths[i].bytes};
    return list;
}

void method_cluster_info(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_cluster_info_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    const struct hl_id_text cluster = claim_cluster(c);
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
        .jobs = jobs_count(c),
        .nodes = nodes_count(c),
        .crc_failures = c->service->crc_failures,
        .crc_retries = c->service->crc_retries,
        .lost_reads = c->service->lost_reads,
        .reads = reads_list(c, arena),
        .cluster = cluster.s,
        .revision = c->claim.revision,
        .claim = claim_state(c),
        .damaged_records = damaged_list(c, arena),
    };
    if (pool_info(c) != NULL)
        info.pool = *pool_info(c);
    executors_tell(c, arena, &info);
    hl_reply_controller_cluster_info(
        call, &(struct hl_api_controller_cluster_info_results){.info = info});
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
                                      .slots = {slots, own->count},
                                      .drained_ms = n->drained_ms,
                                      .drain_reason = n->drain_reason,
                                      .reason = node_why_not(n),
                                      .clock_ahead_ms = n->ahead_ms};
    if (node_is_reserved(n)) {
        state.reserved_from_ms = n->reserved.window.from_ms;
        state.reserved_until_ms = n->reserved.window.until_ms;
        state.reserved_reason = n->reserved.reason;
    }
    state.node.health = n->health;
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
    r.nodes.items = hl_arena_array(arena, nodes_count(c), sizeof(*r.nodes.items));
    for (const struct node *n = nodes_first(c); r.nodes.items != NULL && n != NULL; n = n->hh.next)
        r.nodes.items[r.nodes.count++] = node_state(c, n, arena);
    hl_reply_controller_list_nodes(call, &r);
}
