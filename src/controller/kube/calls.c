/* Requests to the API server for a job, sent by the loop's worker threads, one at a time per job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "controller/background.h"
#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "ranktable/plan.h"

#define BACKOFF_MS     200
#define BACKOFF_TOP    15000
#define BACKOFF_SPREAD 7
#define LOGS_MAX       256
#define LOGS_NS        (15 * HL_NS_PER_S)

#define CORE "/api/v1"

struct call;
typedef hl_status (*call_fn)(struct call *k);

/* A rank whose output is fetched. */
struct log_source {
    int rank, local_rank;
    bool shared;
    char pod[HL_NODE_NAME_MAX + 1];
};

/* A pod that is to be deleted without its kubelet. */
struct forced_pod {
    char name[HL_NODE_NAME_MAX + 1], uid[64];
};

struct call {
    struct background task;
    struct gangs *g;
    call_fn run;
    char job[HL_JOB_ID_MAX + 1], gang[HL_ID_TEXT_LEN + 1];
    char name[HL_VOLCANO_NAME_MAX], map[GANG_MAP_MAX];
    int attempt;
    char roots[96];                   /* API path of the gang's root objects */
    json_t *doc, *map_doc, *vars_doc; /* the object to create, or the patch */
    json_t *service, *pods;           /* for a PodGroup; NULL: Volcano makes the pods */
    struct log_source *logs;          /* fetched before the pods are deleted */
    size_t log_count;
    struct forced_pod *forced;
    size_t forced_count;
};

/* ---- in worker threads ----------------------------------------------------------------------- */

static hl_status call_request(struct call *k, const char *method, const char *base,
                              const char *kind, const char *name, const json_t *body, json_t **out)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/namespaces/%s/%s%s%s", base, k->g->ns, kind,
             name[0] != '\0' ? "/" : "", name);
    return hl_kube_call(
        k->g->api,
        &(struct hl_kube_request){.method = method,
                                  .path = path,
                                  .body = body,
                                  .type = strcmp(method, "PATCH") == 0 ? HL_KUBE_MERGE : NULL,
                                  .timeout_ms = k->g->c->opts.rpc_timeout_ms},
        out);
}

/* An object that exists already is either ours, made by a request whose answer was lost, or was
 * made by a user. */
static hl_status create_one(struct call *k, const char *base, const char *kind, const char *name,
                            const json_t *doc, json_t **out)
{
    json_t *there = NULL;
    hl_status st = call_request(k, "POST", base, kind, "", doc, &there);
    bool was_there = st == HL_EEXIST;
    if (was_there)
        st = call_request(k, "GET", base, kind, name, NULL, &there);
    if (st == HL_ECONFLICT || (was_there && st == HL_ENOENT))
        st = HL_EUNAVAIL; /* a ResourceQuota was changed meanwhile; or it was deleted meanwhile */
    HL_TRY(st);
    bool ours = hl_volcano_attempt_of(there, k->gang) == k->attempt;
    if (ours && was_there &&
        json_object_get(json_object_get(there, "metadata"), "deletionTimestamp") != NULL) {
        json_decref(there);
        return hl_fail(HL_EUNAVAIL, "%s '%s' is still being deleted", kind, name);
    }
    if (!ours) {
        json_decref(there);
        return hl_fail(HL_ECONFLICT,
                       "%s '%s' of namespace '%s' already exists and was not made for this job; "
                       "delete it, or rename the job",
                       kind, name, k->g->ns);
    }
    *out = there;
    return HL_OK;
}

static hl_status create_ours(struct call *k, const char *kind, const char *name, const json_t *doc)
{
    json_t *made = NULL;
    hl_status st = create_one(k, CORE, kind, name, doc, &made);
    json_decref(made);
    return st;
}

/* A Volcano that does not know a field drops it silently. */
static hl_status check_taken(const struct call *k, const json_t *job)
{
    const json_t *sent = json_object_get(k->doc, "spec"), *has = json_object_get(job, "spec");
    if (json_object_get(sent, "networkTopology") == NULL ||
        json_object_get(has, "networkTopology") != NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "kubernetes.networkTopology: this cluster's Volcano does not know it "
                              "(it came with 1.11); remove the key");
}

static hl_status run_create(struct call *k)
{
    json_t *job = NULL;
    HL_TRY(create_one(k, k->roots, k->g->root.plural, k->name, k->doc, &job));
    hl_status st = check_taken(k, job);
    json_decref(job);
    return st;
}

