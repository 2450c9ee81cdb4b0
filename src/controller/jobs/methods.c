/* What users ask about jobs. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "conf/yaml.h"
#include "controller/controller_private.h"

/* The image's own command may bring the weights of a model that this cluster does not have. */
static int loads_from_us(const struct hl_job *spec)
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
    if (m->tp != spec->grid.tp || m->pp != spec->grid.pp)
        return hl_fail(HL_EINVAL,
                       "parallelism: the job wants tensor %d x pipeline %d, but model '%s' is "
                       "sliced TP%d x PP%d; "
                       "import it again for these sizes",
                       spec->grid.tp, spec->grid.pp, m->name, m->tp, m->pp);
    int chunks = m->virtual_stages > 1 ? m->virtual_stages : 1;
    if (chunks != spec->virtual_stages)
        return hl_fail(HL_EINVAL,
                       "parallelism: the job has virtual_pipeline_parallel_size %d, but model '%s' "
                       "was imported with --virtual-stages %d; set the job's to %d or import the "
                       "model again",
                       spec->virtual_stages, m->name, chunks, chunks);
    return HL_OK;
}

static hl_status parse_job(const struct hl_controller *c, const json_t *params, struct hl_job *out)
{
    const char *yaml = hl_json_str(params, "yaml", "");
    const char *source = hl_json_str(params, "source", "job");
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_parse(source, yaml, strlen(yaml), &doc));
    struct hl_job_source where = {
        .name = source,
        .where = hl_yaml_locate,
        .ctx = doc,
        .executor = c->gangs != NULL ? HL_JOB_EXECUTOR_KUBERNETES : HL_JOB_EXECUTOR_PROCESS,
        .node_lost_min_ms = c->gangs != NULL ? 0 : c->opts.node_lost_ms,
    };
    return hl_job_parse(hl_yaml_root(doc), &where, out);
}

static hl_status export_all(struct hl_job *spec, const json_t *list, enum hl_job_var_origin origin)
{
    size_t i;
    const json_t *var;
    json_array_foreach (list, i, var)
        HL_TRY(hl_job_export(spec, hl_json_str(var, "key", ""), hl_json_str(var, "value", ""),
                             origin));
    return HL_OK;
}

/* What the submitter's shell gives to the ranks: its variables and its directory. */
static hl_status add_submitter(struct hl_controller *c, const json_t *params, struct hl_job *spec)
{
    const json_t *inherited = hl_json_list(params, "inherited");
    if (c->gangs != NULL && json_array_size(inherited) > 0)
        return hl_fail(HL_EINVAL, "--export ALL is not possible on Kubernetes, where it would "
                                  "replace PATH and HOME of the image; name the variables");
    HL_TRY(export_all(spec, hl_json_list(params, "exported"), HL_JOB_VAR_EXPORT));
    HL_TRY(export_all(spec, inherited, HL_JOB_VAR_ALL));
    if (c->gangs != NULL) /* an image has its own directories */
        return HL_OK;
    hl_status st = hl_job_resolve(spec, hl_json_str(params, "cwd", ""));
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "job '%s': ", spec->name);
}

/* Where the job would run now. plan->never: waiting would not help. */
static hl_status plan_now(struct hl_controller *c, const struct hl_job *spec, struct hl_plan **out)
{
    if (c->gangs != NULL)
        return gangs_plan(c->gangs, spec, spec->name, 1, out);
    HL_TRY(hl_plan_make(spec, &c->cluster, out));
    if (c->cluster.count == 0 || nodes_expected(c))
        (*out)->never = 0; /* an Agent may come yet */
    return HL_OK;
}

/* All that can be known of a job before it waits for slots: planJob and submitJob both ask this,
 * so that what can be planned can be submitted. End *spec and *out also after a failure. */
static hl_status examine(struct hl_controller *c, const json_t *params, struct hl_job *spec,
                         struct hl_plan **out)
{
    HL_TRY(parse_job(c, params, spec));
    HL_TRY(check_model(c, spec));
    HL_TRY(add_submitter(c, params, spec));
    return plan_now(c, spec, out);
}

