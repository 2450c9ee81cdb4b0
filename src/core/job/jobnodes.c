#include "core/job/jobnodes.h"

#include <stdio.h>
#include <string.h>

#include "core/planner/resize.h"

/* The node's Agent has reported that a rank of this attempt started there. */
static bool has_begun_on(const struct hl_jobrun *run, const char *node)
{
    for (int i = 0; i < run->container_count; i++) {
        const struct hl_jobrun_container *k = &run->containers[i];
        if (k->state != HL_API_CONTAINER_STATE_WANTED && strcmp(k->node, node) == 0)
            return true;
    }
    return false;
}

int64_t hl_jobrun_patience_ms(const struct hl_jobrun *run, const char *node,
                              const struct hl_patience *patience)
{
    int64_t ms = patience->job_ms >= 0 ? patience->job_ms : patience->default_ms;
    bool saves = run->state != HL_API_JOB_STATE_STOPPING && has_begun_on(run, node);
    return saves && ms > patience->lost_ms ? ms : patience->lost_ms;
}

bool hl_jobrun_may_run(const struct hl_jobrun *run, int index)
{
    return run->containers[index].state <= HL_API_CONTAINER_STATE_RUNNING;
}

bool hl_node_is_lost(int64_t silent_ms, int64_t lost_after_ms)
{
    return silent_ms > lost_after_ms;
}

bool hl_node_call_retryable(hl_status st)
{
    return hl_status_retryable(st) || st == HL_ECANCELED;
}

bool hl_jobrun_gives_up(const struct hl_jobrun *run, int index,
                        const struct hl_node_silence *silence, const struct hl_patience *patience)
{
    const char *node = run->containers[index].node;
    return hl_jobrun_may_run(run, index) && silence->lost &&
           silence->silent_ms >= hl_jobrun_patience_ms(run, node, patience);
}

bool hl_jobrun_wants(const struct hl_jobrun *run, int attempt, int index)
{
    if (run == NULL || hl_job_state_ended(run->state) || attempt != run->attempt)
        return false;
    int at = hl_plan_position(run->plan, index);
    return at >= 0 && hl_jobrun_may_run(run, at);
}

bool hl_jobrun_needs_node(const struct hl_jobrun *run, const char *node)
{
    for (int i = 0; i < run->container_count && !hl_job_state_ended(run->state); i++)
        if (hl_jobrun_may_run(run, i) && strcmp(run->containers[i].node, node) == 0)
            return true;
    return false;
}

bool hl_jobrun_attempt_is_over(const struct hl_jobrun *run, int attempt)
{
    return attempt < run->attempt || hl_job_state_ended(run->state);
}

bool hl_jobrun_is_absent(const struct hl_jobrun *run, int index, const char *node, bool starting)
{
    const struct hl_jobrun_container *k = &run->containers[index];
    bool confirmed =
        k->state == HL_API_CONTAINER_STATE_STARTING || k->state == HL_API_CONTAINER_STATE_RUNNING;
    /* While the job stops, a failed start is not repeated. */
    bool given_up = k->state == HL_API_CONTAINER_STATE_WANTED &&
                    (run->state == HL_API_JOB_STATE_STOPPING ||
                     (run->plan != NULL && run->plan->containers[index].leaves)) &&
                    !starting;
    return (confirmed || given_up || hl_jobrun_is_left_over(run, index)) &&
           strcmp(k->node, node) == 0;
}

bool hl_container_is_stray(const struct hl_jobrun *run, int attempt,
                           enum hl_api_container_state state)
{
    if (state != HL_API_CONTAINER_STATE_RUNNING && state != HL_API_CONTAINER_STATE_STARTING)
        return false;
    return run == NULL || attempt != run->attempt || hl_job_state_ended(run->state);
}

bool hl_container_is_stale(int64_t finished_ms, int64_t now_ms, int64_t keep_ms)
{
    return keep_ms > 0 && finished_ms != 0 && now_ms - finished_ms > keep_ms;
}

int hl_plan_container_of(const struct hl_plan *plan, int rank)
{
    for (int i = 0; plan != NULL && i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++)
            if (plan->containers[i].ranks[k].rank == rank)
                return i;
    return -1;
}

void hl_rank_fails_first(const struct hl_api_container_status *status,
                         struct hl_rank_failure *first)
{
    for (size_t i = 0; i < status->ranks.count; i++) {
        const struct hl_api_rank_status *r = &status->ranks.items[i];
        if (r->state == HL_API_CONTAINER_STATE_FAILED && r->finished_ms < first->at_ms)
            *first = (struct hl_rank_failure){r->rank, r->finished_ms};
    }
}

struct hl_rank_failure hl_jobrun_failed_rank(const struct hl_jobrun *run)
{
    struct hl_rank_failure first = HL_RANK_FAILURE_NONE;
    int said;
    for (int i = 0; i < run->container_count; i++) {
        const struct hl_jobrun_container *k = &run->containers[i];
        if (k->state == HL_API_CONTAINER_STATE_FAILED && k->finished_ms < first.at_ms &&
            sscanf(k->message, "rank %d", &said) == 1 && hl_plan_container_of(run->plan, said) == i)
            first = (struct hl_rank_failure){said, k->finished_ms};
    }
    return first;
}
