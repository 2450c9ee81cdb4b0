/* controller/controller.h - the Controller service: wiring of the catalogue, the jobs and the nodes
 * to the store, the L3 daemon and the Agents.
 *
 * Owns:    the store, the RPC server and every peer.
 * Threads: everything on the loop's thread.
 * Errors:  start-up failures as status; later ones are answered to the caller or logged once.
 * Units:   ms.
 * Limits:  1000 remembered imports; the option table holds the rest.
 */
#ifndef HL_CONTROLLER_CONTROLLER_H
#define HL_CONTROLLER_CONTROLLER_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "core/placement/params.h"

struct hl_loop;
struct hl_rpc;
struct hl_controller;

/* Where Kubernetes runs the jobs: the options kube.*, by hl_kube_rows. Texts are borrowed until
 * hl_controller_start is back. */
struct hl_kube_opts {
    const char *state_dir; /* logs are kept below; no option */
    const char *config; /* kubeconfig; "" = $KUBECONFIG, ~/.kube/config, or what a pod is given */
    const char *master; /* URL; "" = the kubeconfig's */
    const char *ns;     /* "" = the context's */
    const char *queue;
    const char *device;      /* resource of one GPU or NPU; "" = none */
    const char *table_label; /* on huawei.com/ devices: by which helios-ranktable finds jobs */
    const char *accelerator; /* on them: accelerator-type of the nodes; "" = any */
    const char *topology_policy;
    const char *topology_key; /* label of nodes that are near each other; "" = none */
    const char *podgroups;    /* version of scheduling.k8s.io, "volcano" or "auto" */
    const char *host_paths;   /* directories that pods may mount, by commas; "" = none */
    int slot_devices;
    int64_t keep_ms;      /* how long a finished Volcano Job stays */
    int64_t node_lost_ms; /* silence of a kubelet after which its pods are lost */
};

/* Where shards live: the options placement.* by hl_placement_rows, policy.* by hl_policy_rows. All
 * may change at run time (placement/options.c). */
struct hl_placement_conf {
    const char *policy;   /* off, observe, on */
    int interval_ms;      /* of its passes */
    int moves;            /* in flight */
    int moves_per_node;   /* from it and to it */
    uint64_t rate;        /* bits per second of each network; 0 = no limit */
    int keep_use_ms;      /* between two records of a shard's use; 0: none is written */
    int grace_ms;         /* of readers, before a copy is dropped that is not offered any more */
    int clean_ms;         /* a copy that could not be dropped for so long stays */
    int retry_ms;         /* of a step of a move that failed */
    int prefetch_wait_ms; /* that containers wait for what is fetched ahead */
    bool warm;            /* a pool that has room is filled out of the archive */
    struct hl_placement_params params;
};

/* Texts are borrowed for the Controller's life. */

struct hl_controller_opts {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    const char *store_url; /* sqlite:PATH */
    int rpc_timeout_ms;
    const struct hl_kube_opts *kube;           /* NULL = Agents run the containers */
    const struct hl_placement_conf *placement; /* copied at the start; NULL = the defaults */

    /* Options, by hl_controller_rows. */
    const char *listen;     /* host:port */
    const char *state_dir;  /* of the store; its URL counts */
    const char *l3_address; /* host:port of helios-l3d */
    const char *executor;   /* "agents", "docker", "podman", "kubernetes" */
    int heartbeat_ms;       /* asked of Agents */
    int node_lost_ms;       /* silence after which a node is lost */
    int64_t hang_after_ms;  /* a gang that makes no steps for so long is stalled */
    int64_t slow_after_ms;  /* a rank that is slower than it should be for so long is slow */
    int clock_limit_ms;     /* of a node's clock from ours; 0 = any */
    int64_t lost_after_ms;  /* and after which a running job gives up its containers there */
    int gc_interval_ms;
    int gc_grace_ms;                             /* age at which an orphan is freed */
    int versions_keep;                           /* of one job; 0 = all */
    const char *durability;                      /* of versions; NULL = pool */
    int durability_timeout_ms;                   /* without progress */
    int jobs_keep;                               /* ended ones; 0 = all */
    const char *switches;                        /* file of nodes.switches; "" = none */
    int nodes_keep;                              /* lost ones; 0 = all */
    int64_t jobs_keep_age_ms, nodes_keep_age_ms; /* 0 = for ever */
    int copy_timeout_ms;                         /* of one copy between tiers */
    int stop_grace_ms;                           /* SIGTERM to SIGKILL */
    int stop_resend_ms;
    int start_timeout_ms;   /* from placement until every container runs */
    const char *queue_list; /* core/queue/queue.h; NULL = one */
    int queue_pending;      /* jobs that may wait; 0 = any number */
    bool queue_preempt;
    int64_t queue_half_life_ms; /* of what a queue has used; 0 = it does not count */
    int64_t queue_age_ms;       /* of waiting, for one priority more; 0 = for none */
    int64_t queue_recovery_ms;  /* that the slots of a job that runs again are kept */
};

extern const struct hl_option_rows hl_controller_rows;
extern const struct hl_option_rows hl_kube_rows;
extern const struct hl_option_rows hl_placement_rows; /* into hl_placement_conf */
extern const struct hl_option_rows hl_policy_rows;    /* into its params */

hl_status hl_controller_start(const struct hl_controller_opts *opts,
                              struct hl_controller **out) HL_CHECK;
/* NULL is fine. Running containers and the pool go on. */
void hl_controller_stop(struct hl_controller *c);
const char *hl_controller_address(const struct hl_controller *c);
/* The Controller's own metrics, appended: nodes, jobs, what ranks transferred. */
hl_status hl_controller_gauges(struct hl_controller *c, struct hl_buf *out) HL_CHECK;

#endif
