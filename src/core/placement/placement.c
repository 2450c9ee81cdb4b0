#include "core/placement/placement.h"

#include "core/placement/rules.h"

#include <stdlib.h>

#define NODE_ROOM_MIN 16
/* A pass judges all shards when more than this number plus a quarter of all shards were touched. */
#define TOUCHED_MIN 1024

/* Older changes that all shards share, 24 MiB: without a limit, nodes that come and go would fill
 * the ring of a placement for many shards. */
#define HISTORY_MAX (UINT32_C(1) << 20)

hl_status hl_placement_init(struct hl_placement *p, const struct hl_placement_opts *opts)
{
    HL_TRY(hl_placement_params_check(&opts->params));
    if (opts->now_ms < 0 || opts->now_ms >= HL_TIME_MAX)
        return hl_fail(HL_EINVAL, "the clock shows %lld ms: it must be from 0 to %lld",
                       (long long)opts->now_ms, (long long)HL_TIME_MAX - 1);
    *p = (struct hl_placement){.params = opts->params, .now_ms = opts->now_ms};
    HL_TRY(hl_shard_table_init(&p->shards, opts->shards_max));
    p->shards.advise = opts->advise;
    uint32_t changes = opts->shards_max < HISTORY_MAX ? opts->shards_max : HISTORY_MAX;
    hl_status st = hl_history_init(&p->history, changes, opts->now_ms);
    if (st != HL_OK)
        hl_shard_table_fini(&p->shards);
    return st;
}

void hl_placement_fini(struct hl_placement *p)
{
    hl_shard_table_fini(&p->shards);
    hl_set_table_fini(&p->sets);
    hl_history_fini(&p->history);
    hl_index_list_fini(&p->touched);
    for (uint32_t i = 0; i < p->node_count; i++)
        for (unsigned kind = 0; kind < HL_LISTED_KINDS; kind++)
            hl_index_list_fini(&p->nodes[i].lists[kind]);
    free(p->nodes);
    *p = (struct hl_placement){0};
}

uint64_t hl_placement_bytes(const struct hl_placement *p)
{
    uint64_t lists = hl_index_list_bytes(&p->touched);
    for (uint32_t i = 0; i < p->node_count; i++)
        for (unsigned kind = 0; kind < HL_LISTED_KINDS; kind++)
            lists += hl_index_list_bytes(&p->nodes[i].lists[kind]);
    return sizeof(*p) + hl_shard_table_bytes(&p->shards) + hl_history_bytes(&p->history) +
           hl_set_table_bytes(&p->sets) + lists + (uint64_t)p->node_room * sizeof(*p->nodes);
}

void hl_placement_advance(struct hl_placement *p, int64_t now_ms)
{
    if (now_ms < p->now_ms)
        p->stats.clock_back++;
    else
        p->now_ms = now_ms < HL_TIME_MAX ? now_ms : HL_TIME_MAX - 1;
}

