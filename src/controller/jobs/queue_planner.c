/* The planner as core/queue asks it (struct hl_queue_planner): whether a gang fits, with slots of
 * others lent or kept. Slots are marked in the cluster itself, for it is what the planner sees, and
 * as they were when the pass ends. */
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/queue.h"

static struct hl_cluster *run_cluster(const struct queue_run *run)
{
    return nodes_cluster(run->c);
}

/* NULL: the node has gone, or has other slots now. *at: the slot's number. */
static const struct hl_cluster_slot *run_slot(const struct queue_run *run,
                                              const struct hl_plan_container *k, size_t *at)
{
    const struct hl_cluster *cluster = run_cluster(run);
    const struct hl_cluster_node *n = hl_cluster_find(cluster, k->node);
    for (int i = 0; n != NULL && i < n->slot_count; i++)
        if (n->slots[i].numa_id == k->numa_id) {
            *at = run->base[n - cluster->nodes] + (size_t)i;
            return &n->slots[i];
        }
    return NULL;
}

static hl_status run_fit(void *ctx, int gang, bool *fits)
{
    struct queue_run *run = ctx;
    const struct job *j = run->jobs[gang];
    struct hl_plan *plan = NULL;
    HL_TRY(j->executor->plan(run->c, &j->spec, j->id, j->run.attempt, &plan));
    hl_plan_free(run->found);
    run->found = plan;
    *fits = plan->feasible;
    return HL_OK;
}

static void run_take(void *ctx, int gang)
{
    struct queue_run *run = ctx;
    run->plans[gang] = run->found;
    run->found = NULL;
    hl_plan_mark(run->plans[gang], run_cluster(run), 1);
}

static void run_lend(void *ctx, int gang, bool lent)
{
    struct queue_run *run = ctx;
    const struct hl_plan *plan =
        run->plans[gang] != NULL ? run->plans[gang] : run->jobs[gang]->run.plan;
    for (int i = 0; plan != NULL && i < plan->container_count; i++) {
        const struct hl_plan_container *k = &plan->containers[i];
        size_t at;
        if (run_slot(run, k, &at) != NULL && !run->kept[at])
            hl_cluster_set_busy(run_cluster(run), k->node, k->numa_id, !lent);
    }
}

