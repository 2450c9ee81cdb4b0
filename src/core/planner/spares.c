#include "core/planner/spares.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/plan_private.h"

bool hl_plan_is_spare(const struct hl_plan_container *c)
{
    return c->address != NULL && c->address[0] != '\0';
}

int hl_plan_gang_count(const struct hl_plan *plan)
{
    int n = 0;
    for (int i = 0; plan->containers != NULL && i < plan->container_count; i++)
        n += plan->containers[i].rank_count > 0;
    return n;
}

/* ---- where ----------------------------------------------------------------------------------- */

/* Counts the plan's containers on this node. */
static int count_on(const struct hl_plan *plan, size_t node_at)
{
    int n = 0;
    for (int i = 0; i < plan->container_count; i++)
        n += plan->containers[i].node_at == node_at;
    return n;
}

static bool is_taken(const struct hl_plan *plan, size_t node_at, int numa_id)
{
    for (int i = 0; i < plan->container_count; i++)
        if (plan->containers[i].numa_id == numa_id && plan->containers[i].node_at == node_at)
            return true;
    return false;
}

static bool node_takes_jobs(const struct hl_plan_shape *s, const struct hl_cluster_node *node)
{
    return node->ready && !node->draining &&
           !hl_window_meets(node->reserved, s->needs.begin_ms, s->needs.end_ms);
}

/* The node's first free slot that fits; *free_slots: how many are free in total. */
static const struct hl_cluster_slot *find_slot(const struct hl_plan_shape *s,
                                               const struct hl_plan *plan, size_t node_at,
                                               int *free_slots)
{
    const struct hl_cluster_node *node = &s->cluster->nodes[node_at];
    const struct hl_cluster_slot *best = NULL;
    *free_slots = 0;
    for (int k = 0; k < node->slot_count; k++) {
        const struct hl_cluster_slot *x = &node->slots[k];
        if (x->busy || is_taken(plan, node_at, x->numa_id))
            continue;
        ++*free_slots;
        if (best == NULL && hl_plan_slot_fits(s, x))
            best = x;
    }
    return best;
}

/* Prefers fewest containers of the plan, then fewest free slots, then the lowest place in the
 * cluster. */
static const struct hl_cluster_slot *choose_slot(const struct hl_plan_shape *s,
                                                 const struct hl_plan *plan, size_t *node_at)
{
    const struct hl_cluster_slot *best = NULL;
    int best_used = s->gang.containers, best_free = INT_MAX;
    for (size_t i = 0; i < s->cluster->count; i++) {
        int used = count_on(plan, i), free_slots;
        if (used > best_used || used >= s->gang.containers ||
            !node_takes_jobs(s, &s->cluster->nodes[i]))
            continue;
        const struct hl_cluster_slot *x = find_slot(s, plan, i, &free_slots);
        if (x == NULL || (used == best_used && free_slots >= best_free))
            continue;
        best = x;
        best_used = used;
        best_free = free_slots;
        *node_at = i;
    }
    return best;
}

/* ---- what ------------------------------------------------------------------------------------ */

/* A spare has room for as many ranks as the gang's largest container. */
static hl_status fill_spare(const struct hl_plan_shape *s, size_t node_at,
                            const struct hl_cluster_slot *slot, struct hl_plan_container *c)
{
    const struct hl_cluster_node *node = &s->cluster->nodes[node_at];
    c->node_at = node_at;
    memcpy(c->node, node->name, sizeof(c->node));
    c->numa_id = slot->numa_id;
    c->cpus = strdup(slot->cpus);
    c->address = strdup(node->rank_address);
    c->ranks = calloc((size_t)s->per_container, sizeof(*c->ranks));
    c->gpus = calloc((size_t)s->per_container, sizeof(*c->gpus));
    if (c->cpus == NULL || c->address == NULL || c->ranks == NULL || c->gpus == NULL)
        return hl_plan_no_memory();
    for (int i = 0; s->use_gpus && i < s->per_container; i++) {
        c->gpus[i] = strdup(slot->gpus[i]);
        if (c->gpus[i] == NULL)
            return hl_plan_no_memory();
        c->gpu_count++;
    }
    return HL_OK;
}

static hl_status add_spare(const struct hl_plan_shape *s, size_t node_at,
                           const struct hl_cluster_slot *slot, struct hl_plan *plan)
{
    size_t n = (size_t)plan->container_count;
    struct hl_plan_container *list = realloc(plan->containers, (n + 1) * sizeof(*list));
    if (list == NULL)
        return hl_plan_no_memory();
    plan->containers = list;
    list[n] = (struct hl_plan_container){.index = plan->container_count++};
    return fill_spare(s, node_at, slot, &list[n]);
}

/* *found: how many of `count` were found. */
static hl_status add_spares(const struct hl_plan_shape *s, struct hl_plan *plan, int count,
                            int *found)
{
    for (*found = 0; *found < count; ++*found) {
        size_t node_at = 0;
        const struct hl_cluster_slot *slot = choose_slot(s, plan, &node_at);
        if (slot == NULL)
            return HL_OK;
        HL_TRY(add_spare(s, node_at, slot, plan));
    }
    return HL_OK;
}

hl_status hl_plan_add_spares(const struct hl_plan_shape *s, struct hl_plan *plan)
{
    int found, wanted = s->job->spare_slots;
    HL_TRY(add_spares(s, plan, wanted, &found));
    return found == wanted
               ? HL_OK
               : hl_plan_add_warning(plan,
                                     "only %d of %d spare slots: no other server has a free slot "
                                     "that fits",
                                     found, wanted);
}

hl_status hl_plan_refill_spares(struct hl_plan *plan, const struct hl_job *job,
                                const struct hl_cluster *cluster, int count, int *found)
{
    struct hl_job as_placed = *job; /* a slot must take as many ranks as the gang's slots do */
    int had = plan->container_count, next = plan->next_index;
    as_placed.ranks_per_slot = plan->ranks_per_container;
    HL_TRY(hl_plan_refresh_index(cluster));
    const struct hl_plan_shape s = hl_plan_shape_of(&as_placed, cluster);
    for (int i = 0; i < had; i++) {
        const struct hl_cluster_node *n = hl_cluster_find(cluster, plan->containers[i].node);
        plan->containers[i].node_at = n != NULL ? (size_t)(n - cluster->nodes) : SIZE_MAX;
    }
    HL_TRY(add_spares(&s, plan, count, found));
    for (int i = had; i < plan->container_count; i++)
        plan->containers[i].index = next++;
    plan->next_index = next;
    return HL_OK;
}

/* ---- in place of another --------------------------------------------------------------------- */

static void swap_texts(char **a, char **b)
{
    char *x = *a;
    *a = *b;
    *b = x;
}

hl_status hl_plan_move_ranks(struct hl_plan *plan, int from, int spare)
{
    struct hl_plan_container *a = &plan->containers[from], *b = &plan->containers[spare];
    struct hl_plan_rank *ranks = a->ranks;
    if (ranks[0].rank == 0) {
        char *name = strdup(b->node);
        if (name == NULL)
            return hl_plan_no_memory();
        free(plan->master_node);
        plan->master_node = name;
        swap_texts(&plan->master_address, &b->address);
    }
    a->ranks = b->ranks;
    b->ranks = ranks;
    b->rank_count = a->rank_count;
    a->rank_count = 0;
    for (int i = 0; i < b->rank_count && i < b->gpu_count; i++)
        swap_texts(&b->ranks[i].gpu, &b->gpus[i]);
    return HL_OK;
}
