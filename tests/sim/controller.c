/* The caller of the step function, as the Controller is one: it carries actions out by messages,
 * keeps what holders say of themselves, and gives up holders that are silent. And the store, which
 * outlives Controllers and takes commits of the newest epoch only. */
#include <assert.h>
#include <string.h>

#include "sim/world.h"

#define ENTITY(w, c) (CTL + (int)((c) - (w)->controllers))

static const struct hl_migration_opts base_opts = {.moves_max = 16,
                                                   .in_flight = 3,
                                                   .per_node = 2,
                                                   .per_path = {2, 2, 2, 1},
                                                   .domains = 1,
                                                   .wait_ms = 5000,
                                                   .copy_ms = 700,
                                                   .stop_ms = 300,
                                                   .grace_ms = 200,
                                                   .clean_ms = 1500,
                                                   .retry_ms = 150};

static int shard_index(struct hl_id shard)
{
    return (int)shard.lo;
}

static uint16_t holder_node(int holder)
{
    return holder == L3 ? HL_READER_NONE : (uint16_t)holder;
}

/* ---- what it believes ------------------------------------------------------------------------ */

/* Of an inventory that came late nothing is taken, nor of a holder that does not know yet that
 * this is the Controller: others' orders may still reach it. */
static void belief_learn(struct world *w, struct controller *c, const struct message *m)
{
    struct belief *b = &c->beliefs[m->from];
    const struct snapshot *snap = &m->snap;
    if (snap->epoch != c->epoch)
        return;
    if (b->heard && snap->incarnation == b->snap.incarnation && snap->change < b->snap.change &&
        w->mutant != MUTANT_INVENTORY)
        return;
    if (b->heard && snap->incarnation < b->snap.incarnation)
        return;
    bool another_life = !b->heard || snap->incarnation != b->snap.incarnation;
    for (int slot = 0; slot < SLOTS; slot++)
        for (int s = 0; s < SHARDS; s++)
            if (another_life || snap->obeyed[s] >= b->dropping[slot][s] ||
                w->mutant == MUTANT_INVENTORY)
                b->dropping[slot][s] = 0;
    b->snap = *snap;
    b->heard = true;
    b->heard_ms = w->now_ms;
    if (b->gone)
        hl_migration_node_back(&c->moves, holder_node(m->from), w->now_ms);
    b->gone = false;
}

static bool belief_has(const struct world *w, const struct belief *b, int slot, int shard)
{
    const struct entry *e = &b->snap.copies[slot][shard];
    return b->heard && e->has && b->dropping[slot][shard] == 0 && e->size == w->size[shard] &&
           e->crc == w->crc[shard];
}

bool controller_offers(const struct world *w, const struct controller *c, int holder, int slot,
                       int shard)
{
    const struct belief *b = &c->beliefs[holder];
    return belief_has(w, b, slot, shard) && !b->gone &&
           (w->mutant == MUTANT_HIDE ||
            !hl_migration_hides(&c->moves, shard_id(shard), place_at(holder, slot)));
}

/* ---- questions to all holders ---------------------------------------------------------------- */

/* As the Controller does, which looks at the durability of a shard before the old copy goes. */
static void controller_needs(const struct world *w, struct controller *c, struct hl_id move)
{
    const struct hl_move_rec *rec = hl_migration_by_id(&c->moves, move);
    if (rec == NULL || rec->phase != HL_MOVE_PHASE_CLEANING)
        return;
    int shard = shard_index(rec->order.shard);
    if (w->needed[shard])
        c->kept[shard] = move;
    hl_migration_keep(&c->moves, move, w->needed[shard]);
}

static void asking_end(struct world *w, struct controller *c, struct asking *a)
{
    for (int h = 0; h < HOLDERS; h++)
        if (a->waits[h] && !c->beliefs[h].gone)
            return;
    a->on = false;
    controller_needs(w, c, a->move);
    hl_migration_checked(&c->moves, a->move, a->order, HL_OK, a->copies, a->count, w->now_ms);
}