hl_status hl_placement_configure(struct hl_placement *p, const struct hl_placement_params *params,
                                 int64_t now_ms)
{
    HL_TRY(hl_placement_params_check(params));
    hl_placement_advance(p, now_ms);
    int64_t old_ms = p->params.window_ms;
    p->params = *params;
    for (uint32_t i = 0; i < p->shards.end; i++) {
        struct hl_placed_shard *s = hl_shard_at(&p->shards, i);
        if (s->used && params->window_ms != old_ms)
            hl_attributes_rewindow(&s->use, params, old_ms, p->now_ms);
        s->crowded = s->used && hl_rules_are_crowded(s, params);
    }
    if (params->window_ms == old_ms)
        return HL_OK;
    for (uint32_t i = 0; i < p->node_count; i++) /* known: counted in the current windows */
        if (!p->nodes[i].known)
            p->nodes[i].removed_ms = p->now_ms;
    return HL_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct hl_placement_node *find_node(struct hl_placement *p, uint16_t node)
{
    return node < p->node_count && p->nodes[node].known ? &p->nodes[node] : NULL;
}

static hl_status unknown_node(uint16_t node)
{
    return hl_fail(HL_ENOENT, "no node has the index %u: add it first", node);
}

/* An index whose node's accesses have left all windows; node_count if there is none. */
static uint32_t free_node_index(const struct hl_placement *p)
{
    for (uint32_t i = 0; i < p->node_count; i++)
        if (!p->nodes[i].known && p->now_ms - p->nodes[i].removed_ms >= 2 * p->params.window_ms)
            return i;
    return p->node_count;
}

hl_status hl_placement_node_add(struct hl_placement *p, uint64_t incarnation, int64_t now_ms,
                                uint16_t *node)
{
    hl_placement_advance(p, now_ms);
    uint32_t at = free_node_index(p);
    if (at == HL_NODES_MAX)
        return hl_fail(HL_ENOSPC, "%u nodes: no more are counted as readers", HL_NODES_MAX);
    if (at == p->node_room) {
        uint32_t room = p->node_room == 0 ? NODE_ROOM_MIN : p->node_room * 2;
        struct hl_placement_node *nodes = realloc(p->nodes, room * sizeof(*nodes));
        if (nodes == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %u nodes", room);
        p->nodes = nodes;
        p->node_room = room;
    }
    if (at == p->node_count) { /* a reused index keeps its lists: its shards may still be on it */
        p->node_count++;
        p->nodes[at] = (struct hl_placement_node){.known = false};
    }
    p->nodes[at].left_ms = -1;
    p->nodes[at].flaps = false;
    p->nodes[at].known = true;
    p->nodes[at].fenced = false;
    hl_report_window_start(&p->nodes[at].reports, incarnation);
    *node = (uint16_t)at;
    return HL_OK;
}

hl_status hl_placement_node_start(struct hl_placement *p, uint16_t node, uint64_t incarnation)
{
    struct hl_placement_node *n = find_node(p, node);
    if (n == NULL)
        return unknown_node(node);
    n->fenced = false;
    hl_report_window_start(&n->reports, incarnation);
    return HL_OK;
}

hl_status hl_placement_node_fence(struct hl_placement *p, uint16_t node)
{
    struct hl_placement_node *n = find_node(p, node);
    if (n == NULL)
        return unknown_node(node);
    if (!n->fenced) {
        n->flaps = n->left_ms >= 0 && p->now_ms - n->left_ms < p->params.flap_ms;
        n->left_ms = p->now_ms;
    }
    n->fenced = true;
    return HL_OK;
}

bool hl_placement_node_is_steady(const struct hl_placement *p, uint16_t node)
{
    if (node >= p->node_count)
        return false;
    const struct hl_placement_node *n = &p->nodes[node];
    return n->known && !n->fenced && !(n->flaps && p->now_ms - n->left_ms < p->params.flap_ms);
}

hl_status hl_placement_node_remove(struct hl_placement *p, uint16_t node, int64_t now_ms)
{
    hl_placement_advance(p, now_ms);
    struct hl_placement_node *n = find_node(p, node);
    if (n == NULL)
        return unknown_node(node);
    n->known = false;
    n->removed_ms = p->now_ms;
    return HL_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void hl_placement_touch(struct hl_placement *p, uint32_t index)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    if (s->touched || p->touched_all)
        return;
    if (p->touched.count >= TOUCHED_MIN + p->shards.count / 4 ||
        hl_index_list_add(&p->touched, index) != HL_OK)
        p->touched_all = true;
    else
        s->touched = true;
}

void hl_placement_take_touched(struct hl_placement *p, struct hl_index_list *list, bool *all)
{
    struct hl_index_list taken = p->touched;
    p->touched = *list;
    p->touched.count = 0;
    *list = taken;
    *all = p->touched_all;
    p->touched_all = false;
}

static void unlist_shard(struct hl_placement *p, struct hl_placed_shard *s)
{
    if (s->listed == HL_LISTED_NOWHERE)
        return;
    struct hl_index_list *list = &p->nodes[s->listed_node].lists[s->listed];
    hl_index_list_remove(list, s->list_at);
    if (s->list_at < list->count)
        hl_shard_at(&p->shards, list->items[s->list_at])->list_at = s->list_at;
    s->listed = HL_LISTED_NOWHERE;
}

hl_status hl_placement_list(struct hl_placement *p, uint32_t index, enum hl_listed kind)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    uint16_t node = s->place.node;
    if (node >= p->node_count)
        kind = HL_LISTED_NOWHERE;
    if (s->listed == kind && (kind == HL_LISTED_NOWHERE || s->listed_node == node))
        return HL_OK;
    unlist_shard(p, s);
    if (kind == HL_LISTED_NOWHERE)
        return HL_OK;
    struct hl_index_list *list = &p->nodes[node].lists[kind];
    HL_TRY(hl_index_list_add(list, index));
    s->list_at = list->count - 1;
    s->listed = (uint8_t)kind;
    s->listed_node = node;
    return HL_OK;
}

/* ---- bytes on their way ---------------------------------------------------------------------- */

static bool is_going(const struct hl_placed_shard *s)
{
    return s->goal.tier != s->place.tier || s->goal.node != s->place.node;
}

static void count_bytes(uint64_t *total, uint64_t bytes, bool more)
{
    *total = more ? *total + bytes : *total > bytes ? *total - bytes : 0;
}

/* Counts bytes in flight: they count as arriving until the new copy is in force, and as leaving
 * until the old copy is deleted. */
static void count_arriving(struct hl_placement *p, const struct hl_placed_shard *s, bool more)
{
    if (s->goal.node >= p->node_count || !is_going(s))
        return;
    struct hl_placement_node *n = &p->nodes[s->goal.node];
    if (s->goal.tier == HL_API_TIER_L1)
        count_bytes(&n->l1_arriving, s->size_bytes, more);
    else if (s->goal.tier == HL_API_TIER_L2)
        count_bytes(&n->l2_arriving, s->size_bytes, more);
}

static void count_leaving(struct hl_placement *p, const struct hl_placed_shard *s,
                          struct hl_place from, bool more)
{
    if (from.tier == HL_API_TIER_L1 && from.node < p->node_count && is_going(s))
        count_bytes(&p->nodes[from.node].l1_leaving, s->size_bytes, more);
}

static hl_status find_shard(const struct hl_placement *p, struct hl_id id, uint32_t *index)
{
    *index = hl_shard_table_find(&p->shards, id);
    return *index != HL_SHARD_NONE
               ? HL_OK
               : hl_fail(HL_ENOENT, "no shard %s is placed", hl_id_format(id).s);
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* Adds the shard's bytes to its set or removes them. */
static void count_in_set(struct hl_placement *p, const struct hl_placed_shard *s, bool more)
{
    struct hl_shard_set *set = hl_set_table_find(&p->sets, s->set - 1);
    if (set != NULL)
        count_bytes(&set->bytes[s->place.tier < HL_API_TIER_COUNT ? s->place.tier : 0],
                    s->size_bytes, more);
}

static void count_pinned(struct hl_placement *p, const struct hl_placed_shard *s, bool more)
{
    if (s->pinned && s->place.node < p->node_count && s->place.tier == HL_API_TIER_L1)
        count_bytes(&p->nodes[s->place.node].l1_pinned, s->size_bytes, more);
}

static void change_place(struct hl_placement *p, struct hl_placed_shard *s, struct hl_place place)
{
    count_in_set(p, s, false);
    count_pinned(p, s, false);
    s->place = place;
    s->crowded = hl_rules_are_crowded(s, &p->params);
    count_in_set(p, s, true);
    count_pinned(p, s, true);
}

static void pin_shard(struct hl_placement *p, uint32_t index)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    bool pinned = s->pinned_itself || hl_set_table_is_pinned(&p->sets, s->set - 1);
    if (s->pinned == pinned)
        return;
    count_pinned(p, s, false);
    s->pinned = pinned;
    count_pinned(p, s, true);
    hl_placement_touch(p, index);
}

hl_status hl_placement_set_add(struct hl_placement *p, uint32_t above, uint32_t *set)
{
    return hl_set_table_add(&p->sets, above, set);
}

hl_status hl_placement_set_remove(struct hl_placement *p, uint32_t set)
{
    return hl_set_table_remove(&p->sets, set);
}

static void leave_set(struct hl_placement *p, struct hl_placed_shard *s)
{
    struct hl_shard_set *set = hl_set_table_find(&p->sets, s->set - 1);
    if (set == NULL)
        return;
    count_in_set(p, s, false);
    if (s->set_next != 0)
        hl_shard_at(&p->shards, s->set_next - 1)->set_prev = s->set_prev;
    if (s->set_prev != 0)
        hl_shard_at(&p->shards, s->set_prev - 1)->set_next = s->set_next;
    else
        set->first = s->set_next;
    set->shards--;
    s->set = s->set_prev = s->set_next = 0;
}

static void enter_set(struct hl_placement *p, uint32_t index, uint32_t set)
{
    struct hl_shard_set *to = hl_set_table_find(&p->sets, set);
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    s->set = set + 1;
    s->set_next = to->first;
    if (to->first != 0)
        hl_shard_at(&p->shards, to->first - 1)->set_prev = index + 1;
    to->first = index + 1;
    to->shards++;
    count_in_set(p, s, true);
}

static hl_status unknown_set(uint32_t set)
{
    return hl_fail(HL_ENOENT, "no set of shards has the index %u: add it first", set);
}

hl_status hl_placement_set_join(struct hl_placement *p, struct hl_id id, uint32_t set)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    bool known = hl_set_table_find(&p->sets, set) != NULL;
    if (!known && set != HL_SET_NONE)
        return unknown_set(set);
    leave_set(p, hl_shard_at(&p->shards, index));
    if (known)
        enter_set(p, index, set);
    pin_shard(p, index);
    return HL_OK;
}

