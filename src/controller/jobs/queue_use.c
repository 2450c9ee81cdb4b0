/* What queues have used. For existing jobs it follows from their records. For forgotten jobs one
 * decaying number per queue is kept. It is written in the same batch that deletes their records, so
 * that every use counts exactly once, whatever happens. */
#include <string.h>

#include "base/clock.h"
#include "controller/jobs/queue.h"
#include "controller/records.h"

#define KEY "queue/"

static double past_now(const struct hl_controller *c, const struct queue_past *p, int64_t now_ms)
{
    return hl_queue_faded(p->used, now_ms - p->at_ms, c->opts.queue_half_life_ms);
}

static double job_used(const struct job *j, int64_t now_ms)
{
    const struct hl_queue_use use = {.slots = j->run.container_count,
                                     .placed_ms = hl_jobrun_counted_ms(&j->run),
                                     .released_ms = j->run.released_ms,
                                     .before = j->run.used_slot_ms};
    return hl_queue_used(&use, now_ms, j->controller->opts.queue_half_life_ms);
}

void queue_find_used(const struct hl_controller *c, int64_t now_ms, double used[HL_QUEUES_MAX])
{
    for (int q = 0; q < HL_QUEUES_MAX; q++)
        used[q] = past_now(c, &c->jobs->queue->past[q], now_ms);
    for (const struct job *j = jobs_first(c); j != NULL; j = j->hh.next)
        if (job_is_queued(j) && j->run.placed_ms > 0)
            used[queue_index(j)] += job_used(j, now_ms);
}

void queue_past_add(const struct job *j, int64_t now_ms, struct queue_past past[HL_QUEUES_MAX])
{
    bool counts = j->controller->jobs->queue != NULL && job_is_queued(j);
    double used = counts ? job_used(j, now_ms) : 0;
    if (used <= 0)
        return;
    struct queue_past *p = &past[queue_index(j)];
    *p = (struct queue_past){past_now(j->controller, p, now_ms) + used, now_ms};
}

hl_status queue_past_records(const struct hl_controller *c,
                             const struct queue_past past[HL_QUEUES_MAX],
                             struct hl_records *records)
{
    const struct job_queue *q = c->jobs->queue;
    for (int i = 0; q != NULL && i < q->queues.count; i++) {
        if (past[i].at_ms == q->past[i].at_ms)
            continue;
        const struct hl_api_queue_use use = {past[i].used, past[i].at_ms};
        HL_TRY(hl_records_add(records, hl_api_to_json(&hl_api_queue_use_type, &use), KEY "%s",
                              q->queues.list[i].name));
    }
    return HL_OK;
}

/* The use of a queue that is not in the list now is not counted; it counts again when the queue is
 * back. */
hl_status queue_load_use(struct hl_controller *c, const char *key, const json_t *value)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_queue_use use;
    struct job_queue *q = c->jobs->queue;
    HL_TRY(hl_api_from_json(&hl_api_queue_use_type, value, &arena, &use));
    int index = hl_queues_find(&q->queues, key + strlen(KEY));
    if (index >= 0)
        q->past[index] = (struct queue_past){use.used, use.at_ms};
    return HL_OK;
}