static hl_status delete_one(struct call *k, const char *base, const char *kind, const char *name)
{
    json_t *there = NULL;
    hl_status st = call_request(k, "GET", base, kind, name, NULL, &there);
    if (st == HL_ENOENT)
        return HL_OK;
    HL_TRY(st);
    const char *uid;
    bool ours = hl_volcano_attempt_of(there, k->gang) == k->attempt;
    if (ours)
        st = object_text(there, "metadata.uid", &uid);
    if (ours && st == HL_OK) {
        json_t *how =
            json_pack("{s:s s:s s:s s:{s:s}}", "kind", "DeleteOptions", "apiVersion", "v1",
                      "propagationPolicy", "Background", "preconditions", "uid", uid);
        st = call_request(k, "DELETE", base, kind, name, how, NULL);
        json_decref(how);
    }
    json_decref(there);
    return st == HL_ENOENT ? HL_OK : st;
}

/* Deletes the first pods of the gang. Two gangs that each hold a part of a quota, and need more of
 * it, would wait for each other forever. Keeps this thread's last error. */
static void pods_withdraw(struct call *k, size_t count)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    for (size_t i = 0; i < count; i++) {
        const char *name;
        hl_status st = object_text(json_array_get(k->pods, i), "metadata.name", &name);
        if (st == HL_OK)
            st = delete_one(k, CORE, "pods", name);
        if (st != HL_OK)
            hl_debug("a pod of %s keeps its part of the quota: %s", k->job, hl_error_text());
    }
    (void)hl_fail(HL_ENOSPC, "%s", text);
}

static hl_status create_pods(struct call *k)
{
    size_t i;
    const json_t *pod;
    json_array_foreach (k->pods, i, pod) {
        const char *name;
        HL_TRY(object_text(pod, "metadata.name", &name));
        hl_status st = create_ours(k, "pods", name, pod);
        if (st == HL_ENOSPC)
            pods_withdraw(k, i);
        HL_TRY(st);
    }
    return HL_OK;
}

/* Kubernetes deletes the maps together with their Job (ownerReferences). Pods poll for them until
 * they exist. */
static hl_status run_put_maps(struct call *k)
{
    HL_TRY(create_ours(k, "configmaps", k->map, k->map_doc));
    HL_TRY(create_ours(k, "configmaps", k->name, k->vars_doc));
    if (k->service != NULL)
        HL_TRY(create_ours(k, "services", k->name, k->service));
    return create_pods(k);
}

/* Logs that can't be fetched are given up: a dead node must not keep its gang from being deleted.
 */
static hl_status run_logs(struct call *k)
{
    uint64_t until = hl_now_ns() + LOGS_NS;
    for (size_t i = 0; i < k->log_count; i++) {
        struct gang_log one = {.job = k->job,
                               .pod = k->logs[i].pod,
                               .attempt = k->attempt,
                               .rank = k->logs[i].rank,
                               .local_rank = k->logs[i].local_rank,
                               .shared = k->logs[i].shared};
        if (hl_now_ns() > until)
            break;
        if (gang_log_fetch(k->g, &one) != HL_OK)
            hl_debug("log of rank %d of %s: %s", one.rank, k->job, hl_error_text());
    }
    return HL_OK;
}

static hl_status run_delete(struct call *k)
{
    HL_TRY(run_logs(k));
    HL_TRY(delete_one(k, k->roots, k->g->root.plural, k->name));
    HL_TRY(delete_one(k, CORE, "configmaps", k->name));
    return delete_one(k, CORE, "configmaps", k->map);
}

/* A pod that is gone, or a different one with the same name, is left alone. */
static hl_status run_force(struct call *k)
{
    for (size_t i = 0; i < k->forced_count; i++) {
        const struct forced_pod *p = &k->forced[i];
        json_t *how = json_pack("{s:s s:s s:i s:{s:s}}", "kind", "DeleteOptions", "apiVersion",
                                "v1", "gracePeriodSeconds", 0, "preconditions", "uid", p->uid);
        hl_status st = call_request(k, "DELETE", CORE, "pods", p->name, how, NULL);
        json_decref(how);
        if (st != HL_OK && st != HL_ENOENT && st != HL_ECONFLICT)
            return st;
    }
    return HL_OK;
}

/* If the map is gone, no pod reads its table. */
static hl_status run_put_table(struct call *k)
{
    hl_status st = call_request(k, "PATCH", CORE, "configmaps", k->map, k->doc, NULL);
    return st == HL_ENOENT ? HL_OK : st;
}

static hl_status call_run(struct background *task)
{
    struct call *k = (struct call *)task;
    return k->run(k);
}

/* ---- on the loop ----------------------------------------------------------------------------- */

static void call_free(struct call *k)
{
    json_decref(k->doc);
    json_decref(k->map_doc);
    json_decref(k->vars_doc);
    json_decref(k->service);
    json_decref(k->pods);
    free(k->logs);
    free(k->forced);
    free(k);
}