static void pin_shards(struct hl_placement *p, const struct hl_shard_set *set)
{
    for (uint32_t at = set->first; at != 0; at = hl_shard_at(&p->shards, at - 1)->set_next)
        pin_shard(p, at - 1);
}

hl_status hl_placement_set_pin(struct hl_placement *p, uint32_t set, bool pinned)
{
    struct hl_shard_set *s = hl_set_table_find(&p->sets, set);
    if (s == NULL)
        return unknown_set(set);
    s->pinned = pinned;
    pin_shards(p, s);
    for (uint32_t at = s->below; at != 0; at = p->sets.sets[at - 1].next)
        pin_shards(p, &p->sets.sets[at - 1]);
    return HL_OK;
}

static void look_at_shards(const struct hl_placement *p, const struct hl_shard_set *set,
                           struct hl_set_view *view)
{
    for (uint32_t at = set->first; at != 0; at = hl_shard_at(&p->shards, at - 1)->set_next) {
        const struct hl_placed_shard *s = hl_shard_at(&p->shards, at - 1);
        double heat = hl_attributes_heat(&s->use, &p->params, p->now_ms);
        double stability = hl_attributes_stability(&s->use, &p->params, p->now_ms);
        view->shards++;
        view->pinned += s->pinned;
        view->moving += hl_life_is_moving((enum hl_life_state)s->life.state);
        view->bytes[s->place.tier < HL_API_TIER_COUNT ? s->place.tier : 0] += s->size_bytes;
        view->heat = heat > view->heat ? heat : view->heat;
        view->stability = stability > view->stability ? stability : view->stability;
        view->last_ms = s->use.last_ms > view->last_ms ? s->use.last_ms : view->last_ms;
    }
}

