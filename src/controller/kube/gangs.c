/* Decisions: from what the API server has to events and requests. */
#include "controller/kube/gangs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/kube/gangs_private.h"
#include "os/file.h"
#include "ranktable/plan.h"

/* The watch of pods may be behind that of Jobs: a pod that failed explains its Job's end. */
#define TROUBLE_NS (3 * HL_NS_PER_S)

/* ---- what there is --------------------------------------------------------------------------- */

static const char *name_of(const json_t *object)
{
    return hl_json_str(json_object_get(object, "metadata"), "name", "");
}

/* The pod of a container of the plan, NULL when there is none that is ours. Borrowed. */
static const json_t *pod_of(const struct job *j, int index)
{
    const json_t *pod =
        json_object_get(j->controller->gangs->pods, j->run.plan->containers[index].node);
    return hl_volcano_attempt_of(pod, j->gang.id) == j->run.containers_attempt ? pod : NULL;
}

static void read_pod(const struct job *j, int index, const json_t *pod, struct hl_volcano_pod *out)
{
    hl_volcano_pod_read(pod, j->run.plan->containers[index].ranks[0].rank, out);
}

static const json_t *job_of(const struct job *j, int attempt)
{
    char name[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(j->id, attempt, name);
    const json_t *job = json_object_get(j->controller->gangs->jobs, name);
    return hl_volcano_attempt_of(job, j->gang.id) == attempt ? job : NULL;
}

static int is_synced(const struct gangs *g)
{
    return g->jobs_synced && g->pods_synced;
}

static int is_up(const struct job *j)
{
    return j->run.state == HL_JOB_STARTING || j->run.state == HL_JOB_RUNNING;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void container_lose(struct job *j, int index, const char *why)
{
    char text[HL_JOB_TEXT_MAX], node[HL_NODE_NAME_MAX + 1];
    snprintf(text, sizeof(text), "%s", why);
    memcpy(node, j->run.containers[index].node, sizeof(node));
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = node, .text = text});
}

static void tell_state(struct job *j, int index, const struct hl_volcano_pod *p)
{
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                        .attempt = j->run.attempt,
                                        .index = index,
                                        .container = p->state,
                                        .exit_code = p->exit_code,
                                        .signal = p->signal,
                                        .text = p->message});
}

/* One container of a gang that is up. */
static void look_at(struct job *j, int index)
{
    enum hl_container_state have = j->run.containers[index].state;
    const json_t *pod = pod_of(j, index);
    struct hl_volcano_pod p;
    if (have > HL_CONTAINER_RUNNING)
        return;
    if (pod == NULL) {
        if (have != HL_CONTAINER_WANTED)
            container_lose(j, index, "its pod is gone");
        return;
    }
    read_pod(j, index, pod, &p);
    if (p.state == HL_CONTAINER_LOST)
        container_lose(j, index, p.message);
    else if (p.state == HL_CONTAINER_WANTED && have != HL_CONTAINER_WANTED)
        container_lose(j, index, "its pod was replaced");
    else if (p.state > have)
        tell_state(j, index, &p);
}

/* The Job ended, was suspended or deleted, and its pods don't say why. */
static void look_at_job(struct job *j)
{
    const json_t *job = job_of(j, j->run.attempt);
    const char *why = job != NULL ? hl_volcano_job_trouble(job) : NULL;
    char text[HL_JOB_TEXT_MAX];
    uint64_t now = j->controller->listening.listened_ns;
    if (why == NULL) {
        j->gang.trouble_ns = 0;
        return;
    }
    if (j->gang.trouble_ns == 0)
        j->gang.trouble_ns = now;
    if (now - j->gang.trouble_ns < TROUBLE_NS)
        return;
    j->gang.trouble_ns = 0;
    const json_t *state = json_object_get(json_object_get(job, "status"), "state");
    snprintf(text, sizeof(text), "the Volcano Job is %s %.160s", why,
             hl_json_str(state, "message", ""));
    for (int i = 0; i < j->run.container_count; i++)
        if (j->run.containers[i].state <= HL_CONTAINER_RUNNING) {
            container_lose(j, i, text);
            return;
        }
}

/* While stopping: what has no pod any more has ended, once nobody makes it again. */
static void look_for_ends(struct job *j)
{
    int attempt = j->run.attempt;
    if (j->gang.busy || job_of(j, attempt) != NULL ||
        (j->gang.unmade != attempt && j->gang.made == attempt))
        return;
    job_events_hold(j);
    for (int i = 0; i < j->run.container_count && j->run.state == HL_JOB_STOPPING; i++)
        if (j->run.containers[i].state <= HL_CONTAINER_RUNNING && pod_of(j, i) == NULL)
            job_event(j, &(struct hl_job_event){
                             .kind = HL_JOB_EV_ABSENT, .attempt = attempt, .index = i});
    job_events_go(j);
}

