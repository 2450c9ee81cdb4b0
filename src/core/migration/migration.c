/* Takes in events: each finds its move, advances it by a step, and lets waiting moves begin. */
#include "core/migration/migration.h"

#include <stdlib.h>

#include "core/migration/migration_private.h"

#define EPOCH_SHIFT 32

const char *hl_move_phase_text(enum hl_move_phase phase)
{
    static const char *const texts[] = {
#define X(name, text) text,
        HL_MOVE_PHASE_MAP(X)
#undef X
    };
    return phase < HL_MOVE_PHASES ? texts[phase] : "";
}

const char *hl_move_action_text(enum hl_move_action_kind kind)
{
    static const char *const texts[] = {
#define X(name, text) text,
        HL_MOVE_ACTION_MAP(X)
#undef X
    };
    return kind < HL_MOVE_ACTIONS ? texts[kind] : "";
}

static hl_status migration_opts_check(const struct hl_migration_opts *o)
{
    if (o->domains == 0 || o->in_flight == 0 || o->per_node == 0)
        return hl_fail(HL_EINVAL,
                       "moves in flight (%u), per node (%u) and domains (%u) must be at least 1",
                       o->in_flight, o->per_node, o->domains);
    for (int i = 0; i < HL_MOVE_PATHS; i++)
        if (o->per_path[i] == 0)
            return hl_fail(HL_EINVAL, "the limit of moves on path %d must be at least 1", i);
    if (o->wait_ms <= 0 || o->copy_ms <= 0 || o->stop_ms <= 0 || o->grace_ms < 0 ||
        o->clean_ms <= 0 || o->retry_ms <= 0)
        return hl_fail(HL_EINVAL, "the times of a move must be above 0 ms");
    return HL_OK;
}

hl_status hl_migration_init(struct hl_migration *m, const struct hl_migration_opts *opts,
                            uint32_t epoch, int64_t now_ms)
{
    HL_TRY(migration_opts_check(opts));
    *m = (struct hl_migration){
        .opts = *opts, .last_order = (uint64_t)epoch << EPOCH_SHIFT, .now_ms = now_ms};
    return HL_OK;
}

void hl_migration_fini(struct hl_migration *m)
{
    free(m->moves);
    free(m->slots);
    free(m->todo);
    free(m->nodes);
    *m = (struct hl_migration){0};
}

hl_status hl_migration_configure(struct hl_migration *m, const struct hl_migration_opts *opts)
{
    HL_TRY(migration_opts_check(opts));
    m->opts = *opts;
    return HL_OK;
}

static void migration_advance(struct hl_migration *m, int64_t now_ms)
{
    if (now_ms > m->now_ms)
        m->now_ms = now_ms;
}

/* Starts waiting moves, by priority and then by age. A move that has no room lets later ones
 * pass. */
static void migration_fill(struct hl_migration *m)
{
    while (m->in_flight < m->opts.in_flight) {
        struct hl_move *best = NULL;
        for (uint32_t i = 0; i < m->count; i++) {
            struct hl_move *mv = &m->moves[i];
            if (mv->rec.phase == HL_MOVE_PHASE_WAITING && mv->rec.order.priority >= m->held_below &&
                (best == NULL || mv->rec.order.priority > best->rec.order.priority) &&
                migration_has_room(m, mv))
                best = mv;
        }
        if (best == NULL)
            return;
        move_begin(m, best);
    }
}

/* ---- orders ---------------------------------------------------------------------------------- */

static hl_status migration_order_check(const struct hl_migration *m, const struct hl_move_order *o)
{
    struct hl_id_text shard = hl_id_format(o->shard);
    if (hl_id_is_none(o->id) || hl_id_is_none(o->shard) || place_equal(o->from, o->goal))
        return hl_fail(HL_EINVAL, "a move of shard %s needs an id and two places", shard.s);
    if (migration_by_shard(m, o->shard) != NULL)
        return hl_fail(HL_EBUSY,
                       "shard %s is already being moved; cancel that move, or wait until it ends",
                       shard.s);
    if (migration_by_id(m, o->id) != NULL)
        return hl_fail(HL_EINVAL, "a move with the id %s exists already", hl_id_format(o->id).s);
    return HL_OK;
}

static hl_status migration_new(struct hl_migration *m, const struct hl_move_order *order,
                               struct hl_move **mv)
{
    HL_TRY(migration_order_check(m, order));
    HL_TRY(migration_node_room(m, order->from.node));
    HL_TRY(migration_node_room(m, order->goal.node));
    return migration_add(m, order, mv);
}

