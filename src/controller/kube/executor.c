/* Kubernetes as an executor of jobs. A Controller that was started without Kubernetes still knows
 * its jobs, and reports where it can't run them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/kube/gangs_private.h"

static hl_status gang_alloc(struct job *j, const char *id)
{
    j->gang = calloc(1, sizeof(*j->gang));
    if (j->gang == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the gang of a job");
    snprintf(j->gang->id, sizeof(j->gang->id), "%s", id);
    return HL_OK;
}

static hl_status kube_admit(struct job *j)
{
    if (j->controller->gangs != NULL)
        HL_TRY(engine_check(j->controller->gangs));
    HL_TRY(gang_alloc(j, hl_id_format(hl_id_random()).s));
    j->doc.gang = j->gang->id;
    return HL_OK;
}

static hl_status kube_restore(struct job *j)
{
    if (j->doc.gang[0] == '\0')
        return HL_ENOENT;
    HL_TRY(gang_alloc(j, j->doc.gang));
    j->gang->restored = true;
    return HL_OK;
}

static void gang_release(struct job *j)
{
    free(j->gang);
    j->gang = NULL;
}

static hl_status fail_away(void)
{
    return hl_fail(HL_EUNAVAIL, "it was submitted to Kubernetes: start helios-controller with "
                                "--executor kubernetes");
}

static hl_status kube_plan(struct hl_controller *c, const struct hl_job *spec, const char *id,
                           int attempt, struct hl_plan **out)
{
    return c->gangs != NULL ? gangs_plan(c->gangs, spec, id, attempt, out) : fail_away();
}

/* A gang is made and deleted as a whole: gang_apply derives from the state what has to be done. */
static void kube_carry_out(struct job *j, const struct hl_job_actions *actions)
{
    (void)actions;
    gang_apply(j);
}

/* Why a container waits or was lost: what its pod reports, or what keeps us from having a pod.
 * Otherwise any problem of the node where it runs. */
static void pod_message(const struct job *j, int index, char *out, size_t cap)
{
    struct gangs *g = j->controller->gangs;
    struct hl_volcano_pod p = {0};
    const json_t *pod = gang_pod(j, index);
    out[0] = '\0';
    if (pod != NULL)
        gang_pod_read(j, index, pod, &p);
    if (p.message[0] != '\0')
        snprintf(out, cap, "%s", p.message);
    else if (!hl_job_state_ended(j->run.state) && j->gang->problem[0] != '\0')
        snprintf(out, cap, "%s", j->gang->problem);
    else if (!hl_job_state_ended(j->run.state))
        gangs_problem(g, out, cap);
    if (out[0] == '\0' && pod != NULL)
        gang_pod_spreads(j, pod, out, cap);
}

/* Why the job is not up: what keeps us from making its objects, what they report, or what keeps us
 * from seeing them. */
static void kube_waits_for(const struct job *j, char *out, size_t cap)
{
    out[0] = '\0';
    if (j->controller->gangs == NULL || j->run.state != HL_API_JOB_STATE_STARTING)
        return;
    snprintf(out, cap, "%s", j->gang->problem);
    if (out[0] == '\0')
        gang_waits_for(j, out, cap);
    if (out[0] == '\0')
        gangs_problem(j->controller->gangs, out, cap);
}

static void kube_describe(const struct job *j, const struct hl_jobrun *run, int index,
                          struct hl_arena *arena, struct hl_api_container_status *io)
{
    char why[HL_JOB_TEXT_MAX];
    (void)run;
    if (j->controller->gangs == NULL || io->message[0] != '\0')
        return;
    pod_message(j, index, why, sizeof(why));
    if (why[0] != '\0')
        io->message = hl_arena_strdup(arena, why);
}

static void kube_read_log(struct job *j, struct hl_rpc_call *call, const struct log_query *query)
{
    struct hl_plan *made = NULL;
    if (j->controller->gangs == NULL) {
        call_reject(call, fail_away());
        return;
    }
    const struct hl_plan *plan = gangs_plan_of(j, query->attempt, &made);
    if (plan == NULL) {
        hl_rpc_reject(call, HL_EINTERNAL, hl_error_text());
        return;
    }
    const struct hl_plan_container *c = &plan->containers[query->index];
    const json_t *pod = hl_kube_table_find(&j->controller->gangs->pods, c->node);
    if (hl_volcano_attempt_of(pod, j->gang->id) != query->attempt)
        pod = NULL;
    gang_log_read(j, call, pod, query->rank - c->ranks[0].rank, query);
    hl_plan_free(made);
}

static bool has_objects(const struct gangs *g, const struct job *j)
{
    const char *name;
    json_t *object;
    json_object_foreach (g->jobs.now, name, object) {
        if (hl_volcano_attempt_of(object, j->gang->id) > 0)
            return true;
    }
    return false;
}

static bool kube_needs(const struct job *j)
{
    const struct gangs *g = j->controller->gangs;
    return g != NULL && (!g->jobs.synced || j->gang->busy || has_objects(g, j));
}

static struct hl_podspec_rules kube_pod_rules(const struct hl_controller *c)
{
    const struct gangs *g = c->gangs;
    return (struct hl_podspec_rules){.device = g != NULL ? g->device : "",
                                     .host_paths = g != NULL ? g->host_paths : "",
                                     .no_volcano = g != NULL && g->podgroups[0] != '\0'};
}

static hl_status kube_start(struct hl_controller *c)
{
    return c->opts.kube != NULL ? gangs_start(c, c->opts.kube, &c->gangs) : HL_OK;
}

static void kube_stop(struct hl_controller *c)
{
    gangs_stop(c->gangs);
    c->gangs = NULL;
}

static void kube_tell(const struct hl_controller *c, struct hl_arena *arena,
                      struct hl_api_cluster_info *io)
{
    char state[512], warning[320], engine[128];
    if (c->gangs == NULL)
        return;
    gangs_state(c->gangs, state, sizeof(state));
    io->kubernetes_server = gangs_server(c->gangs);
    io->kubernetes_state = hl_arena_strdup(arena, state);
    gangs_engine(c->gangs, engine, sizeof(engine));
    io->kubernetes_engine = hl_arena_strdup(arena, engine);
    gangs_warning(c->gangs, warning, sizeof(warning));
    io->kubernetes_warning = hl_arena_strdup(arena, warning);
}

const struct job_executor kube_executor = {
    .kind = HL_JOB_EXECUTOR_KUBERNETES,
    .start = kube_start,
    .stop = kube_stop,
    .tick = gangs_tick,
    .tell = kube_tell,
    .has_deadlines = true,
    .admit = kube_admit,
    .restore = kube_restore,
    .plan = kube_plan,
    .carry_out = kube_carry_out,
    .describe = kube_describe,
    .waits_for = kube_waits_for,
    .read_log = kube_read_log,
    .needs = kube_needs,
    .forget = gangs_forget,
    .pod_rules = kube_pod_rules,
    .release = gang_release,
};
