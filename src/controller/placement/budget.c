/* What moves of the policy may take of each network. Those that were ordered take what they need.
 */
#include <math.h>

#include "controller/placement/placement_private.h"

#define BURST_MS 1000

/* What stays on a node, or goes to the archive beneath the pool, takes no network of Helios. */
static bool path_is_network(int path)
{
    return path == HL_MOVE_MIGRATION || path == HL_MOVE_BACKBONE;
}

hl_status budget_configure(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_budget_limits limits = {.burst_ms = BURST_MS};
    double rate = p->conf.rate > 0 ? (double)p->conf.rate / 8 : HUGE_VAL;
    for (int i = 0; i < HL_MOVE_PATHS; i++)
        limits.rates[i] = path_is_network(i) ? rate : HUGE_VAL;
    return p->budget.limits.burst_ms == 0
               ? hl_budget_init(&p->budget, &limits, placement_now_ms())
               : hl_budget_configure(&p->budget, &limits, placement_now_ms());
}

void budget_move_ended(struct hl_controller *c, const struct hl_move_rec *rec)
{
    const struct hl_move_order *o = &rec->order;
    if (o->reason < HL_LIFE_EVENTS && rec->began_ms == 0)
        hl_budget_take(&c->placement->budget, hl_rules_path(o->from, o->goal),
                       -(int64_t)o->size_bytes);
}