hl_status hl_migration_order(struct hl_migration *m, const struct hl_move_order *order,
                             int64_t now_ms)
{
    struct hl_move *mv;
    migration_advance(m, now_ms);
    if (m->count >= m->opts.moves_max)
        return hl_fail(HL_ENOSPC, "%u moves wait or are in flight; no more are accepted", m->count);
    if (migration_is_gone(m, order->from) || migration_is_gone(m, order->goal))
        return hl_fail(HL_EUNAVAIL, "shard %s can't move: the holder of its %s is no longer known",
                       hl_id_format(order->shard).s,
                       migration_is_gone(m, order->from) ? "source" : "target");
    HL_TRY(migration_new(m, order, &mv));
    mv->due_ms =
        m->opts.wait_ms > MOVE_NEVER - m->now_ms ? MOVE_NEVER : m->now_ms + m->opts.wait_ms;
    migration_fill(m);
    return HL_OK;
}

void hl_migration_hold(struct hl_migration *m, uint8_t below, int64_t now_ms)
{
    migration_advance(m, now_ms);
    m->held_below = below;
    migration_fill(m);
}

hl_status hl_migration_restore(struct hl_migration *m, const struct hl_move_rec *rec,
                               int64_t now_ms)
{
    struct hl_move *mv;
    migration_advance(m, now_ms);
    if (rec->phase != HL_MOVE_PHASE_COPYING && rec->phase != HL_MOVE_PHASE_CLEANING &&
        rec->phase != HL_MOVE_PHASE_UNDOING)
        return hl_fail(HL_EINVAL, "the journal has a move of shard %s in phase %s",
                       hl_id_format(rec->order.shard).s, hl_move_phase_text(rec->phase));
    HL_TRY(migration_new(m, &rec->order, &mv));
    mv->rec = *rec;
    mv->rec.phase = HL_MOVE_PHASE_WAITING;
    move_resume(m, mv, rec->phase);
    return HL_OK;
}

