/* Asks the HybridPS processes of nodes for memory that their tiers are short of. Decided with each
 * report of a node and sent in the answer, so an Agent that is not answered is asked for nothing
 * after a while.
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
static struct hl_chunk_tier tier_sum(const struct hl_api_tier_info_list *tiers,
                                     enum hl_api_tier tier, uint64_t pinned)
{
    struct hl_chunk_tier sum = {.stay = pinned};
    bool unknown = false;
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *t = &tiers->items[i];
        if (t->tier != tier)
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

static void log_request(const struct placed_node *n, enum hl_api_tier tier,
                        const struct hl_chunk_tier *t, uint64_t request, bool on)
{
    static const char *const words[2][2] = {{"would no longer be asked", "would be asked"},
                                            {"are no longer asked", "are asked"}};
    hl_info("chunks %s for memory node=%s tier=%s keep=%" PRIu64 " chunks=%" PRIu64
            " shards=%" PRIu64 " capacity=%" PRIu64,
            words[on][request != 0], n->name, hl_api_tier_name(tier), request, t->chunks, t->shards,
            t->capacity);
}

static void request_decide(const struct hl_controller *c, const struct placed_node *n,
                           enum hl_api_tier tier, uint64_t pinned, uint64_t *request, bool on,
                           struct hl_api_chunk_request_list *out)
{
    const struct hl_api_tier_info_list *tiers = &n->node->report.tiers;
    const struct hl_chunk_tier sum = tier_sum(tiers, tier, pinned);
    uint64_t before = *request;
    *request = hl_chunk_request_decide(&sum, &c->placement->core.params, before);
    if ((*request == 0) != (before == 0))
        log_request(n, tier, &sum, *request, on);
    for (size_t i = 0; i < tiers->count && *request != 0; i++) {
        const struct hl_api_tier_info *t = &tiers->items[i];
        if (t->tier == tier && tier_is_chunks(t) && t->used_bytes > 0)
            out->items[out->count++] = (struct hl_api_chunk_request){
                t->name, hl_chunk_request_part(*request, t->used_bytes, sum.chunks)};
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
    const struct hl_placement_node *placed = &p->core.nodes[x->index];
    request_decide(c, x, HL_API_TIER_L1, placed->l1_pinned, &x->l1_request, on, &list);
    request_decide(c, x, HL_API_TIER_L2, placed->l2_pinned, &x->l2_request, on, &list);
    return on ? list : none;
}
