/* planJob and submitJob: checks everything that can be known about a job before it waits for slots.
 *
 *     parse the file, the model's sizes --> cut_plan, where it has to be cut --> the submitter's
 *     variables --> the plan of the executor --> the answer, or a new job
 *
 * Both calls take the same path, so that whatever can be planned can be submitted. Another call may
 * submit the same job meanwhile, so its key is looked up both before and after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/yaml.h"
#include "controller/jobs/queue.h"
#include "controller/models/models.h"
#include "core/catalog/catalog_cut.h"

/* A call that is being examined; its parameters stay valid until it is answered. */
struct request {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    const char *yaml, *source, *cwd, *file;
    const struct hl_api_key_value_list *exported, *inherited;
    bool defrag;     /* planJob: look for gangs that could be moved to make room */
    const char *key; /* submitJob: its idempotency key; NULL = planJob */
    struct hl_job spec;
    struct hl_plan *plan;
};

static void request_free(struct request *r)
{
    hl_plan_free(r->plan);
    hl_job_fini(&r->spec);
    free(r);
}

/* ---- what is examined ------------------------------------------------------------------------ */

/* The image's own command may bring the weights of a model that this cluster does not have. */
static bool loads_from_us(const struct hl_job *spec)
{
    return spec->model[0] != '\0' && spec->command_count > 0;
}

static hl_status parse_job(struct request *r)
{
    const struct hl_controller *c = r->c;
    const char *source = r->source[0] != '\0' ? r->source : "job";
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_parse(source, r->yaml, strlen(r->yaml), &doc));
    const struct job_executor *executor = c->jobs->executor;
    const struct hl_podspec_rules pods =
        executor->pod_rules != NULL ? executor->pod_rules(c)
                                    : (struct hl_podspec_rules){.device = "", .host_paths = ""};
    struct hl_job_source where = {
        .name = source,
        .where = hl_yaml_locate,
        .ctx = doc,
        .executor = jobs_kind(c),
        .pods = executor->pod_rules != NULL ? &pods : NULL,
        .node_lost_min_ms = c->jobs->executor->has_deadlines ? 0 : c->opts.node_lost_ms,
    };
    return hl_job_parse(hl_yaml_root(doc), &where, &r->spec);
}

static hl_status export_all(struct hl_job *spec, const struct hl_api_key_value_list *list,
                            enum hl_job_var_origin origin)
{
    for (size_t i = 0; i < list->count; i++)
        HL_TRY(hl_job_export(spec, list->items[i].key, list->items[i].value, origin));
    return HL_OK;
}

/* Adds what the submitter's shell passes on to the ranks: its variables and its directory. */
static hl_status add_submitter(struct request *r)
{
    enum hl_job_executor kind = jobs_kind(r->c);
    bool image = kind != HL_JOB_EXECUTOR_PROCESS;
    if (image && r->inherited->count > 0)
        return hl_fail(HL_EINVAL,
                       "--export ALL is not possible with the executor %s, where it would replace "
                       "PATH and HOME of the image; name the variables",
                       hl_job_executor_name(kind));
    HL_TRY(export_all(&r->spec, r->exported, HL_JOB_VAR_EXPORT));
    HL_TRY(export_all(&r->spec, r->inherited, HL_JOB_VAR_ALL));
    if (image)
        return HL_OK;
    hl_status st = hl_job_resolve(&r->spec, r->cwd);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "job '%s': ", r->spec.name);
}

static void request_answer(struct request *r, hl_status st);

/* Ends the request with the failure of the check that was running. */
static void request_end(struct request *r, hl_status st)
{
    if (st == HL_OK)
        st = add_submitter(r);
    if (st == HL_OK)
        st = r->c->jobs->executor->plan(r->c, &r->spec, r->spec.name, 1, &r->plan);
    if (st == HL_OK)
        st = queue_check(r->c, &r->spec, r->plan);
    if (st == HL_OK && r->key == NULL && r->plan->feasible)
        elastic_enlarge(r->c,
                        &(struct elastic_want){.spec = &r->spec,
                                               .executor = r->c->jobs->executor,
                                               .id = r->spec.name,
                                               .attempt = 1,
                                               .most_slots = elastic_quota_left(r->c, &r->spec, 0)},
                        &r->plan);
    request_answer(r, st);
    request_free(r);
}