static json_t *plan_answer(struct hl_controller *c, const struct hl_job *spec,
                           const struct hl_plan *plan)
{
    json_t *doc = hl_plan_to_json(plan);
    struct hl_model_rec *m;
    if (spec->model[0] != '\0' && !loads_from_us(spec) &&
        hl_catalog_model(&c->catalog, spec->model, &m) != HL_OK)
        json_array_append_new(json_object_get(doc, "warnings"),
                              json_sprintf("this cluster has no model '%s': the image's own "
                                           "command must bring the weights",
                                           spec->model));
    return doc;
}

/* What the ranks are started with, for people: values of variables may be secrets. */
static json_t *launch_of(const struct hl_controller *c, const struct hl_job *spec, const char *file)
{
    json_t *command = json_array(), *from_file = json_array(), *exported = json_array();
    for (size_t i = 0; i < spec->command_count; i++)
        json_array_append_new(command, json_string(spec->command[i]));
    for (size_t i = 0; i < spec->env_count; i++)
        json_array_append_new(spec->env[i].exported ? exported : from_file,
                              json_string(spec->env[i].name));
    int64_t lost_ms = c->gangs != NULL ? 0 : c->opts.lost_after_ms;
    return json_pack("{s:s s:o s:s s:o s:o s:s s:s s:s s:I s:s}", "file", file, "command", command,
                     "workdir", spec->workdir, "variables", from_file, "exported", exported, "venv",
                     spec->venv, "conda", spec->conda, "python", spec->python, "nodeLostAfterMs",
                     (json_int_t)(spec->node_lost_ms >= 0 ? spec->node_lost_ms : lost_ms),
                     "onNodeLost", hl_job_restarts_lost(spec) ? "restart" : "fail");
}

void method_plan_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_job spec = {0};
    struct hl_plan *plan = NULL;
    hl_status st = examine(c, params, &spec, &plan);
    if (st == HL_OK)
        hl_rpc_reply(call, json_pack("{s:o s:o}", "plan", plan_answer(c, &spec, plan), "launch",
                                     launch_of(c, &spec, hl_json_str(params, "file", ""))));
    else
        reject(call, st);
    hl_plan_free(plan);
    hl_job_fini(&spec);
}

static struct job *find_by_key(struct hl_controller *c, const char *key)
{
    if (key[0] == '\0')
        return NULL;
    for (struct job *j = c->jobs; j != NULL; j = j->hh.next)
        if (strcmp(hl_json_str(j->doc, "key", ""), key) == 0)
            return j;
    return NULL;
}

static json_t *id_answer(const struct job *j)
{
    return json_pack("{s:s}", "id", j->id);
}

/* The job is taken over on HL_OK. A gang that no state of the cluster could hold is refused. */
static hl_status submit(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params,
                        struct job *j)
{
    struct hl_plan *plan = NULL;
    hl_status st = examine(c, params, &j->spec, &plan);
    if (st == HL_OK && plan->never)
        st = hl_fail(HL_EINVAL, "job '%s' can never run here: %s", j->spec.name, plan->reason);
    hl_plan_free(plan);
    HL_TRY(st);
    j->doc = json_pack("{s:s s:s s:s s:o s:o}", "yaml", hl_json_str(params, "yaml", ""), "source",
                       hl_json_str(params, "source", ""), "key",
                       hl_json_str(params, "idempotencyKey", ""), "spec", hl_job_to_json(&j->spec),
                       "launch", launch_of(c, &j->spec, hl_json_str(params, "file", "")));
    if (j->doc == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the record of job '%s'", j->spec.name);
    return job_submit(c, j, call, id_answer);
}

void method_submit_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct job *j = find_by_key(c, hl_json_str(params, "idempotencyKey", ""));
    if (j != NULL) {
        job_wait(j, call, id_answer);
        return;
    }
    j = calloc(1, sizeof(*j));
    hl_status st = j != NULL ? submit(c, call, params, j) : hl_fail(HL_ENOMEM, "job record");
    if (st != HL_OK) {
        reject(call, st);
        job_free(j);
    }
}

/* An id like NAME-7 with a number that a job has had. */
static int was_given(const struct hl_controller *c, const char *id)
{
    const char *dash = strrchr(id, '-');
    char *end;
    if (dash == NULL || dash == id || dash[1] < '1' || dash[1] > '9')
        return 0;
    long long seq = strtoll(dash + 1, &end, 10);
    return *end == '\0' && seq <= c->job_seq;
}

