/* A run as the Controller's record of it, so that the run can continue after a restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/jobstate.h"

struct hl_api_container_status_list hl_jobrun_containers(const struct hl_jobrun *run,
                                                         struct hl_arena *arena)
{
    size_t n = (size_t)run->container_count;
    struct hl_api_container_status_list list = {.items =
                                                    hl_arena_array(arena, n, sizeof(*list.items))};
    for (size_t i = 0; i < n && list.items != NULL; i++) {
        const struct hl_jobrun_container *c = &run->containers[i];
        bool lost =
            c->state == HL_API_CONTAINER_STATE_FAILED && c->failure == HL_API_FAILURE_KIND_LOST;
        char id[HL_JOB_ID_MAX + 32];
        hl_container_id(run->id, run->containers_attempt, hl_jobrun_index(run, (int)i), id,
                        sizeof(id));
        list.items[list.count++] =
            (struct hl_api_container_status){.id = hl_arena_strdup(arena, id),
                                             .state = c->state,
                                             .exit_code = c->exit_code,
                                             .signal = c->signal,
                                             .message = c->message,
                                             .started_ms = c->started_ms,
                                             .finished_ms = c->finished_ms,
                                             .lost = lost};
    }
    return list;
}

static struct hl_api_job_run run_record(const struct hl_jobrun *run, struct hl_arena *arena)
{
    struct hl_api_job_run r = {
        .id = run->id,
        .state = run->state,
        .goal = run->goal,
        .reason = run->reason,
        .attempt = run->attempt,
        .max_restarts = run->max_restarts,
        .restarts = run->failed.used,
        .losses = run->failed.losses,
        .fruitless = run->failed.fruitless,
        .steady_ms = run->failed.last_ms,
        .reached = run->reached,
        .last_failure = run->last_failure,
        .retry_ms = run->retry_ms,
        .node_losses = run->node_losses,
        .start_timeout_ms = run->start_timeout_ms,
        .run_timeout_ms = run->run_timeout_ms,
        .stop_resend_ms = run->stop_resend_ms,
        .submitted_ms = run->submitted_ms,
        .started_ms = run->started_ms,
        .finished_ms = run->finished_ms,
        .deadline_ms = run->deadline_ms,
        .containers_attempt = run->containers_attempt,
        .slots_held = run->slots_held,
        .restart_lost = run->restart_lost,
        .cause = run->cause,
        .preemptor = run->preemptor,
        .preemptor_attempt = run->preemptor_attempt,
        .placed_ms = run->placed_ms,
        .released_ms = run->released_ms,
        .used_slot_ms = run->used_slot_ms,
        .counted_ms = run->counted_ms,
        .resizes = run->resizes,
        .resized_ms = run->resized_ms,
    };
    size_t n = (size_t)run->container_count;
    r.containers.items = hl_arena_array(arena, n, sizeof(*r.containers.items));
    for (size_t i = 0; i < n && r.containers.items != NULL; i++) {
        const struct hl_jobrun_container *c = &run->containers[i];
        r.containers.items[r.containers.count++] =
            (struct hl_api_job_run_container){.state = c->state,
                                              .exit_code = c->exit_code,
                                              .signal = c->signal,
                                              .failure = c->failure,
                                              .message = c->message,
                                              .started_ms = c->started_ms,
                                              .finished_ms = c->finished_ms,
                                              .node = c->node,
                                              .numa_id = c->numa_id,
                                              .lost = c->lost};
    }
    return r;
}

json_t *hl_jobrun_to_json(const struct hl_jobrun *run)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_run record = run_record(run, &arena);
    json_t *doc = !hl_arena_failed(&arena) ? hl_api_to_json(&hl_api_job_run_type, &record) : NULL;
    if (doc != NULL && run->plan != NULL &&
        json_object_set_new(doc, "plan", hl_plan_to_json(run->plan)) != 0) {
        json_decref(doc);
        return NULL;
    }
    return doc;
}

HL_CHECK static hl_status read_containers(const struct hl_api_job_run_container_list *list,
                                          struct hl_jobrun *run)
{
    run->containers = calloc(list->count + 1, sizeof(*run->containers));
    if (run->containers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the record of a job");
    for (size_t i = 0; i < list->count; i++) {
        const struct hl_api_job_run_container *r = &list->items[i];
        struct hl_jobrun_container *c = &run->containers[run->container_count++];
        *c = (struct hl_jobrun_container){.numa_id = r->numa_id,
                                          .state = r->state,
                                          .exit_code = r->exit_code,
                                          .signal = r->signal,
                                          .failure = r->failure,
                                          .started_ms = r->started_ms,
                                          .finished_ms = r->finished_ms,
                                          .confirmed_ms = r->started_ms,
                                          .lost = r->lost};
        snprintf(c->node, sizeof(c->node), "%s", r->node);
        snprintf(c->message, sizeof(c->message), "%s", r->message);
    }
    return HL_OK;
}

static struct hl_jobrun run_of_record(const struct hl_api_job_run *r)
{
    struct hl_jobrun run = {
        .state = r->state,
        .goal = r->goal,
        .attempt = r->attempt,
        .max_restarts = r->max_restarts,
        .restart_lost = r->restart_lost,
        .failed = {.losses = r->losses,
                   .used = r->restarts,
                   .fruitless = r->fruitless,
                   .last_ms = r->steady_ms},
        .reached = r->reached,
        .last_failure = r->last_failure,
        .retry_ms = r->retry_ms,
        .node_losses = r->node_losses,
        .start_timeout_ms = r->start_timeout_ms,
        .run_timeout_ms = r->run_timeout_ms,
        .stop_resend_ms = r->stop_resend_ms,
        .submitted_ms = r->submitted_ms,
        .started_ms = r->started_ms,
        .finished_ms = r->finished_ms,
        .deadline_ms = r->deadline_ms,
        .containers_attempt = r->containers_attempt,
        .slots_held = r->slots_held,
        .preemptor_attempt = r->preemptor_attempt,
        .placed_ms = r->placed_ms,
        .released_ms = r->released_ms,
        .used_slot_ms = r->used_slot_ms,
        .counted_ms = r->counted_ms,
        .resizes = r->resizes,
        .resized_ms = r->resized_ms,
    };
    snprintf(run.preemptor, sizeof(run.preemptor), "%s", r->preemptor);
    snprintf(run.id, sizeof(run.id), "%s", r->id);
    snprintf(run.reason, sizeof(run.reason), "%s", r->reason);
    snprintf(run.cause, sizeof(run.cause), "%s", r->cause);
    return run;
}

HL_CHECK static hl_status read_lists(const struct hl_api_job_run *r, const json_t *plan,
                                     struct hl_jobrun *run)
{
    HL_TRY(read_containers(&r->containers, run));
    if (plan != NULL && hl_plan_from_json(plan, &run->plan) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of job %s: plan: ", run->id);
    bool held = run->state == HL_API_JOB_STATE_STARTING || run->state == HL_API_JOB_STATE_RUNNING ||
                run->state == HL_API_JOB_STATE_STOPPING;
    if (held && (run->plan == NULL || run->plan->container_count != run->container_count))
        return hl_fail(HL_ECORRUPT, "record of job %s: plan and containers differ", run->id);
    return HL_OK;
}

hl_status hl_jobrun_from_json(const json_t *doc, struct hl_jobrun *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_run record;
    hl_status st = hl_api_record_from_json(&hl_api_job_run_type, doc, &arena, &record);
    if (st != HL_OK)
        return hl_fail_prefix(st == HL_ENOMEM ? st : HL_ECORRUPT, "record of a job: ");
    if (record.id[0] == '\0' || strlen(record.id) > HL_JOB_ID_MAX)
        return hl_fail(HL_ECORRUPT, "record of a job: field id: '%.100s' must have 1 to %d bytes",
                       record.id, HL_JOB_ID_MAX);
    struct hl_jobrun run = run_of_record(&record);
    st = read_lists(&record, json_object_get(doc, "plan"), &run);
    if (st != HL_OK) {
        hl_jobrun_fini(&run);
        return st;
    }
    *out = run;
    return HL_OK;
}
