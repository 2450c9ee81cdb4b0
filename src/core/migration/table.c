/* The table of moves, the queue of their actions, and their use of the limits. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/migration/migration_private.h"

#define SLOT_BITS_MIN 5

bool place_equal(struct hl_place a, struct hl_place b)
{
    return a.tier == b.tier && a.node == b.node;
}

struct hl_place move_surplus(const struct hl_move *mv)
{
    return mv->in_force ? mv->rec.order.from : mv->rec.order.goal;
}

struct hl_place move_survivor(const struct hl_move *mv)
{
    return mv->in_force ? mv->rec.order.goal : mv->rec.order.from;
}

bool move_keeps_surplus(const struct hl_move *mv)
{
    return mv->in_force ? mv->rec.order.keep_source : mv->rec.order.goal_had;
}

struct hl_move *migration_by_id(const struct hl_migration *m, struct hl_id id)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (hl_id_equal(m->moves[i].rec.order.id, id))
            return &m->moves[i];
    return NULL;
}

/* ---- by shard --------------------------------------------------------------------------------
 *
 * All shards are asked for, and few of them move: mostly one slot is looked at, which is empty. */

static uint32_t slot_home(const struct hl_migration *m, struct hl_id shard)
{
    return (uint32_t)(hl_id_mix(shard) >> (64 - m->slot_bits));
}

static uint32_t slot_mask(const struct hl_migration *m)
{
    return (UINT32_C(1) << m->slot_bits) - 1;
}

static uint32_t slot_next(const struct hl_migration *m, uint32_t slot)
{
    return (slot + 1) & slot_mask(m);
}

/* The shard's slot, or the empty slot at which the search ends. */
static uint32_t slot_find(const struct hl_migration *m, struct hl_id shard)
{
    uint32_t slot = slot_home(m, shard);
    while (m->slots[slot] != 0 && !hl_id_equal(m->moves[m->slots[slot] - 1].rec.order.shard, shard))
        slot = slot_next(m, slot);
    return slot;
}

/* Keeps at most half of the slots in use. */
static hl_status slots_grow(struct hl_migration *m)
{
    if (m->slots != NULL && m->count < slot_mask(m) / 2)
        return HL_OK;
    uint32_t bits = m->slots == NULL ? SLOT_BITS_MIN : m->slot_bits + 1;
    uint32_t *slots = calloc((size_t)1 << bits, sizeof(*slots));
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating slots of %u moves", m->count);
    free(m->slots);
    m->slots = slots;
    m->slot_bits = bits;
    for (uint32_t i = 0; i < m->count; i++)
        slots[slot_find(m, m->moves[i].rec.order.shard)] = i + 1;
    return HL_OK;
}

/* Frees the slot of move `index` and moves later entries up. */
static void slot_clear(struct hl_migration *m, uint32_t index)
{
    uint32_t hole = slot_find(m, m->moves[index].rec.order.shard);
    for (uint32_t slot = slot_next(m, hole); m->slots[slot] != 0; slot = slot_next(m, slot)) {
        uint32_t home = slot_home(m, m->moves[m->slots[slot] - 1].rec.order.shard);
        if (((slot - home) & slot_mask(m)) >= ((slot - hole) & slot_mask(m))) {
            m->slots[hole] = m->slots[slot];
            hole = slot;
        }
    }
    m->slots[hole] = 0;
    for (uint32_t slot = 0; slot <= slot_mask(m); slot++)
        m->slots[slot] -= m->slots[slot] > index + 1; /* later moves get lower numbers */
}

struct hl_move *migration_by_shard(const struct hl_migration *m, struct hl_id shard)
{
    uint32_t at = m->count > 0 ? m->slots[slot_find(m, shard)] : 0;
    return at != 0 ? &m->moves[at - 1] : NULL;
}

/* ---- moves and actions ----------------------------------------------------------------------- */

