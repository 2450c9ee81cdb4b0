/* User queries about the queue of waiting jobs, and the checks that a new job has to pass to enter
 * it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/plane.h"
#include "controller/jobs/queue.h"

/* ---- entering the queue ---------------------------------------------------------------------- */

static hl_status queue_unknown(const struct hl_queues *queues, const struct hl_job *spec)
{
    char names[256] = "";
    size_t at = 0;
    for (int i = 0; i < queues->count && at + HL_QUEUE_NAME_MAX + 3 < sizeof(names); i++)
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i > 0 ? ", " : "",
                               queues->list[i].name);
    return hl_fail(HL_EINVAL, "job '%s': there is no queue '%s'; this cluster has %s", spec->name,
                   spec->queue, names);
}

hl_status queue_check(const struct hl_controller *c, const struct hl_job *spec,
                      const struct hl_plan *plan)
{
    const struct job_queue *q = c->jobs->queue;
    if (q == NULL || c->jobs->executor->has_deadlines)
        return HL_OK;
    int index = hl_queues_find(&q->queues, spec->queue);
    if (index < 0)
        return queue_unknown(&q->queues, spec);
    const struct hl_queue *queue = &q->queues.list[index];
    int slots = queue_needed_slots(plan);
    if (queue->quota > 0 && slots > queue->quota)
        return hl_fail(HL_EINVAL,
                       "job '%s' can never run in queue %s: it needs %d slots and the quota is %d "
                       "(%s)",
                       spec->name, queue->name, slots, queue->quota,
                       plan->arithmetic != NULL ? plan->arithmetic[0] : "");
    return HL_OK;
}

hl_status queue_admit(const struct hl_controller *c, const struct hl_job *spec)
{
    const struct job_queue *q = c->jobs->queue;
    if (q == NULL || c->jobs->executor->has_deadlines)
        return HL_OK;
    int waiting = q->pending + q->fresh;
    if (c->opts.queue_pending > 0 && waiting >= c->opts.queue_pending)
        return hl_fail(
            HL_EBUSY,
            "job '%s' was not accepted: %d jobs wait for slots, and option queue.pending "
            "allows no more; submit it again when some have started",
            spec->name, waiting);
    return HL_OK;
}

/* ---- queries --------------------------------------------------------------------------------- */

static bool job_waits(const struct job *j)
{
    return job_is_queued(j) && j->saved.run != NULL && j->run.state == HL_API_JOB_STATE_PENDING;
}

static int count_waiting(const struct hl_controller *c)
{
    int n = 0;
    for (const struct job *j = jobs_first(c); j != NULL; j = j->hh.next)
        n += job_waits(j);
    return n;
}

static int slots_of(const struct job *j)
{
    if (j->run.state != HL_API_JOB_STATE_PENDING)
        return j->run.container_count;
    return j->shape != NULL ? j->shape->slots : 0;
}

/* For a job that has no queue here: what Kubernetes reports. Writes at most cap bytes. */
static void placed_text(const struct job *j, char *out, size_t cap)
{
    job_waits_for(j, &j->run, out, cap);
    if (out[0] != '\0')
        return;
    snprintf(out, cap, "%s",
             hl_job_state_ended(j->run.state)           ? "it is over"
             : j->run.state == HL_API_JOB_STATE_RUNNING ? "its pods run"
             : j->run.state == HL_API_JOB_STATE_STARTING
                 ? "Kubernetes places its pods, and has not reported yet what they wait for"
                 : "its pods have not been made yet");
}

/* Why a job is not waiting. Writes at most cap bytes. */
static void other_text(const struct job *j, char *out, size_t cap)
{
    if (!job_is_queued(j)) {
        placed_text(j, out, cap);
        return;
    }
    char waits[HL_JOB_TEXT_MAX];
    job_waits_for(j, &j->run, waits, sizeof(waits));
    snprintf(out, cap, "%s%s%.220s",
             hl_job_state_ended(j->run.state)           ? "it is over"
             : j->run.state == HL_API_JOB_STATE_PENDING ? "the next pass will look at it"
                                                        : "it has its slots",
             waits[0] != '\0' ? "; " : "", waits);
    elastic_tell(j, out, cap);
}

static struct hl_api_job_explanation job_explain(const struct job *j, struct hl_arena *arena)
{
    char text[HL_JOB_TEXT_MAX], remedy[HL_JOB_TEXT_MAX];
    bool waits = job_waits(j) && j->wait.reason != HL_API_WAIT_REASON_NONE;
    struct hl_api_job_explanation e = {.id = j->id,
                                       .state = j->run.state,
                                       .queue = job_queue_name(j),
                                       .priority = j->spec.priority,
                                       .slots = slots_of(j),
                                       .other = "",
                                       .remedy = ""};
    other_text(j, text, sizeof(text));
    e.text = hl_arena_strdup(arena, text);
    if (job_is_queued(j)) {
        e.pending = count_waiting(j->controller);
        e.counts = queue_count_slots(j->controller, arena);
    }
    if (!waits)
        return e;
    queue_reason(j, text, sizeof(text));
    images_tell_ahead(j, text, sizeof(text));
    queue_remedy(j, remedy, sizeof(remedy));
    e.reason = j->wait.reason;
    e.text = hl_arena_strdup(arena, text);
    e.remedy = hl_arena_strdup(arena, remedy);
    e.other = j->wait.other;
    e.start_ms = j->wait.start_ms;
    e.place = j->wait.place;
    return e;
}

