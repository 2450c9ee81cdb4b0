/* A run as the record that the Controller keeps, so that it can go on after a restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/jobstate.h"
#include "core/json.h"

static const char *const goal_names[] = {"none", "restart", "fail", "cancel"};

static json_t *container_to_json(const struct hl_jobrun_container *c)
{
    return json_pack("{s:s, s:i, s:i, s:s, s:I, s:I}", "state",
                     hl_api_container_state_name(c->state), "exitCode", c->exit_code, "signal",
                     c->signal, "message", c->message, "startedMs", (json_int_t)c->started_ms,
                     "finishedMs", (json_int_t)c->finished_ms);
}

struct hl_api_container_status_list hl_jobrun_containers(const struct hl_jobrun *run,
                                                         struct hl_arena *arena)
{
    size_t n = (size_t)run->container_count;
    struct hl_api_container_status_list list = {.items =
                                                    hl_arena_array(arena, n, sizeof(*list.items))};
    for (size_t i = 0; i < n && list.items != NULL; i++) {
        const struct hl_jobrun_container *c = &run->containers[i];
        char id[HL_JOB_ID_MAX + 32];
        hl_container_id(run->id, run->containers_attempt, (int)i, id, sizeof(id));
        list.items[list.count++] =
            (struct hl_api_container_status){.id = hl_arena_strdup(arena, id),
                                             .state = c->state,
                                             .exit_code = c->exit_code,
                                             .signal = c->signal,
                                             .message = c->message,
                                             .started_ms = c->started_ms,
                                             .finished_ms = c->finished_ms};
    }
    return list;
}

static json_t *plan_record(const struct hl_plan *plan)
{
    json_t *doc = hl_plan_to_json(plan);
    json_object_set_new(doc, "masterAddress", json_string(plan->master_address));
    return doc;
}

json_t *hl_jobrun_to_json(const struct hl_jobrun *run)
{
    json_t *containers = json_array();
    for (int i = 0; i < run->container_count; i++) {
        json_t *c = container_to_json(&run->containers[i]);
        json_object_set_new(c, "node", json_string(run->containers[i].node));
        json_object_set_new(c, "numaId", json_integer(run->containers[i].numa_id));
        json_array_append_new(containers, c);
    }
    json_t *doc = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, "
        "s:o}",
        "id", run->id, "state", hl_api_job_state_name(run->state), "goal", goal_names[run->goal],
        "reason", run->reason, "attempt", run->attempt, "maxRestarts", run->max_restarts,
        "restarts", run->restarts, "nodeLosses", run->node_losses, "startTimeoutMs",
        (json_int_t)run->start_timeout_ms, "runTimeoutMs", (json_int_t)run->run_timeout_ms,
        "stopResendMs", (json_int_t)run->stop_resend_ms, "submittedMs",
        (json_int_t)run->submitted_ms, "startedMs", (json_int_t)run->started_ms, "finishedMs",
        (json_int_t)run->finished_ms, "deadlineMs", (json_int_t)run->deadline_ms,
        "containersAttempt", run->containers_attempt, "slotsHeld", run->slots_held, "containers",
        containers);
    if (doc != NULL && run->plan != NULL)
        json_object_set_new(doc, "plan", plan_record(run->plan));
    if (doc != NULL) {
        json_object_set_new(doc, "restartLost", json_boolean(run->restart_lost));
        json_object_set_new(doc, "cause", json_string(run->cause));
    }
    return doc;
}

static hl_status read_names(const json_t *doc, struct hl_jobrun *run)
{
    const char *state = hl_json_str(doc, "state", ""), *goal = hl_json_str(doc, "goal", "");
    int g = 0;
    while (g < (int)HL_ARRAY_LEN(goal_names) && strcmp(goal, goal_names[g]) != 0)
        g++;
    if (g == (int)HL_ARRAY_LEN(goal_names))
        return hl_fail(HL_ECORRUPT, "record of a job: unknown goal '%.32s'", goal);
    if (hl_api_job_state_parse(state, &run->state) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of a job: ");
    run->goal = (enum hl_job_goal)g;
    return HL_OK;
}

static hl_status read_container(const json_t *v, struct hl_jobrun_container *c)
{
    if (hl_api_container_state_parse(hl_json_str(v, "state", ""), &c->state) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of a job: ");
    snprintf(c->node, sizeof(c->node), "%s", hl_json_str(v, "node", ""));
    snprintf(c->message, sizeof(c->message), "%s", hl_json_str(v, "message", ""));
    c->numa_id = (int)hl_json_int(v, "numaId", 0);
    c->exit_code = (int)hl_json_int(v, "exitCode", 0);
    c->signal = (int)hl_json_int(v, "signal", 0);
    c->started_ms = c->confirmed_ms = hl_json_int(v, "startedMs", 0);
    c->finished_ms = hl_json_int(v, "finishedMs", 0);
    return HL_OK;
}

static hl_status read_lists(const json_t *doc, struct hl_jobrun *run)
{
    const json_t *list = hl_json_list(doc, "containers"), *plan = json_object_get(doc, "plan"), *v;
    size_t i;
    run->containers = calloc(json_array_size(list) + 1, sizeof(*run->containers));
    if (run->containers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the record of a job");
    run->container_count = (int)json_array_size(list);
    json_array_foreach (list, i, v)
        HL_TRY(read_container(v, &run->containers[i]));
    if (plan != NULL)
        HL_TRY(hl_plan_from_json(plan, &run->plan));
    int held = run->state == HL_API_JOB_STATE_STARTING || run->state == HL_API_JOB_STATE_RUNNING ||
               run->state == HL_API_JOB_STATE_STOPPING;
    if (held && (run->plan == NULL || run->plan->container_count != run->container_count))
        return hl_fail(HL_ECORRUPT, "record of job %s: plan and containers differ", run->id);
    return HL_OK;
}

hl_status hl_jobrun_from_json(const json_t *doc, struct hl_jobrun *out)
{
    struct hl_jobrun run = {.attempt = (int)hl_json_int(doc, "attempt", 1),
                            .max_restarts = (int)hl_json_int(doc, "maxRestarts", 0),
                            .restart_lost = hl_json_bool(doc, "restartLost", 1),
                            .restarts = (int)hl_json_int(doc, "restarts", 0),
                            .node_losses = (int)hl_json_int(doc, "nodeLosses", 0),
                            .start_timeout_ms = hl_json_int(doc, "startTimeoutMs", 0),
                            .run_timeout_ms = hl_json_int(doc, "runTimeoutMs", 0),
                            .stop_resend_ms = hl_json_int(doc, "stopResendMs", 0),
                            .submitted_ms = hl_json_int(doc, "submittedMs", 0),
                            .started_ms = hl_json_int(doc, "startedMs", 0),
                            .finished_ms = hl_json_int(doc, "finishedMs", 0),
                            .deadline_ms = hl_json_int(doc, "deadlineMs", 0),
                            .containers_attempt = (int)hl_json_int(doc, "containersAttempt", 0),
                            .slots_held = hl_json_bool(doc, "slotsHeld", 0)};
    const char *id = hl_json_str(doc, "id", "");
    if (*id == '\0' || strlen(id) > HL_JOB_ID_MAX)
        return hl_fail(HL_ECORRUPT, "record of a job without id");
    snprintf(run.id, sizeof(run.id), "%s", id);
    snprintf(run.reason, sizeof(run.reason), "%s", hl_json_str(doc, "reason", ""));
    snprintf(run.cause, sizeof(run.cause), "%s", hl_json_str(doc, "cause", ""));
    hl_status st = read_names(doc, &run);
    if (st == HL_OK)
        st = read_lists(doc, &run);
    if (st != HL_OK) {
        hl_jobrun_fini(&run);
        return st;
    }
    *out = run;
    return HL_OK;
}