void gangs_look(struct job *j)
{
    struct gangs *g = j->controller->gangs;
    int attempt = j->run.attempt;
    if (g == NULL || j->gang.id[0] == '\0' || !is_synced(g))
        return;
    job_events_hold(j); /* a gang of thousands starts in one step */
    for (int i = 0; is_up(j) && j->run.attempt == attempt && i < j->run.container_count; i++)
        look_at(j, i);
    job_events_go(j);
    if (is_up(j) && j->run.attempt == attempt)
        look_at_job(j);
    if (j->run.state == HL_JOB_STOPPING)
        look_for_ends(j);
    gangs_keep(j);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* An attempt whose Job should not be, or 0. */
static int stray_containers(const struct job *j)
{
    int wanted = is_up(j) || j->run.state == HL_JOB_SUCCEEDED ? j->run.attempt : 0;
    for (int attempt = 1; attempt <= j->run.attempt; attempt++) {
        /* What we made the watch need not have shown yet. */
        int there = job_of(j, attempt) != NULL || j->gang.made == attempt;
        if (there && attempt != wanted && j->gang.unmade != attempt)
            return attempt;
    }
    return 0;
}

/* Pods are the servers of their ranks, with their own addresses. */
static hl_status table_of(const struct job *j, char **out)
{
    struct hl_cluster cluster = {0};
    enum hl_ranktable_format format = HL_RANKTABLE_V2;
    hl_status st = hl_ranktable_format_parse(j->spec.rank_table, &format);
    for (int i = 0; st == HL_OK && i < j->run.container_count; i++) {
        const struct hl_plan_container *c = &j->run.plan->containers[i];
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_slot slot = {.gpus = {.items = hl_arena_array(&arena, (size_t)c->rank_count,
                                                                    sizeof(*slot.gpus.items))}};
        for (int k = 0; slot.gpus.items != NULL && k < c->rank_count; k++)
            slot.gpus.items[slot.gpus.count++].id = c->ranks[k].gpu;
        st = hl_cluster_put(&cluster, &(struct hl_api_node_info){
                                          .name = c->node,
                                          .host_address = hl_json_str(
                                              json_object_get(pod_of(j, i), "status"), "podIP", ""),
                                          .slots = {&slot, 1}});
    }
    if (st == HL_OK)
        st = hl_ranktable_plan_text(j->run.plan, &cluster, j->id, format, out);
    hl_cluster_fini(&cluster);
    return st;
}

static void keep_table(struct job *j)
{
    char *table = NULL;
    j->gang.told = j->run.attempt;
    if (table_of(j, &table) == HL_OK)
        gang_tell(j, table);
    else
        hl_error("job has no rank table job=%s error=\"%s\"", j->id, hl_error_text());
    free(table);
}

void gangs_keep(struct job *j)
{
    struct gangs *g = j->controller->gangs;
    if (g == NULL || j->gang.id[0] == '\0' || !is_synced(g) || j->gang.busy || !job_is_saved(j) ||
        hl_now_ns() < j->gang.not_before_ns)
        return;
    int away = stray_containers(j), attempt = j->run.attempt;
    if (away > 0)
        gang_unmake(j, away);
    else if (j->run.state == HL_JOB_STARTING && j->gang.made != attempt &&
             job_of(j, attempt) == NULL)
        gang_make(j);
    else if (j->run.state == HL_JOB_RUNNING && j->gang.told != attempt &&
             !hl_volcano_is_ascend(&g->volcano))
        keep_table(j);
    else if (j->run.state == HL_JOB_SUCCEEDED && j->gang.kept != attempt)
        gang_keep_logs(j);
}

/* The job of an object, NULL when it is not one of ours. */
static struct job *owner_of(struct gangs *g, const json_t *object)
{
    struct job *j = NULL;
    HASH_FIND_STR(g->c->jobs, hl_volcano_job_id(object), j);
    return j != NULL && hl_volcano_attempt_of(object, j->gang.id) > 0 ? j : NULL;
}

/* Those that have not ended, and what an ended one has left. */
void gangs_tick(struct hl_controller *c)
{
    struct job *j, *next;
    const char *name;
    json_t *object;
    void *iter;
    if (c->gangs == NULL)
        return;
    HASH_ITER (hh, c->jobs, j, next) {
        if (!hl_job_state_ended(j->run.state))
            gangs_look(j);
    }
    json_object_foreach_safe(c->gangs->jobs, iter, name, object)
    {
        j = owner_of(c->gangs, object);
        if (j != NULL && hl_job_state_ended(j->run.state))
            gangs_look(j);
    }
}

/* ---- watching -------------------------------------------------------------------------------- */

static void look_at_stale(void *arg)
{
    struct gangs *g = arg;
    struct job *j, *next;
    g->looking = 0;
    HASH_ITER (hh, g->c->jobs, j, next) {
        if (j->gang.stale) {
            j->gang.stale = 0;
            gangs_look(j);
        }
    }
}

/* Behind the events that have come already: a thousand pods that start are looked at once. */
static void look_at_owner(struct gangs *g, const json_t *object)
{
    struct job *j = owner_of(g, object);
    if (j == NULL)
        return;
    j->gang.stale = 1;
    if (!g->looking)
        hl_loop_post(g->c->opts.loop, look_at_stale, g);
    g->looking = 1;
}

/* A list takes the place of what there was when its last page is here. */
static int take_page(json_t **now, json_t **next, const json_t *objects, unsigned page)
{
    json_t *o;
    size_t i;
    if ((page & HL_KUBE_FIRST) != 0 || *next == NULL) {
        json_decref(*next);
        *next = json_object();
    }
    json_array_foreach (objects, i, o)
        json_object_set(*next, name_of(o), o);
    if ((page & HL_KUBE_LAST) == 0)
        return 0;
    json_decref(*now);
    *now = hl_steal(next);
    return 1;
}

static void on_jobs(void *arg, const json_t *objects, unsigned page)
{
    struct gangs *g = arg;
    g->jobs_synced |= take_page(&g->jobs, &g->next_jobs, objects, page);
    gangs_tick(g->c);
}

static void on_pods(void *arg, const json_t *objects, unsigned page)
{
    struct gangs *g = arg;
    g->pods_synced |= take_page(&g->pods, &g->next_pods, objects, page);
    gangs_tick(g->c);
}

static void on_change(struct gangs *g, json_t *all, enum hl_kube_event type, json_t *object)
{
    if (type == HL_KUBE_DELETED)
        json_object_del(all, name_of(object));
    else
        json_object_set(all, name_of(object), object);
    look_at_owner(g, object);
}

static void on_job(void *arg, enum hl_kube_event type, json_t *object)
{
    struct gangs *g = arg;
    on_change(g, g->jobs, type, object);
}

static void on_pod(void *arg, enum hl_kube_event type, json_t *object)
{
    struct gangs *g = arg;
    on_change(g, g->pods, type, object);
}

static hl_status watch_kind(struct gangs *g, const char *base, const char *kind,
                            void (*all)(void *, const json_t *, unsigned),
                            void (*one)(void *, enum hl_kube_event, json_t *),
                            struct hl_kube_watcher **out)
{
    /* Most of an object, of which we made it. */
    static const char *const skipped[] = {"managedFields", "env",     "command",  "args",
                                          "volumeMounts",  "volumes", "affinity", "resources",
                                          "tasks",         NULL};
    static const struct hl_kube_members members = {.names = skipped};
    char path[512];
    snprintf(path, sizeof(path), "%s/namespaces/%s/%s", base, g->ns, kind);
    return hl_kube_watcher_start(&(struct hl_kube_watcher_opts){.kube = g->api,
                                                                .loop = g->c->opts.loop,
                                                                .path = path,
                                                                .selector = HL_VOLCANO_SELECTOR,
                                                                .members = &members,
                                                                .listed = all,
                                                                .changed = one,
                                                                .arg = g},
                                 out);
}

/* ---- start and end --------------------------------------------------------------------------- */

static hl_status copy_opts(struct gangs *g, const struct hl_kube_opts *o)
{
    HL_TRY(hl_kube_config_load(
        &(struct hl_kube_source){.path = o->config, .context = "", .master = o->master},
        &g->config));
    g->ns = strdup(o->ns[0] != '\0' ? o->ns : g->config->ns);
    g->queue = strdup(o->queue);
    g->device = strdup(o->device);
    g->policy = strdup(o->topology_policy);
    if (g->ns == NULL || g->queue == NULL || g->device == NULL || g->policy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Kubernetes executor");
    g->volcano = (struct hl_volcano_opts){.ns = g->ns,
                                          .queue = g->queue,
                                          .device = g->device,
                                          .topology_policy = g->policy,
                                          .slot_devices = o->slot_devices,
                                          .keep_s = o->keep_s};
    int n = snprintf(g->logs, sizeof(g->logs), "%s/logs", o->state_dir);
    if (n < 0 || (size_t)n >= sizeof(g->logs) - HL_JOB_ID_MAX - 64)
        return hl_fail(HL_EINVAL, "the path of the state directory is too long");
    return hl_dir_make(g->logs, 0755);
}

static hl_status gangs_open(struct gangs *g, const struct hl_kube_opts *opts)
{
    HL_TRY(copy_opts(g, opts));
    HL_TRY(hl_kube_open(g->config, &g->cancel, &g->api));
    HL_TRY(
        watch_kind(g, "/apis/batch.volcano.sh/v1alpha1", "jobs", on_jobs, on_job, &g->jobs_watch));
    HL_TRY(watch_kind(g, "/api/v1", "pods", on_pods, on_pod, &g->pods_watch));
    hl_info("gangs run on Kubernetes server=%s namespace=%s queue=%s device=%s", g->config->server,
            g->ns, g->queue, g->device);
    return HL_OK;
}

hl_status gangs_start(struct hl_controller *c, const struct hl_kube_opts *opts, struct gangs **out)
{
    struct gangs *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Kubernetes executor");
    g->c = c;
    pthread_mutex_init(&g->spool_lock, NULL);
    g->jobs = json_object();
    g->pods = json_object();
    hl_status st = gangs_open(g, opts);
    if (st != HL_OK) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        gangs_stop(g);
        return hl_fail(st, "executor kubernetes: %s", text);
    }
    *out = g;
    return HL_OK;
}

void gangs_stop(struct gangs *g)
{
    if (g == NULL)
        return;
    atomic_store(&g->cancel, 1);
    hl_kube_watcher_stop(g->jobs_watch);
    hl_kube_watcher_stop(g->pods_watch);
    /* Requests end with their connections' next look at `cancel`. */
    while (g->calls > 0 || g->looking)
        uv_run(hl_loop_uv(g->c->opts.loop), UV_RUN_ONCE);
    gang_logs_fini(g);
    json_decref(g->jobs);
    json_decref(g->pods);
    json_decref(g->next_jobs);
    json_decref(g->next_pods);
    hl_kube_close(g->api);
    hl_kube_config_free(g->config);
    pthread_mutex_destroy(&g->spool_lock);
    free(g->ns);
    free(g->queue);
    free(g->device);
    free(g->policy);
    free(g);
}

hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out)
{
    if (hl_volcano_is_ascend(&g->volcano) && strcmp(spec->rank_table, "v2") != 0)
        return hl_fail(HL_EINVAL,
                       "job '%s': rankTable: on huawei.com devices helios-ranktable writes the "
                       "table, in the format of its own option --json; remove the key",
                       spec->name);
    return hl_volcano_plan(spec, job_id, attempt, &g->volcano, out);
}

