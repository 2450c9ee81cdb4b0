/* volcano/gang.h - a gang as one Volcano Job of Kubernetes, and what its pods say about it.
 *
 * A container of the plan is a pod. Its ranks are processes of one container where they have
 * devices, as on an Agent; else a rank is a container of it, in which LOCAL_RANK is 0 (command.h).
 * What all ranks have in their environment is in a ConfigMap. In a small gang each pod is a task of
 * its own, in which its ranks' numbers are written out. A large one would not fit the store: there
 * pods that differ in their ranks only are replicas of one task, and a line of shell before the
 * command counts the rank from the pod's name. Names follow from job, attempt and index, so that a
 * request that is sent twice makes one object; the label HL_VOLCANO_GANG tells ours from those of
 * another cluster. Source: batch.volcano.sh/v1alpha1 (volcano.sh, "VolcanoJob"), core/v1.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL: what Kubernetes can't have of this job; HL_ENOMEM.
 * Units:   ms, seconds where a name ends in _s.
 * Limits:  HL_VOLCANO_RANKS_MAX ranks, a Job of HL_VOLCANO_BYTES_MAX (etcd takes 1.5 MiB):
 *          about a thousand ranks where the job leaves the command to its image.
 */
#ifndef HL_VOLCANO_GANG_H
#include <stdbool.h>
#define HL_VOLCANO_GANG_H

#include "core/job/jobstate.h"

#define HL_VOLCANO_RANKS_MAX 4096
#define HL_VOLCANO_BYTES_MAX 1400000
#define HL_VOLCANO_NAME_MAX  64
#define HL_VOLCANO_NEAR_MAX  64 /* nodes that one pod prefers */
/* Containers of ranks that are written out in one Job; a gang of more shares tasks. */
#define HL_VOLCANO_WRITTEN_MAX 128
/* Of one task: Volcano's svc plugin gives every pod the names of a task's pods in one variable,
 * which Linux wants below 128 KiB. */
#define HL_VOLCANO_TASK_PODS 512

#define HL_VOLCANO_SHARED "ranks" /* container */

#define HL_VOLCANO_GANG     "helios.io/gang" /* label: id of the gang, random */
#define HL_VOLCANO_ATTEMPT  "helios.io/attempt"
#define HL_VOLCANO_TP_GROUP "helios.io/tp-group" /* label of pods that share one */
#define HL_VOLCANO_JOB      "helios.io/job"      /* annotation */
#define HL_VOLCANO_SELECTOR "app.kubernetes.io%2Fmanaged-by%3Dhelios"

/* What is known of the cluster's kubelets (kubelet.h). */
struct hl_volcano_kubelets {
    int known, apart; /* apart: so many of them may put a pod's ranks on several NUMA nodes */
    char why[256];    /* of the first of these, with the node's name */
};

