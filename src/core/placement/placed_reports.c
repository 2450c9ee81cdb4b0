/* Applies access reports to the shards that they name. */
#include "core/placement/placement.h"
#include "core/placement/rules.h"

/* A lookup in a large table waits for memory. So the slot of the entry FETCH_AHEAD places ahead is
 * prefetched, and the record of the entry half as far ahead. */
#define FETCH_AHEAD 16

static struct hl_placement_node *known_node(const struct hl_placement *p, uint16_t node)
{
    return node < p->node_count && p->nodes[node].known ? &p->nodes[node] : NULL;
}

static enum hl_report_fate admit_report(struct hl_placement *p, uint16_t node,
                                        struct hl_report_window *window,
                                        const struct hl_report *report)
{
    const struct hl_placement_node *n = known_node(p, node);
    if (n == NULL)
        return HL_REPORT_UNKNOWN;
    return n->fenced ? HL_REPORT_FENCED : hl_report_window_take(window, report);
}

static void apply_entry(struct hl_placement *p, uint16_t node, const struct hl_report_entry *e)
{
    uint32_t index = hl_shard_table_find(&p->shards, e->shard);
    if (index == HL_SHARD_NONE) {
        p->stats.unknown_shards++;
        return;
    }
    struct hl_access access = {.node = node, .count = e->count, .age_ms = e->age_ms};
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    hl_attributes_access(&s->use, &p->params, &access, p->now_ms);
    s->unsaved = true;
    s->crowded = hl_rules_are_crowded(s, &p->params);
    hl_placement_touch(p, index);
    p->stats.accesses += e->count;
}

enum hl_report_fate hl_placement_report(struct hl_placement *p, uint16_t node,
                                        const struct hl_report *report, int64_t now_ms)
{
    struct hl_placement_node *n = known_node(p, node);
    return hl_placement_report_of(p, node, n != NULL ? &n->reports : NULL, report, now_ms);
}

enum hl_report_fate hl_placement_report_of(struct hl_placement *p, uint16_t node,
                                           struct hl_report_window *window,
                                           const struct hl_report *report, int64_t now_ms)
{
    hl_placement_advance(p, now_ms);
    enum hl_report_fate fate = admit_report(p, node, window, report);
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
