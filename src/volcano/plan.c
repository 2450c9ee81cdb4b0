/* Kubernetes places the pods; the plan says which ranks are together. It is made on one server with
 * one slot for each possible pod; the servers then get the names of the pods. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "volcano/gang.h"

static hl_status add_server(struct hl_cluster *c, int index, int gpus)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_device *list = hl_arena_array(&arena, (size_t)gpus, sizeof(*list));
    for (int g = 0; list != NULL && g < gpus; g++)
        list[g].id = hl_arena_printf(&arena, "%04d", g);
    struct hl_api_slot slot = {.gpus = {list, (size_t)gpus}};
    const struct hl_api_node_info info = {.name = hl_arena_printf(&arena, "p%d", index),
                                          .slots = {&slot, 1}};
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory planning a gang");
    HL_TRY(hl_cluster_put(c, &info));
    hl_cluster_find(c, info.name)->slots[0].cpu_count = INT_MAX; /* Kubernetes counts the CPUs */
    return HL_OK;
}

static hl_status set_address(struct hl_plan *plan, const char *job_id, int attempt)
{
    char job[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(job_id, attempt, job);
    free(plan->master_node);
    free(plan->master_address);
    plan->master_node = strdup(plan->containers[0].node);
    /* The svc plugin creates a headless service with the Job's name. */
    if (asprintf(&plan->master_address, "%s.%s", plan->containers[0].node, job) < 0)
        plan->master_address = NULL;
    return plan->master_node != NULL && plan->master_address != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

/* Whether two containers read the same shards, so that what is near to one is near to the other. */
static bool same_shards(const struct hl_plan_container *a, const struct hl_plan_container *b)
{
    return a->ranks[0].at.pp == b->ranks[0].at.pp && a->ranks[0].at.tp == b->ranks[0].at.tp;
}

static int run_length(const struct hl_plan *plan, int first, int apart)
{
    const struct hl_plan_container *c = &plan->containers[first];
    int n = 1;
    while (first + n < plan->container_count && n < HL_VOLCANO_TASK_PODS &&
           c[n].rank_count == c->rank_count && (!apart || same_shards(c, &c[n])))
        n++;
    return n;
}

/* The number of pods of a task. Pods that read the same shards form one task, unless that gives
 * more tasks than can be written out. */
int hl_volcano_task_pods(const struct hl_job *job, const struct hl_plan *plan, int first)
{
    int tasks = 0;
    if (plan->world_size <= HL_VOLCANO_WRITTEN_MAX || job->command_count == 0)
        return 1;
    for (int at = 0; at < plan->container_count; at += run_length(plan, at, 1))
        tasks++;
    return run_length(plan, first, tasks * plan->ranks_per_container <= HL_VOLCANO_WRITTEN_MAX);
}

static void name_pods(const struct hl_job *job, const char *job_id, int attempt,
                      struct hl_plan *plan)
{
    int first = 0, pods = 0;
    for (int i = 0; i < plan->container_count; i++) {
        char name[HL_VOLCANO_NAME_MAX];
        if (i == first + pods) {
            first = i;
            pods = hl_volcano_task_pods(job, plan, first);
        }
        hl_volcano_pod_name(job_id, attempt, first, i - first, name);
        memcpy(plan->containers[i].node, name, sizeof(plan->containers[i].node));
    }
}

/* Volcano refuses a policy for pods without class Guaranteed and whole CPUs. */
const char *hl_volcano_policy(const struct hl_job *job, const struct hl_volcano_opts *opts)
{
    bool guaranteed = job->cpus_per_rank > 0 && job->memory_bytes > 0;
    return guaranteed ? opts->topology_policy : "none";
}

static hl_status add_warning(struct hl_plan *plan, const char *text)
{
    size_t n = 0;
    while (plan->warnings != NULL && plan->warnings[n] != NULL)
        n++;
    char **list = realloc(plan->warnings, (n + 2) * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    plan->warnings = list;
    list[n + 1] = NULL;
    list[n] = strdup(text);
    return list[n] != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

bool hl_volcano_needs_pod_scope(const struct hl_job *job, const struct hl_plan *plan,
                                const struct hl_volcano_opts *opts)
{
    return plan->ranks_per_container > 1 && strcmp(hl_volcano_policy(job, opts), "none") != 0 &&
           !hl_volcano_shares_container(job, plan);
}

/* By default a kubelet aligns each container of a pod separately. */
static hl_status warn_scope(const struct hl_job *job, const struct hl_volcano_opts *opts,
                            struct hl_plan *plan)
{
    const struct hl_volcano_kubelets *k = opts->kubelets;
    char text[512];
    if (!hl_volcano_needs_pod_scope(job, plan, opts) ||
        (k != NULL && k->known > 0 && k->apart == 0))
        return HL_OK;
    int n = snprintf(text, sizeof(text),
                     "a pod has several containers, which are kept on one NUMA node only where the "
                     "kubelets have topologyManagerScope: pod ");
    if (k != NULL && k->known > 0)
        snprintf(text + n, sizeof(text) - (size_t)n, "and a policy; %d of %d have not: %s",
                 k->apart, k->known, k->why);
    else
        snprintf(text + n, sizeof(text) - (size_t)n, "(docs/kubernetes.md says how to look)");
    return add_warning(plan, text);
}

static hl_status warn_apart(const struct hl_job *job, struct hl_plan *plan)
{
    if (plan->ranks_per_container < 2 || plan->containers[0].ranks[0].gpu[0] == '\0' ||
        hl_volcano_shares_container(job, plan))
        return HL_OK;
    return add_warning(plan, "the job leaves its command to the image, so each rank is a container "
                             "that sees one device of its pod: no P2P and no NVLink between them; "
                             "give it a command");
}

static hl_status make_plan(const struct hl_job *job, const struct hl_cluster *cluster,
                           const char *job_id, int attempt, const struct hl_volcano_opts *opts,
                           struct hl_plan **out)
{
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = NULL;
    HL_TRY(hl_plan_make(job, cluster, &plan));
    if (!plan->feasible)
        return hl_fail(HL_EINVAL, "job '%s': %s", job->name, plan->reason);
    name_pods(job, job_id, attempt, plan);
    HL_TRY(set_address(plan, job_id, attempt));
    HL_TRY(warn_scope(job, opts, plan));
    HL_TRY(warn_apart(job, plan));
    *out = hl_steal(&plan);
    return HL_OK;
}

hl_status hl_volcano_plan(const struct hl_job *job, const char *job_id, int attempt,
                          const struct hl_volcano_opts *opts, struct hl_plan **out)
{
    struct hl_cluster cluster = {0};
    int world = hl_rank_world(&job->grid), gpus = opts->device[0] != '\0' ? opts->slot_devices : 0;
    hl_status st = HL_OK;
    if (world > HL_VOLCANO_RANKS_MAX)
        return hl_fail(HL_EINVAL, "job '%s' has %d ranks; one Volcano Job has at most %d",
                       job->name, world, HL_VOLCANO_RANKS_MAX);
    if (job->gpus_per_rank > 0 && gpus == 0)
        return hl_fail(HL_EINVAL,
                       "job '%s' requests GPUs: start helios-controller with --kube-device, such "
                       "as nvidia.com/gpu",
                       job->name);
    if (gpus > 0 && job->ranks_per_slot > gpus)
        gpus = job->ranks_per_slot;
    for (int i = 0; i < world && st == HL_OK; i++)
        st = add_server(&cluster, i, gpus);
    if (st == HL_OK)
        st = make_plan(job, &cluster, job_id, attempt, opts, out);
    hl_cluster_fini(&cluster);
    return st;
}