static void on_planned(void *arg, hl_status st)
{
    struct request *r = arg;
    if (controller_stopped(r->c)) {
        call_reject(r->call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
        request_free(r);
        return;
    }
    request_end(r, st == HL_OK ? HL_OK
                               : hl_fail_prefix(st, "parallelism: model '%s': ", r->spec.model));
}

/* Sets *later when the model is being planned; on_planned continues then. */
static hl_status check_model(struct request *r, bool *later)
{
    const struct hl_job *spec = &r->spec;
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (!loads_from_us(spec))
        return HL_OK;
    HL_TRY(hl_catalog_model(&r->c->catalog, spec->model, &m));
    HL_TRY(hl_catalog_version(m, spec->model_version, &v));
    const struct hl_api_split split = {.tp = spec->grid.tp,
                                       .pp = spec->grid.pp,
                                       .virtual_stages = spec->virtual_stages,
                                       .ep = spec->ep,
                                       .etp = spec->etp};
    hl_status st = hl_version_check_sizes(v, &split);
    if (st != HL_OK)
        return hl_fail_prefix(st, "parallelism: ");
    if (!hl_version_needs_cut(v, &split))
        return HL_OK;
    HL_TRY(cut_plan(r->c, v, &split, on_planned, r));
    *later = true;
    return HL_OK;
}

static void request_examine(struct request *r)
{
    bool later = false;
    hl_status st = parse_job(r);
    if (st == HL_OK)
        st = check_model(r, &later);
    if (!later)
        request_end(r, st);
}

/* ---- the answers ----------------------------------------------------------------------------- */

static struct hl_api_plan plan_answer(const struct request *r, struct hl_arena *arena)
{
    const struct hl_job *spec = &r->spec;
    struct hl_api_plan info = hl_plan_info(r->plan, arena);
    struct hl_model_rec *m;
    if (spec->model[0] == '\0' || loads_from_us(spec) ||
        hl_catalog_model(&r->c->catalog, spec->model, &m) == HL_OK)
        return info;
    const char **warnings = hl_arena_array(arena, info.warnings.count + 1, sizeof(*warnings));
    for (size_t i = 0; warnings != NULL && i < info.warnings.count; i++)
        warnings[i] = info.warnings.items[i];
    if (warnings != NULL)
        warnings[info.warnings.count++] = hl_arena_printf(
            arena,
            "this cluster has no model '%s': the image's own command must provide the weights",
            spec->model);
    info.warnings.items = warnings;
    return info;
}

/* Shows users what the ranks are started with, without the values of variables, which may be
 * secrets. */
static struct hl_api_job_launch launch_of(const struct request *r, struct hl_arena *arena)
{
    const struct hl_controller *c = r->c;
    const struct hl_job *spec = &r->spec;
    int64_t lost_ms = c->jobs->executor->has_deadlines ? 0 : c->opts.lost_after_ms;
    struct hl_api_job_launch launch = {
        .file = r->file,
        .command = {(const char **)spec->command, spec->command_count},
        .workdir = spec->workdir,
        .variables.items = hl_arena_array(arena, spec->env_count, sizeof(*launch.variables.items)),
        .exported.items = hl_arena_array(arena, spec->env_count, sizeof(*launch.exported.items)),
        .venv = spec->venv,
        .conda = spec->conda,
        .python = spec->python,
        .node_lost_after_ms = spec->node_lost_ms >= 0 ? spec->node_lost_ms : lost_ms,
        .on_node_lost = hl_job_restarts_lost(spec) ? "restart" : "fail",
        .recovery = spec->recovery,
        .spares = spec->spares,
        .spare_slots = spec->spare_slots,
        .ends_hung = hl_job_ends_hung(spec),
        .ends_slow = hl_job_ends_slow(spec),
        .replicas = hl_grid_replicas(&spec->grid),
        .backoff_ms = spec->backoff_ms,
        .backoff_max_ms = spec->backoff_max_ms,
        .stable_after_ms = spec->stable_ms,
        .on_failure = hl_job_failure_rules(spec, arena),
    };
    for (size_t i = 0; !hl_arena_failed(arena) && i < spec->env_count; i++) {
        struct hl_api_text_list *list =
            spec->env[i].exported ? &launch.exported : &launch.variables;
        list->items[list->count++] = spec->env[i].name;
    }
    return launch;
}

static void answer_plan(struct request *r)
{
    struct hl_arena *arena = hl_rpc_call_arena(r->call);
    struct hl_api_controller_plan_job_results answer = {.plan = plan_answer(r, arena),
                                                        .launch = launch_of(r, arena)};
    hl_status st = HL_OK;
    if (r->defrag && !r->plan->feasible && !r->plan->never)
        st = jobs_defrag(r->c, &r->spec, arena, &answer.defrag);
    if (st == HL_OK)
        hl_reply_controller_plan_job(r->call, &answer);
    else
        call_reject(r->call, st);
}

static void reply_id(struct hl_rpc_call *call, const struct job *j)
{
    hl_reply_controller_submit_job(call, &(struct hl_api_controller_submit_job_results){j->id});
}

/* On HL_OK the job is taken over. A gang that could not be placed in any state of the cluster is
 * refused. */
static hl_status request_submit(struct request *r, struct job *j)
{
    struct hl_arena *arena = hl_rpc_call_arena(r->call);
    if (r->plan->never)
        return hl_fail(HL_EINVAL, "job '%s' can never run here: %s (%s)", r->spec.name,
                       r->plan->reason, r->plan->arithmetic[0]);
    HL_TRY(queue_admit(r->c, &r->spec));
    const struct hl_api_job_doc doc = {.yaml = r->yaml,
                                       .source = r->source,
                                       .key = r->key,
                                       .launch = launch_of(r, arena),
                                       .gang = ""};
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the record of job '%s'", r->spec.name);
    HL_TRY(hl_api_copy(&hl_api_job_doc_type, &doc, &j->doc_arena, &j->doc));
    j->spec = r->spec;
    r->spec = (struct hl_job){0};
    HL_TRY(job_submit(r->c, j, r->call, reply_id));
    if (r->c->jobs->queue != NULL)
        r->c->jobs->queue->fresh++;
    return HL_OK;
}

static hl_status answer_submit(struct request *r)
{
    struct job *j = jobs_find_key(r->c, r->key);
    if (j != NULL) {
        job_wait(j, r->call, reply_id);
        return HL_OK;
    }
    j = calloc(1, sizeof(*j));
    if (j == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the record of a job");
    hl_status st = request_submit(r, j);
    if (st != HL_OK)
        job_free(j);
    return st;
}

static void request_answer(struct request *r, hl_status st)
{
    if (st == HL_OK && r->key != NULL)
        st = answer_submit(r);
    else if (st == HL_OK)
        answer_plan(r);
    if (st != HL_OK)
        call_reject(r->call, st);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static void request_start(struct hl_controller *c, struct hl_rpc_call *call,
                          const struct request *given)
{
    struct request *r = malloc(sizeof(*r));
    if (r == NULL) {
        call_reject(call, hl_fail(HL_ENOMEM, "out of memory for the record of a job"));
        return;
    }
    *r = *given;
    r->c = c;
    r->call = call;
    request_examine(r);
}

void method_plan_job(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_plan_job_params *p)
{
    const struct request given = {.yaml = p->yaml,
                                  .source = p->source,
                                  .cwd = p->cwd,
                                  .file = p->file,
                                  .exported = &p->exported,
                                  .inherited = &p->inherited,
                                  .defrag = p->defrag};
    request_start(controller_enter(arg), call, &given);
}

void method_submit_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_submit_job_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    const struct request given = {.yaml = p->yaml,
                                  .source = p->source,
                                  .cwd = p->cwd,
                                  .file = p->file,
                                  .exported = &p->exported,
                                  .inherited = &p->inherited,
                                  .key = p->idempotency_key};
    struct job *j = jobs_find_key(c, p->idempotency_key);
    if (j != NULL)
        job_wait(j, call, reply_id);
    else
        request_start(c, call, &given);
}