static hl_status run_keep(struct queue_run *run, const struct hl_plan_container *k, bool only_free)
{
    size_t at;
    const struct hl_cluster_slot *slot = run_slot(run, k, &at);
    if (slot == NULL || run->kept[at] || (only_free && slot->busy))
        return HL_OK;
    if (run->reserved_count == run->reserved_cap) {
        size_t cap = run->reserved_cap > 0 ? 2 * run->reserved_cap : 64;
        struct queue_slot *list = realloc(run->reserved, cap * sizeof(*list));
        if (list == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the slots that are kept for gangs");
        run->reserved = list;
        run->reserved_cap = cap;
    }
    const struct hl_cluster_node *n = hl_cluster_find(run_cluster(run), k->node);
    run->reserved[run->reserved_count++] = (struct queue_slot){
        .node = n->name, .numa_id = k->numa_id, .at = at, .was_free = !slot->busy};
    run->kept[at] = true;
    hl_cluster_set_busy(run_cluster(run), k->node, k->numa_id, true);
    return HL_OK;
}

static hl_status run_reserve(void *ctx, int gang, bool of_old)
{
    struct queue_run *run = ctx;
    const struct hl_plan *plan = of_old ? run->jobs[gang]->run.plan : run->found;
    for (int i = 0; plan != NULL && plan->containers != NULL && i < plan->container_count; i++)
        HL_TRY(run_keep(run, &plan->containers[i], of_old));
    return HL_OK;
}

static bool slot_is_busy(const struct queue_run *run, const struct queue_slot *s)
{
    const struct hl_plan_container k = {.numa_id = s->numa_id};
    const struct hl_cluster_node *n = hl_cluster_find(run_cluster(run), s->node);
    for (int i = 0; n != NULL && i < n->slot_count; i++)
        if (n->slots[i].numa_id == k.numa_id)
            return n->slots[i].busy;
    return true;
}

static void run_reservations(void *ctx, bool on)
{
    struct queue_run *run = ctx;
    for (size_t i = 0; i < run->reserved_count; i++) {
        struct queue_slot *s = &run->reserved[i];
        if (on && s->was_free && slot_is_busy(run, s))
            s->was_free = false; /* a gang has got it meanwhile */
        if (s->was_free)
            hl_cluster_set_busy(run_cluster(run), s->node, s->numa_id, on);
    }
}

hl_status queue_planner_init(struct queue_run *run, struct hl_queue_planner *out)
{
    const struct hl_cluster *cluster = run_cluster(run);
    size_t slots = 0;
    run->base = calloc(cluster->count + 1, sizeof(*run->base));
    run->plans = calloc((size_t)run->count + 1, sizeof(struct hl_plan *));
    for (size_t i = 0; run->base != NULL && i < cluster->count; i++) {
        run->base[i] = slots;
        slots += (size_t)cluster->nodes[i].slot_count;
    }
    run->kept = calloc(slots + 1, sizeof(*run->kept));
    if (run->base == NULL || run->plans == NULL || run->kept == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a pass over %d jobs", run->count);
    *out = (struct hl_queue_planner){.ctx = run,
                                     .fit = run_fit,
                                     .take = run_take,
                                     .lend = run_lend,
                                     .reserve = run_reserve,
                                     .reservations = run_reservations};
    return HL_OK;
}

void queue_planner_end(struct queue_run *run)
{
    run_reservations(run, false);
    run->reserved_count = 0;
}

void queue_planner_fini(struct queue_run *run)
{
    queue_planner_end(run);
    for (int i = 0; run->plans != NULL && i < run->count; i++) {
        if (run->plans[i] != NULL) /* nobody has taken it over */
            hl_plan_mark(run->plans[i], run_cluster(run), 0);
        hl_plan_free(run->plans[i]);
    }
    hl_plan_free(run->found);
    free(run->plans);
    free(run->base);
    free(run->kept);
    free(run->reserved);
}

/* ---- what is known of the cluster ------------------------------------------------------------ */

static uint64_t mark_mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

uint64_t queue_cluster_mark(const struct hl_cluster *cluster, int *free_slots)
{
    uint64_t mark = UINT64_C(0xcbf29ce484222325);
    int n = 0;
    for (size_t i = 0; i < cluster->count; i++) {
        const struct hl_cluster_node *node = &cluster->nodes[i];
        mark = mark_mix(mark, (uint64_t)node->ready << 32 | (uint64_t)node->slot_count);
        for (int k = 0; k < node->slot_count; k++) {
            const struct hl_cluster_slot *s = &node->slots[k];
            mark = mark_mix(mark, (uint64_t)s->gpu_count << 32 | (uint64_t)s->cpu_count);
            mark = mark_mix(mark, s->memory_bytes);
            n += node->ready && !s->busy;
        }
    }
    *free_slots = n;
    return mark;
}

hl_status queue_shape_measure(struct job *j, uint64_t mark)
{
    struct queue_shape *shape = j->shape;
    struct hl_plan *plan = NULL;
    if (shape->cluster == mark)
        return HL_OK;
    HL_TRY(j->executor->plan(j->controller, &j->spec, j->id, j->run.attempt, &plan));
    shape->slots = plan->container_count;
    shape->never = plan->never;
    shape->cluster = mark;
    hl_plan_free(plan);
    return HL_OK;
}

const char *queue_shape_text(struct job *j)
{
    const struct job_queue *q = j->controller->jobs->queue;
    struct queue_shape *shape = j->shape;
    struct hl_plan *plan = NULL;
    if (shape->pass == q->passes)
        return shape->text;
    shape->pass = q->passes;
    bool made = j->executor->plan(j->controller, &j->spec, j->id, j->run.attempt, &plan) == HL_OK;
    const char *why = !made ? hl_error_text() : !plan->feasible ? plan->reason : "";
    snprintf(shape->text, sizeof(shape->text), "%s", why);
    shape->why = made ? plan->why.reason : HL_PLAN_FITS;
    shape->never = made && plan->never;
    hl_plan_free(plan);
    return shape->text;
}

struct hl_api_slot_count_list queue_count_slots(const struct hl_controller *c,
                                                struct hl_arena *arena)
{
    const struct hl_cluster *cluster = nodes_cluster(c);
    struct hl_api_slot_count_list list = {
        .items = hl_arena_array(arena, HL_API_SLOT_USE_COUNT, sizeof(*list.items))};
    for (int use = 0; use < HL_API_SLOT_USE_COUNT && list.items != NULL; use++) {
        struct hl_api_slot_count count = {.use = (enum hl_api_slot_use)use};
        for (size_t i = 0; i < cluster->count; i++) {
            const struct hl_cluster_node *n = &cluster->nodes[i];
            int before = count.slots;
            for (int k = 0; k < n->slot_count; k++) {
                enum hl_api_slot_use is = n->slots[k].busy           ? HL_API_SLOT_USE_BUSY
                                          : !n->ready || n->draining ? HL_API_SLOT_USE_NOT_READY
                                                                     : HL_API_SLOT_USE_FREE;
                count.slots += is == count.use;
            }
            count.servers += count.slots > before;
        }
        if (count.slots > 0)
            list.items[list.count++] = count;
    }
    return list;
}
