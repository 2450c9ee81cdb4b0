/* What the API server has of Jobs and pods: watchers keep it up to date, and each change is
 * examined. */
#include "controller/kube/gangs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "os/file.h"
#include "ranktable/products.h"
#include "volcano/kubelet.h"

/* NULL: the object has no name, which is logged. */
static const char *name_of(const json_t *object)
{
    const char *name = NULL;
    if (object_text(object, "metadata.name", &name) != HL_OK)
        hl_error("Kubernetes: an object is left out error=\"%s\"", hl_error_text());
    return name;
}

static void reconcile_stale(void *arg)
{
    struct gangs *g = arg;
    struct job *j, *next;
    g->reconcile_posted = false;
    for (j = jobs_first(g->c); j != NULL; j = next) {
        next = j->hh.next;
        if (j->gang != NULL && j->gang->stale) {
            j->gang->stale = false;
            gang_reconcile(j);
        }
    }
}

/* Posted behind the events that have arrived already: so a thousand starting pods are examined
 * together. */
static void owner_mark_stale(struct gangs *g, const json_t *object)
{
    struct job *j = gang_owner(g, object);
    if (j == NULL)
        return;
    j->gang->stale = true;
    if (!g->reconcile_posted)
        hl_loop_post(g->c->opts.loop, reconcile_stale, g);
    g->reconcile_posted = true;
}

static void take_list(struct hl_kube_table *t, const json_t *objects, unsigned page)
{
    if (hl_kube_table_list(t, objects, page) != HL_OK)
        hl_error("Kubernetes: a list is left out error=\"%s\"", hl_error_text());
}

static void take_change(struct hl_kube_table *t, enum hl_kube_event type, json_t *object)
{
    if (hl_kube_table_change(t, type, object) != HL_OK)
        hl_error("Kubernetes: an object is left out error=\"%s\"", hl_error_text());
}

static void on_jobs(void *arg, const json_t *objects, unsigned page)
{
    struct gangs *g = arg;
    take_list(&g->jobs, objects, page);
    gangs_tick(g->c);
}

static void on_pods(void *arg, const json_t *objects, unsigned page)
{
    struct gangs *g = arg;
    take_list(&g->pods, objects, page);
    gangs_tick(g->c);
}

static void on_job(void *arg, enum hl_kube_event type, json_t *object)
{
    struct gangs *g = arg;
    take_change(&g->jobs, type, object);
    owner_mark_stale(g, object);
}

static void on_pod(void *arg, enum hl_kube_event type, json_t *object)
{
    struct gangs *g = arg;
    take_change(&g->pods, type, object);
    owner_mark_stale(g, object);
}

/* For a table that is only read: `arg` is the table. */
static void on_listed(void *arg, const json_t *objects, unsigned page)
{
    take_list(arg, objects, page);
}

static void on_changed(void *arg, enum hl_kube_event type, json_t *object)
{
    take_change(arg, type, object);
}

/* The bulk of an object; we made it, so we need not keep it. */
static const struct hl_kube_members gang_members = {
    .names = (const char *const[]){"managedFields", "env", "command", "args", "volumeMounts",
                                   "volumes", "affinity", "resources", "tasks", NULL}};
static const struct hl_kube_members node_members = {
    .names =
        (const char *const[]){"managedFields", "annotations", "labels", "images", "volumesAttached",
                              "volumesInUse", "capacity", "allocatable", NULL}};

/* Watches a kind: ours in our namespace, or all of the cluster. */
static hl_status watch_path(struct gangs *g, const char *path,
                            const struct hl_kube_watcher_opts *how, struct hl_kube_watcher **out)
{
    struct hl_kube_watcher_opts opts = *how;
    opts.kube = g->api;
    opts.loop = g->c->opts.loop;
    opts.path = path;
    if (opts.arg == NULL)
        opts.arg = g;
    return hl_kube_watcher_start(&opts, out);
}

static hl_status watch_kind(struct gangs *g, const char *base, const char *kind,
                            struct hl_kube_watcher_opts how, struct hl_kube_watcher **out)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/namespaces/%s/%s", base, g->ns, kind);
    how.selector = HL_VOLCANO_SELECTOR;
    how.members = &gang_members;
    return watch_path(g, path, &how, out);
}

