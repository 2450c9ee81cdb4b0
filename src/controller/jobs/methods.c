/* User queries about existing jobs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/queue.h"
#include "core/job/elastic.h"
#include "core/planner/resize.h"

/* A job as the store has it: what we tell others must not be undone by a crash. If the store
 * refuses its record, the job is shown as it is in memory, with a warning (job_warning). */
struct job_view {
    struct hl_jobrun copy;
    const struct hl_jobrun *run;
    const json_t *events;
};

static void job_view_init(struct job_view *view, const struct job *j)
{
    *view = (struct job_view){.run = &j->run, .events = j->events};
    if (job_is_saved(j) || j->unsaved)
        return;
    if (hl_jobrun_from_json(j->saved.run, &view->copy) != HL_OK)
        return; /* out of memory: the current state is better than nothing */
    view->run = &view->copy;
    view->events = j->saved.events;
}

static void job_view_fini(struct job_view *view)
{
    hl_jobrun_fini(&view->copy);
}

/* A problem of the job that does not stop it; "" = none. Borrowed. */
static const char *job_warning(const struct job *j)
{
    if (j->unsaved)
        return "the Controller cannot store the job's state and tries again: is the disk of its "
               "state directory full?";
    for (int i = 0; i < j->run.container_count; i++) {
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.containers_attempt, hl_jobrun_index(&j->run, i), id,
                        sizeof(id));
        const struct hl_api_container_status *status = n != NULL ? node_reported(n, id) : NULL;
        if (status != NULL && status->warning[0] != '\0')
            return status->warning;
    }
    return "";
}

static struct hl_api_job job_info(const struct job *j, const struct hl_jobrun *r,
                                  struct hl_arena *arena)
{
    char reason[HL_JOB_TEXT_MAX];
    bool elastic = hl_job_is_elastic(&j->spec);
    snprintf(reason, sizeof(reason), "%s", r->reason);
    if (reason[0] == '\0')
        job_waits_for(j, r, reason, sizeof(reason));
    if (r->state == HL_API_JOB_STATE_PENDING && j->wait.reason != HL_API_WAIT_REASON_NONE)
        queue_reason(j, reason, sizeof(reason));
    images_tell_ahead(j, reason, sizeof(reason));
    return (struct hl_api_job){.id = j->id,
                               .name = j->spec.name,
                               .state = r->state,
                               .reason = hl_arena_strdup(arena, reason),
                               .attempt = r->attempt,
                               .max_restarts = r->max_restarts,
                               .restarts = r->failed.used,
                               .last_failure = r->last_failure,
                               .next_attempt_ms =
                                   r->state == HL_API_JOB_STATE_PENDING ? r->deadline_ms : 0,
                               .node_losses = r->node_losses,
                               .cause = hl_arena_strdup(arena, r->cause),
                               .model = j->spec.model,
                               .submitted_ms = r->submitted_ms,
                               .started_ms = r->started_ms,
                               .finished_ms = r->finished_ms,
                               .ledger = ledger_show(j),
                               .world_size = (int32_t)hl_rank_world(&j->spec.grid),
                               .warning = job_warning(j),
                               .queue = job_queue_name(j),
                               .priority = j->spec.priority,
                               .replicas = elastic ? j->spec.grid.dp : 0,
                               .replicas_min = elastic ? j->spec.dp_min : 0,
                               .replicas_max = elastic ? j->spec.dp_max : 0,
                               .resizes = r->resizes,
                               .image = images_pinned(j)};
}

void method_list_jobs(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_list_jobs_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_list_jobs_results r = {
        .jobs.items = hl_arena_array(arena, jobs_count(c), sizeof(*r.jobs.items))};
    (void)p;
    for (struct job *j = c->jobs->table; j != NULL && r.jobs.items != NULL; j = j->hh.next) {
        struct job_view view;
        if (j->saved.run == NULL)
            continue;
        job_view_init(&view, j);
        r.jobs.items[r.jobs.count++] = job_info(j, view.run, arena);
        job_view_fini(&view);
    }
    hl_reply_controller_list_jobs(call, &r);
}

/* Translates rank numbers: a node knows its ranks by the numbers with which it started them. */
static void number_ranks(const struct hl_plan *plan, int position, struct hl_arena *arena,
                         struct hl_api_rank_status_list *io)
{
    struct hl_api_rank_status *items = hl_arena_array(arena, io->count, sizeof(*items));
    if (plan == NULL || position >= plan->container_count || items == NULL)
        return;
    for (size_t i = 0; i < io->count; i++) {
        int rank = elastic_rank_of(&plan->containers[position], io->items[i].rank);
        items[i] = io->items[i];
        items[i].rank = rank >= 0 ? rank : items[i].rank;
    }
    io->items = items;
}

/* What the job remembers, plus what its executor knows. */
static struct hl_api_container_status_list
containers_of(const struct job *j, const struct hl_jobrun *run, struct hl_arena *arena)
{
    struct hl_api_container_status_list list = hl_jobrun_containers(run, arena);
    for (size_t i = 0; i < list.count; i++) {
        j->executor->describe(j, run, (int)i, arena, &list.items[i]);
        number_ranks(run->plan, (int)i, arena, &list.items[i].ranks);
    }
    return list;
}

void method_get_job(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_get_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct job *j = NULL;
    hl_status st = job_find(c, p->id, &j);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    struct job_view view;
    job_view_init(&view, j);
    struct hl_api_controller_get_job_results r = {.job = job_info(j, view.run, arena)};
    r.job.yaml = j->doc.yaml;
    r.job.launch = j->doc.launch;
    r.job.failures = job_failures_list(j, arena);
    r.job.containers = containers_of(j, view.run, arena);
    if (view.run->plan != NULL)
        r.job.plan = hl_plan_info(view.run->plan, arena);
    st = job_events_list(view.events, arena, &r.job.events);
    if (st == HL_OK)
        hl_reply_controller_get_job(call, &r);
    else
        call_reject(call, st);
    job_view_fini(&view);
}

static void reply_state(struct hl_rpc_call *call, const struct job *j)
{
    hl_reply_controller_cancel_job(
        call, &(struct hl_api_controller_cancel_job_results){j->run.state, j->id});
}

void method_cancel_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_cancel_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    if (job_is_damaged(c, p->id)) {
        job_drop_damaged(c, p->id, call);
        return;
    }
    hl_status st = job_find(c, p->id, &j);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    char waits[HL_JOB_TEXT_MAX], text[HL_JOB_TEXT_MAX];
    job_waits_for(j, &j->run, waits, sizeof(waits));
    snprintf(text, sizeof(text), "by the user%s%.220s", waits[0] != '\0' ? "; it waited: " : "",
             waits);
    if (!hl_job_state_ended(j->run.state))
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL, .text = text});
    job_wait(j, call, reply_state);
}
