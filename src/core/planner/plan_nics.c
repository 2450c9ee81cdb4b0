/* Of equally good placements it prefers the one on servers whose free slots have a NIC of their
 * own. It only searches if slots of some servers have one and slots of others have none. */
#include <stdlib.h>
#include <string.h>

#include "core/planner/plan_private.h"

#define ANY_NIC (HL_NIC_OTHER + 1)

/* What outranks NICs; less is better. */
struct cost {
    struct hl_gang_score score;
    long spines;
    long half; /* servers that are left half-used */
};

static bool is_preferred(struct hl_place_rule rule)
{
    return rule.level != HL_LEVEL_ANY && !rule.required;
}

/* The current placement satisfies a preferred rule; another one might not. */
static bool has_preferred(const struct hl_place_rules *r)
{
    return is_preferred(r->tensor) || is_preferred(r->pipeline) || is_preferred(r->data) ||
           is_preferred(r->gang);
}

static bool is_mixed(const struct hl_plan_shape *s)
{
    bool with = false, without = false;
    const struct hl_place_kind *kind = s->cluster->index->kinds;
    for (; kind != NULL && !(with && without); kind = kind->hh.next)
        for (int g = 0; g < kind->group_count; g++)
            if (hl_slot_fault(&s->needs, &kind->groups[g]) == HL_SLOT_FITS)
                *(kind->groups[g].nic >= ANY_NIC ? &with : &without) = true;
    return with && without;
}

/* Free slots of the server that fit. */
static int free_at(const struct hl_plan_shape *s, uint32_t pos)
{
    const struct hl_place_index *x = s->cluster->index;
    const struct hl_place_class *c = x->class_of[x->node_at[pos]];
    int n = 0;
    for (int g = 0; g < c->kind->group_count; g++)
        if (hl_slot_fault(&s->needs, &c->kind->groups[g]) == HL_SLOT_FITS)
            n += c->free[g];
    return n;
}

static hl_status cost_of(const struct hl_plan_shape *s, const uint32_t *where, struct cost *out)
{
    const struct hl_place_index *x = s->cluster->index;
    HL_AUTO(hl_freep) uint16_t *used = calloc(x->count + 1, sizeof(*used));
    HL_AUTO(hl_freep) bool *spines = calloc(x->spine_count + 1, sizeof(*spines));
    if (used == NULL || spines == NULL)
        return hl_plan_no_memory();
    *out = (struct cost){0};
    for (int i = 0; i < s->gang.containers; i++) {
        used[where[i]]++;
        out->spines += !spines[x->spine_of[where[i]]];
        spines[x->spine_of[where[i]]] = true;
    }
    for (size_t p = 0; p < x->count; p++)
        out->half += used[p] > 0 && free_at(s, (uint32_t)p) > used[p];
    return hl_gang_score(&s->gang, x, where, &out->score);
}

static bool cost_is_no_more(const struct cost *a, const struct cost *b)
{
    return a->score.servers <= b->score.servers && a->score.leaves <= b->score.leaves &&
           a->score.shared <= b->score.shared && a->spines <= b->spines && a->half <= b->half;
}

hl_status hl_plan_prefer_nics(const struct hl_plan_shape *s, uint32_t *io)
{
    struct hl_slot_needs needs = s->needs;
    struct cost now, near;
    HL_AUTO(hl_place_view_fini) struct hl_place_view v = {0};
    if (needs.nic >= ANY_NIC || has_preferred(&s->gang.rules) || !is_mixed(s))
        return HL_OK;
    needs.nic = ANY_NIC;
    HL_AUTO(hl_freep) uint32_t *other = calloc((size_t)s->gang.containers, sizeof(*other));
    if (other == NULL)
        return hl_plan_no_memory();
    HL_TRY(hl_place_view_init(&v, s->cluster->index, &needs, HL_VIEW_FREE));
    if (v.slots < s->gang.containers || hl_gang_obstacle(&s->gang, &v) != HL_LEVEL_ANY)
        return HL_OK;
    HL_TRY(hl_gang_place(&s->gang, &v, other));
    HL_TRY(cost_of(s, io, &now));
    HL_TRY(cost_of(s, other, &near));
    if (cost_is_no_more(&near, &now))
        memcpy(io, other, (size_t)s->gang.containers * sizeof(*io));
    return HL_OK;
}
