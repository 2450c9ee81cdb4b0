/* What must hold, seen from outside: with the true bytes, and knowing who has crashed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim/world.h"

void world_break(struct world *w, const char *fmt, ...)
{
    va_list ap;
    if (w->broken[0] != '\0')
        return;
    w->broken_rule = fmt;
    va_start(ap, fmt);
    vsnprintf(w->broken, sizeof(w->broken), fmt, ap);
    va_end(ap);
}

void world_say(struct world *w, const char *fmt, ...)
{
    va_list ap;
    if (!w->trace)
        return;
    printf("# step %u, %lld ms: ", w->step, (long long)w->now_ms);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

int place_holder(struct hl_place place)
{
    return place.node == HL_READER_NONE ? L3 : place.node;
}

int place_slot(struct hl_place place)
{
    return place.tier == HL_API_TIER_L2 || place.tier == HL_API_TIER_L4;
}

struct hl_place place_at(int holder, int slot)
{
    if (holder == L3)
        return (struct hl_place){HL_READER_NONE, slot == 0 ? HL_API_TIER_L3 : HL_API_TIER_L4};
    return (struct hl_place){(uint16_t)holder, slot == 0 ? HL_API_TIER_L1 : HL_API_TIER_L2};
}

struct hl_id shard_id(int shard)
{
    return (struct hl_id){1, (uint64_t)shard};
}

struct controller *world_controller(struct world *w)
{
    for (uint32_t i = w->controller_count; i-- > 0;)
        if (w->controllers[i].alive)
            return w->controllers[i].epoch == w->store.epoch ? &w->controllers[i] : NULL;
    return NULL;
}

/* ---- after each step ------------------------------------------------------------------------- */

bool world_has(const struct world *w, int shard, bool lasting)
{
    for (int h = 0; h < HOLDERS; h++)
        for (int slot = 0; slot < SLOTS; slot++)
            if (w->holders[h].copies[slot][shard].good && (!lasting || h == L3 || slot == 1))
                return true;
    return false;
}

/* Bytes that no crash has taken are there. */
static void check_bytes(struct world *w, int shard)
{
    if (!world_has(w, shard, false))
        world_break(w, "no good copy of shard %d is left, and no host was lost", shard);
}

static void check_quota(struct world *w, int holder)
{
    const struct holder *h = &w->holders[holder];
    for (int slot = 0; slot < SLOTS; slot++) {
        uint32_t used = 0;
        for (int s = 0; s < SHARDS; s++)
            used += h->copies[slot][s].entry.has ? h->copies[slot][s].entry.size : 0;
        if (used > h->quota[slot])
            world_break(w, "holder %d has %u bytes in a tier of %u", holder, used, h->quota[slot]);
    }
}

bool is_known(const struct world *w, const struct controller *c, int holder)
{
    const struct belief *b = &c->beliefs[holder];
    return w->holders[holder].up && b->heard && !b->gone &&
           b->snap.incarnation == w->holders[holder].incarnation;
}

/* What is offered is there; and something is, while the copy in force is. */
static void check_offers(struct world *w, const struct controller *c, int shard)
{
    struct hl_place place = c->places[shard]; /* in force, as far as it has been answered */
    int holder = place_holder(place);
    bool any = false;
    for (int h = 0; h < HOLDERS; h++)
        for (int slot = 0; slot < SLOTS; slot++) {
            if (!controller_offers(w, c, h, slot, shard))
                continue;
            any = true;
            if (is_known(w, c, h) && !w->holders[h].copies[slot][shard].good)
                world_break(w, "shard %d is offered at %d.%d, which has no good copy", shard, h,
                            slot);
        }
    if (!any && is_known(w, c, holder) && w->holders[holder].copies[place_slot(place)][shard].good)
        world_break(w, "shard %d is in force and well at %d.%d, and is offered nowhere", shard,
                    holder, place_slot(place));
}

/* Longer than a move's phases together, each begun anew by a Controller that starts. */
#define MOVE_LONG_MS 20000

static void check_ends(struct world *w, const struct controller *c)
{
    for (uint32_t i = 0; i < c->moves.count; i++) {
        const struct hl_move_rec *rec = hl_migration_at(&c->moves, i);
        if (rec->phase != HL_MOVE_PHASE_WAITING && w->now_ms - rec->began_ms > MOVE_LONG_MS)
            world_break(w, "the move of shard %u does not end: %s", (unsigned)rec->order.shard.lo,
                        hl_move_phase_text(rec->phase));
    }
}

