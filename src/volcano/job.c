/* Builds the documents that are sent to Kubernetes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "volcano/command.h"
#include "volcano/gang.h"
#include "volcano/podgroup.h"
#include "volcano/template.h"

#define TABLE_DIR    "/user/serverid/devindex/config"
#define TABLE_VOLUME "ascend-910-config" /* helios-ranktable finds the ConfigMap by this name */
#define TABLE_LABEL  "ring-controller.atlas"
#define SELECTOR     "accelerator-type"
#define NEAR_WEIGHT  100
#define GANG_WEIGHT  50

bool hl_volcano_is_ascend(const struct hl_volcano_opts *opts)
{
    return strncmp(opts->device, "huawei.com/", 11) == 0;
}

static json_t *labels_of(const struct hl_volcano_gang *g)
{
    char attempt[16];
    snprintf(attempt, sizeof(attempt), "%d", g->attempt);
    return json_pack("{s:s s:s s:s}", "app.kubernetes.io/managed-by", "helios", HL_VOLCANO_GANG,
                     g->gang, HL_VOLCANO_ATTEMPT, attempt);
}

/* Labels the object so that helios-ranktable looks at it. */
static json_t *with_table(json_t *meta, const struct hl_volcano_opts *opts)
{
    if (hl_volcano_is_ascend(opts))
        json_object_set_new(json_object_get(meta, "labels"), TABLE_LABEL,
                            json_string(opts->table_label));
    return meta;
}

/* name "": for a template. */
static json_t *object_metadata(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                               const char *name)
{
    json_t *m = json_pack("{s:o s:{s:s}}", "labels", labels_of(g), "annotations", HL_VOLCANO_JOB,
                          g->job_id);
    if (name[0] != '\0') {
        json_object_set_new(m, "name", json_string(name));
        json_object_set_new(m, "namespace", json_string(opts->ns));
    }
    return m;
}

/* Kubernetes deletes such an object together with the Job. */
static json_t *owned_metadata(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                              const char *name, const char *uid)
{
    char job[HL_VOLCANO_NAME_MAX];
    const struct hl_gang_root root = hl_gang_root(opts->podgroups);
    json_t *m = object_metadata(g, opts, name);
    hl_volcano_job_name(g->job_id, g->attempt, job);
    json_object_set_new(m, "ownerReferences",
                        json_pack("[{s:s s:s s:s s:s}]", "apiVersion", root.api, "kind", root.kind,
                                  "name", job, "uid", uid));
    return m;
}

/* ---- one rank's container -------------------------------------------------------------------- */

static void put_int(json_t *all, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    json_object_set_new(all, name, json_string(text));
}

static void put_absent(json_t *all, const char *name, const char *value)
{
    if (json_object_get(all, name) == NULL)
        json_object_set_new(all, name, json_string(value));
}

static void put_var(json_t *list, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    json_array_append_new(list, json_pack("{s:s s:s}", "name", name, "value", text));
}

static void put_field(json_t *list, const char *name, const char *path)
{
    json_array_append_new(list, json_pack("{s:s s:{s:{s:s}}}", "name", name, "valueFrom",
                                          "fieldRef", "fieldPath", path));
}

/* The variables that each rank has for itself, whatever the job says. */
static const char *const own[] = {"HELIOS_NODE",
                                  HL_VOLCANO_POD,
                                  "RANK",
                                  "GLOBAL_RANK",
                                  "GROUP_RANK",
                                  "TENSOR_PARALLEL_RANK",
                                  "PIPELINE_PARALLEL_RANK",
                                  "DATA_PARALLEL_RANK",
                                  "CONTEXT_PARALLEL_RANK",
                                  "EXPERT_PARALLEL_RANK",
                                  "EXPERT_TENSOR_PARALLEL_RANK",
                                  "EXPERT_DATA_PARALLEL_RANK"};

static json_t *env_of_pod(const struct hl_volcano_pattern *p)
{
    json_t *list = json_array();
    put_field(list, "HELIOS_NODE", "spec.nodeName");
    if (p->pods > 1)
        put_field(list, HL_VOLCANO_POD, "metadata.name");
    return list;
}

