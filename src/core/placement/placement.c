#include "core/placement/placement.h"

#include <stdlib.h>

#define NODE_ROOM_MIN 16
/* A search in a large table waits for memory: of so many entries ahead the slot is fetched, and of
 * half as many the record. */
#define FETCH_AHEAD 16

hl_status hl_placement_init(struct hl_placement *p, const struct hl_placement_opts *opts)
{
    HL_TRY(hl_placement_params_check(&opts->params));
    if (opts->now_ms < 0)
        return hl_fail(HL_EINVAL, "a time before the clock's start: %lld ms",
                       (long long)opts->now_ms);
    *p = (struct hl_placement){.params = opts->params, .now_ms = opts->now_ms};
    HL_TRY(hl_shard_table_init(&p->shards, opts->shards_max));
    hl_status st = hl_history_init(&p->history, opts->shards_max * 2, opts->now_ms);
    if (st != HL_OK)
        hl_shard_table_fini(&p->shards);
    return st;
}

void hl_placement_fini(struct hl_placement *p)
{
    hl_shard_table_fini(&p->shards);
    hl_history_fini(&p->history);
    free(p->nodes);
    *p = (struct hl_placement){0};
}

uint64_t hl_placement_bytes(const struct hl_placement *p)
{
    return sizeof(*p) + hl_shard_table_bytes(&p->shards) + hl_history_bytes(&p->history) +
           (uint64_t)p->node_room * sizeof(*p->nodes);
}

static void advance_clock(struct hl_placement *p, int64_t now_ms)
{
    if (now_ms < p->now_ms)
        p->stats.clock_back++;
    else
        p->now_ms = now_ms;
}

hl_status hl_placement_configure(struct hl_placement *p, const struct hl_placement_params *params,
                                 int64_t now_ms)
{
    HL_TRY(hl_placement_params_check(params));
    advance_clock(p, now_ms);
    int64_t old_ms = p->params.window_ms;
    p->params = *params;
    if (params->window_ms == old_ms)
        return HL_OK;
    for (uint32_t i = 0; i < p->shards.end; i++)
        if (hl_shard_is_used(&p->shards, i))
            hl_attributes_rewindow(&hl_shard_at(&p->shards, i)->use, params, old_ms, p->now_ms);
    for (uint32_t i = 0; i < p->node_count; i++) /* their accesses are in the new windows now */
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

/* Of a node whose accesses are in no window any more; node_count where there is none. */
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
    advance_clock(p, now_ms);
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
    if (at == p->node_count)
        p->node_count++;
    p->nodes[at] = (struct hl_placement_node){.known = true};
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
    n->fenced = true;
    return HL_OK;
}

hl_status hl_placement_node_remove(struct hl_placement *p, uint16_t node, int64_t now_ms)
{
    advance_clock(p, now_ms);
    struct hl_placement_node *n = find_node(p, node);
    if (n == NULL)
        return unknown_node(node);
    n->known = false;
    n->removed_ms = p->now_ms;
    return HL_OK;
}

/* ---- shards ---------------------------------------------------------------------------------- */

hl_status hl_placement_shard_add(struct hl_placement *p, struct hl_id id, uint64_t size_bytes,
                                 struct hl_place place, int64_t now_ms)
{
    advance_clock(p, now_ms);
    uint32_t index;
    HL_TRY(hl_shard_table_add(&p->shards, id, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    s->size_bytes = size_bytes;
    s->place = place;
    s->changed_ms = p->now_ms;
    hl_attributes_init(&s->use, p->now_ms);
    return HL_OK;
}

hl_status hl_placement_shard_remove(struct hl_placement *p, struct hl_id id)
{
    uint32_t index = hl_shard_table_find(&p->shards, id);
    if (index == HL_SHARD_NONE)
        return hl_fail(HL_ENOENT, "no shard %s is placed", hl_id_format(id).s);
    hl_shard_table_remove(&p->shards, index);
    return HL_OK;
}

hl_status hl_placement_shard_change(struct hl_placement *p, struct hl_id id,
                                    const struct hl_change *change)
{
    uint32_t index = hl_shard_table_find(&p->shards, id);
    if (index == HL_SHARD_NONE)
        return hl_fail(HL_ENOENT, "no shard %s is placed", hl_id_format(id).s);
    advance_clock(p, change->at_ms);
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    struct hl_change now = *change;
    now.at_ms = p->now_ms;
    hl_status st = hl_life_change(&s->life, &p->history, index, &now);
    if (st != HL_OK)
        return hl_fail_prefix(st, "shard %s: ", hl_id_format(id).s);
    s->changed_ms = p->now_ms;
    if (change->event == HL_LIFE_ON_LOADED && s->life.before == HL_LIFE_CREATED)
        s->use.placed_ms = p->now_ms; /* the first place, no move */
    else if (change->event == HL_LIFE_ON_SWITCHED || change->event == HL_LIFE_ON_LOADED)
        hl_attributes_moved(&s->use, &p->params, p->now_ms);
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

/* ---- reports --------------------------------------------------------------------------------- */

static enum hl_report_fate admit_report(struct hl_placement *p, uint16_t node,
                                        const struct hl_report *report)
{
    struct hl_placement_node *n = find_node(p, node);
    if (n == NULL)
        return HL_REPORT_UNKNOWN;
    return n->fenced ? HL_REPORT_FENCED : hl_report_window_take(&n->reports, report);
}

static void apply_entry(struct hl_placement *p, uint16_t node, const struct hl_report_entry *e)
{
    uint32_t index = hl_shard_table_find(&p->shards, e->shard);
    if (index == HL_SHARD_NONE) {
        p->stats.unknown_shards++;
        return;
    }
    struct hl_access access = {.node = node, .count = e->count, .age_ms = e->age_ms};
    hl_attributes_access(&hl_shard_at(&p->shards, index)->use, &p->params, &access, p->now_ms);
    p->stats.accesses += e->count;
}

enum hl_report_fate hl_placement_report(struct hl_placement *p, uint16_t node,
                                        const struct hl_report *report, int64_t now_ms)
{
    advance_clock(p, now_ms);
    enum hl_report_fate fate = admit_report(p, node, report);
    p->stats.reports[fate]++;
    for (size_t i = 0; fate == HL_REPORT_NEW && i < report->count; i++) {
        if (i + FETCH_AHEAD < report->count)
            hl_shard_table_fetch_slot(&p->shards, report->entries[i + FETCH_AHEAD].shard);
        if (i + FETCH_AHEAD / 2 < report->count)
            hl_shard_table_fetch_record(&p->shards, report->entries[i + FETCH_AHEAD / 2].shard);
        apply_entry(p, node, &report->entries[i]);
    }
    return fate;
}
