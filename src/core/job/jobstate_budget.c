/* How failures use up the retry budget, and when the next attempt is due. */
#include "core/job/jobstate_private.h"

/* The job has run without a failure for so long that the count restarts. */
static bool ran_long(const struct hl_jobrun *run, int64_t now_ms)
{
    return run->state == HL_API_JOB_STATE_RUNNING && run->policy.stable_ms > 0 &&
           now_ms - run->failed.last_ms >= run->policy.stable_ms;
}

bool hl_jobrun_note_failure(struct hl_jobrun *run, const struct hl_job_event *ev,
                            enum hl_api_failure_kind kind)
{
    bool is_long = ran_long(run, ev->now_ms);
    bool progress = ev->reached > 0 ? ev->reached > run->reached : is_long;
    if (progress && is_long) {
        run->failed = (struct hl_replace_count){0};
        run->node_losses = 0;
    }
    run->last_failure = kind;
    if (ev->reached > run->reached)
        run->reached = ev->reached;
    return progress;
}

bool hl_jobrun_tries_again(struct hl_jobrun *run, const struct hl_job_event *ev,
                           enum hl_api_failure_kind kind, int code)
{
    const struct hl_jobrun_policy *policy = &run->policy;
    const struct hl_replace_rule rule = {.max = run->max_restarts,
                                         .backoff_ms = policy->backoff_ms,
                                         .backoff_max_ms = policy->backoff_max_ms};
    enum hl_failure_then then = hl_failure_rules_then(&policy->on_failure, kind, code);
    bool progress = hl_jobrun_note_failure(run, ev, kind);
    int64_t wait_ms = 0;
    if (!hl_replace_next(&run->failed, &rule, then, progress, ev->now_ms, &wait_ms))
        return false;
    run->retry_ms = wait_ms > 0 ? ev->now_ms + wait_ms : 0;
    return true;
}

bool hl_jobrun_backs_off(const struct hl_jobrun *run, int64_t now_ms)
{
    return run->state == HL_API_JOB_STATE_PENDING && run->deadline_ms > now_ms;
}

int64_t hl_jobrun_next_ms(const struct hl_jobrun *run)
{
    return run->deadline_ms > 0 ? run->deadline_ms : INT64_MAX;
}

void hl_jobrun_shift(struct hl_jobrun *run, int64_t paused_ms, int64_t stepped_ms)
{
    if (run->deadline_ms > 0)
        run->deadline_ms += stepped_ms + (run->state == HL_API_JOB_STATE_RUNNING ? 0 : paused_ms);
    if (run->slots_held)
        run->placed_ms += stepped_ms;
    if (run->counted_ms > 0)
        run->counted_ms += stepped_ms;
    if (run->resized_ms > 0)
        run->resized_ms += stepped_ms;
    if (run->retry_ms > 0)
        run->retry_ms += stepped_ms + paused_ms;
    run->failed.last_ms += stepped_ms + paused_ms;
    for (int i = 0; i < run->container_count; i++)
        if (run->containers[i].confirmed_ms > 0)
            run->containers[i].confirmed_ms += stepped_ms + paused_ms;
}