void method_explain_job(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_explain_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    hl_status st = job_find(c, p->id, &j);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    hl_reply_controller_explain_job(call,
                                    &(struct hl_api_controller_explain_job_results){
                                        .explanation = job_explain(j, hl_rpc_call_arena(call))});
}

static struct hl_api_queue_info_list list_queues(const struct hl_controller *c,
                                                 struct hl_arena *arena)
{
    const struct hl_queues *queues = &c->jobs->queue->queues;
    double used[HL_QUEUES_MAX];
    struct hl_api_queue_info_list list = {
        .items = hl_arena_array(arena, (size_t)queues->count, sizeof(*list.items))};
    if (list.items == NULL)
        return list;
    for (int i = 0; i < queues->count; i++)
        list.items[list.count++] = (struct hl_api_queue_info){.name = queues->list[i].name,
                                                              .weight = queues->list[i].weight,
                                                              .quota = queues->list[i].quota,
                                                              .preempt = queues->list[i].preempts};
    queue_find_used(c, hl_wall_ms(), used);
    for (size_t i = 0; i < list.count; i++)
        list.items[i].used = used[i];
    for (const struct job *j = jobs_first(c); j != NULL; j = j->hh.next) {
        if (!job_is_queued(j) || j->saved.run == NULL)
            continue;
        struct hl_api_queue_info *q = &list.items[queue_index(j)];
        q->pending += job_waits(j);
        q->running += j->run.slots_held;
        q->slots += j->run.slots_held ? j->run.container_count : 0;
    }
    return list;
}

void queue_gauges(const struct hl_controller *c, struct hl_buf *out)
{
    const struct job_queue *q = c->jobs->queue;
    if (q == NULL || c->jobs->executor->has_deadlines)
        return;
    hl_metric_family(out, "helios_queue_waiting", "gauge",
                     "Jobs that wait for slots, by the last pass over the line.");
    (void)hl_buf_printf(out, "helios_queue_waiting %d\n", q->pending + q->fresh);
    hl_metric_family(out, "helios_queue_passes_total", "counter", "Passes over the line.");
    (void)hl_buf_printf(out, "helios_queue_passes_total %" PRIu64 "\n", q->passes);
    hl_metric_family(out, "helios_queue_pass_processor_seconds", "gauge",
                     "Processor time of the last pass.");
    (void)hl_buf_printf(out, "helios_queue_pass_processor_seconds %.6f\n",
                        (double)q->processor_ns / HL_NS_PER_S);
    hl_metric_family(out, "helios_queue_pass_seconds", "gauge", "Time of the last pass.");
    (void)hl_buf_printf(out, "helios_queue_pass_seconds %.6f\n", (double)q->cost_ns / HL_NS_PER_S);
}

/* Jobs that no pass has seen yet come last. */
static int by_place(const void *x, const void *y)
{
    const struct hl_api_queued_job *a = x, *b = y;
    if ((a->place == 0) != (b->place == 0))
        return a->place == 0 ? 1 : -1;
    return a->place - b->place;
}

void method_list_queue(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_queue_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_list_queue_results r = {0};
    (void)p;
    if (c->jobs->queue == NULL || c->jobs->executor->has_deadlines) {
        call_reject(
            call,
            hl_fail(HL_EUNSUPPORTED,
                    "on Kubernetes, Volcano keeps the queue: `kubectl get podgroups` shows it"));
        return;
    }
    r.queues = list_queues(c, arena);
    r.jobs.items = hl_arena_array(arena, (size_t)count_waiting(c), sizeof(*r.jobs.items));
    for (const struct job *j = jobs_first(c); j != NULL && r.jobs.items != NULL; j = j->hh.next)
        if (job_waits(j))
            r.jobs.items[r.jobs.count++] =
                (struct hl_api_queued_job){.id = j->id,
                                           .place = j->wait.place,
                                           .queue = job_queue_name(j),
                                           .priority = j->spec.priority,
                                           .slots = slots_of(j),
                                           .reason = j->wait.reason,
                                           .other = j->wait.other,
                                           .start_ms = j->wait.start_ms,
                                           .submitted_ms = j->run.submitted_ms};
    if (r.jobs.count > 0)
        qsort(r.jobs.items, r.jobs.count, sizeof(*r.jobs.items), by_place);
    hl_reply_controller_list_queue(call, &r);
}
