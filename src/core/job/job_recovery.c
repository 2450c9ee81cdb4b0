/* A job's failure rules: whether they have an effect, and what the job's state machine does with
 * them. */
#include <stdio.h>
#include <string.h>

#include "core/job/elastic.h"
#include "core/job/job_private.h"
#include "core/job/jobstate.h"

static bool fault_set(struct hl_job_fault *fault, const char *field, const char *pointer,
                      const char *text)
{
    fault->field = field;
    fault->pointer = pointer;
    snprintf(fault->text, sizeof(fault->text), "%s", text);
    return false;
}

bool hl_job_failures_read(const json_t *v, struct hl_failure_rules *out, struct hl_job_fault *fault)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v) || json_object_size(v) == 0)
        return fault_set(fault, "onFailure", "/onFailure",
                         "must be lines of KIND or EXIT CODE: fail, count or ignore");
    json_object_foreach ((json_t *)v, key, value) {
        const char *then = json_is_string(value) ? json_string_value(value) : "";
        if (hl_failure_rules_set(out, key, then) != HL_OK)
            return fault_set(fault, "onFailure", "/onFailure", hl_error_text());
    }
    return true;
}

/* At least one kind of failure is retried. */
static bool tries_again(const struct hl_job *job)
{
    char key[HL_FAILURE_RULE_MAX];
    const char *then;
    size_t at = 0;
    while (hl_failure_rules_next(&job->on_failure, &at, key, &then))
        if (strcmp(then, "ignore") == 0)
            return true;
    return job->restarts > 0 || hl_job_replaces(job);
}

static bool check_rules(const struct hl_job *job, enum hl_job_executor executor,
                        struct hl_job_fault *fault)
{
    const uint8_t *kind = job->on_failure.kind;
    bool ends = (job->on_hang != NULL && strcmp(job->on_hang, "end") == 0) ||
                (job->on_slow != NULL && strcmp(job->on_slow, "end") == 0);
    if (kind[HL_API_FAILURE_KIND_STALL] != HL_FAILURE_UNSAID && hl_job_replaces(job))
        return fault_set(fault, "onFailure.stall", "/onFailure/stall",
                         "a rank that hangs is replaced with recovery: {mode: replace}; remove the "
                         "key");
    if (kind[HL_API_FAILURE_KIND_STALL] != HL_FAILURE_UNSAID && !ends)
        return fault_set(fault, "onFailure.stall", "/onFailure/stall",
                         "only has an effect with recovery: {onHang: end}");
    if (kind[HL_API_FAILURE_KIND_SAVE] != HL_FAILURE_UNSAID &&
        executor == HL_JOB_EXECUTOR_KUBERNETES)
        return fault_set(fault, "onFailure.save", "/onFailure/save",
                         "pods do not report what a rank was busy with; use exit");
    return true;
}

bool hl_job_recovery_check(const struct hl_job *job, enum hl_job_executor executor,
                           struct hl_job_fault *fault)
{
    static const struct hl_failure_rules none;
    if (!hl_job_replaces(job) && job->spares > 0)
        return fault_set(fault, "spares", "/spares",
                         "has an effect with recovery: {mode: replace} only");
    if (!hl_job_replaces(job) && job->spare_slots > 0)
        return fault_set(fault, "spareSlots", "/spareSlots",
                         "has an effect with recovery: {mode: replace} only");
    if (!hl_job_replaces(job) && job->replacements > 0)
        return fault_set(fault, "recovery.replacements", "/recovery/replacements",
                         "has an effect with recovery: {mode: replace} only");
    if (job->grow_after_ms > 0 && !hl_job_resizes(job))
        return fault_set(fault, "recovery.growAfter", "/recovery/growAfter",
                         "has an effect with recovery: {mode: replace} and data_parallel_size: "
                         "{min, max} only");
    bool waits = job->stable_ms > 0 || job->backoff_ms > 0 || job->backoff_max_ms > 0;
    if (waits && !tries_again(job))
        return fault_set(fault, "recovery", "/recovery",
                         "has an effect with restarts, or with recovery: {mode: replace}");
    if (job->backoff_ms > (job->backoff_max_ms > 0 ? job->backoff_max_ms : HL_REPLACE_WAIT_MAX_MS))
        return fault_set(fault, "recovery.backoff", "/recovery/backoff",
                         "is more than recovery.backoffMax, by default 60s");
    if (memcmp(&job->on_failure, &none, sizeof(none)) != 0 && !tries_again(job))
        return fault_set(fault, "onFailure", "/onFailure",
                         "has an effect where something is tried again: give restarts, or "
                         "recovery: {mode: replace}");
    return check_rules(job, executor, fault);
}

struct hl_jobrun_policy hl_job_policy(const struct hl_job *job)
{
    return (struct hl_jobrun_policy){.stable_ms = job->stable_ms,
                                     .backoff_ms = job->backoff_ms,
                                     .backoff_max_ms = job->backoff_max_ms,
                                     .on_failure = job->on_failure,
                                     .replaces = hl_job_replaces(job)};
}