static const struct hl_kube_members topology_members = {
    .names = (const char *const[]){"managedFields", "annotations", "labels", "zones", NULL}};

/* Nodes are cluster-wide, so watching them takes a right that a namespace can't give. PodGroups
 * only tell why a gang waits. */
static hl_status watch_all(struct gangs *g)
{
    char base[96];
    snprintf(base, sizeof(base), "/apis/%s", g->root.api);
    HL_TRY(watch_kind(g, base, g->root.plural,
                      (struct hl_kube_watcher_opts){.listed = on_jobs, .changed = on_job},
                      &g->jobs_watch));
    HL_TRY(watch_kind(g, "/api/v1", "pods",
                      (struct hl_kube_watcher_opts){.listed = on_pods, .changed = on_pod},
                      &g->pods_watch));
    if (g->podgroups[0] == '\0')
        HL_TRY(watch_kind(
            g, "/apis/scheduling.volcano.sh/v1beta1", "podgroups",
            (struct hl_kube_watcher_opts){
                .listed = on_listed, .changed = on_changed, .arg = &g->groups, .optional = true},
            &g->groups_watch));
    HL_TRY(watch_path(g, "/api/v1/nodes",
                      &(struct hl_kube_watcher_opts){.selector = "",
                                                     .members = &node_members,
                                                     .listed = nodes_listed,
                                                     .changed = nodes_changed,
                                                     .optional = true},
                      &g->nodes_watch));
    return watch_path(g, HL_VOLCANO_TOPOLOGIES,
                      &(struct hl_kube_watcher_opts){.selector = "",
                                                     .members = &topology_members,
                                                     .listed = on_listed,
                                                     .changed = on_changed,
                                                     .arg = &g->topologies,
                                                     .optional = true},
                      &g->topologies_watch);
}

/* ---- start and end --------------------------------------------------------------------------- */

static hl_status check_ascend(const struct hl_kube_opts *o)
{
    if (o->accelerator[0] == '\0')
        return HL_OK;
    if (!hl_volcano_is_ascend(&(struct hl_volcano_opts){.device = o->device}))
        return hl_fail(HL_EINVAL,
                       "kube.accelerator_type is for devices of huawei.com/, and kube.device is "
                       "'%s'",
                       o->device);
    if (hl_ranktable_product_find(o->accelerator) == NULL)
        hl_warn(
            "kube.accelerator_type is unknown, so how many devices a pod may have is not checked "
            "type=%s",
            o->accelerator);
    return HL_OK;
}