hl_status hl_placement_set_look(const struct hl_placement *p, uint32_t set, struct hl_set_view *out)
{
    const struct hl_shard_set *s = hl_set_table_find(&p->sets, set);
    if (s == NULL)
        return unknown_set(set);
    struct hl_set_view view = {.last_ms = -1};
    look_at_shards(p, s, &view);
    for (uint32_t at = s->below; at != 0; at = p->sets.sets[at - 1].next)
        look_at_shards(p, &p->sets.sets[at - 1], &view);
    *out = view;
    return HL_OK;
}

/* ---- shards ---------------------------------------------------------------------------------- */

hl_status hl_placement_shard_add(struct hl_placement *p, struct hl_id id, uint64_t size_bytes,
                                 struct hl_place place, int64_t now_ms)
{
    hl_placement_advance(p, now_ms);
    uint32_t index;
    HL_TRY(hl_shard_table_add(&p->shards, id, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    s->size_bytes = size_bytes;
    s->place = s->goal = place;
    s->changed_ms = p->now_ms;
    hl_attributes_init(&s->use, p->now_ms);
    hl_placement_touch(p, index);
    return HL_OK;
}

hl_status hl_placement_shard_remove(struct hl_placement *p, struct hl_id id)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    if (hl_life_is_moving((enum hl_life_state)s->life.state)) {
        bool switched = s->life.state == HL_LIFE_MIGRATED;
        if (!switched)
            count_arriving(p, s, false);
        count_leaving(p, s, switched ? s->goal : s->place, false);
    }
    unlist_shard(p, s);
    leave_set(p, s);
    count_pinned(p, s, false);
    hl_shard_table_remove(&p->shards, index);
    return HL_OK;
}

/* Updates places and bytes in flight after a change. While the shard moves, s->goal is its
 * destination; afterwards it is the place of the old copy until that copy is deleted. */
static void follow_change(struct hl_placement *p, struct hl_placed_shard *s,
                          enum hl_life_state from, enum hl_life_event event)
{
    struct hl_place old = s->place;
    switch (event) {
    case HL_LIFE_ON_LOADED:
    case HL_LIFE_ON_SWITCHED:
    case HL_LIFE_ON_IDLE:
        count_arriving(p, s, false);
        if (s->life.state != HL_LIFE_MIGRATED)
            count_leaving(p, s, old, false);
        change_place(p, s, s->goal);
        s->goal = old;
        if (from != HL_LIFE_PREHEAT || s->life.before != HL_LIFE_CREATED)
            hl_attributes_moved(&s->use, &p->params, p->now_ms);
        else if (old.tier != s->place.tier || old.node != s->place.node)
            s->use.placed_ms = p->now_ms; /* its first place is no move */
        break;
    case HL_LIFE_ON_CLEANED_L2:
    case HL_LIFE_ON_CLEANED_L3:
        count_leaving(p, s, s->goal, false);
        s->goal = s->place;
        break;
    case HL_LIFE_ON_WARM: /* a copy to L3 that is no longer needed */
        if (from != HL_LIFE_MIGRATING)
            break;
        __attribute__((fallthrough));
    case HL_LIFE_ON_UNDONE:
        count_arriving(p, s, false);
        count_leaving(p, s, s->place, false);
        s->goal = s->place;
        break;
    default:
        break;
    }
}

static hl_status change_life(struct hl_placement *p, struct hl_id id,
                             const struct hl_change *change, const struct hl_place *goal)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    hl_placement_advance(p, change->at_ms);
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    enum hl_life_state from = (enum hl_life_state)s->life.state;
    struct hl_change now = *change;
    now.at_ms = p->now_ms;
    hl_status st = hl_life_change(&s->life, &p->history, index, &now);
    if (st != HL_OK)
        return hl_fail_prefix(st, "shard %s: ", hl_id_format(id).s);
    s->changed_ms = p->now_ms;
    s->unsaved = true;
    hl_placement_touch(p, index);
    if (goal != NULL && (goal->tier != s->place.tier || goal->node != s->place.node)) {
        if (hl_life_is_moving(from)) { /* it replaces the move in flight */
            count_arriving(p, s, false);
            count_leaving(p, s, s->place, false);
        }
        s->goal = *goal;
        count_arriving(p, s, true);
        count_leaving(p, s, s->place, true);
    }
    follow_change(p, s, from, change->event);
    return HL_OK;
}

