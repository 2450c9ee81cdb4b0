/* What users ask about jobs. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "conf/yaml.h"
#include "controller/controller_private.h"

/* Everything about the job that can be known before it waits for slots. */
static hl_status check_model(struct hl_controller *c, const struct hl_job *spec)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (spec->model[0] == '\0' || spec->command_count == 0)
        return HL_OK; /* nothing of ours is loaded */
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

static hl_status parse_job(const json_t *params, struct hl_job *out)
{
    const char *yaml = hl_json_str(params, "yaml", "");
    const char *source = hl_json_str(params, "source", "job");
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_parse(source, yaml, strlen(yaml), &doc));
    struct hl_job_source where = {source, hl_yaml_locate, doc};
    return hl_job_parse(hl_yaml_root(doc), &where, out);
}

void method_plan_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_job spec = {0};
    struct hl_plan *plan = NULL;
    hl_status st = parse_job(params, &spec);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    st = check_model(c, &spec);
    if (st == HL_OK)
        st = c->gangs != NULL ? gangs_plan(c->gangs, &spec, spec.name, 1, &plan)
                              : hl_plan_make(&spec, &c->cluster, NULL, &plan);
    if (st == HL_OK)
        hl_rpc_reply(call, json_pack("{s:o}", "plan", hl_plan_to_json(plan)));
    else
        reject(call, st);
    hl_plan_free(plan);
    hl_job_fini(&spec);
}

static hl_status resolve_workdir(struct hl_job *spec, const char *cwd)
{
    if (spec->workdir[0] == '/' || cwd[0] != '/')
        return HL_OK;
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", cwd, spec->workdir[0] != '\0' ? "/" : "", spec->workdir) < 0)
        return hl_fail(HL_ENOMEM, "working directory of job '%s'", spec->name);
    free(spec->workdir);
    spec->workdir = path;
    if (strlen(path) >= PATH_MAX) /* also more than a stored job may have */
        return hl_fail(HL_EINVAL, "job '%s': workdir has %zu bytes, a path has less than %d",
                       spec->name, strlen(path), PATH_MAX);
    return HL_OK;
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

/* A gang that no state of the cluster could hold is refused at once. */
static hl_status check_possible(struct hl_controller *c, const struct hl_job *spec)
{
    struct hl_plan *plan = NULL;
    if (c->gangs != NULL) {
        HL_TRY(gangs_plan(c->gangs, spec, spec->name, 1, &plan));
        hl_plan_free(plan);
        return HL_OK;
    }
    if (c->cluster.count == 0 || nodes_expected(c))
        return HL_OK; /* an Agent may come yet: it waits */
    HL_TRY(hl_plan_make(spec, &c->cluster, &(struct hl_plan_opts){.ignore_busy = 1}, &plan));
    hl_status st = HL_OK;
    if (!plan->feasible && plan->never)
        st = hl_fail(HL_EINVAL, "job '%s' can never run here: %s", spec->name, plan->reason);
    hl_plan_free(plan);
    return st;
}

void method_submit_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    const char *key = hl_json_str(params, "idempotencyKey", "");
    struct job *j = find_by_key(c, key);
    if (j != NULL) {
        hl_rpc_reply(call, json_pack("{s:s}", "id", j->id));
        return;
    }
    j = calloc(1, sizeof(*j));
    hl_status st = j == NULL ? hl_fail(HL_ENOMEM, "job record") : parse_job(params, &j->spec);
    if (st != HL_OK) {
        free(j);
        reject(call, st);
        return;
    }
    st = check_model(c, &j->spec);
    if (st == HL_OK && j->spec.command_count == 0 && c->gangs == NULL)
        st = hl_fail(
            HL_EINVAL,
            "job '%s': command is missing; the process executor has no image to take one from",
            j->spec.name);
    if (st == HL_OK)
        st = check_possible(c, &j->spec);
    if (st == HL_OK && c->gangs == NULL) /* an image has its own directory */
        st = resolve_workdir(&j->spec, hl_json_str(params, "cwd", ""));
    if (st == HL_OK) {
        j->doc = json_pack("{s:s s:s s:s s:o}", "yaml", hl_json_str(params, "yaml", ""), "source",
                           hl_json_str(params, "source", ""), "key", key, "spec",
                           hl_job_to_json(&j->spec));
        st = job_submit(c, j);
    }
    if (st != HL_OK) {
        reject(call, st);
        job_free(j);
        return;
    }
    hl_rpc_reply(call, json_pack("{s:s}", "id", j->id));
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

hl_status job_find(struct hl_controller *c, const char *id, struct job **out)
{
    struct job *j;
    HASH_FIND_STR(c->jobs, id, j);
    if (j == NULL)
        for (struct job *k = c->jobs; k != NULL; k = k->hh.next)
            if (strcmp(k->spec.name, id) == 0)
                j = k;
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

static json_t *job_to_json(const struct job *j, const json_t *warnings)
{
    const struct hl_jobrun *r = &j->run;
    return json_pack("{s:s s:s s:s s:s s:i s:i s:s s:I s:I s:I s:i s:s}", "id", j->id, "name",
                     j->spec.name, "state", hl_job_state_name(r->state), "reason", r->reason,
                     "attempt", r->attempt, "maxRestarts", r->max_restarts, "model", j->spec.model,
                     "submittedMs", (json_int_t)r->submitted_ms, "startedMs",
                     (json_int_t)r->started_ms, "finishedMs", (json_int_t)r->finished_ms,
                     "worldSize", (int)hl_rank_world(&j->spec.grid), "warning",
                     hl_json_str(warnings, j->id, ""));
}

void method_list_jobs(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    json_t *jobs = json_array(), *warnings = jobs_warnings(c);
    for (struct job *j = c->jobs; j != NULL; j = j->hh.next)
        json_array_append_new(jobs, job_to_json(j, warnings));
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
static json_t *containers_of(struct hl_controller *c, const struct job *j)
{
    json_t *list = hl_jobrun_containers_to_json(&j->run);
    size_t i;
    json_t *mine;
    json_array_foreach (list, i, mine) {
        if (c->gangs != NULL && j->gang.id[0] != '\0') {
            add_pod(j, (int)i, mine);
            continue;
        }
        struct node *n = node_find(c, j->run.containers[i].node);
        size_t k;
        json_t *reported;
        json_array_foreach (n == NULL ? NULL : n->containers, k, reported) {
            if (strcmp(hl_json_str(reported, "id", ""), hl_json_str(mine, "id", "?")) == 0)
                json_object_update(mine, reported);
        }
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
    json_t *job = job_to_json(j, warnings);
    json_decref(warnings);
    json_object_set_new(job, "yaml", json_string(hl_json_str(j->doc, "yaml", "")));
    json_object_set(job, "events", j->events);
    json_object_set_new(job, "containers", containers_of(c, j));
    if (j->run.plan != NULL)
        json_object_set_new(job, "plan", hl_plan_to_json(j->run.plan));
    hl_rpc_reply(call, json_pack("{s:o}", "job", job));
}

void method_cancel_job(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct job *j = NULL;
    hl_status st = job_find(c, hl_json_str(params, "id", ""), &j);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    if (!hl_job_state_ended(j->run.state))
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL, .text = "by the user"});
    hl_rpc_reply(call, json_pack("{s:s}", "state", hl_job_state_name(j->run.state)));
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
