/* What this node reports about itself to the Controller. */

#include "agent/agent_private.h"
#include "base/log.h"

hl_status agent_tiers(struct hl_agent *a, struct hl_arena *arena, struct hl_api_tier_info_list *out)
{
    struct hl_api_tier_info_list list = {
        .items = hl_arena_array(arena, STORE_TIERS_MAX + CHUNKS_TIERS_MAX, sizeof(*list.items))};
    if (list.items != NULL) {
        list.count = store_tiers(a->store, arena, list.items);
        list.count += chunks_tiers(a->chunks, arena, list.items + list.count);
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing the tiers of node %s", a->name);
    *out = list;
    return HL_OK;
}

void agent_telemetry(struct hl_agent *a, const struct hl_api_container_status_list *containers,
                     struct hl_arena *arena, struct hl_api_telemetry *out)
{
    *out = (struct hl_api_telemetry){0}; /* time 0: no telemetry */
    if (a->telemetry != NULL && hl_telemetry_read(a->telemetry, containers, arena, out) != HL_OK)
        hl_debug("telemetry: %s", hl_error_text());
}

hl_status agent_node(struct hl_agent *a, struct hl_arena *arena, struct hl_api_node_info *out)
{
    struct hl_api_node_info node = a->node;
    node.store_epoch = store_epoch(a->store); /* first: what changes meanwhile is told next time */
    HL_TRY(agent_tiers(a, arena, &node.tiers));
    *out = node;
    return HL_OK;
}
