/* What the queue knows of the cluster: which slots exist, and which of them a gang of a given shape
 * needs. */
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/queue.h"
#include "core/planner/spares.h"

/* ---- the cluster ----------------------------------------------------------------------------- */

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
            n += node->ready && !node->draining && !s->busy;
        }
    }
    *free_slots = n;
    return mark;
}

static int by_time(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

hl_status queue_windows(const struct hl_cluster *cluster, int64_t now_ms, int64_t **out, int *count)
{
    int64_t *list = calloc(cluster->count + 1, sizeof(*list));
    int all = 0, n = 0;
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the reservations of %zu nodes",
                       cluster->count);
    for (size_t i = 0; i < cluster->count; i++)
        if (now_ms < cluster->nodes[i].reserved.until_ms)
            list[all++] = cluster->nodes[i].reserved.from_ms;
    qsort(list, (size_t)all, sizeof(*list), by_time);
    for (int i = 0; i < all; i++)
        if (n == 0 || list[n - 1] != list[i])
            list[n++] = list[i];
    *out = list;
    *count = n;
    return HL_OK;
}

int queue_needed_slots(const struct hl_plan *plan)
{
    return plan->feasible ? hl_plan_gang_count(plan) : plan->container_count;
}

hl_status queue_shape_measure(struct job *j, uint64_t mark)
{
    struct queue_shape *shape = j->shape;
    struct hl_plan *plan = NULL;
    if (shape->cluster == mark)
        return HL_OK;
    HL_TRY(j->executor->plan(j->controller, &j->spec, j->id, j->run.attempt, &plan));
    shape->slots = queue_needed_slots(plan);
    shape->never = plan->never;
    shape->cluster = mark;
    hl_plan_free(plan);
    return HL_OK;
}

const char *queue_shape_text(struct job *j, int met)
{
    const struct job_queue *q = j->controller->jobs->queue;
    struct queue_shape *shape = j->shape;
    struct hl_plan *plan = NULL;
    if (shape->pass == q->passes && shape->met == met)
        return shape->text;
    shape->pass = q->passes;
    shape->met = met;
    bool made = j->executor->plan(j->controller, &j->spec, j->id, j->run.attempt, &plan) == HL_OK;
    const char *why = !made ? hl_error_text() : !plan->feasible ? plan->reason : "";
    snprintf(shape->text, sizeof(shape->text), "%s", why);
    shape->why = made ? plan->why.reason : HL_PLAN_FITS;
    shape->never = made && plan->never;
    shape->draining = made ? plan->why.servers[HL_OFFER_DRAINING] : 0;
    shape->until_ms = made ? plan->reserved_until_ms : 0;
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
