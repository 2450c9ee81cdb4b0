/* Asks the HybridPS processes of nodes for device memory that L1 is short of. Decided with each
 * report of a node and sent in the answer, so an Agent that is not answered is asked for nothing
 * after a while. Chunks in host memory are not asked: they have a limit of their own beside the
 * quota of L2 (agent.chunk_memory).
 *
 * L1 is looked at as a whole, as by the policy (pass.c): the numbers of devices in the table of
 * chunks are those that the ranks see, not those of the node's own devices. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"
#include "core/placement/chunk_request.h"

static bool tier_is_chunks(const struct hl_api_tier_info *t)
{
    return t->kind[0] != '\0';
}

/* One device without a known size leaves that of L1 unknown. */
static struct hl_chunk_tier l1_sum(const struct hl_api_tier_info_list *tiers, uint64_t pinned)
{
    struct hl_chunk_tier sum = {.stay = pinned};
    bool unknown = false;
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *t = &tiers->items[i];
        if (t->tier != HL_API_TIER_L1)
            continue;
        if (tier_is_chunks(t)) {
            sum.chunks += t->used_bytes;
            continue;
        }
        sum.capacity += t->quota_bytes;
        sum.shards += t->used_bytes;
        unknown |= t->quota_bytes == 0;
    }
    sum.capacity = unknown ? 0 : sum.capacity;
    return sum;
}

static void log_request(const struct placed_node *n, const struct hl_chunk_tier *t,
                        uint64_t request, bool on)
{
    static const char *const words[2][2] = {{"would no longer be asked", "would be asked"},
                                            {"are no longer asked", "are asked"}};
    hl_info("chunks %s for memory node=%s tier=L1 keep=%" PRIu64 " chunks=%" PRIu64
            " shards=%" PRIu64 " capacity=%" PRIu64,
            words[on][request != 0], n->name, request, t->chunks, t->shards, t->capacity);
}

static void request_decide(const struct hl_controller *c, struct placed_node *n, bool on,
                           struct hl_api_chunk_request_list *out)
{
    const struct hl_api_tier_info_list *tiers = &n->node->report.tiers;
    const struct hl_placement *core = &c->placement->core;
    const struct hl_chunk_tier sum = l1_sum(tiers, core->nodes[n->index].l1_pinned);
    uint64_t request = hl_chunk_request_decide(&sum, &core->params, n->l1_request);
    if ((request == 0) != (n->l1_request == 0))
        log_request(n, &sum, request, on);
    n->l1_request = request;
    for (size_t i = 0; i < tiers->count && request != 0; i++) {
        const struct hl_api_tier_info *t = &tiers->items[i];
        if (t->tier == HL_API_TIER_L1 && tier_is_chunks(t) && t->used_bytes > 0)
            out->items[out->count++] = (struct hl_api_chunk_request){
                t->name, hl_chunk_request_part(request, t->used_bytes, sum.chunks)};
    }
}

struct hl_api_chunk_request_list placement_asks(struct hl_controller *c, const struct node *n,
                                                struct hl_arena *arena)
{
    struct placement *p = c->placement;
    struct placed_node *x = placed_node_find(c, n->name);
    const struct hl_api_chunk_request_list none = {0};
    if (x == NULL || x->node != n)
        return none;
    if (strcmp(p->conf.policy, "off") == 0) {
        requests_forget(x);
        return none;
    }
    struct hl_api_chunk_request_list list = {
        .items = hl_arena_array(arena, n->report.tiers.count, sizeof(*list.items))};
    if (list.items == NULL)
        return none;
    const bool on = strcmp(p->conf.policy, "on") == 0;
    request_decide(c, x, on, &list);
    return on ? list : none;
}