hl_status hl_migration_cancel(struct hl_migration *m, struct hl_id id, int64_t now_ms)
{
    struct hl_move *mv = migration_by_id(m, id);
    migration_advance(m, now_ms);
    if (mv == NULL)
        return hl_fail(HL_ENOENT, "there is no move %s; `helios shard moves` lists them",
                       hl_id_format(id).s);
    struct hl_id_text shard = hl_id_format(mv->rec.order.shard);
    if (mv->rec.phase == HL_MOVE_PHASE_ENDING ||
        (mv->rec.phase == HL_MOVE_PHASE_CLEANING && mv->dropping))
        return hl_fail(HL_EBUSY,
                       "the move of shard %s is complete; to reverse it, order a move back",
                       shard.s);
    if (mv->rec.phase == HL_MOVE_PHASE_WAITING)
        move_end(m, mv, HL_ECANCELED);
    else if (mv->rec.phase != HL_MOVE_PHASE_REVERTING && mv->rec.phase != HL_MOVE_PHASE_UNDOING)
        move_stop(m, mv, HL_ECANCELED);
    migration_fill(m);
    return HL_OK;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* NULL: no answer of that kind is awaited under that number. */
static struct hl_move *migration_answered(struct hl_migration *m, struct hl_id id, uint64_t order,
                                          int64_t now_ms)
{
    struct hl_move *mv = migration_by_id(m, id);
    migration_advance(m, now_ms);
    return mv != NULL && mv->asked != 0 && mv->asked == order ? mv : NULL;
}

void hl_migration_journaled(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                            int64_t now_ms)
{
    struct hl_move *mv = migration_answered(m, id, order, now_ms);
    if (mv != NULL && (mv->asked_for == HL_MOVE_WRITE || mv->asked_for == HL_MOVE_ERASE))
        move_journaled(m, mv, st);
    migration_fill(m);
}

void hl_migration_copied(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                         uint64_t size_bytes, uint32_t crc32, int64_t now_ms)
{
    struct hl_move *mv = migration_answered(m, id, order, now_ms);
    if (mv != NULL && mv->asked_for == HL_MOVE_COPY)
        move_copied(m, mv, st, size_bytes, crc32);
    migration_fill(m);
}

void hl_migration_checked(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                          const struct hl_move_copy *copies, size_t count, int64_t now_ms)
{
    struct hl_move *mv = migration_answered(m, id, order, now_ms);
    if (mv != NULL && mv->asked_for == HL_MOVE_CHECK)
        move_checked(m, mv, st, copies, count);
    migration_fill(m);
}

void hl_migration_keep(struct hl_migration *m, struct hl_id id, bool needed)
{
    struct hl_move *mv = migration_by_id(m, id);
    if (mv != NULL)
        mv->kept = needed;
}

void hl_migration_dropped(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                          int64_t now_ms)
{
    struct hl_move *mv = migration_answered(m, id, order, now_ms);
    if (mv != NULL && mv->asked_for == HL_MOVE_DROP)
        move_dropped(m, mv, st);
    migration_fill(m);
}

/* ---- holders, shards, time ------------------------------------------------------------------- */

static void migration_note_holder(struct hl_migration *m, uint16_t node, bool gone)
{
    if (node == HL_READER_NONE)
        m->l3_gone = gone;
    else if (node < m->node_room)
        m->nodes[node].gone = gone;
}

hl_status hl_migration_node_gone(struct hl_migration *m, uint16_t node, int64_t now_ms)
{
    migration_advance(m, now_ms);
    HL_TRY(migration_node_room(m, node));
    migration_note_holder(m, node, true);
    for (uint32_t i = m->count; i-- > 0;) /* backwards, because a move that ends is removed */
        if (m->moves[i].rec.order.from.node == node || m->moves[i].rec.order.goal.node == node)
            move_place_gone(m, &m->moves[i]);
    migration_fill(m);
    return HL_OK;
}

void hl_migration_node_back(struct hl_migration *m, uint16_t node, int64_t now_ms)
{
    migration_advance(m, now_ms);
    migration_note_holder(m, node, false);
    for (uint32_t i = 0; i < m->count; i++)
        if (move_survivor(&m->moves[i]).node == node)
            move_survivor_back(m, &m->moves[i]);
}

void hl_migration_shard_gone(struct hl_migration *m, struct hl_id shard, int64_t now_ms)
{
    struct hl_move *mv = migration_by_shard(m, shard);
    migration_advance(m, now_ms);
    if (mv == NULL)
        return;
    move_forget(m, mv);
    migration_fill(m);
}

void hl_migration_tick(struct hl_migration *m, int64_t now_ms)
{
    migration_advance(m, now_ms);
    for (uint32_t i = m->count; i-- > 0;)
        move_wake(m, &m->moves[i]);
    migration_fill(m);
}

/* ---- what is known --------------------------------------------------------------------------- */

int64_t hl_migration_due(const struct hl_migration *m)
{
    int64_t due = MOVE_NEVER;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct hl_move *mv = &m->moves[i];
        int64_t first = mv->due_ms < mv->wake_ms ? mv->due_ms : mv->wake_ms;
        due = first < due ? first : due;
    }
    return due;
}

bool hl_migration_hides(const struct hl_migration *m, struct hl_id shard, struct hl_place place)
{
    const struct hl_move *mv = migration_by_shard(m, shard);
    if (mv == NULL || !place_equal(place, move_surplus(mv)) || move_keeps_surplus(mv))
        return false;
    switch (mv->rec.phase) {
    case HL_MOVE_PHASE_DECIDED:
    case HL_MOVE_PHASE_COPYING:
    case HL_MOVE_PHASE_SWITCHING:
        return true;
    case HL_MOVE_PHASE_REVERTING:
        if (mv->rec.switched_ms != 0)
            return false; /* the goal is in force until that is committed */
        /* fall through */
    case HL_MOVE_PHASE_CLEANING:
    case HL_MOVE_PHASE_UNDOING: /* if the other copy is gone, this copy helps if it is there */
        return mv->dropping || !(mv->needed || migration_is_gone(m, move_survivor(mv)));
    case HL_MOVE_PHASE_ENDING:
        return !mv->left;
    default:
        return false;
    }
}

const struct hl_move_rec *hl_migration_find(const struct hl_migration *m, struct hl_id shard)
{
    const struct hl_move *mv = migration_by_shard(m, shard);
    return mv != NULL ? &mv->rec : NULL;
}

const struct hl_move_rec *hl_migration_by_id(const struct hl_migration *m, struct hl_id id)
{
    const struct hl_move *mv = migration_by_id(m, id);
    return mv != NULL ? &mv->rec : NULL;
}

const struct hl_move_rec *hl_migration_at(const struct hl_migration *m, uint32_t i)
{
    return &m->moves[i].rec;
}