hl_status hl_placement_shard_change(struct hl_placement *p, struct hl_id id,
                                    const struct hl_change *change)
{
    return change_life(p, id, change, NULL);
}

hl_status hl_placement_shard_move(struct hl_placement *p, struct hl_id id,
                                  const struct hl_change *change, struct hl_place goal)
{
    return change_life(p, id, change, &goal);
}

hl_status hl_placement_shard_kept(struct hl_placement *p, struct hl_id id,
                                  const struct hl_change *change)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    hl_placement_advance(p, change->at_ms);
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    const enum hl_life_event cleaned =
        s->place.tier == HL_API_TIER_L2 ? HL_LIFE_ON_CLEANED_L2 : HL_LIFE_ON_CLEANED_L3;
    struct hl_change kept = *change;
    kept.at_ms = p->now_ms;
    kept.from = (enum hl_life_state)s->life.state;
    kept.to = hl_life_next(kept.from, cleaned, HL_LIFE_NONE);
    if (kept.to == HL_LIFE_NONE)
        kept.to = kept.from;
    else
        follow_change(p, s, kept.from, cleaned);
    hl_life_restore(&s->life, &p->history, index, &kept);
    s->changed_ms = p->now_ms;
    s->unsaved = true;
    hl_placement_touch(p, index);
    return HL_OK;
}

hl_status hl_placement_shard_pin(struct hl_placement *p, struct hl_id id, bool pinned)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    hl_shard_at(&p->shards, index)->pinned_itself = pinned;
    pin_shard(p, index);
    return HL_OK;
}

