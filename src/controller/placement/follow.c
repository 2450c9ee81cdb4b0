/* Keeps core/placement up to date with what exists: shards of visible versions and their nearest
 * copies.
 *
 *     a copy in a node was learned or forgotten     the shard is followed at once
 *     it leaves the catalogue                       it is forgotten at once
 *     it came, or a sweep found or missed it        it waits: a version has many
 *     a node came or went; the start                all of the catalogue are walked over
 *
 * Waiting shards, and a walk, are processed some at a time, per turn of the loop. A pass of the
 * policy waits until the last one is done, because it must not judge sets that it only knows in
 * part. A walk begins with a pass, so that nodes that keep coming and going don't put passes off
 * for ever. A shard that is being moved is left alone until its move is over. */
#include <stdlib.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"
#include "os/loop.h"

#define TURN_SHARDS 1024 /* takes some ms, while others wait for the loop */
#define TURN_MS     1    /* between two turns, for the other users of the loop */

/* The nearest copy that readers are offered; `known` stays as long as none is nearer. False: there
 * is no copy. */
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
        return; /* followed as soon as there is a copy */
    hl_status st = hl_placement_shard_add(&p->core, s->id, s->size_bytes, at, placement_now_ms());
    if (st == HL_OK && (st = set_join(c, s, pin_has_version(c, s->version))) != HL_OK &&
        hl_placement_shard_remove(&p->core, s->id) != HL_OK)
        hl_debug("a shard was not removed: %s", hl_error_text());
    if (st == HL_OK)
        uses_placed(c, s->id);
    if (trouble_is_new(&p->full, st))
        hl_warn("shards are not placed: reads of them cause no moves error=\"%s\"",
                hl_error_text());
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
    if (hl_life_is_moving((enum hl_life_state)x->life.state))
        return;
    bool found = nearest_place(c, s->id, &known, &at);
    if (found && !x->life.lost && at.tier == known.tier && at.node == known.node)
        return;
    hl_status st = found ? hl_placement_shard_found(&p->core, s->id, at, placement_now_ms())
                         : hl_placement_shard_lost(&p->core, s->id, placement_now_ms());
    if (st != HL_OK)
        hl_debug("place of a shard: %s", hl_error_text());
    uses_placed(c, s->id);
}

void placement_follow(struct hl_controller *c, struct hl_id id)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    if (s != NULL && is_placed(s))
        shard_follow(c, s);
}

const struct hl_placed_shard *placement_find(struct hl_controller *c, struct hl_id id)
{
    const struct hl_placed_shard *s = hl_placement_shard_find(&c->placement->core, id);
    if (s != NULL)
        return s;
    placement_follow(c, id);
    return hl_placement_shard_find(&c->placement->core, id);
}

/* ---- many --------------------------------------------------------------------------------------
 */

void placement_follow_later(struct hl_controller *c, struct hl_id id)
{
    struct placement *p = c->placement;
    if (p->behind)
        return; /* a walk is due, so all are followed */
    if (p->waiting_count == p->waiting_room) {
        size_t room = p->waiting_room == 0 ? TURN_SHARDS : p->waiting_room * 2;
        struct hl_id *waiting = realloc(p->waiting, room * sizeof(*waiting));
        if (waiting == NULL) {
            p->behind = true;
            return;
        }
        p->waiting = waiting;
        p->waiting_room = room;
    }
    p->waiting[p->waiting_count++] = id;
}

static void shard_came(void *arg, const struct hl_shard_rec *s)
{
    placement_follow_later(arg, s->id);
}

static void shard_leaves(void *arg, const struct hl_shard_rec *s)
{
    struct hl_controller *c = arg;
    struct placement *p = c->placement;
    if (p->walk == s)
        p->walk = s->hh.next;
    copies_shard_leaves(c, s);
    hl_migration_shard_gone(&p->moves, s->id, placement_now_ms()); /* moves_run follows a pass */
    const struct hl_placed_shard *x = hl_placement_shard_find(&p->core, s->id);
    if (x == NULL)
        return;
    uint32_t set = x->set - 1;
    if (x->kept)
        uses_gone(c, s->id);
    noted_forget(c, s->id);
    if (hl_placement_shard_remove(&p->core, s->id) != HL_OK)
        hl_debug("a shard was not removed: %s", hl_error_text());
    set_left(c, s, set);
}

const struct hl_catalog_events placement_catalog_events = {.came = shard_came,
                                                           .leaves = shard_leaves};

static void waiting_fini(struct placement *p)
{
    free(p->waiting);
    p->waiting = NULL;
    p->waiting_count = p->waiting_room = 0;
}

void follow_begin(struct hl_controller *c)
{
    struct placement *p = c->placement;
    if (p->revision != c->claim.revision)
        pins_prune(c);
    p->revision = c->claim.revision;
    if (!p->behind || p->walk != NULL)
        return;
    p->behind = false;
    p->walk = c->catalog.shards;
    waiting_fini(p);
}

bool follow_turn(struct hl_controller *c)
{
    struct placement *p = c->placement;
    unsigned left = TURN_SHARDS;
    for (; left > 0 && p->waiting_count > 0; left--)
        placement_follow(c, p->waiting[--p->waiting_count]);
    for (; left > 0 && p->walk != NULL; left--) {
        const struct hl_shard_rec *s = p->walk;
        p->walk = s->hh.next;
        if (is_placed(s))
            shard_follow(c, s);
    }
    if (p->waiting_count == 0)
        waiting_fini(p);
    return p->waiting_count == 0 && p->walk == NULL;
}

static void on_turn(void *arg)
{
    struct hl_controller *c = arg;
    controller_check_clocks(c);
    if (!follow_turn(c))
        return;
    hl_timer_destroy(c->placement->follow_timer);
    c->placement->follow_timer = NULL;
    c->placement->followed(c);
}

bool follow_all(struct hl_controller *c, void (*followed)(struct hl_controller *c))
{
    struct placement *p = c->placement;
    p->followed = followed;
    if (p->follow_timer != NULL)
        return false;
    follow_begin(c);
    if (follow_turn(c))
        return true;
    if (hl_timer_create(c->opts.loop, TURN_MS, TURN_MS, on_turn, c, &p->follow_timer) != HL_OK)
        hl_debug("shards are followed with the next pass: %s", hl_error_text());
    return false;
}

void follow_stop(struct hl_controller *c)
{
    hl_timer_destroy(c->placement->follow_timer);
    c->placement->follow_timer = NULL;
    hl_catalog_watch(&c->catalog, NULL, NULL);
    waiting_fini(c->placement);
}
