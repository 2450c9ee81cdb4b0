/* Follows what there is: shards of visible versions and their nearest copies.
 *
 *     catalogue, sweeps, silent nodes --> behind --next pass--> all shards are compared
 *     a copy was learned or forgotten --> copies_watch --> that shard is
 *
 * A shard that moves is left alone until its move is over. */
#include "base/log.h"
#include "controller/placement/placement_private.h"

#define PLACES_MAX 64

/* The nearest copy that readers are offered; `known` as long as none is nearer. False: there is
 * none. */
static bool nearest_place(struct hl_controller *c, struct hl_id id, const struct hl_place *known,
                          struct hl_place *out)
{
    struct place places[PLACES_MAX];
    size_t n = copies_places(c, id, HL_API_TIER_L1, places, PLACES_MAX);
    const struct place *best = NULL;
    bool has_known = false;
    for (size_t i = 0; i < n && i < PLACES_MAX; i++) {
        struct hl_place at = placed_place(c, &places[i]);
        if (hl_migration_hides(&c->placement->moves, id, at))
            continue;
        if (best == NULL || places[i].tier < best->tier)
            best = &places[i];
        has_known |= known != NULL && at.tier == known->tier && at.node == known->node;
    }
    if (best == NULL)
        return false;
    *out = has_known && known->tier == best->tier ? *known : placed_place(c, best);
    return true;
}

static bool is_placed(const struct hl_shard_rec *s)
{
    return !s->damaged && s->version->state == HL_API_VERSION_STATE_VISIBLE;
}

static void shard_add(struct hl_controller *c, const struct hl_shard_rec *s)
{
    struct placement *p = c->placement;
    struct hl_place at;
    if (!nearest_place(c, s->id, NULL, &at))
        return; /* as soon as there is a copy */
    hl_status st = hl_placement_shard_add(&p->core, s->id, s->size_bytes, at, placement_now_ms());
    if (st == HL_OK && (st = set_join(c, s, pin_has_version(c, s->version))) != HL_OK &&
        hl_placement_shard_remove(&p->core, s->id) != HL_OK)
        hl_debug("a shard was not removed: %s", hl_error_text());
    if (trouble_is_new(&p->full, st))
        hl_warn("shards are not placed: their use moves nothing error=\"%s\"", hl_error_text());
}

static void shard_follow(struct hl_controller *c, const struct hl_shard_rec *s)
{
    struct placement *p = c->placement;
    const struct hl_placed_shard *x = hl_placement_shard_find(&p->core, s->id);
    if (x == NULL) {
        shard_add(c, s);
        x = hl_placement_shard_find(&p->core, s->id);
    }
    if (x == NULL)
        return;
    pin_follow(c, s);
    struct hl_place at, known = x->place;
    if (hl_life_is_moving((enum hl_life_state)x->life.state) ||
        !nearest_place(c, s->id, &known, &at) || (at.tier == known.tier && at.node == known.node))
        return;
    if (hl_placement_shard_found(&p->core, s->id, at, placement_now_ms()) != HL_OK)
        hl_debug("place of a shard: %s", hl_error_text());
}

void placement_follow(struct hl_controller *c, struct hl_id id)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    if (s != NULL && is_placed(s))
        shard_follow(c, s);
}

/* Those that the catalogue has not any more. */
static void shards_prune(struct hl_controller *c)
{
    struct placement *p = c->placement;
    for (uint32_t i = 0; i < p->core.shards.end; i++) {
        if (!hl_shard_is_used(&p->core.shards, i))
            continue;
        struct hl_id id = hl_shard_at(&p->core.shards, i)->id;
        const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
        if (s != NULL && is_placed(s))
            continue;
        noted_forget(c, id);
        hl_migration_shard_gone(&p->moves, id, placement_now_ms());
        if (hl_placement_shard_remove(&p->core, id) != HL_OK)
            hl_debug("a shard was not removed: %s", hl_error_text());
    }
    sets_prune(c);
}

const struct hl_placed_shard *placement_find(struct hl_controller *c, struct hl_id id)
{
    const struct hl_placed_shard *s = hl_placement_shard_find(&c->placement->core, id);
    if (s != NULL)
        return s;
    placement_follow(c, id);
    return hl_placement_shard_find(&c->placement->core, id);
}

void placement_follow_all(struct hl_controller *c)
{
    struct placement *p = c->placement;
    unsigned round = copies_round(c);
    p->behind |= p->revision != c->claim.revision || p->sweep_round != round;
    if (!p->behind)
        return;
    p->behind = false;
    p->revision = c->claim.revision;
    p->sweep_round = round;
    pins_prune(c);
    for (const struct hl_shard_rec *s = c->catalog.shards; s != NULL; s = s->hh.next)
        if (is_placed(s))
            shard_follow(c, s);
    shards_prune(c);
}
