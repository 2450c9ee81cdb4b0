/* volcano/gang.h - a gang as one Volcano Job of Kubernetes, and what its pods say about it.
 *
 * A container of the plan becomes a pod. If its ranks have devices, they are processes of one
 * container, as on an Agent; otherwise each rank is a container of the pod, with LOCAL_RANK 0
 * (command.h). Variables that all ranks share are in a ConfigMap. In a small gang each pod is a
 * separate task, in which its ranks' numbers are written out. A large gang would not fit into the
 * store like that: its pods that differ only in their ranks are replicas of one task, and a line of
 * shell before the command computes the rank from the pod's name. Names follow from job, attempt
 * and index, so that a request that is sent twice makes one object; the label HL_VOLCANO_GANG
 * distinguishes our objects from those of another cluster.
 * Source: batch.volcano.sh/v1alpha1 (volcano.sh, "VolcanoJob"), core/v1.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL: something in this job is impossible on Kubernetes; HL_ENOMEM.
 * Units:   ms, seconds where a name ends in _s.
 * Limits:  HL_VOLCANO_RANKS_MAX ranks, a Job of HL_VOLCANO_BYTES_MAX (etcd takes 1.5 MiB):
 *          about a thousand ranks if the job uses its image's command.
 */
#ifndef HL_VOLCANO_GANG_H
#include <stdbool.h>
#define HL_VOLCANO_GANG_H

#include "core/job/jobstate.h"

#define HL_VOLCANO_RANKS_MAX 4096
#define HL_VOLCANO_BYTES_MAX 1400000
#define HL_VOLCANO_NAME_MAX  64
#define HL_VOLCANO_NEAR_MAX  64 /* nodes that one pod prefers */
/* At most so many containers of ranks are written out in one Job; in a larger gang, pods share
 * tasks. */
#define HL_VOLCANO_WRITTEN_MAX 128
/* Pods per task. Volcano's svc plugin gives every pod the names of a task's pods in one variable,
 * which Linux limits to 128 KiB. */
#define HL_VOLCANO_TASK_PODS 512

#define HL_VOLCANO_SHARED "ranks" /* container */

#define HL_VOLCANO_GANG     "helios.io/gang" /* label: id of the gang, random */
#define HL_VOLCANO_ATTEMPT  "helios.io/attempt"
#define HL_VOLCANO_TP_GROUP "helios.io/tp-group" /* label of pods that share such a group */
#define HL_VOLCANO_JOB      "helios.io/job"      /* annotation */
#define HL_VOLCANO_SELECTOR "app.kubernetes.io%2Fmanaged-by%3Dhelios"

/* What is known about the cluster's kubelets (kubelet.h). */
struct hl_volcano_kubelets {
    int known, apart; /* apart: how many of them may put a pod's ranks on several NUMA nodes */
    char why[256];    /* reason of the first of these, with the node's name */
};

struct hl_volcano_opts {
    const char *ns, *queue;
    const char *topology_policy; /* none, best-effort, restricted, single-numa-node */
    const char *near_key;        /* label of nodes that are near each other; "" = none */
    const char *device;          /* "nvidia.com/gpu"; "" = the cluster has none for us */
    /* With a huawei.com/ device: the value of ring-controller.atlas, and the nodes'
     * accelerator-type ("" = any). */
    const char *table_label, *accelerator;
    const char *podgroups; /* version of scheduling.k8s.io (podgroup.h); "" = Volcano */
    int slot_devices;      /* of one slot: ranks per pod if the job does not say */
    int keep_s;            /* how long a finished Job is kept */
    const struct hl_volcano_kubelets *kubelets; /* for pods with several containers; NULL =
                                                 * unknown */
};

/* One attempt of a job. */
struct hl_volcano_gang {
    const char *job_id;
    const char *gang;
    int attempt;
    int64_t stop_grace_ms;
    const struct hl_job *job;
    const struct hl_plan *plan;
};