/* The variables that differ between ranks; the rest comes from the gang's ConfigMap. */
static json_t *env_of_rank(const struct hl_volcano_pattern *p, const struct hl_plan_rank *r)
{
    json_t *list = env_of_pod(p);
    if (p->pods > 1)
        return list;
    put_var(list, "RANK", r->rank);
    put_var(list, "GLOBAL_RANK", r->rank);
    put_var(list, "GROUP_RANK", r->rank);
    put_var(list, "TENSOR_PARALLEL_RANK", r->at.tp);
    put_var(list, "PIPELINE_PARALLEL_RANK", r->at.pp);
    put_var(list, "DATA_PARALLEL_RANK", r->at.dp);
    const struct hl_job *job = p->g->job;
    const struct hl_expert_rank e = hl_rank_experts(&job->grid, r->at, job->ep, job->etp);
    put_var(list, "CONTEXT_PARALLEL_RANK", r->at.cp);
    put_var(list, "EXPERT_PARALLEL_RANK", e.ep);
    put_var(list, "EXPERT_TENSOR_PARALLEL_RANK", e.etp);
    put_var(list, "EXPERT_DATA_PARALLEL_RANK", e.dp);
    return list;
}

/* Resources of `ranks` ranks of a pod. Requests equal limits, so that the pod has class Guaranteed,
 * which a NUMA policy of the kubelet requires. */
static json_t *resources_of(const struct hl_volcano_pattern *p, int ranks)
{
    const struct hl_job *job = p->g->job;
    const struct hl_plan_container *at = &p->g->plan->containers[p->first];
    json_t *all = json_object();
    char text[32];
    if (job->cpus_per_rank > 0)
        put_int(all, "cpu", job->cpus_per_rank * ranks);
    if (job->memory_bytes > 0) {
        uint64_t bytes = (uint64_t)job->memory_bytes / (unsigned)(at->rank_count / ranks);
        snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
        json_object_set_new(all, "memory", json_string(text));
    }
    if (at->ranks[0].gpu[0] != '\0')
        put_int(all, p->opts->device, ranks);
    return json_pack("{s:o s:o}", "requests", json_deep_copy(all), "limits", all);
}

static json_t *mounts_of(const struct hl_job *job)
{
    json_t *list = json_pack("[{s:s s:s} {s:s s:s}]", "name", TABLE_VOLUME, "mountPath", TABLE_DIR,
                             "name", "shm", "mountPath", HL_VOLCANO_SHM);
    for (size_t i = 0; i < job->mount_count; i++) {
        char name[32];
        const char *inside = strchr(job->mounts[i], ':') + 1;
        size_t n = strcspn(inside, ":");
        snprintf(name, sizeof(name), "mount-%zu", i);
        json_array_append_new(list, json_pack("{s:s s:s% s:b}", "name", name, "mountPath", inside,
                                              n, "readOnly", strcmp(inside + n, ":ro") == 0));
    }
    return list;
}

static json_t *container_of(const struct hl_volcano_pattern *p, const char *name, json_t *env,
                            int ranks)
{
    char vars[HL_VOLCANO_NAME_MAX];
    const struct hl_job *job = p->g->job;
    hl_volcano_job_name(p->g->job_id, p->g->attempt, vars);
    json_t *c = json_pack("{s:s s:s s:[{s:{s:s}}] s:o s:o s:o}", "name", name, "image", job->image,
                          "envFrom", "configMapRef", "name", vars, "env", env, "resources",
                          resources_of(p, ranks), "volumeMounts", mounts_of(job));
    if (job->workdir[0] == '/')
        json_object_set_new(c, "workingDir", json_string(job->workdir));
    return c;
}

static json_t *rank_container(const struct hl_volcano_pattern *p, int local_rank)
{
    char name[HL_VOLCANO_NAME_MAX];
    const struct hl_plan_rank *r = &p->g->plan->containers[p->first].ranks[local_rank];
    hl_volcano_rank_name(local_rank, name);
    json_t *c = container_of(p, name, env_of_rank(p, r), 1);
    if (p->g->job->command_count > 0)
        json_object_set_new(c, "command", hl_volcano_rank_command(p, local_rank));
    return c;
}