/* Moves the ring to a larger array, the first action first. */
static hl_status todo_grow(struct hl_migration *m, uint32_t room)
{
    struct hl_move_action *todo = calloc(room, sizeof(*todo));
    if (todo == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %u actions of moves", room);
    for (uint32_t i = 0; i < m->todo_count; i++)
        todo[i] = m->todo[(m->todo_first + i) % m->todo_room];
    free(m->todo);
    m->todo = todo;
    m->todo_first = 0;
    m->todo_room = room;
    return HL_OK;
}

hl_status migration_add(struct hl_migration *m, const struct hl_move_order *order,
                        struct hl_move **mv)
{
    HL_TRY(slots_grow(m));
    if (m->count == m->room) {
        uint32_t room = m->room == 0 ? 16 : m->room * 2;
        struct hl_move *moves = reallocarray(m->moves, room, sizeof(*moves));
        if (moves == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %u moves", room);
        m->moves = moves;
        m->room = room;
    }
    if (m->todo_room < m->room * MOVE_TODO_MAX)
        HL_TRY(todo_grow(m, m->room * MOVE_TODO_MAX));
    m->slots[slot_find(m, order->shard)] = m->count + 1;
    *mv = &m->moves[m->count++];
    memset(*mv, 0, sizeof(**mv));
    (*mv)->rec.order = *order;
    (*mv)->due_ms = MOVE_NEVER;
    (*mv)->wake_ms = MOVE_NEVER;
    return HL_OK;
}

bool migration_is_gone(const struct hl_migration *m, struct hl_place place)
{
    if (place.node == HL_READER_NONE)
        return m->l3_gone;
    return place.node < m->node_room && m->nodes[place.node].gone;
}

hl_status migration_node_room(struct hl_migration *m, uint16_t node)
{
    if (node == HL_READER_NONE || node < m->node_room)
        return HL_OK;
    uint32_t room = (uint32_t)node + 1 + node / 2u;
    struct hl_move_node *nodes = reallocarray(m->nodes, room, sizeof(*nodes));
    if (nodes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %u nodes of moves", room);
    memset(&nodes[m->node_room], 0, (room - m->node_room) * sizeof(*nodes));
    m->nodes = nodes;
    m->node_room = room;
    return HL_OK;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static enum hl_move_path move_path(const struct hl_move *mv)
{
    return hl_rules_path(mv->rec.order.from, mv->rec.order.goal);
}

static bool node_has_room(const struct hl_migration *m, struct hl_place place)
{
    return place.node == HL_READER_NONE || m->nodes[place.node].in_flight < m->opts.per_node;
}

bool migration_has_room(const struct hl_migration *m, const struct hl_move *mv)
{
    enum hl_move_path path = move_path(mv);
    return m->in_flight < m->opts.in_flight && m->on_path[path] < m->opts.per_path[path] &&
           node_has_room(m, mv->rec.order.from) && node_has_room(m, mv->rec.order.goal);
}

static void migration_count(struct hl_migration *m, const struct hl_move *mv, uint32_t by)
{
    uint16_t from = mv->rec.order.from.node, goal = mv->rec.order.goal.node;
    m->in_flight += by;
    m->on_path[move_path(mv)] += by;
    if (from != HL_READER_NONE)
        m->nodes[from].in_flight += by;
    if (goal != HL_READER_NONE && goal != from)
        m->nodes[goal].in_flight += by;
}

/* The move's bytes can be in flight. */
static bool move_flies(const struct hl_move *mv)
{
    switch (mv->rec.phase) {
    case HL_MOVE_PHASE_DECIDED:
    case HL_MOVE_PHASE_COPYING:
    case HL_MOVE_PHASE_SWITCHING:
        return true;
    case HL_MOVE_PHASE_REVERTING:
    case HL_MOVE_PHASE_UNDOING:
        return mv->rec.switched_ms == 0;
    default:
        return false;
    }
}

void migration_set_phase(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase)
{
    mv->rec.phase = phase;
    bool flies = move_flies(mv);
    if (flies != mv->flying)
        migration_count(m, mv, flies ? 1 : UINT32_MAX); /* adding UINT32_MAX subtracts one */
    mv->flying = flies;
}

void migration_remove(struct hl_migration *m, struct hl_move *mv)
{
    size_t behind = m->count - 1 - (size_t)(mv - m->moves);
    migration_set_phase(m, mv, HL_MOVE_PHASE_ENDED);
    slot_clear(m, (uint32_t)(mv - m->moves));
    memmove(mv, mv + 1, behind * sizeof(*mv));
    m->count--;
}

/* ---- actions --------------------------------------------------------------------------------- */

struct hl_move_action *migration_act(struct hl_migration *m, const struct hl_move *mv,
                                     enum hl_move_action_kind kind)
{
    assert(m->todo_count < m->todo_room); /* the caller takes all actions after each event */
    struct hl_move_action *a = &m->todo[(m->todo_first + m->todo_count++) % m->todo_room];
    *a = (struct hl_move_action){.kind = kind, .order = ++m->last_order, .rec = mv->rec};
    return a;
}

bool hl_migration_next(struct hl_migration *m, struct hl_move_action *action)
{
    if (m->todo_count == 0)
        return false;
    *action = m->todo[m->todo_first];
    m->todo_first = (m->todo_first + 1) % m->todo_room;
    m->todo_count--;
    return true;
}
