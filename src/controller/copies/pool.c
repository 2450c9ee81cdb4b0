/* What is known of the L3 daemon's pool; sweep.c keeps it. */
#include <string.h>

#include "controller/controller_private.h"

int pool_has_archive(const struct hl_controller *c)
{
    for (size_t i = 0; c->pool != NULL && i < c->pool->tiers.count; i++)
        if (c->pool->tiers.items[i].tier == HL_API_TIER_L4)
            return 1;
    return 0;
}

const char *pool_state(const struct hl_controller *c)
{
    if (c->pool == NULL)
        return c->l3_state;
    return c->claim.state == CLAIM_OK        ? "ready"
           : c->claim.state == CLAIM_REFUSED ? c->claim.why
                                             : "L3 has not said yet whose its pool is";
}