/* The job of that name that is not over, else the newest one; NULL: there is none. */
static hl_status find_by_name(struct hl_controller *c, const char *name, struct job **out)
{
    struct job *newest = NULL, *live = NULL;
    char ids[256] = "";
    size_t at = 0;
    int count = 0;
    for (struct job *k = c->jobs; k != NULL; k = k->hh.next) {
        if (k->saved == NULL || strcmp(k->spec.name, name) != 0)
            continue;
        newest = k;
        if (hl_job_state_ended(k->run.state))
            continue;
        live = k;
        if (count++ < 5 && at + strlen(k->id) + 8 < sizeof(ids))
            at += (size_t)snprintf(ids + at, sizeof(ids) - at, "%s%s", at > 0 ? ", " : "", k->id);
        else
            snprintf(ids + at, sizeof(ids) - at, ", ...");
    }
    if (count > 1)
        return hl_fail(HL_ECONFLICT, "%d jobs named '%.64s' are not over: give the id of one (%s)",
                       count, name, ids);
    *out = live != NULL ? live : newest;
    return HL_OK;
}

hl_status job_find(struct hl_controller *c, const char *id, struct job **out)
{
    struct job *j;
    HASH_FIND_STR(c->jobs, id, j);
    if (j != NULL && j->saved == NULL)
        j = NULL; /* nobody has been told of it yet */
    if (j == NULL)
        HL_TRY(find_by_name(c, id, &j));
    if (j == NULL && job_is_damaged(c, id))
        return hl_fail(HL_ECORRUPT,
                       "the record of job '%.100s' in the Controller's store is damaged: its "
                       "containers run on and nothing is known of it; restore the store from a "
                       "backup, or `helios cancel` ends it",
                       id);
    if (j == NULL && was_given(c, id))
        return hl_fail(HL_ENOENT,
                       "job '%.100s' does not exist any more: ended jobs are forgotten with time "
                       "(options jobs.keep, jobs.keep_age of helios-controller)",
                       id);
    if (j == NULL)
        return hl_fail(HL_ENOENT, "job '%.100s' does not exist; `helios list` shows %u", id,
                       HASH_COUNT(c->jobs));
    *out = j;
    return HL_OK;
}

/* A job as the store has it: what others are told of it can't be undone by a crash. Where the store
 * refuses its record it is told as it is, with a warning (jobs_warnings). */
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
    if (hl_jobrun_from_json(json_object_get(j->saved, "run"), &view->copy) != HL_OK)
        return; /* out of memory: rather what it is now than nothing */
    view->run = &view->copy;
    view->events = json_object_get(j->saved, "events");
}

static void job_view_fini(struct job_view *view)
{
    hl_jobrun_fini(&view->copy);
}

/* What a job that runs waits for: the first of its nodes that does not answer. */
static void silent_node(struct hl_controller *c, const struct job *j, char *out, size_t cap)
{
    for (int i = 0; j->gang.id[0] == '\0' && i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        const struct node *n = k->state <= HL_CONTAINER_RUNNING ? node_find(c, k->node) : NULL;
        char silence[32], limit[32];
        if (n == NULL || !n->lost)
            continue;
        snprintf(
            out, cap, "node %s has not answered for %s, its ranks may run on; lost after %s",
            n->name, hl_format_duration_ms((uint64_t)node_silent_ms(n), silence, sizeof(silence)),
            hl_format_duration_ms((uint64_t)job_patience_ms(j, n->name), limit, sizeof(limit)));
        return;
    }
}

static json_t *job_to_json(struct hl_controller *c, const struct job *j, const struct hl_jobrun *r,
                           const json_t *warnings)
{
    char reason[HL_JOB_TEXT_MAX];
    snprintf(reason, sizeof(reason), "%s", r->reason);
    if (reason[0] == '\0' && (r->state == HL_JOB_STARTING || r->state == HL_JOB_RUNNING))
        silent_node(c, j, reason, sizeof(reason));
    return json_pack("{s:s s:s s:s s:s s:i s:i s:i s:i s:s s:s s:I s:I s:I s:i s:s}", "id", j->id,
                     "name", j->spec.name, "state", hl_job_state_name(r->state), "reason", reason,
                     "attempt", r->attempt, "maxRestarts", r->max_restarts, "restarts", r->restarts,
                     "nodeLosses", r->node_losses, "cause", r->cause, "model", j->spec.model,
                     "submittedMs", (json_int_t)r->submitted_ms, "startedMs",
                     (json_int_t)r->started_ms, "finishedMs", (json_int_t)r->finished_ms,
                     "worldSize", (int)hl_rank_world(&j->spec.grid), "warning",
                     hl_json_str(warnings, j->id, ""));
}