/* A shard that had cooled stays cool where it is found, so that it leaves that copy, too. */
static enum hl_life_state found_state(const struct hl_placed_shard *s, struct hl_place place)
{
    enum hl_life_state was = (enum hl_life_state)s->life.state;
    bool was_cool =
        was == HL_LIFE_COOLING || was == HL_LIFE_ARCHIVED_L3 || was == HL_LIFE_EXPIRED_L4;
    if (place.tier == HL_API_TIER_L4)
        return HL_LIFE_EXPIRED_L4;
    if (!was_cool)
        return HL_LIFE_CREATED;
    return place.node != HL_READER_NONE ? HL_LIFE_COOLING : HL_LIFE_ARCHIVED_L3;
}

static hl_status find_resting(struct hl_placement *p, struct hl_id id, int64_t now_ms,
                              uint32_t *index)
{
    HL_TRY(find_shard(p, id, index));
    if (hl_life_is_moving((enum hl_life_state)hl_shard_at(&p->shards, *index)->life.state))
        return hl_fail(HL_ECONFLICT, "shard %s moves", hl_id_format(id).s);
    hl_placement_advance(p, now_ms);
    return HL_OK;
}

/* What happened to the shard's copies without a move; the state that follows becomes its state. A
 * shard with a new place and no history has nothing to tell. */
static void note_copies(struct hl_placement *p, uint32_t index, enum hl_life_event event,
                        enum hl_life_state to, struct hl_place now)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    struct hl_change changes[HL_CHANGES_MAX];
    bool lost = event == HL_LIFE_ON_LOST;
    const struct hl_change change = {.at_ms = p->now_ms,
                                     .event = event,
                                     .from = (enum hl_life_state)s->life.state,
                                     .to = to,
                                     .node = now.node,
                                     .value = lost ? 0 : now.tier,
                                     .limit = s->life.lost ? 0 : s->place.tier};
    if (lost || hl_life_history(&s->life, &p->history, index, changes) > 0)
        hl_life_restore(&s->life, &p->history, index, &change);
    s->life.state = (uint8_t)to;
    s->life.lost = lost;
    s->unsaved |= s->kept; /* what was recorded of it is no longer valid */
}

static void found_elsewhere(struct hl_placement *p, uint32_t index, struct hl_place place)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    note_copies(p, index, HL_LIFE_ON_FOUND, found_state(s, place), place);
    change_place(p, s, place);
    s->goal = place;
    s->use.placed_ms = p->now_ms;
    if (s->life.state != HL_LIFE_ARCHIVED_L3) /* in L3, reads since it cooled bring it back */
        s->changed_ms = p->now_ms;
}

hl_status hl_placement_shard_found(struct hl_placement *p, struct hl_id id, struct hl_place place,
                                   int64_t now_ms)
{
    uint32_t index;
    HL_TRY(find_resting(p, id, now_ms, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    unlist_shard(p, s);
    if (place.tier == s->place.tier && place.node == s->place.node)
        note_copies(p, index, HL_LIFE_ON_FOUND, (enum hl_life_state)s->life.state, place);
    else
        found_elsewhere(p, index, place);
    hl_placement_touch(p, index);
    return HL_OK;
}

hl_status hl_placement_shard_lost(struct hl_placement *p, struct hl_id id, int64_t now_ms)
{
    uint32_t index;
    HL_TRY(find_resting(p, id, now_ms, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    if (s->life.lost)
        return HL_OK;
    unlist_shard(p, s);
    note_copies(p, index, HL_LIFE_ON_LOST, (enum hl_life_state)s->life.state, s->place);
    return HL_OK;
}

hl_status hl_placement_shard_moved(struct hl_placement *p, struct hl_id id, int64_t now_ms)
{
    uint32_t index;
    HL_TRY(find_shard(p, id, &index));
    hl_placement_advance(p, now_ms);
    hl_attributes_moved(&hl_shard_at(&p->shards, index)->use, &p->params, p->now_ms);
    hl_shard_at(&p->shards, index)->unsaved = true;
    hl_placement_touch(p, index);
    return HL_OK;
}

unsigned hl_placement_shard_history(const struct hl_placement *p, struct hl_id id,
                                    struct hl_change out[HL_CHANGES_MAX])
{
    uint32_t index = hl_shard_table_find(&p->shards, id);
    return index == HL_SHARD_NONE
               ? 0
               : hl_life_history(&hl_shard_at(&p->shards, index)->life, &p->history, index, out);
}

const struct hl_placed_shard *hl_placement_shard_find(const struct hl_placement *p, struct hl_id id)
{
    uint32_t index = hl_shard_table_find(&p->shards, id);
    return index == HL_SHARD_NONE ? NULL : hl_shard_at(&p->shards, index);
}