static json_t *shared_container(const struct hl_volcano_pattern *p)
{
    json_t *c = container_of(p, HL_VOLCANO_SHARED, env_of_pod(p),
                             p->g->plan->containers[p->first].rank_count);
    json_object_set_new(c, "command", hl_volcano_shared_command(p));
    return c;
}

/* ---- one pod --------------------------------------------------------------------------------- */

static json_t *volumes_of(const struct hl_volcano_gang *g)
{
    char map[HL_VOLCANO_NAME_MAX + 16];
    hl_volcano_map_name(g->job_id, g->attempt, map, sizeof(map));
    json_t *list = json_pack("[{s:s s:{s:s}} {s:s s:{s:s}}]", "name", TABLE_VOLUME, "configMap",
                             "name", map, "name", "shm", "emptyDir", "medium", "Memory");
    for (size_t i = 0; i < g->job->mount_count; i++) {
        char name[32];
        const char *host = g->job->mounts[i];
        snprintf(name, sizeof(name), "mount-%zu", i);
        json_array_append_new(list, json_pack("{s:s s:{s:s%}}", "name", name, "hostPath", "path",
                                              host, strcspn(host, ":")));
    }
    return list;
}

void hl_volcano_nodes_add(struct hl_volcano_nodes *set, const char *name)
{
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->names[i], name) == 0)
            return;
    if (set->count < HL_VOLCANO_NEAR_MAX)
        set->names[set->count++] = name;
}

/* Preferred, not required: a shard can be read from anywhere. NULL: no node holds a shard. */
static json_t *shard_affinity(const struct hl_volcano_pattern *p,
                              const struct hl_volcano_nodes *near)
{
    struct hl_volcano_nodes nodes = {.count = 0};
    json_t *names = json_array();
    for (int i = p->first; near != NULL && i < p->first + p->pods; i++)
        for (int k = 0; k < near[i].count; k++)
            hl_volcano_nodes_add(&nodes, near[i].names[k]);
    for (int i = 0; i < nodes.count; i++)
        json_array_append_new(names, json_string(nodes.names[i]));
    if (nodes.count == 0) {
        json_decref(names);
        return NULL;
    }
    return json_pack("{s:[{s:i s:{s:[{s:s s:s s:o}]}}]}",
                     "preferredDuringSchedulingIgnoredDuringExecution", "weight", NEAR_WEIGHT,
                     "preference", "matchExpressions", "key", "kubernetes.io/hostname", "operator",
                     "In", "values", names);
}

/* Whether the pod has only a part of one tensor-parallel group. Pods that share a description
 * belong to different groups, which the description can't express. */
static bool is_group_part(const struct hl_volcano_pattern *p)
{
    return p->pods == 1 && p->g->job->grid.tp > p->g->plan->containers[p->first].rank_count;
}

static void put_group(json_t *labels, const struct hl_volcano_pattern *p)
{
    put_int(labels, HL_VOLCANO_TP_GROUP,
            p->g->plan->containers[p->first].ranks[0].rank / p->g->job->grid.tp);
}

/* Affinity to all pods of the gang, or only to those of the same group. */
static json_t *near_term(const struct hl_volcano_pattern *p, bool of_group, int weight)
{
    json_t *labels = labels_of(p->g);
    if (of_group)
        put_group(labels, p);
    return json_pack("{s:i s:{s:s s:{s:o}}}", "weight", weight, "podAffinityTerm", "topologyKey",
                     p->opts->near_key, "labelSelector", "matchLabels", labels);
}

static json_t *gang_affinity(const struct hl_volcano_pattern *p)
{
    json_t *terms = json_array();
    if (is_group_part(p))
        json_array_append_new(terms, near_term(p, true, NEAR_WEIGHT));
    json_array_append_new(terms, near_term(p, false, GANG_WEIGHT));
    return json_pack("{s:o}", "preferredDuringSchedulingIgnoredDuringExecution", terms);
}

static void put_affinity(json_t *pod, const struct hl_volcano_pattern *p,
                         const struct hl_volcano_nodes *near)
{
    json_t *all = json_object(), *shards = shard_affinity(p, near);
    if (shards != NULL)
        json_object_set_new(all, "nodeAffinity", shards);
    if (p->opts->near_key[0] != '\0' && p->g->plan->container_count > 1)
        json_object_set_new(all, "podAffinity", gang_affinity(p));
    if (json_object_size(all) > 0)
        json_object_set(pod, "affinity", all);
    json_decref(all);
}

