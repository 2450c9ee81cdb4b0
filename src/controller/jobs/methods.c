/* What users ask about jobs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/yaml.h"
#include "controller/jobs/jobs_private.h"

/* The image's own command may bring the weights of a model that this cluster does not have. */
static bool loads_from_us(const struct hl_job *spec)
{
    return spec->model[0] != '\0' && spec->command_count > 0;
}

static hl_status check_model(struct hl_controller *c, const struct hl_job *spec)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (!loads_from_us(spec))
        return HL_OK;
    HL_TRY(hl_catalog_model(&c->catalog, spec->model, &m));
    HL_TRY(hl_catalog_version(m, spec->model_version, &v));
    const struct hl_api_split split = {.tp = spec->grid.tp,
                                       .pp = spec->grid.pp,
                                       .virtual_stages = spec->virtual_stages,
                                       .ep = spec->ep,
                                       .etp = spec->etp};
    hl_status st = hl_version_check_split(v, &split);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "parallelism: ");
}

/* What planJob and submitJob are given. */
struct request {
    const char *yaml, *source, *cwd, *file;
    const struct hl_api_key_value_list *exported, *inherited;
};

static hl_status parse_job(const struct hl_controller *c, const struct request *r,
                           struct hl_job *out)
{
    const char *source = r->source[0] != '\0' ? r->source : "job";
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_parse(source, r->yaml, strlen(r->yaml), &doc));
    struct hl_job_source where = {
        .name = source,
        .where = hl_yaml_locate,
        .ctx = doc,
        .executor = c->jobs->executor->kind,
        .node_lost_min_ms = c->jobs->executor->has_deadlines ? 0 : c->opts.node_lost_ms,
    };
    return hl_job_parse(hl_yaml_root(doc), &where, out);
}

static hl_status export_all(struct hl_job *spec, const struct hl_api_key_value_list *list,
                            enum hl_job_var_origin origin)
{
    for (size_t i = 0; i < list->count; i++)
        HL_TRY(hl_job_export(spec, list->items[i].key, list->items[i].value, origin));
    return HL_OK;
}

/* What the submitter's shell gives to the ranks: its variables and its directory. */
static hl_status add_submitter(struct hl_controller *c, const struct request *r,
                               struct hl_job *spec)
{
    if (c->jobs->executor->has_image && r->inherited->count > 0)
        return hl_fail(HL_EINVAL, "--export ALL is not possible on Kubernetes, where it would "
                                  "replace PATH and HOME of the image; name the variables");
    HL_TRY(export_all(spec, r->exported, HL_JOB_VAR_EXPORT));
    HL_TRY(export_all(spec, r->inherited, HL_JOB_VAR_ALL));
    if (c->jobs->executor->has_image)
        return HL_OK;
    hl_status st = hl_job_resolve(spec, r->cwd);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "job '%s': ", spec->name);
}

/* All that can be known of a job before it waits for slots: planJob and submitJob both ask this,
 * so that what can be planned can be submitted. End *spec and *out also after a failure. */
static hl_status request_examine(struct hl_controller *c, const struct request *r,
                                 struct hl_job *spec, struct hl_plan **out)
{
    HL_TRY(parse_job(c, r, spec));
    HL_TRY(check_model(c, spec));
    HL_TRY(add_submitter(c, r, spec));
    return c->jobs->executor->plan(c, spec, spec->name, 1, out);
}

static struct hl_api_plan plan_answer(struct hl_controller *c, const struct hl_job *spec,
                                      const struct hl_plan *plan, struct hl_arena *arena)
{
    struct hl_api_plan info = hl_plan_info(plan, arena);
    struct hl_model_rec *m;
    if (spec->model[0] == '\0' || loads_from_us(spec) ||
        hl_catalog_model(&c->catalog, spec->model, &m) == HL_OK)
        return info;
    const char **warnings = hl_arena_array(arena, info.warnings.count + 1, sizeof(*warnings));
    for (size_t i = 0; warnings != NULL && i < info.warnings.count; i++)
        warnings[i] = info.warnings.items[i];
    if (warnings != NULL)
        warnings[info.warnings.count++] =
            hl_arena_printf(arena,
                            "this cluster has no model '%s': the image's own command must bring "
                            "the weights",
                            spec->model);
    info.warnings.items = warnings;
    return info;
}

/* What the ranks are started with, for people: values of variables may be secrets. */
static struct hl_api_job_launch launch_of(const struct hl_controller *c, const struct hl_job *spec,
                                          const char *file, struct hl_arena *arena)
{
    int64_t lost_ms = c->jobs->executor->has_deadlines ? 0 : c->opts.lost_after_ms;
    struct hl_api_job_launch launch = {
        .file = file,
        .command = {(const char **)spec->command, spec->command_count},
        .workdir = spec->workdir,
        .variables.items = hl_arena_array(arena, spec->env_count, sizeof(*launch.variables.items)),
        .exported.items = hl_arena_array(arena, spec->env_count, sizeof(*launch.exported.items)),
        .venv = spec->venv,
        .conda = spec->conda,
        .python = spec->python,
        .node_lost_after_ms = spec->node_lost_ms >= 0 ? spec->node_lost_ms : lost_ms,
        .on_node_lost = hl_job_restarts_lost(spec) ? "restart" : "fail",
    };
    for (size_t i = 0; !hl_arena_failed(arena) && i < spec->env_count; i++) {
        struct hl_api_text_list *list =
            spec->env[i].exported ? &launch.exported : &launch.variables;
        list->items[list->count++] = spec->env[i].name;
    }
    return launch;
}

