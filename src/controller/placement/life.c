/* The life of shards that move: what a move's switch and its end change in it. */
#include "base/log.h"
#include "controller/placement/placement_private.h"

static struct hl_change change_by(const struct hl_move_rec *rec, enum hl_life_event event,
                                  int64_t since_ms, double limit)
{
    int64_t now = placement_now_ms();
    return (struct hl_change){.at_ms = now,
                              .event = event,
                              .node = rec->order.goal.node,
                              .value = (double)(now - since_ms) / 1e3,
                              .limit = limit};
}

static void life_change(struct hl_controller *c, const struct hl_move_rec *rec,
                        enum hl_life_event event, int64_t since_ms, double limit)
{
    const struct hl_change change = change_by(rec, event, since_ms, limit);
    if (hl_placement_shard_change(&c->placement->core, rec->order.shard, &change) != HL_OK)
        hl_debug("life of a shard that moves: %s", hl_error_text());
}

static enum hl_life_state life_state(const struct hl_controller *c, struct hl_id shard)
{
    const struct hl_placed_shard *s = hl_placement_shard_find(&c->placement->core, shard);
    return s != NULL ? (enum hl_life_state)s->life.state : HL_LIFE_NONE;
}

void life_switched(struct hl_controller *c, const struct hl_move_rec *rec)
{
    const struct hl_move_order *o = &rec->order;
    enum hl_life_state state = life_state(c, o->shard);
    if (o->reason == HL_LIFE_ON_IDLE) { /* this state begins with the switch */
        const struct hl_change change = {.at_ms = placement_now_ms(),
                                         .event = HL_LIFE_ON_IDLE,
                                         .node = o->goal.node,
                                         .value = o->value,
                                         .limit = o->limit};
        if (hl_placement_shard_move(&c->placement->core, o->shard, &change, o->goal) != HL_OK)
            hl_debug("life of a shard that moves: %s", hl_error_text());
    } else if (o->reason < HL_LIFE_EVENTS && hl_life_is_moving(state)) {
        life_change(c, rec, state == HL_LIFE_PREHEAT ? HL_LIFE_ON_LOADED : HL_LIFE_ON_SWITCHED,
                    rec->began_ms, o->cost_s);
    } else if (o->reason >= HL_LIFE_EVENTS &&
               hl_placement_shard_moved(&c->placement->core, o->shard, placement_now_ms()) !=
                   HL_OK) {
        hl_debug("an ordered move is not counted: %s", hl_error_text());
    }
}

/* The old copy of a move that was to drop it is there after all, or may be. */
static void life_kept(struct hl_controller *c, const struct hl_move_rec *rec, bool kept)
{
    struct hl_change change = change_by(rec, kept ? HL_LIFE_ON_KEPT : HL_LIFE_ON_LEFT,
                                        rec->switched_ms, c->placement->conf.grace_ms / 1e3);
    change.node = rec->order.from.node;
    if (hl_placement_shard_kept(&c->placement->core, rec->order.shard, &change) != HL_OK)
        hl_debug("life of a shard that moves: %s", hl_error_text());
}

void life_ended(struct hl_controller *c, const struct hl_move_action *a)
{
    const struct placement *p = c->placement;
    const struct hl_move_rec *rec = &a->rec;
    const struct hl_move_order *o = &rec->order;
    enum hl_life_state state = life_state(c, o->shard);
    if (a->status == HL_OK && a->left && !o->keep_source && rec->switched_ms != 0)
        life_kept(c, rec, a->kept);
    else if (o->reason < HL_LIFE_EVENTS && state == HL_LIFE_MIGRATED)
        life_change(c, rec,
                    o->goal.tier == HL_API_TIER_L2 ? HL_LIFE_ON_CLEANED_L2 : HL_LIFE_ON_CLEANED_L3,
                    rec->switched_ms, p->conf.grace_ms / 1e3);
    else if (o->reason < HL_LIFE_EVENTS && hl_life_is_moving(state))
        life_change(c, rec, HL_LIFE_ON_UNDONE, rec->began_ms, o->cost_s);
    if (a->status != HL_OK && o->priority != PRIORITY_WARM)
        noted_rest(c, o->shard, placement_now_ms() + p->conf.params.residence_ms);
    placement_follow(c, o->shard);
}