/* The name of an attempt's Job or pod; out: HL_VOLCANO_NAME_MAX bytes. */
void hl_volcano_job_name(const char *job_id, int attempt, char *out);
/* The pod is the `replica`th of the task that begins with container `first`. */
void hl_volcano_pod_name(const char *job_id, int attempt, int first, int replica, char *out);
/* The name of the ConfigMap with the rank table; cap: HL_NODE_NAME_MAX or more. */
void hl_volcano_map_name(const char *job_id, int attempt, char *out, size_t cap);
/* The name of the container of a pod's rank. */
void hl_volcano_rank_name(int local_rank, char *out);
/* Whether a pod's ranks have devices and are processes of one container, HL_VOLCANO_SHARED. */
bool hl_volcano_shares_container(const struct hl_job *job, const struct hl_plan *plan);

/* Plans which rank is in which pod; the plan's nodes are the pods' names. The plan is feasible. */
hl_status hl_volcano_plan(const struct hl_job *job, const char *job_id, int attempt,
                          const struct hl_volcano_opts *opts, struct hl_plan **out) HL_CHECK;

/* The NUMA policy of the job's pods. Static, or borrowed from the options. */
const char *hl_volcano_policy(const struct hl_job *job, const struct hl_volcano_opts *opts);

/* Whether a pod's ranks must be on one NUMA node, which requires a kubelet that aligns all
 * containers of a pod together. */
bool hl_volcano_needs_pod_scope(const struct hl_job *job, const struct hl_plan *plan,
                                const struct hl_volcano_opts *opts);

/* How many containers of the plan share the task that begins with container `first`. Depends only
 * on job and plan. */
int hl_volcano_task_pods(const struct hl_job *job, const struct hl_plan *plan, int first);

/* Names of nodes, each once; names beyond its capacity are left out. */
struct hl_volcano_nodes {
    const char *names[HL_VOLCANO_NEAR_MAX];
    int count;
};

/* name: borrowed while the set exists. */
void hl_volcano_nodes_add(struct hl_volcano_nodes *set, const char *name);

/* Makes the Volcano Job, a new reference. near: for each container, the nodes to prefer; NULL =
 * none. */
hl_status hl_volcano_job(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                         const struct hl_volcano_nodes *near, json_t **out) HL_CHECK;
/* Makes the ConfigMap with the variables that all ranks share, under the Job's name. uid: of the
 * Job, with which it is deleted; spec: of any container, from hl_plan_container_spec. */
json_t *hl_volcano_variables(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                             const char *uid, const struct hl_api_container_spec *spec);
/* Makes the ConfigMap with the rank table, which is deleted with the Job of that uid. */
json_t *hl_volcano_map(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                       const char *uid, const char *table);
/* Whether another program makes the rank table, because the devices' addresses are in the pods'
 * annotations. */
bool hl_volcano_is_ascend(const struct hl_volcano_opts *opts);

/* The attempt in the object's label; 0 = the object does not belong to that gang. */
int hl_volcano_attempt_of(const json_t *object, const char *gang);

/* The id of the job that an object of ours says it belongs to; "" = none. Borrowed. */
const char *hl_volcano_job_id(const json_t *object);

struct hl_volcano_pod {
    enum hl_api_container_state
        state; /* WANTED RUNNING SUCCEEDED FAILED; LOST: not ended by its program */
    int exit_code, signal;
    char message[HL_JOB_TEXT_MAX]; /* why it waits, failed or was lost; "" = no reason known */
};

/* The ranks of a pod, which are consecutive. */
struct hl_volcano_ranks {
    int first, count;
};

/* Reads the state of a pod. ranks: for the message. */
void hl_volcano_pod_read(const json_t *pod, const struct hl_volcano_ranks *ranks,
                         struct hl_volcano_pod *out);
/* Whether its ranks are processes of one container, whose output contains theirs. */
bool hl_volcano_pod_is_shared(const json_t *pod);
/* Whether the rank's process has ended, or will never begin. */
bool hl_volcano_rank_ended(const json_t *pod, int local_rank);
/* Writes why the gang of a PodGroup waits, as Volcano reports it; "" = it doesn't wait. group: NULL
 * is allowed. */
void hl_volcano_group_waits(const json_t *group, char *out, size_t cap);
/* Why a Job ended although its pods did not finish it; NULL = it has not. Borrowed. */
const char *hl_volcano_job_trouble(const json_t *job);

#endif