static void asking_begin(struct world *w, struct controller *c, const struct hl_move_action *action)
{
    int shard = shard_index(action->rec.order.shard);
    struct asking *a = &c->asking[shard];
    *a = (struct asking){
        .on = true, .move = action->rec.order.id, .order = action->order, .step = w->step};
    for (int h = 0; h < HOLDERS; h++) {
        a->waits[h] = !c->beliefs[h].gone;
        if (a->waits[h])
            world_send(w, &(struct message){.kind = MSG_CHECK,
                                            .from = ENTITY(w, c),
                                            .to = h,
                                            .epoch = c->epoch,
                                            .order = action->order,
                                            .move = action->rec.order.id,
                                            .shard = shard});
    }
    asking_end(w, c, a);
}

static void asking_answered(struct world *w, struct controller *c, const struct message *m)
{
    struct asking *a = &c->asking[m->shard];
    if (!a->on || a->order != m->order || !a->waits[m->from])
        return;
    a->waits[m->from] = false;
    for (int slot = 0; slot < SLOTS; slot++) {
        const struct entry *e = &m->snap.copies[slot][m->shard];
        uint32_t domain = (uint32_t)(m->from == L3 ? L3 + slot : m->from);
        if (e->has)
            a->copies[a->count++] =
                (struct hl_move_copy){place_at(m->from, slot), domain, e->size, e->crc};
    }
    asking_end(w, c, a);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void controller_commit(struct world *w, struct controller *c,
                              const struct hl_move_action *action)
{
    world_send(w, &(struct message){.kind = MSG_COMMIT,
                                    .from = ENTITY(w, c),
                                    .to = STORE,
                                    .epoch = c->epoch,
                                    .order = action->order,
                                    .move = action->rec.order.id,
                                    .erase = action->kind == HL_MOVE_ERASE,
                                    .rec = action->rec});
}

static void controller_tell(struct world *w, struct controller *c,
                            const struct hl_move_action *action, enum message_kind kind,
                            struct hl_place to)
{
    const struct hl_move_order *o = &action->rec.order;
    world_send(w, &(struct message){.kind = kind,
                                    .from = ENTITY(w, c),
                                    .to = place_holder(to),
                                    .epoch = c->epoch,
                                    .order = action->order,
                                    .move = o->id,
                                    .shard = shard_index(o->shard),
                                    .slot = place_slot(to),
                                    .source = place_holder(o->from),
                                    .source_slot = place_slot(o->from),
                                    .since_step = c->asking[shard_index(o->shard)].step});
}

static void controller_drop(struct world *w, struct controller *c,
                            const struct hl_move_action *action)
{
    int shard = shard_index(action->rec.order.shard);
    if (action->rec.phase == HL_MOVE_PHASE_CLEANING &&
        hl_id_equal(c->kept[shard], action->rec.order.id))
        world_break(w, "the old copy of shard %d is to be dropped, and it is needed", shard);
    c->beliefs[place_holder(action->place)].dropping[place_slot(action->place)][shard] =
        action->order;
    controller_tell(w, c, action, MSG_DROP, action->place);
}

/* What was needed has stayed if it was there, and readers are offered it. */
static void check_kept(struct world *w, const struct controller *c,
                       const struct hl_move_action *action)
{
    int shard = shard_index(action->rec.order.shard);
    int holder = place_holder(action->place), slot = place_slot(action->place);
    bool needed = hl_id_equal(c->kept[shard], action->rec.order.id) && action->status == HL_OK;
    if (w->deleted[shard])
        return;
    if (action->kept && !needed)
        world_break(w, "the old copy of shard %d stays, and nothing needs it", shard);
    if (needed && !action->left && w->holders[holder].copies[slot][shard].good)
        world_break(w, "the old copy of shard %d is needed and there, and is given up", shard);
    if (action->kept && belief_has(w, &c->beliefs[holder], slot, shard) &&
        !c->beliefs[holder].gone && !controller_offers(w, c, holder, slot, shard))
        world_break(w, "the old copy of shard %d is needed, and is not offered", shard);
}

/* The copy that may be left is asked for under the number of the end (controller_ask_left); until
 * its holder has answered it is not offered. */
static void controller_ended(struct world *w, struct controller *c,
                             const struct hl_move_action *action)
{
    int shard = shard_index(action->rec.order.shard);
    struct belief *b = &c->beliefs[place_holder(action->place)];
    uint64_t *dropping = &b->dropping[place_slot(action->place)][shard];
    w->ended++;
    if (action->left && *dropping != 0)
        *dropping = action->order;
}

static void controller_act(struct world *w, struct controller *c,
                           const struct hl_move_action *action)
{
    const struct hl_move_order *o = &action->rec.order;
    int shard = shard_index(o->shard);
    world_say(w, "controller %u: %s, shard %d, move %u, %s", c->epoch,
              hl_move_action_text(action->kind), shard, (unsigned)o->id.lo,
              hl_move_phase_text(action->rec.phase));
    switch (action->kind) {
    case HL_MOVE_WRITE:
    case HL_MOVE_ERASE:
        controller_commit(w, c, action);
        break;
    case HL_MOVE_COPY:
        controller_tell(w, c, action, MSG_COPY, o->goal);
        break;
    case HL_MOVE_STOP:
        c->stopped[shard] = o->id;
        controller_tell(w, c, action, MSG_STOP, o->goal);
        break;
    case HL_MOVE_CHECK:
        asking_begin(w, c, action);
        break;
    case HL_MOVE_DROP:
        controller_drop(w, c, action);
        break;
    case HL_MOVE_SWITCHED:
        w->switched++;
        c->places[shard] = o->goal;
        break;
    case HL_MOVE_REVERTED:
        w->reverted++;
        c->places[shard] = o->from;
        break;
    default:
        check_kept(w, c, action);
        controller_ended(w, c, action);
    }
}

/* After each event: all actions, and the timer of the next one. */
static void controller_run(struct world *w, struct controller *c)
{
    struct hl_move_action action;
    while (c->alive && hl_migration_next(&c->moves, &action))
        controller_act(w, c, &action);
    int64_t due = hl_migration_due(&c->moves);
    if (due < c->tick_ms) {
        c->tick_ms = due;
        world_timer(w, &(struct message){.kind = TIMER_TICK, .to = ENTITY(w, c)},
                    due > w->now_ms ? due : w->now_ms);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

void controller_end(struct controller *c)
{
    if (c->alive)
        hl_migration_fini(&c->moves);
    c->alive = false;
}

/* It takes the store over, and the journal with it. */
void controller_start(struct world *w)
{
    if (w->controller_count == CONTROLLERS)
        return;
    struct controller *c = &w->controllers[w->controller_count++];
    struct hl_migration_opts opts = base_opts;
    opts.domains = w->script->weather.domains;
    c->alive = true;
    c->epoch = ++w->store.epoch;
    c->tick_ms = INT64_MAX;
    world_say(w, "controller %u starts", c->epoch);
    hl_status st = hl_migration_init(&c->moves, &opts, c->epoch, w->now_ms);
    for (int i = 0; i < JOURNAL && w->mutant != MUTANT_JOURNAL; i++)
        if (st == HL_OK && w->store.used[i])
            st = hl_migration_restore(&c->moves, &w->store.journal[i], w->now_ms);
    if (st != HL_OK)
        world_break(w, "a Controller can't start: %s", hl_error_text());
    memcpy(c->places, w->store.places, sizeof(c->places));
    for (int h = 0; h < HOLDERS; h++)
        c->beliefs[h].heard_ms = w->now_ms;
    world_timer(w, &(struct message){.kind = TIMER_WATCH, .to = ENTITY(w, c)}, w->now_ms);
    controller_run(w, c);
}

/* What a move has left is asked for until its holder has answered. */
static void controller_ask_left(struct world *w, struct controller *c, int holder)
{
    for (int slot = 0; slot < SLOTS; slot++)
        for (int s = 0; s < SHARDS; s++)
            if (c->beliefs[holder].dropping[slot][s] != 0 &&
                hl_migration_find(&c->moves, shard_id(s)) == NULL)
                world_send(w, &(struct message){.kind = MSG_CHECK,
                                                .from = ENTITY(w, c),
                                                .to = holder,
                                                .epoch = c->epoch,
                                                .order = c->beliefs[holder].dropping[slot][s],
                                                .shard = s});
}

static void controller_watch(struct world *w, struct controller *c)
{
    for (int h = 0; h < HOLDERS; h++) {
        struct belief *b = &c->beliefs[h];
        controller_ask_left(w, c, h);
        world_send(w, &(struct message){
                          .kind = MSG_HELLO, .from = ENTITY(w, c), .to = h, .epoch = c->epoch});
        if (b->gone || w->now_ms - b->heard_ms < GONE_MS)
            continue;
        world_say(w, "controller %u gives holder %d up", c->epoch, h);
        b->gone = true;
        hl_status st = hl_migration_node_gone(&c->moves, holder_node(h), w->now_ms);
        assert(st == HL_OK);
        for (int s = 0; s < SHARDS; s++)
            if (c->asking[s].on)
                asking_end(w, c, &c->asking[s]);
    }
    world_timer(w, &(struct message){.kind = TIMER_WATCH, .to = ENTITY(w, c)}, w->now_ms + BEAT_MS);
}

void controller_get(struct world *w, struct controller *c, const struct message *m)
{
    if (!c->alive)
        return;
    if (m->from < HOLDERS && m->kind < TIMER_BEAT)
        belief_learn(w, c, m);
    if (m->kind == TIMER_WATCH) {
        controller_watch(w, c);
    } else if (m->kind == TIMER_TICK) {
        c->tick_ms = INT64_MAX;
        hl_migration_tick(&c->moves, w->now_ms);
    } else if (m->kind == MSG_COPIED) {
        hl_migration_copied(&c->moves, m->move, m->order, m->st, m->size, m->crc, w->now_ms);
    } else if (m->kind == MSG_DROPPED) {
        hl_migration_dropped(&c->moves, m->move, m->order, m->st, w->now_ms);
    } else if (m->kind == MSG_CHECKED) {
        asking_answered(w, c, m);
    } else if (m->kind == MSG_COMMITTED && m->st == HL_ESTALE) {
        world_say(w, "controller %u hears that it was replaced", c->epoch);
        controller_end(c);
        return;
    } else if (m->kind == MSG_COMMITTED) {
        hl_migration_journaled(&c->moves, m->move, m->order, m->st, w->now_ms);
    }
    controller_run(w, c);
}

/* ---- what people and the policy ask for ------------------------------------------------------ */

/* From where it is in force, or from anywhere if that copy is not offered. */
static bool controller_source(const struct world *w, const struct controller *c, int shard,
                              uint32_t arg, struct hl_place *from)
{
    *from = c->places[shard];
    if (controller_offers(w, c, place_holder(*from), place_slot(*from), shard))
        return true;
    for (uint32_t i = 0; i < COPIES_MAX; i++) {
        uint32_t k = (i + arg) % COPIES_MAX;
        *from = place_at((int)(k / SLOTS), (int)(k % SLOTS));
        if (controller_offers(w, c, (int)(k / SLOTS), (int)(k % SLOTS), shard))
            return true;
    }
    return false;
}

void controller_order(struct world *w, struct controller *c, uint32_t arg)
{
    int shard = (int)(arg % SHARDS), goal = (int)(arg / SHARDS % COPIES_MAX);
    struct hl_move_order o = {.id = {c->epoch, ++c->next_move},
                              .shard = shard_id(shard),
                              .goal = place_at(goal / SLOTS, goal % SLOTS),
                              .keep_source = arg >> 8 & (arg >> 9 & 1),
                              .priority = (uint8_t)(arg >> 10 & 3),
                              .size_bytes = w->size[shard],
                              .crc32 = w->crc[shard]};
    if (w->deleted[shard] || !controller_source(w, c, shard, arg >> 12, &o.from))
        return;
    o.goal_had = belief_has(w, &c->beliefs[goal / SLOTS], goal % SLOTS, shard);
    hl_status st = hl_migration_order(&c->moves, &o, w->now_ms);
    if (st == HL_OK)
        c->places[shard] = o.from;
    world_say(w, "controller %u: order shard %d from %d.%d to %d.%d: %s", c->epoch, shard,
              place_holder(o.from), place_slot(o.from), goal / SLOTS, goal % SLOTS,
              hl_status_text(st));
    controller_run(w, c);
}

void controller_cancel(struct world *w, struct controller *c, uint32_t arg)
{
    if (c->moves.count == 0)
        return;
    const struct hl_move_rec rec = *hl_migration_at(&c->moves, arg % c->moves.count);
    world_say(w, "controller %u: cancel move %u", c->epoch, (unsigned)rec.order.id.lo);
    hl_status st = hl_migration_cancel(&c->moves, rec.order.id, w->now_ms);
    if (st != HL_OK && st != HL_EBUSY)
        world_break(w, "a move that is there can't be cancelled: %s", hl_error_text());
    controller_run(w, c);
    if (rec.phase == HL_MOVE_PHASE_COPYING &&
        !hl_id_equal(c->stopped[shard_index(rec.order.shard)], rec.order.id))
        world_break(w, "a move is cancelled, and its copy is not stopped");
}

void controller_delete(struct world *w, struct controller *c, int shard)
{
    hl_migration_shard_gone(&c->moves, shard_id(shard), w->now_ms);
    controller_run(w, c);
}

/* ---- the store ------------------------------------------------------------------------------- */

/* The record's place in the journal, or a free one. */
static int store_find(const struct store *s, struct hl_id move)
{
    int spare = -1;
    for (int i = JOURNAL - 1; i >= 0; i--) {
        if (s->used[i] && hl_id_equal(s->journal[i].order.id, move))
            return i;
        if (!s->used[i])
            spare = i;
    }
    return spare;
}

static void store_apply(struct world *w, const struct message *m)
{
    struct store *s = &w->store;
    int i = store_find(s, m->move);
    assert(i >= 0);
    if (m->epoch < s->epoch)
        world_break(w, "the store took a commit of epoch %u in epoch %u", m->epoch, s->epoch);
    if (m->rec.phase == HL_MOVE_PHASE_CLEANING && !m->erase)
        check_switch(w, &m->rec);
    s->used[i] = !m->erase;
    s->journal[i] = m->rec;
    if (!m->erase)
        s->places[shard_index(m->rec.order.shard)] =
            m->rec.phase == HL_MOVE_PHASE_CLEANING ? m->rec.order.goal : m->rec.order.from;
}

void store_get(struct world *w, const struct message *m)
{
    struct message answer = {.kind = MSG_COMMITTED,
                             .from = STORE,
                             .to = m->from,
                             .order = m->order,
                             .move = m->move,
                             .shard = -1};
    if (m->kind == TIMER_STORE) {
        w->store.bad = false;
        return;
    }
    bool stale = m->epoch != w->store.epoch && w->mutant != MUTANT_FENCE;
    bool made = !stale && (!w->store.bad || world_random(w, 2) == 0);
    if (made)
        store_apply(w, m);
    answer.st = stale ? HL_ESTALE : w->store.bad ? HL_EIO : HL_OK;
    world_send(w, &answer);
}
