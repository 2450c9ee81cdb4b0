/* The output of ranks: which rank of which attempt is meant, and which one failed first. Only the
 * executor knows where the output is stored. */
#include <stdbool.h>
#include <stdio.h>

#include "base/clock.h"
#include "controller/jobs/jobs_private.h"
#include "core/job/jobnodes.h"

#define LOG_BYTES 65536 /* if the query does not say how much */

/* -1 when no rank is known to have failed. */
static int first_failed(const struct hl_controller *c, const struct job *j, int attempt)
{
    struct hl_rank_failure first = HL_RANK_FAILURE_NONE;
    const struct hl_api_job_failure *known = job_failure_of(j, attempt);
    if (known != NULL && known->rank >= 0)
        return known->rank;
    for (const struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        for (size_t i = 0; i < n->report.containers.count; i++) {
            const struct hl_api_container_status *status = &n->report.containers.items[i];
            if (job_owns_container(status, j, attempt))
                hl_rank_fails_first(status, &first);
        }
    }
    if (first.rank < 0 && attempt == j->run.containers_attempt)
        first = hl_jobrun_failed_rank(&j->run);
    return first.rank;
}

/* Copies the texts, so that they outlive the job. */
static struct hl_api_controller_read_log_results job_about(const struct hl_controller *c,
                                                           const struct job *j,
                                                           const struct log_query *query,
                                                           struct hl_arena *arena)
{
    return (struct hl_api_controller_read_log_results){
        .rank = query->rank,
        .attempt = query->attempt,
        .last_attempt = j->run.attempt,
        .failed_rank = hl_jobrun_attempt_is_over(&j->run, query->attempt)
                           ? first_failed(c, j, query->attempt)
                           : -1,
        .job = hl_arena_strdup(arena, j->id),
        .job_state = j->run.state,
        .job_reason = hl_arena_strdup(arena, j->run.reason)};
}

/* Fills in the attempt and rank that the query leaves open; HL_ENOENT: the job has no such attempt
 * or rank. */
static hl_status ask_complete(const struct hl_controller *c, const struct job *j,
                              struct log_query *query)
{
    int world = j->run.plan != NULL ? j->run.plan->world_size : hl_rank_world(&j->spec.grid);
    int last = j->run.plan != NULL ? j->run.containers_attempt : 0;
    if (query->attempt == 0)
        query->attempt = last > 0 ? last : 1;
    if (query->attempt < 1 || query->attempt > j->run.attempt)
        return hl_fail(HL_ENOENT, "job '%s' has no attempt %d, it is in attempt %d", j->id,
                       query->attempt, j->run.attempt);
    if (query->rank == -1 && hl_jobrun_attempt_is_over(&j->run, query->attempt))
        query->rank = first_failed(c, j, query->attempt);
    if (query->rank == -1)
        query->rank = 0;
    if (query->rank < 0 || query->rank >= world)
        return hl_fail(HL_ENOENT, "job '%s' has no rank %d, its ranks are 0 to %d", j->id,
                       query->rank, world - 1);
    query->index = hl_plan_container_of(j->run.plan, query->rank);
    return HL_OK;
}

void log_reply_empty(struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_results *about, bool over)
{
    struct hl_api_controller_read_log_results r = *about;
    r.finished = over;
    hl_reply_controller_read_log(call, &r);
}

void method_read_log(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    struct log_query query = {.rank = p->rank,
                              .attempt = p->attempt,
                              .offset = p->offset,
                              .max_bytes = p->max_bytes > 0 ? p->max_bytes : LOG_BYTES};
    hl_status st = job_find(c, p->id, &j);
    if (st == HL_OK)
        st = ask_complete(c, j, &query);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    j->read_ns = hl_now_ns();
    query.about = job_about(c, j, &query, hl_rpc_call_arena(call));
    if (query.index < 0 || query.attempt > j->run.containers_attempt)
        log_reply_empty(call, &query.about,
                        hl_jobrun_attempt_is_over(&j->run, query.attempt)); /* not placed yet */
    else
        j->executor->read_log(j, call, &query);
}