/* Jobs wait differently long, so that gangs that have refused each other a quota don't go on in
 * step. */
static void back_off(struct job *j)
{
    uint64_t ms = hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, j->gang->tries++);
    ms += ms * (j->seq % BACKOFF_SPREAD) / BACKOFF_SPREAD;
    j->gang->not_before_ns = hl_now_ns() + ms * HL_NS_PER_MS;
}

/* The same request may succeed later: a quota may have room then. */
static bool may_pass(hl_status st)
{
    return st == HL_ENOSPC || hl_status_retryable(st);
}

/* st comes with hl_error_text(). */
static void on_failure(struct job *j, const struct call *k, hl_status st)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    hl_warn("Kubernetes: job=%s attempt=%d error=\"%s\"", j->id, k->attempt, text);
    back_off(j);
    snprintf(j->gang->problem, sizeof(j->gang->problem), "%.199s", text);
    if (k->run == run_put_table)
        j->gang->table_sent = 0;
    if (k->run != run_create && k->run != run_put_maps)
        return;
    if (may_pass(st))
        return;
    j->gang->created = k->attempt; /* parts of it may exist and have to be deleted */
    if (j->run.attempt == k->attempt)
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                            .attempt = k->attempt,
                                            .container = HL_API_CONTAINER_STATE_FAILED,
                                            .text = text});
}

static void on_success(struct job *j, const struct call *k)
{
    j->gang->tries = 0;
    j->gang->problem[0] = '\0';
    if (k->run == run_create) {
        j->gang->created = k->attempt;
        hl_info("%s made job=%s name=%s", k->g->root.word, j->id, k->name);
    } else if (k->run == run_put_maps) {
        j->gang->maps_sent = k->attempt;
    } else if (k->run == run_delete) {
        j->gang->deleted = k->attempt;
        hl_info("%s deleted job=%s name=%s", k->g->root.word, j->id, k->name);
    } else if (k->run == run_force) {
        hl_info("pods deleted without their kubelets job=%s name=%s count=%zu", j->id, k->name,
                k->forced_count);
    }
}

static void on_done(struct background *task, hl_status st)
{
    struct call *k = (struct call *)task;
    struct hl_controller *c = k->g->c;
    k->g->calls--;
    struct job *j = controller_stopped(c) ? NULL : job_by_id(c, k->job);
    if (j != NULL) {
        j->gang->busy = false;
        if (st == HL_OK)
            on_success(j, k);
        else
            on_failure(j, k, st);
        k->g->answered(j);
    }
    call_free(k);
}

static struct call *call_new(struct job *j, int attempt, call_fn fn)
{
    struct call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL;
    k->task.run = call_run;
    k->task.done = on_done;
    k->g = j->controller->gangs;
    snprintf(k->roots, sizeof(k->roots), "/apis/%s", k->g->root.api);
    k->run = fn;
    k->attempt = attempt;
    memcpy(k->job, j->id, sizeof(k->job));
    memcpy(k->gang, j->gang->id, sizeof(k->gang));
    hl_volcano_job_name(j->id, attempt, k->name);
    hl_volcano_map_name(j->id, attempt, k->map, sizeof(k->map));
    return k;
}

/* Takes over the call. If it can't be started now, the next reconciliation tries again. */
static void call_send(struct job *j, struct call *k)
{
    struct gangs *g = j->controller->gangs;
    if (background_start(g->c, &k->task) != HL_OK) {
        call_free(k);
        return;
    }
    g->calls++;
    j->gang->busy = true;
}

static struct hl_volcano_gang gang_docs(struct job *j, const struct hl_api_container_spec *spec)
{
    return (struct hl_volcano_gang){.job_id = j->id,
                                    .gang = j->gang->id,
                                    .attempt = j->run.attempt,
                                    .stop_grace_ms = spec->stop_grace_ms,
                                    .job = &j->spec,
                                    .plan = j->run.plan};
}

/* The Volcano Job, which describes the pods of a gang, also where Helios makes them. */
static hl_status volcano_job(struct job *j, json_t **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_spec spec = job_container_spec(j, 0, &arena);
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory for the gang of job %s", j->id);
    struct hl_volcano_nodes *near = gangs_preferred_nodes(j);
    const struct hl_volcano_gang gang = gang_docs(j, &spec);
    hl_status st = hl_volcano_job(&gang, &j->controller->gangs->volcano, near, out);
    free(near);
    return st;
}