void method_plan_job(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_plan_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    const struct request r = {p->yaml, p->source, p->cwd, p->file, &p->exported, &p->inherited};
    struct hl_job spec = {0};
    struct hl_plan *plan = NULL;
    hl_status st = request_examine(c, &r, &spec, &plan);
    if (st == HL_OK)
        hl_reply_controller_plan_job(call, &(struct hl_api_controller_plan_job_results){
                                               .plan = plan_answer(c, &spec, plan, arena),
                                               .launch = launch_of(c, &spec, p->file, arena)});
    else
        call_reject(call, st);
    hl_plan_free(plan);
    hl_job_fini(&spec);
}

static struct job *find_by_key(struct hl_controller *c, const char *key)
{
    if (key[0] == '\0')
        return NULL;
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        if (strcmp(j->doc.key, key) == 0)
            return j;
    return NULL;
}

static void reply_id(struct hl_rpc_call *call, const struct job *j)
{
    hl_reply_controller_submit_job(call, &(struct hl_api_controller_submit_job_results){j->id});
}

/* The job is taken over on HL_OK. A gang that no state of the cluster could hold is refused. */
static hl_status request_submit(struct hl_controller *c, struct hl_rpc_call *call,
                                const struct hl_api_controller_submit_job_params *p, struct job *j)
{
    const struct request r = {p->yaml, p->source, p->cwd, p->file, &p->exported, &p->inherited};
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_plan *plan = NULL;
    hl_status st = request_examine(c, &r, &j->spec, &plan);
    if (st == HL_OK && plan->never)
        st = hl_fail(HL_EINVAL, "job '%s' can never run here: %s", j->spec.name, plan->reason);
    hl_plan_free(plan);
    HL_TRY(st);
    struct hl_api_job_launch launch = launch_of(c, &j->spec, p->file, arena);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the record of job '%s'", j->spec.name);
    const struct hl_api_job_doc doc = {.yaml = p->yaml,
                                       .source = p->source,
                                       .key = p->idempotency_key,
                                       .launch = launch,
                                       .gang = ""};
    HL_TRY(hl_api_copy(&hl_api_job_doc_type, &doc, &j->doc_arena, &j->doc));
    return job_submit(c, j, call, reply_id);
}

void method_submit_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_submit_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = find_by_key(c, p->idempotency_key);
    if (j != NULL) {
        job_wait(j, call, reply_id);
        return;
    }
    j = calloc(1, sizeof(*j));
    hl_status st = j != NULL ? request_submit(c, call, p, j)
                             : hl_fail(HL_ENOMEM, "out of memory for the record of a job");
    if (st != HL_OK) {
        call_reject(call, st);
        job_free(j);
    }
}

/* A job as the store has it: what others are told of it can't be undone by a crash. Where the store
 * refuses its record it is told as it is, with a warning (job_warning). */
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
        return; /* out of memory: rather what it is now than nothing */
    view->run = &view->copy;
    view->events = j->saved.events;
}

static void job_view_fini(struct job_view *view)
{
    hl_jobrun_fini(&view->copy);
}

/* What is wrong with the job while it goes on; "" = nothing. Borrowed. */
static const char *job_warning(const struct job *j)
{
    if (j->unsaved)
        return "the Controller cannot store the job's state and tries again: is the disk of its "
               "state directory full?";
    for (int i = 0; i < j->run.container_count; i++) {
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.containers_attempt, i, id, sizeof(id));
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
    snprintf(reason, sizeof(reason), "%s", r->reason);
    if (reason[0] == '\0' && j->executor->waits_for != NULL &&
        (r->state == HL_API_JOB_STATE_STARTING || r->state == HL_API_JOB_STATE_RUNNING))
        j->executor->waits_for(j, reason, sizeof(reason));
    return (struct hl_api_job){.id = j->id,
                               .name = j->spec.name,
                               .state = r->state,
                               .reason = hl_arena_strdup(arena, reason),
                               .attempt = r->attempt,
                               .max_restarts = r->max_restarts,
                               .restarts = r->restarts,
                               .node_losses = r->node_losses,
                               .cause = hl_arena_strdup(arena, r->cause),
                               .model = j->spec.model,
                               .submitted_ms = r->submitted_ms,
                               .started_ms = r->started_ms,
                               .finished_ms = r->finished_ms,
                               .world_size = (int32_t)hl_rank_world(&j->spec.grid),
                               .warning = job_warning(j)};
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

/* What the job remembers, and what its executor knows beside that. */
static struct hl_api_container_status_list
containers_of(const struct job *j, const struct hl_jobrun *run, struct hl_arena *arena)
{
    struct hl_api_container_status_list list = hl_jobrun_containers(run, arena);
    for (size_t i = 0; i < list.count; i++)
        j->executor->describe(j, run, (int)i, arena, &list.items[i]);
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
    if (!hl_job_state_ended(j->run.state))
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL, .text = "by the user"});
    job_wait(j, call, reply_state);
}