static hl_status copy_opts(struct gangs *g, const struct hl_kube_opts *o)
{
    HL_TRY(check_ascend(o));
    HL_TRY(hl_kube_config_load(
        &(struct hl_kube_source){.path = o->config, .context = "", .master = o->master},
        &g->config));
    g->ns = strdup(o->ns[0] != '\0' ? o->ns : g->config->ns);
    g->queue = strdup(o->queue);
    g->device = strdup(o->device);
    g->policy = strdup(o->topology_policy);
    g->near_key = strdup(o->topology_key);
    g->host_paths = strdup(o->host_paths);
    g->table_label = strdup(o->table_label);
    g->accelerator = strdup(o->accelerator);
    g->podgroups = "";
    g->node_lost_ms = o->node_lost_ms;
    if (g->ns == NULL || g->queue == NULL || g->device == NULL || g->policy == NULL ||
        g->near_key == NULL || g->host_paths == NULL || g->table_label == NULL ||
        g->accelerator == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Kubernetes executor");
    g->volcano = (struct hl_volcano_opts){.ns = g->ns,
                                          .queue = g->queue,
                                          .device = g->device,
                                          .table_label = g->table_label,
                                          .accelerator = g->accelerator,
                                          .topology_policy = g->policy,
                                          .near_key = g->near_key,
                                          .slot_devices = o->slot_devices,
                                          .keep_s = (int)(o->keep_ms / 1000)};
    int n = snprintf(g->logs, sizeof(g->logs), "%s/logs", o->state_dir);
    if (n < 0 || (size_t)n >= sizeof(g->logs) - HL_JOB_ID_MAX - 64)
        return hl_fail(HL_EINVAL, "the path of the state directory is too long");
    return hl_dir_make(g->logs, 0700);
}

static hl_status gangs_open(struct gangs *g, const struct hl_kube_opts *opts)
{
    HL_TRY(copy_opts(g, opts));
    HL_TRY(hl_kube_open(g->config, &g->cancel, &g->api));
    g->engine.watch = watch_all;
    HL_TRY(engine_start(g, opts->podgroups, opts->state_dir));
    hl_info("gangs run on Kubernetes server=%s namespace=%s queue=%s device=%s", g->config->server,
            g->ns, g->queue, g->device);
    return HL_OK;
}

static hl_status make_tables(struct gangs *g)
{
    HL_TRY(hl_kube_table_init(&g->jobs, name_of));
    HL_TRY(hl_kube_table_init(&g->pods, name_of));
    HL_TRY(hl_kube_table_init(&g->groups, gang_of_group));
    return hl_kube_table_init(&g->topologies, name_of);
}

hl_status gangs_start(struct hl_controller *c, const struct hl_kube_opts *opts, struct gangs **out)
{
    struct gangs *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Kubernetes executor");
    g->c = c;
    g->answered = gang_reconcile;
    pthread_mutex_init(&g->spool_lock, NULL);
    hl_status st = make_tables(g);
    if (st == HL_OK)
        st = gangs_open(g, opts);
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
    atomic_store(&g->cancel, true);
    hl_kube_watcher_stop(g->jobs_watch);
    hl_kube_watcher_stop(g->pods_watch);
    hl_kube_watcher_stop(g->groups_watch);
    hl_kube_watcher_stop(g->nodes_watch);
    hl_kube_watcher_stop(g->topologies_watch);
    /* Requests end when their connections next check `cancel`. */
    while (g->calls > 0 || g->reconcile_posted)
        uv_run(hl_loop_uv(g->c->opts.loop), UV_RUN_ONCE);
    gang_logs_fini(g);
    nodes_free(g);
    hl_kube_table_fini(&g->jobs);
    hl_kube_table_fini(&g->pods);
    hl_kube_table_fini(&g->groups);
    hl_kube_table_fini(&g->topologies);
    hl_kube_close(g->api);
    hl_kube_config_free(g->config);
    pthread_mutex_destroy(&g->spool_lock);
    free(g->ns);
    free(g->queue);
    free(g->device);
    free(g->policy);
    free(g->near_key);
    free(g->host_paths);
    free(g->table_label);
    free(g->accelerator);
    free(g);
}

/* ---- status ---------------------------------------------------------------------------------- */

void gangs_problem(const struct gangs *g, char *out, size_t cap)
{
    struct hl_kube_watcher_info jobs, pods;
    snprintf(out, cap, "%s", g->engine.problem);
    if (!g->engine.is_decided)
        return;
    hl_kube_watcher_info(g->jobs_watch, &jobs);
    hl_kube_watcher_info(g->pods_watch, &pods);
    snprintf(out, cap, "%s", jobs.problem[0] != '\0' ? jobs.problem : pods.problem);
}

void gangs_state(const struct gangs *g, char *out, size_t cap)
{
    gangs_problem(g, out, cap);
    if (out[0] == '\0')
        snprintf(out, cap, "%s", gangs_synced(g) ? "ready" : "not asked yet");
}

void gangs_warning(const struct gangs *g, char *out, size_t cap)
{
    struct hl_kube_watcher_info nodes;
    out[0] = '\0';
    if (!g->engine.is_decided)
        return;
    hl_kube_watcher_info(g->nodes_watch, &nodes);
    snprintf(out, cap, "%s%s", nodes.problem[0] != '\0' ? "dead nodes can't be detected: " : "",
             nodes.problem);
}

void gangs_engine(const struct gangs *g, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%s", g->engine.is_decided ? g->root.word : "",
             g->engine.is_decided ? " " : "", g->engine.is_decided ? g->root.api : "");
}

const char *gangs_server(const struct gangs *g)
{
    return g->config->server;
}