/* nodeLostAfter: after how many seconds Kubernetes evicts a pod from an unreachable node; its own
 * default is 300. */
static void put_tolerations(json_t *pod, const struct hl_job *job)
{
    static const char *const taints[] = {"node.kubernetes.io/not-ready",
                                         "node.kubernetes.io/unreachable"};
    if (job->node_lost_ms < 0)
        return;
    json_t *list = json_array();
    for (size_t i = 0; i < HL_ARRAY_LEN(taints); i++)
        json_array_append_new(list, json_pack("{s:s s:s s:s s:I}", "key", taints[i], "operator",
                                              "Exists", "effect", "NoExecute", "tolerationSeconds",
                                              (json_int_t)(job->node_lost_ms + 999) / 1000));
    json_object_set_new(pod, "tolerations", list);
}

/* NULL: out of memory. */
static json_t *containers_of(const struct hl_volcano_pattern *p)
{
    json_t *list = json_array();
    bool shared = hl_volcano_shares_container(p->g->job, p->g->plan);
    int n = shared ? 1 : p->g->plan->containers[p->first].rank_count;
    for (int i = 0; i < n; i++) {
        json_t *c = shared ? shared_container(p) : rank_container(p, i);
        bool done = hl_volcano_extend_rank(c, p->g->job);
        if (json_array_append_new(list, c) != 0 || !done) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *pod_spec(const struct hl_volcano_pattern *p, const struct hl_volcano_nodes *near)
{
    json_t *containers = containers_of(p);
    json_t *pod =
        json_pack("{s:s s:s s:b s:b s:I s:o s:o}", "restartPolicy", "Never", "schedulerName",
                  "volcano", "automountServiceAccountToken", 0, "enableServiceLinks", 0,
                  "terminationGracePeriodSeconds", (json_int_t)(p->g->stop_grace_ms + 999) / 1000,
                  "containers", containers, "volumes", volumes_of(p->g));
    if (hl_volcano_is_ascend(p->opts) && p->opts->accelerator[0] != '\0')
        json_object_set_new(pod, "nodeSelector",
                            json_pack("{s:s}", SELECTOR, p->opts->accelerator));
    put_affinity(pod, p, near);
    put_tolerations(pod, p->g->job);
    return pod;
}

static json_t *pod_template(const struct hl_volcano_pattern *p, const struct hl_volcano_nodes *near)
{
    json_t *metadata = with_table(object_metadata(p->g, p->opts, ""), p->opts);
    if (p->opts->near_key[0] != '\0' && is_group_part(p))
        put_group(json_object_get(metadata, "labels"), p);
    json_t *template = json_pack("{s:o s:o}", "metadata", metadata, "spec", pod_spec(p, near));
    if (template != NULL && !hl_volcano_extend_pod(template, p->g->job)) {
        json_decref(template);
        return NULL;
    }
    return template;
}

/* NULL: out of memory. */
static json_t *job_task(const struct hl_volcano_pattern *p, const struct hl_volcano_nodes *near)
{
    char name[32];
    snprintf(name, sizeof(name), "c%d", p->first);
    return json_pack("{s:s s:i s:i s:s s:o}", "name", name, "replicas", p->pods, "minAvailable",
                     p->pods, "topologyPolicy", hl_volcano_policy(p->g->job, p->opts), "template",
                     pod_template(p, near));
}

/* ---- the Job --------------------------------------------------------------------------------- */

/* The variables that all ranks share, as the keys of a ConfigMap. */
json_t *hl_volcano_variables(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                             const char *uid, const struct hl_api_container_spec *spec)
{
    char name[HL_VOLCANO_NAME_MAX];
    json_t *all = json_object();
    for (size_t i = 0; i < spec->env.count; i++)
        json_object_set_new(all, spec->env.items[i].key, json_string(spec->env.items[i].value));
    for (size_t i = 0; i < HL_ARRAY_LEN(own); i++)
        json_object_del(all, own[i]);
    if (hl_volcano_shares_container(g->job, g->plan)) {
        put_int(all, "GROUP_WORLD_SIZE", g->plan->container_count);
    } else { /* each rank is alone in its container */
        put_int(all, "LOCAL_RANK", 0);
        put_int(all, "LOCAL_WORLD_SIZE", 1);
        put_int(all, "GROUP_WORLD_SIZE", g->plan->world_size);
    }
    put_absent(all, "RANK_TABLE_FILE", TABLE_DIR "/hccl.json");
    put_absent(all, "PYTHONUNBUFFERED", "1");
    hl_volcano_job_name(g->job_id, g->attempt, name);
    return json_pack("{s:s s:s s:o s:o}", "apiVersion", "v1", "kind", "ConfigMap", "metadata",
                     owned_metadata(g, opts, name, uid), "data", all);
}

static hl_status check_size(const struct hl_volcano_gang *g, const json_t *doc)
{
    size_t n = doc != NULL ? json_dumpb(doc, NULL, 0, JSON_COMPACT) : 0;
    if (n == 0)
        return hl_fail(HL_ENOMEM, "out of memory allocating a Volcano Job");
    if (n > HL_VOLCANO_BYTES_MAX)
        return hl_fail(HL_EINVAL,
                       "job '%s' with %d ranks is a Volcano Job of %zu bytes, at most %d can be "
                       "stored: %s",
                       g->job->name, g->plan->world_size, n, HL_VOLCANO_BYTES_MAX,
                       g->job->command_count == 0
                           ? "give it a command, so that its pods can share a description, or more "
                             "ranks to a pod (ranks_per_slot)"
                           : "use a shorter command or fewer ranks in a pod");
    return HL_OK;
}

/* Publishes a pod's address from the beginning, because rank 0 is looked up before it is ready. */
static json_t *job_plugins(void)
{
    return json_pack("{s:[] s:[s]}", "env", "svc", "--publish-not-ready-addresses=true");
}

/* NULL: out of memory. */
static json_t *job_tasks(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                         const struct hl_volcano_nodes *near)
{
    json_t *tasks = json_array();
    int n = g->plan->container_count;
    for (struct hl_volcano_pattern p = {.g = g, .opts = opts}; p.first < n; p.first += p.pods) {
        p.pods = hl_volcano_task_pods(g->job, g->plan, p.first);
        if (json_array_append_new(tasks, job_task(&p, near)) != 0) {
            json_decref(tasks);
            return NULL;
        }
    }
    return tasks;
}

/* Helios does the recovery, so that a new attempt has new names. Volcano only ends a Job of which
 * it evicts a part. */
hl_status hl_volcano_job(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                         const struct hl_volcano_nodes *near, json_t **out)
{
    char name[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(g->job_id, g->attempt, name);
    json_t *doc = json_pack(
        "{s:s s:s s:o s:{s:s s:s s:i s:i s:i s:o s:[{s:s s:s}] s:o}}", "apiVersion",
        "batch.volcano.sh/v1alpha1", "kind", "Job", "metadata",
        with_table(object_metadata(g, opts, name), opts), "spec", "schedulerName", "volcano",
        "queue", opts->queue, "minAvailable", g->plan->container_count, "maxRetry", 1,
        "ttlSecondsAfterFinished", opts->keep_s, "plugins", job_plugins(), "policies", "event",
        "PodEvicted", "action", "TerminateJob", "tasks", job_tasks(g, opts, near));
    hl_status st = HL_OK;
    if (doc == NULL || !hl_volcano_extend_job(json_object_get(doc, "spec"), g->job))
        st = hl_fail(HL_ENOMEM, "out of memory allocating a Volcano Job");
    if (st == HL_OK)
        st = check_size(g, doc);
    if (st != HL_OK) {
        json_decref(doc);
        return st;
    }
    *out = doc;
    return HL_OK;
}

json_t *hl_volcano_map(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                       const char *uid, const char *table)
{
    char name[HL_VOLCANO_NAME_MAX + 16];
    hl_volcano_map_name(g->job_id, g->attempt, name, sizeof(name));
    return json_pack("{s:s s:s s:o s:{s:s}}", "apiVersion", "v1", "kind", "ConfigMap", "metadata",
                     with_table(owned_metadata(g, opts, name, uid), opts), "data", "hccl.json",
                     table);
}