const struct hl_plan *gangs_plan_of(const struct job *j, int attempt, struct hl_plan **made)
{
    if (attempt == j->run.containers_attempt)
        return j->run.plan;
    if (gangs_plan(j->controller->gangs, &j->spec, j->id, attempt, made) != HL_OK)
        return NULL;
    return *made;
}

static void watch_problem(const struct gangs *g, char *out, size_t cap)
{
    struct hl_kube_watcher_info jobs, pods;
    hl_kube_watcher_info(g->jobs_watch, &jobs);
    hl_kube_watcher_info(g->pods_watch, &pods);
    snprintf(out, cap, "%s", jobs.problem[0] != '\0' ? jobs.problem : pods.problem);
}

void gangs_state(const struct gangs *g, char *out, size_t cap)
{
    watch_problem(g, out, cap);
    if (out[0] == '\0')
        snprintf(out, cap, "%s", is_synced(g) ? "ready" : "not asked yet");
}

const char *gangs_server(const struct gangs *g)
{
    return g->config->server;
}

void gangs_message(const struct job *j, int index, char *out, size_t cap)
{
    struct gangs *g = j->controller->gangs;
    struct hl_volcano_pod p = {0};
    const json_t *pod = pod_of(j, index);
    out[0] = '\0';
    if (pod != NULL)
        read_pod(j, index, pod, &p);
    if (p.message[0] != '\0')
        snprintf(out, cap, "%s", p.message);
    else if (!hl_job_state_ended(j->run.state) && j->gang.problem[0] != '\0')
        snprintf(out, cap, "%s", j->gang.problem);
    else if (!hl_job_state_ended(j->run.state))
        watch_problem(g, out, cap);
}

void gangs_read_log(struct job *j, struct hl_rpc_call *call, const struct log_ask *ask)
{
    struct hl_plan *made = NULL;
    const struct hl_plan *plan = gangs_plan_of(j, ask->attempt, &made);
    if (plan == NULL) {
        hl_rpc_reject(call, HL_EINTERNAL, hl_error_text());
        return;
    }
    const struct hl_plan_container *c = &plan->containers[ask->index];
    const json_t *pod = json_object_get(j->controller->gangs->pods, c->node);
    if (hl_volcano_attempt_of(pod, j->gang.id) != ask->attempt)
        pod = NULL;
    gang_log_read(j, call, pod, ask->rank - c->ranks[0].rank, ask);
    hl_plan_free(made);
}