void check_step(struct world *w)
{
    const struct controller *c = world_controller(w);
    for (int h = 0; h < HOLDERS; h++)
        check_quota(w, h);
    for (int s = 0; s < SHARDS; s++) {
        if (w->deleted[s] || w->lost[s])
            continue;
        check_bytes(w, s);
        if (c != NULL)
            check_offers(w, c, s);
    }
    if (c != NULL)
        check_ends(w, c);
}

void check_end(struct world *w)
{
    const struct controller *c = world_controller(w);
    if (c == NULL) {
        world_break(w, "there is no Controller at the end");
        return;
    }
    if (c->moves.count > 0)
        world_break(w, "the move of shard %u has not ended when nothing more happens: %s",
                    (unsigned)hl_migration_at(&c->moves, 0)->order.shard.lo,
                    hl_move_phase_text(hl_migration_at(&c->moves, 0)->phase));
    for (int i = 0; i < JOURNAL; i++)
        if (w->store.used[i])
            world_break(w, "the journal still has a move of shard %u",
                        (unsigned)w->store.journal[i].order.shard.lo);
    for (int s = 0; s < SHARDS; s++) {
        bool any = w->deleted[s] || w->lost[s];
        for (int h = 0; h < HOLDERS; h++)
            for (int slot = 0; slot < SLOTS; slot++)
                any |= controller_offers(w, c, h, slot, s);
        if (!any)
            world_break(w, "shard %d is there and is offered nowhere at the end", s);
    }
}

/* ---- at what is done ------------------------------------------------------------------------- */

/* Good copies that last and that remain, and those that a crash took after holders were asked for
 * them: nothing could have known of it. */
static uint32_t domains_besides(const struct world *w, int holder, const struct message *drop)
{
    uint32_t domains = 0;
    for (int h = 0; h < HOLDERS; h++) {
        bool has[SLOTS] = {false};
        for (int slot = 0; slot < SLOTS; slot++) {
            const struct copy *c = &w->holders[h].copies[slot][drop->shard];
            bool device = h != L3 && slot == 0, itself = h == holder && slot == drop->slot;
            has[slot] = !device && !itself && (c->good || c->lost_step >= drop->since_step);
        }
        domains += h == L3 ? (uint32_t)has[0] + (uint32_t)has[1] : (uint32_t)(has[0] || has[1]);
    }
    return domains;
}

void check_drop(struct world *w, int holder, const struct message *drop)
{
    const struct copy *c = &w->holders[holder].copies[drop->slot][drop->shard];
    uint32_t domains = domains_besides(w, holder, drop);
    world_say(w, "holder %d drops shard %d from slot %d, %u domains remain", holder, drop->shard,
              drop->slot, domains);
    if (c->good && !w->deleted[drop->shard] && domains < w->script->weather.domains)
        world_break(w, "a copy of shard %d is dropped at %d.%d while others are in %u domains",
                    drop->shard, holder, drop->slot, domains);
    struct hl_place place = w->store.places[drop->shard];
    if (place_holder(place) == holder && place_slot(place) == drop->slot &&
        !w->deleted[drop->shard])
        world_break(w, "shard %d is dropped at %d.%d, where it is in force", drop->shard, holder,
                    drop->slot);
}

void check_switch(struct world *w, const struct hl_move_rec *rec)
{
    int holder = place_holder(rec->order.goal), shard = (int)rec->order.shard.lo;
    const struct copy *c = &w->holders[holder].copies[place_slot(rec->order.goal)][shard];
    if (!c->good && c->lost_step == 0)
        world_break(w, "shard %d is switched to %d.%d, which has no good copy", shard, holder,
                    place_slot(rec->order.goal));
}

void check_obeyed(struct world *w, int holder, const struct message *order)
{
    const struct holder *h = &w->holders[holder];
    if (order->epoch < h->told_epoch)
        world_break(w, "holder %d obeys an order of epoch %u in epoch %u", holder, order->epoch,
                    h->told_epoch);
    if (order->order < h->told_order[order->shard])
        world_break(w, "holder %d obeys an order that is older than one it was given", holder);
}

/* One that was told where to read reads within the grace; only crashes excuse a failure. */
void check_read(struct world *w, const struct message *reader)
{
    bool excused = false, offered = false;
    w->reads++;
    for (int h = 0; h < HOLDERS; h++)
        for (int slot = 0; slot < SLOTS; slot++) {
            const struct holder *holder = &w->holders[h];
            if (!reader->offered[h][slot])
                continue;
            offered = true;
            if (holder->up && holder->copies[slot][reader->shard].good)
                return;
            excused |= !holder->up || holder->crash_step >= reader->since_step;
        }
    if (offered && !excused && !w->deleted[reader->shard])
        world_break(w, "a reader does not find shard %d where it was offered within the grace",
                    reader->shard);
}
