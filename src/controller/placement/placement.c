/* The wing as a whole: its state from start to end. */
#include "controller/placement/placement.h"

#include <stdlib.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"
#include "os/huge.h"
#include "os/loop.h"

#define SHARDS_MAX (UINT32_C(1) << 24)

void placement_describe(const struct hl_controller *c, struct hl_id id, struct hl_api_shard *shard)
{
    const struct hl_placement *p = &c->placement->core;
    const struct hl_placed_shard *s = hl_placement_shard_find(p, id);
    if (s == NULL)
        return;
    shard->life = hl_life_state_text((enum hl_life_state)s->life.state);
    shard->heat = hl_attributes_heat(&s->use, &p->params, placement_now_ms());
}

hl_status placement_create(struct hl_controller *c,
                           bool (*gang_starts)(const struct hl_controller *c))
{
    struct placement *p = c->placement = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the placement of shards");
    HL_TRY(placement_conf_copy(c->opts.placement, &p->conf));
    c->opts.placement = NULL; /* only borrowed for this call */
    p->behind = true;
    p->gang_starts = gang_starts;
    p->started_ms = p->uses_lap_ms = placement_now_ms();
    copies_watch(c, &placement_copy_events);
    hl_catalog_watch(&c->catalog, &placement_catalog_events, c);
    HL_TRY(moves_configure(c));
    HL_TRY(budget_configure(c));
    return hl_placement_init(&p->core, &(struct hl_placement_opts){.params = p->conf.params,
                                                                   .shards_max = SHARDS_MAX,
                                                                   .now_ms = placement_now_ms(),
                                                                   .advise = hl_huge_advise});
}

hl_status placement_start(struct hl_controller *c)
{
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        struct placed_node *x = placed_node_need(c, n->name);
        if (x != NULL)
            x->node = n;
    }
    return placement_timer_start(c);
}

void placement_stop(struct hl_controller *c)
{
    if (c->placement == NULL)
        return;
    hl_timer_destroy(c->placement->timer);
    c->placement->timer = NULL;
    follow_stop(c);
    moves_stop(c);
}

/* L3 is given up after the same silence as a node. */
static void look_at_l3(struct hl_controller *c, int64_t now_ms)
{
    struct placement *p = c->placement;
    if (pool_info(c) != NULL) {
        if (p->l3_silent_ms != 0)
            hl_migration_node_back(&p->moves, HL_READER_NONE, now_ms);
        p->l3_silent_ms = 0;
        return;
    }
    if (p->l3_silent_ms == 0)
        p->l3_silent_ms = now_ms;
    if (now_ms - p->l3_silent_ms > c->opts.node_lost_ms && !p->moves.l3_gone &&
        hl_migration_node_gone(&p->moves, HL_READER_NONE, now_ms) != HL_OK)
        hl_debug("moves while L3 does not answer: %s", hl_error_text());
}

void placement_tick(struct hl_controller *c)
{
    look_at_l3(c, placement_now_ms());
    moves_tick(c);
    prefetch_run(c);
    warm_run(c);
    record_tick(c);
}

void placement_fini(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct placed_node *n, *next;
    if (p == NULL)
        return;
    HASH_ITER (hh, p->nodes, n, next) {
        HASH_DEL(p->nodes, n);
        free(n);
    }
    follow_stop(c);
    reporters_fini(c);
    noted_fini(c);
    pins_fini(c);
    uses_fini(c);
    sets_fini(c);
    prefetches_fini(c);
    warm_fini(c);
    hl_recording_stop(&p->recording);
    hl_migration_fini(&p->moves);
    hl_policy_fini(&p->policy);
    hl_placement_fini(&p->core);
    placement_conf_fini(&p->conf);
    free(p->by_index);
    free(p);
    c->placement = NULL;
}