struct hl_volcano_opts {
    const char *ns, *queue;
    const char *topology_policy; /* none, best-effort, restricted, single-numa-node */
    const char *near_key;        /* label of nodes that are near each other; "" = none */
    const char *device;          /* "nvidia.com/gpu"; "" = the cluster has none for us */
    /* With a huawei.com/ device: value of ring-controller.atlas; accelerator-type of the nodes, ""
     * = any. */
    const char *table_label, *accelerator;
    const char *podgroups; /* version of scheduling.k8s.io (podgroup.h); "" = Volcano */
    int slot_devices;      /* of one slot: how many ranks a pod has where the job is silent */
    int keep_s;            /* how long a finished Job stays */
    const struct hl_volcano_kubelets *kubelets; /* of several containers; NULL = nothing is known */
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

/* Into buffers of HL_VOLCANO_NAME_MAX. */
void hl_volcano_job_name(const char *job_id, int attempt, char *out);
/* The `replica`th pod of the task that begins with container `first`. */
void hl_volcano_pod_name(const char *job_id, int attempt, int first, int replica, char *out);
/* Of the ConfigMap with the rank table; HL_NODE_NAME_MAX and more. */
void hl_volcano_map_name(const char *job_id, int attempt, char *out, size_t cap);
/* Name of the container of a pod's rank. */
void hl_volcano_rank_name(int local_rank, char *out);
/* A pod's ranks have devices and are processes of one container, HL_VOLCANO_SHARED. */
bool hl_volcano_shares_container(const struct hl_job *job, const struct hl_plan *plan);

/* Which rank is in which pod; the plan's nodes are the pods' names. Feasible. */
hl_status hl_volcano_plan(const struct hl_job *job, const char *job_id, int attempt,
                          const struct hl_volcano_opts *opts, struct hl_plan **out) HL_CHECK;

/* NUMA policy of its pods. Static, or of the options. */
const char *hl_volcano_policy(const struct hl_job *job, const struct hl_volcano_opts *opts);

/* Its ranks are to be on one NUMA node, which takes a kubelet that aligns all containers of a pod.
 */
bool hl_volcano_needs_pod_scope(const struct hl_job *job, const struct hl_plan *plan,
                                const struct hl_volcano_opts *opts);

/* How many containers of the plan share the task that begins with container `first`. Follows from
 * job and plan alone. */
int hl_volcano_task_pods(const struct hl_job *job, const struct hl_plan *plan, int first);

/* Names of nodes, each once; further ones than it has room for are left out. */
struct hl_volcano_nodes {
    const char *names[HL_VOLCANO_NEAR_MAX];
    int count;
};

/* name: borrowed for as long as the set. */
void hl_volcano_nodes_add(struct hl_volcano_nodes *set, const char *name);

/* near: for each container the nodes that should be preferred; NULL = none. A new reference. */
hl_status hl_volcano_job(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                         const struct hl_volcano_nodes *near, json_t **out) HL_CHECK;
/* The ConfigMap of the Job's name with the variables that all ranks have; uid: of the Job, with
 * which it goes; spec: of any container, hl_plan_container_spec. */
json_t *hl_volcano_variables(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                             const char *uid, const struct hl_api_container_spec *spec);
/* The ConfigMap with the rank table, which goes with the Job of that uid. */
json_t *hl_volcano_map(const struct hl_volcano_gang *g, const struct hl_volcano_opts *opts,
                       const char *uid, const char *table);
/* Somebody else fills the rank table: the devices' addresses are in the pods' annotations. */
bool hl_volcano_is_ascend(const struct hl_volcano_opts *opts);

/* The label's attempt, 0 = the object is not of that gang. */
int hl_volcano_attempt_of(const json_t *object, const char *gang);

/* Id of the job that an object of ours belongs to, as it says; "" = it doesn't. Borrowed. */
const char *hl_volcano_job_id(const json_t *object);

struct hl_volcano_pod {
    enum hl_api_container_state
        state; /* WANTED RUNNING SUCCEEDED FAILED, or LOST: not by its program */
    int exit_code, signal;
    char message[HL_JOB_TEXT_MAX]; /* why it waits, failed or was lost; "" = nothing to say */
};

/* Of a pod, which follow each other. */
struct hl_volcano_ranks {
    int first, count;
};

/* ranks: for the message. */
void hl_volcano_pod_read(const json_t *pod, const struct hl_volcano_ranks *ranks,
                         struct hl_volcano_pod *out);
/* Its ranks are processes of one container, whose output is theirs. */
bool hl_volcano_pod_is_shared(const json_t *pod);
/* The rank's process has ended, or never will begin. */
bool hl_volcano_rank_ended(const json_t *pod, int local_rank);
/* Why the gang of a PodGroup waits, as Volcano says it; "" = it doesn't. group may be NULL. Into
 * cap bytes. */
void hl_volcano_group_waits(const json_t *group, char *out, size_t cap);
/* Why a Job that was not finished by its pods is at its end; NULL = it is not. Borrowed. */
const char *hl_volcano_job_trouble(const json_t *job);

#endif
