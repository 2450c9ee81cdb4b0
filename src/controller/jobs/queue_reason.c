/* Explains in words why a job waits, and what would let it run. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "controller/jobs/queue.h"

static const struct hl_queue *job_queue_of(const struct job *j)
{
    return &j->controller->jobs->queue->queues.list[queue_index(j)];
}

const char *job_queue_name(const struct job *j)
{
    return job_is_queued(j) && j->controller->jobs->queue != NULL ? job_queue_of(j)->name : "";
}

static int needed_slots(const struct job *j)
{
    return j->shape != NULL ? j->shape->slots : 0;
}

static void reason_quota(const struct job *j, char *out, size_t cap)
{
    const struct hl_queue *q = job_queue_of(j);
    snprintf(out, cap, "queue %s holds %d of its quota of %d slots, and this job needs %d", q->name,
             j->controller->jobs->queue->held[queue_index(j)], q->quota, needed_slots(j));
}

static void reason_free(const struct job *j, char *out, size_t cap)
{
    if (j->wait.stops > 0)
        snprintf(out, cap, "%d job%s of lower priority stop%s for it: %s", j->wait.stops,
                 j->wait.stops == 1 ? "" : "s", j->wait.stops == 1 ? "s" : "", j->wait.text);
    else
        snprintf(out, cap, "%s", j->wait.text);
}

void queue_reason(const struct job *j, char *out, size_t cap)
{
    const struct job_wait *w = &j->wait;
    out[0] = '\0';
    switch (w->reason) {
    case HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS:
        reason_free(j, out, cap);
        break;
    case HL_API_WAIT_REASON_QUOTA_EXCEEDED:
        reason_quota(j, out, cap);
        break;
    case HL_API_WAIT_REASON_PRIORITY_BEHIND:
        snprintf(out, cap, "%d job%s before it in the line, and %s waits for slots", w->place - 1,
                 w->place == 2 ? " is" : "s are", w->other);
        break;
    case HL_API_WAIT_REASON_RESERVED_FOR:
        snprintf(out, cap, "the free slots are kept for job %s", w->other);
        break;
    case HL_API_WAIT_REASON_WAITING_FOR_RECOVERY:
        snprintf(out, cap, "it is to run again, and its healthy slots are kept for it: %s",
                 w->text);
        break;
    case HL_API_WAIT_REASON_BACK_OFF:
        snprintf(out, cap,
                 "its last attempts made no new step, so attempt %d waits; the last failure (%s): "
                 "%.150s",
                 j->run.attempt, hl_api_failure_kind_name(j->run.last_failure), j->run.cause);
        break;
    case HL_API_WAIT_REASON_NOT_ENOUGH_SLOTS_EVER:
    case HL_API_WAIT_REASON_GPU_MEMORY_TOO_SMALL:
    case HL_API_WAIT_REASON_NIC_CLASS_MISSING:
    case HL_API_WAIT_REASON_SERVER_RESERVED:
    case HL_API_WAIT_REASON_SERVER_DRAINING:
    case HL_API_WAIT_REASON_TOPOLOGY_UNSATISFIABLE:
    case HL_API_WAIT_REASON_VERSION_UNAVAILABLE:
        snprintf(out, cap, "%s", w->text);
        break;
    case HL_API_WAIT_REASON_NONE:
        break;
    }
    if (out[0] == '\0' && w->reason != HL_API_WAIT_REASON_NONE) /* the planner had no words */
        snprintf(out, cap, "%s", hl_api_wait_reason_name(w->reason));
}

/* Jobs that end don't free slots on a drained server; undraining it would. */
static bool undrain_helps(const struct job *j)
{
    enum hl_api_wait_reason reason = j->wait.reason;
    return j->shape != NULL && j->shape->draining > 0 &&
           (reason == HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS ||
            reason == HL_API_WAIT_REASON_TOPOLOGY_UNSATISFIABLE ||
            reason == HL_API_WAIT_REASON_WAITING_FOR_RECOVERY);
}

void queue_remedy(const struct job *j, char *out, size_t cap)
{
    const struct job_wait *w = &j->wait;
    static const char *const remedies[HL_API_WAIT_REASON_COUNT] = {
        [HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS] =
            "running jobs that end, or more servers; a job of higher priority has lower ones "
            "stopped",
        [HL_API_WAIT_REASON_NOT_ENOUGH_SLOTS_EVER] = "more servers, or a smaller job",
        [HL_API_WAIT_REASON_QUOTA_EXCEEDED] =
            "jobs of its queue that end, a larger quota (option queue.list), or another queue",
        [HL_API_WAIT_REASON_GPU_MEMORY_TOO_SMALL] =
            "servers with larger GPUs, or a smaller resources.gpu_memory",
        [HL_API_WAIT_REASON_NIC_CLASS_MISSING] =
            "servers with such NICs, or another resources.nic_class",
        [HL_API_WAIT_REASON_SERVER_RESERVED] =
            "a time limit (timeouts.run) with which it ends before the reservation begins, its "
            "end, or `helios node unreserve`",
        [HL_API_WAIT_REASON_SERVER_DRAINING] =
            "`helios node undrain` of a drained server (`helios nodes`), or running jobs that end",
        [HL_API_WAIT_REASON_TOPOLOGY_UNSATISFIABLE] =
            "running jobs that end, or `preferred` instead of `required` in placement",
        [HL_API_WAIT_REASON_WAITING_FOR_RECOVERY] =
            "servers that come back, or running jobs that end",
        [HL_API_WAIT_REASON_BACK_OFF] =
            "time; shorter waits with recovery.backoff and backoffMax; or `helios logs "
            "--first-failure`, and a new submission",
        [HL_API_WAIT_REASON_VERSION_UNAVAILABLE] =
            "the version that it loads (`helios model show`)",
    };
    if (w->reason == HL_API_WAIT_REASON_PRIORITY_BEHIND)
        snprintf(out, cap, "the start of %s, or a higher priority", w->other);
    else if (w->reason == HL_API_WAIT_REASON_RESERVED_FOR && w->start_ms > 0)
        snprintf(out, cap,
                 "a time limit (timeouts.run) with which it ends before %s can start, or a higher "
                 "priority",
                 w->other);
    else if (w->reason == HL_API_WAIT_REASON_RESERVED_FOR)
        snprintf(out, cap,
                 "the start of %s, or a higher priority; with time limits (timeouts.run) of the "
                 "jobs that run a short one could pass it",
                 w->other);
    else
        snprintf(out, cap, "%s%s", remedies[w->reason] != NULL ? remedies[w->reason] : "",
                 undrain_helps(j) ? "; `helios node undrain` of a drained server (`helios nodes`)"
                                  : "");
}