void method_list_jobs(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    json_t *jobs = json_array(), *warnings = jobs_warnings(c);
    for (struct job *j = c->jobs; j != NULL; j = j->hh.next) {
        struct job_view view;
        if (j->saved == NULL)
            continue;
        job_view_init(&view, j);
        json_array_append_new(jobs, job_to_json(c, j, view.run, warnings));
        job_view_fini(&view);
    }
    json_decref(warnings);
    hl_rpc_reply(call, json_pack("{s:o}", "jobs", jobs));
}

/* What a pod waits for is told while it waits. */
static void add_pod(const struct job *j, int index, json_t *container)
{
    char why[HL_JOB_TEXT_MAX];
    gangs_message(j, index, why, sizeof(why));
    if (why[0] != '\0' && hl_json_str(container, "message", "")[0] == '\0')
        json_object_set_new(container, "message", json_string(why));
}

/* The Agent's own report where it has one (pids, binding), else what the job remembers. */
static json_t *containers_of(struct hl_controller *c, const struct job *j,
                             const struct hl_jobrun *run)
{
    json_t *list = hl_jobrun_containers_to_json(run);
    size_t i;
    json_t *mine;
    json_array_foreach (list, i, mine) {
        if (c->gangs != NULL && j->gang.id[0] != '\0') {
            add_pod(j, (int)i, mine);
            continue;
        }
        struct node *n = node_find(c, run->containers[i].node);
        const struct hl_api_container_status *reported =
            n != NULL ? node_reported(n, hl_json_str(mine, "id", "?")) : NULL;
        json_t *status =
            reported != NULL ? hl_api_to_json(&hl_api_container_status_type, reported) : NULL;
        if (status != NULL)
            json_object_update(mine, status);
        json_decref(status);
    }
    return list;
}

void method_get_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct job *j = NULL;
    hl_status st = job_find(c, hl_json_str(params, "id", ""), &j);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    json_t *warnings = jobs_warnings(c);
    struct job_view view;
    job_view_init(&view, j);
    json_t *job = job_to_json(c, j, view.run, warnings);
    json_decref(warnings);
    json_object_set_new(job, "yaml", json_string(hl_json_str(j->doc, "yaml", "")));
    json_object_set(job, "events", (json_t *)view.events);
    if (json_object_get(j->doc, "launch") != NULL)
        json_object_set(job, "launch", json_object_get(j->doc, "launch"));
    json_object_set_new(job, "containers", containers_of(c, j, view.run));
    if (view.run->plan != NULL)
        json_object_set_new(job, "plan", hl_plan_to_json(view.run->plan));
    job_view_fini(&view);
    hl_rpc_reply(call, json_pack("{s:o}", "job", job));
}

static json_t *state_answer(const struct job *j)
{
    return json_pack("{s:s s:s}", "state", hl_job_state_name(j->run.state), "id", j->id);
}

void method_cancel_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct job *j = NULL;
    const char *id = hl_json_str(params, "id", "");
    if (job_is_damaged(c, id)) {
        job_drop_damaged(c, id, call);
        return;
    }
    hl_status st = job_find(c, id, &j);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    if (!hl_job_state_ended(j->run.state))
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL, .text = "by the user"});
    job_wait(j, call, state_answer);
}

void jobs_slot_holder(const struct hl_controller *c, const char *node, int numa_id,
                      const char **job, char *container, size_t cap)
{
    *job = "";
    container[0] = '\0';
    for (const struct job *j = c->jobs; j != NULL; j = j->hh.next) {
        if (!j->run.slots_held)
            continue;
        for (int i = 0; i < j->run.container_count; i++) {
            if (j->run.containers[i].numa_id != numa_id ||
                strcmp(j->run.containers[i].node, node) != 0)
                continue;
            *job = j->id;
            hl_container_id(j->id, j->run.attempt, i, container, cap);
            return;
        }
    }
}
