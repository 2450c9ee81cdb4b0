/* Slots of the cluster, marked as the pass sees them, and restored when it ends. */
#include "core/queue/slots.h"

#include <stdlib.h>
#include <string.h>

/* A slot that is reserved for a gang. */
struct hl_queue_kept {
    size_t node; /* the node's index in the cluster */
    int numa_id;
    const struct hl_cluster_slot *slot;
    bool was_free; /* free before; busy while reservations are applied */
};

/* A slot by its node's index in the cluster and its number in `kept`. */
struct slot_place {
    size_t node, at;
    const struct hl_cluster_slot *slot; /* NULL: the node is gone, or its slots have changed */
};

static struct slot_place slots_find(const struct hl_queue_slots *s,
                                    const struct hl_plan_container *k)
{
    const struct hl_cluster *cluster = s->opts.cluster;
    struct slot_place p = {.node = k->node_at};
    if (p.node >= cluster->count || strcmp(cluster->nodes[p.node].name, k->node) != 0) {
        const struct hl_cluster_node *n = hl_cluster_find(cluster, k->node);
        if (n == NULL)
            return p;
        p.node = (size_t)(n - cluster->nodes);
    }
    const struct hl_cluster_node *node = &cluster->nodes[p.node];
    for (int i = 0; i < node->slot_count; i++)
        if (node->slots[i].numa_id == k->numa_id) {
            p.at = s->base[p.node] + (size_t)i;
            p.slot = &node->slots[i];
        }
    return p;
}

static hl_status slots_fit(void *ctx, int gang, bool *fits)
{
    struct hl_queue_slots *s = ctx;
    struct hl_plan *plan = NULL;
    HL_TRY(s->opts.plan(s->opts.arg, gang, &plan));
    hl_plan_free(s->found);
    s->found = plan;
    *fits = plan->feasible;
    return HL_OK;
}

static hl_status slots_take(void *ctx, int gang)
{
    struct hl_queue_slots *s = ctx;
    HL_TRY(hl_plan_commit(s->found, s->opts.cluster));
    s->plans[gang] = hl_steal(&s->found);
    if (s->opts.taken != NULL)
        s->opts.taken(s->opts.arg, gang, s->plans[gang]);
    return HL_OK;
}

static void slots_lend(void *ctx, int gang, bool lent)
{
    struct hl_queue_slots *s = ctx;
    const struct hl_plan *plan =
        s->plans[gang] != NULL ? s->plans[gang] : s->opts.held(s->opts.arg, gang);
    for (int i = 0; plan != NULL && i < plan->container_count; i++) {
        const struct hl_plan_container *k = &plan->containers[i];
        struct slot_place p = slots_find(s, k);
        if (p.slot != NULL && !s->kept[p.at])
            hl_cluster_set_busy_at(s->opts.cluster, &p.node, k->node, k->numa_id, !lent);
    }
}

static hl_status slots_keep(struct hl_queue_slots *s, const struct hl_plan_container *k,
                            bool only_free)
{
    struct slot_place p = slots_find(s, k);
    if (p.slot == NULL || s->kept[p.at] || (only_free && p.slot->busy))
        return HL_OK;
    if (s->reserved_count == s->reserved_cap) {
        size_t cap = s->reserved_cap > 0 ? 2 * s->reserved_cap : 64;
        struct hl_queue_kept *list = realloc(s->reserved, cap * sizeof(*list));
        if (list == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the slots that are kept for gangs");
        s->reserved = list;
        s->reserved_cap = cap;
    }
    s->reserved[s->reserved_count++] = (struct hl_queue_kept){
        .node = p.node, .numa_id = k->numa_id, .slot = p.slot, .was_free = !p.slot->busy};
    s->kept[p.at] = true;
    hl_cluster_set_busy_at(s->opts.cluster, &p.node, k->node, k->numa_id, true);
    return HL_OK;
}

static hl_status slots_reserve(void *ctx, int gang, bool of_old)
{
    struct hl_queue_slots *s = ctx;
    const struct hl_plan *plan = of_old ? s->opts.held(s->opts.arg, gang) : s->found;
    for (int i = 0; plan != NULL && plan->containers != NULL && i < plan->container_count; i++)
        HL_TRY(slots_keep(s, &plan->containers[i], of_old));
    return HL_OK;
}

static void slots_reservations(void *ctx, bool on)
{
    struct hl_queue_slots *s = ctx;
    for (size_t i = 0; i < s->reserved_count; i++) {
        struct hl_queue_kept *k = &s->reserved[i];
        if (on && k->was_free && k->slot->busy)
            k->was_free = false; /* another gang has taken it in the meantime */
        if (k->was_free)
            hl_cluster_set_busy_at(s->opts.cluster, &k->node, s->opts.cluster->nodes[k->node].name,
                                   k->numa_id, on);
    }
}

hl_status hl_queue_slots_init(struct hl_queue_slots *s, const struct hl_queue_slots_opts *opts,
                              struct hl_queue_planner *out)
{
    const struct hl_cluster *cluster = opts->cluster;
    size_t slots = 0;
    *s = (struct hl_queue_slots){.opts = *opts};
    s->base = calloc(cluster->count + 1, sizeof(*s->base));
    s->plans = calloc((size_t)opts->count + 1, sizeof(struct hl_plan *));
    for (size_t i = 0; s->base != NULL && i < cluster->count; i++) {
        s->base[i] = slots;
        slots += (size_t)cluster->nodes[i].slot_count;
    }
    s->kept = calloc(slots + 1, sizeof(*s->kept));
    if (s->base == NULL || s->plans == NULL || s->kept == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a pass over %d gangs", opts->count);
    *out = (struct hl_queue_planner){.ctx = s,
                                     .fit = slots_fit,
                                     .take = slots_take,
                                     .lend = slots_lend,
                                     .reserve = slots_reserve,
                                     .reservations = slots_reservations};
    return HL_OK;
}

void hl_queue_slots_end(struct hl_queue_slots *s)
{
    slots_reservations(s, false);
    s->reserved_count = 0;
}

struct hl_plan *hl_queue_slots_plan(struct hl_queue_slots *s, int gang)
{
    return hl_steal(&s->plans[gang]);
}

void hl_queue_slots_fini(struct hl_queue_slots *s)
{
    hl_queue_slots_end(s);
    for (int i = 0; s->plans != NULL && i < s->opts.count; i++) {
        if (s->plans[i] != NULL) /* a plan that the caller has not taken */
            hl_plan_mark(s->plans[i], s->opts.cluster, 0);
        hl_plan_free(s->plans[i]);
    }
    hl_plan_free(s->found);
    free(s->plans);
    free(s->base);
    free(s->kept);
    free(s->reserved);
    *s = (struct hl_queue_slots){0};
}