static hl_status make_root(struct job *j, struct call *k)
{
    const char *version = j->controller->gangs->podgroups;
    HL_TRY(volcano_job(j, &k->doc));
    if (version[0] == '\0')
        return HL_OK;
    json_t *group = hl_podgroup_of(k->doc, version);
    json_decref(k->doc);
    k->doc = group;
    return group != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a PodGroup");
}

/* Makes the pods that Volcano would make from its Job. */
static hl_status make_pods(struct job *j, const char *uid, struct call *k)
{
    const char *version = j->controller->gangs->podgroups;
    json_t *job = NULL;
    HL_TRY(volcano_job(j, &job));
    k->service = hl_podgroup_service(job, version, uid);
    k->pods = hl_podgroup_pods(job, version, uid);
    json_decref(job);
    return k->service != NULL && k->pods != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating the pods of job %s", j->id);
}

static hl_status make_maps(struct job *j, const char *uid, struct call *k)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_volcano_opts *opts = &j->controller->gangs->volcano;
    struct hl_api_container_spec spec = job_container_spec(j, 0, &arena);
    const struct hl_volcano_gang gang = gang_docs(j, &spec);
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory for the variables of job %s", j->id);
    k->vars_doc = hl_volcano_variables(&gang, opts, uid, &spec);
    k->map_doc = hl_volcano_map(&gang, opts, uid, HL_RANKTABLE_INITIALIZING);
    return opts->podgroups[0] != '\0' ? make_pods(j, uid, k) : HL_OK;
}

/* Takes over the call; st: the status of building what it sends. */
static void call_send_made(struct job *j, struct call *k, hl_status st)
{
    if (st == HL_OK) {
        call_send(j, k);
        return;
    }
    on_failure(j, k, st);
    call_free(k);
}

void gang_create(struct job *j)
{
    struct call *k = call_new(j, j->run.attempt, run_create);
    if (k != NULL)
        call_send_made(j, k, make_root(j, k));
}

void gang_put_maps(struct job *j, const char *uid)
{
    struct call *k = call_new(j, j->run.attempt, run_put_maps);
    if (k != NULL)
        call_send_made(j, k, make_maps(j, uid, k));
}

/* Adds the ranks in the pods of that attempt; the next attempt may be placed already. */
static void find_logs(const struct job *j, int attempt, struct call *k)
{
    struct hl_plan *made = NULL;
    const struct hl_plan *plan = gangs_plan_of(j, attempt, &made);
    k->logs = calloc(LOGS_MAX, sizeof(*k->logs));
    for (int i = 0; plan != NULL && k->logs != NULL && i < plan->container_count; i++) {
        const struct hl_plan_container *c = &plan->containers[i];
        const json_t *pod = hl_kube_table_find(&j->controller->gangs->pods, c->node);
        if (pod == NULL)
            continue;
        for (int r = 0; r < c->rank_count && k->log_count < LOGS_MAX; r++) {
            struct log_source *log = &k->logs[k->log_count++];
            log->rank = c->ranks[r].rank;
            log->local_rank = r;
            log->shared = hl_volcano_pod_is_shared(pod);
            snprintf(log->pod, sizeof(log->pod), "%s", c->node);
        }
    }
    hl_plan_free(made);
}

void gang_delete(struct job *j, int attempt)
{
    struct call *k = call_new(j, attempt, run_delete);
    if (k == NULL)
        return;
    find_logs(j, attempt, k);
    call_send(j, k);
}

void gang_force(struct job *j, const json_t *const *pods, size_t count)
{
    struct call *k = call_new(j, j->run.attempt, run_force);
    if (k == NULL)
        return;
    k->forced = calloc(count, sizeof(*k->forced));
    if (k->forced == NULL) {
        call_free(k);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct forced_pod *p = &k->forced[k->forced_count];
        const char *name, *uid;
        if (object_text(pods[i], "metadata.name", &name) != HL_OK ||
            object_text(pods[i], "metadata.uid", &uid) != HL_OK)
            continue;
        snprintf(p->name, sizeof(p->name), "%s", name);
        snprintf(p->uid, sizeof(p->uid), "%s", uid);
        k->forced_count++;
    }
    j->gang->forced_ns = hl_now_ns();
    call_send(j, k);
}

void gang_put_table(struct job *j, const char *table)
{
    struct call *k = call_new(j, j->run.attempt, run_put_table);
    if (k == NULL)
        return;
    k->doc = json_pack("{s:{s:s}}", "data", "hccl.json", table);
    call_send(j, k);
}

void gang_keep_logs(struct job *j)
{
    struct call *k = call_new(j, j->run.attempt, run_logs);
    if (k == NULL)
        return;
    j->gang->logs_kept = j->run.attempt;
    find_logs(j, j->run.attempt, k);
    call_send(j, k);
}
