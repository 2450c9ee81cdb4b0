/* What the Controller knows of the L3 daemon's pool; sweep.c keeps it up to date. */
#include "base/clock.h"
#include "controller/copies/copies_private.h"

const struct hl_api_pool_info *pool_info(const struct hl_controller *c)
{
    return c->copies->pool;
}

void sweep_soon(struct hl_controller *c)
{
    c->copies->sweep_ns = 0;
}

bool pool_is_known(const struct hl_controller *c)
{
    return c->copies->pool != NULL && c->copies->pool_sweeps >= HL_SWEEP_LOST_MISSES;
}

bool pool_has_archive(const struct hl_controller *c)
{
    for (size_t i = 0; c->copies->pool != NULL && i < c->copies->pool->tiers.count; i++)
        if (c->copies->pool->tiers.items[i].tier == HL_API_TIER_L4)
            return true;
    return false;
}

const char *pool_state(const struct hl_controller *c)
{
    if (c->copies->pool == NULL)
        return c->copies->l3_state;
    return c->claim.state == CLAIM_OK ? "ready"
           : c->claim.state == CLAIM_REFUSED
               ? c->claim.why
               : "L3 has not reported yet which cluster owns its pool";
}

uint64_t sweeps_completed(const struct hl_controller *c)
{
    return c->copies->sweeps;
}

struct hl_sweep copies_sweep(const struct hl_controller *c)
{
    return (struct hl_sweep){.round = c->copies->sweep_round,
                             .now_ns = hl_now_ns(),
                             .now_ms = hl_wall_ms(),
                             .grace_ns = (uint64_t)c->opts.gc_grace_ms * HL_NS_PER_MS,
                             .importing = c->copies->importing(c)};
}
