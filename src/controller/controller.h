/* controller/controller.h - the Controller service: wiring of the catalogue, the jobs and the nodes
 * to the store, the L3 daemon and the Agents.
 *
 * Owns:    the store, the RPC server and every peer.
 * Threads: everything on the loop's thread.
 * Errors:  start-up failures are returned as status; later ones are returned to the caller or
 *          logged once.
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

/* Settings for running jobs on Kubernetes: the options kube.*, from hl_kube_rows. Strings are
 * borrowed until hl_controller_start returns. */
struct hl_kube_opts {
    const char *state_dir; /* logs are stored below it; not an option */
    /* kubeconfig; "" = $KUBECONFIG, ~/.kube/config, or the pod's service account */
    const char *config;
    const char *master; /* URL; "" = the kubeconfig's */
    const char *ns;     /* "" = the context's */
    const char *queue;
    const char *device; /* resource of one GPU or NPU; "" = none */
    /* for huawei.com/ devices: the label by which helios-ranktable finds jobs */
    const char *table_label;
    const char *accelerator; /* for these: accelerator-type of the nodes; "" = any */
    const char *topology_policy;
    const char *topology_key; /* node label that groups nodes near each other; "" = none */
    const char *podgroups;    /* version of scheduling.k8s.io, "volcano" or "auto" */
    const char *host_paths;   /* directories that pods may mount, comma-separated; "" = none */
    int slot_devices;
    int64_t keep_ms;      /* how long a finished Volcano Job stays */
    int64_t node_lost_ms; /* silence of a kubelet after which its pods are lost */
};

/* Settings for the placement of shards: the options placement.* from hl_placement_rows, policy.*
 * from hl_policy_rows. All may change at run time (placement/options.c). */
struct hl_placement_conf {
    const char *policy;   /* off, observe, on */
    int interval_ms;      /* between its passes */
    int moves;            /* in flight */
    int moves_per_node;   /* moves from or to one node */
    uint64_t rate;        /* bits per second of each network; 0 = no limit */
    int keep_use_ms;      /* time between two records of a shard's use; 0 = none is written */
    int grace_ms;         /* time for readers before a copy that is no longer offered is dropped */
    int clean_ms;         /* a copy that could not be dropped for this long stays */
    int retry_ms;         /* before a failed step of a move is retried */
    int prefetch_wait_ms; /* how long containers wait for prefetched shards */
    bool warm;            /* fill free room in the pool from the archive */
    struct hl_placement_params params;
};

/* Strings are borrowed for the Controller's lifetime. */

struct hl_controller_opts {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    const char *store_url; /* sqlite:PATH */
    int rpc_timeout_ms;
    const struct hl_kube_opts *kube;           /* NULL = Agents run the containers */
    const struct hl_placement_conf *placement; /* copied at the start; NULL = the defaults */

    /* Options, from hl_controller_rows. */
    const char *listen;     /* host:port */
    const char *state_dir;  /* directory of the store; store_url takes precedence */
    const char *l3_address; /* host:port of helios-l3d */
    const char *executor;   /* "agents", "docker", "podman", "kubernetes" */
    int heartbeat_ms;       /* period that Agents are asked to keep */
    int node_lost_ms;       /* silence after which a node is lost */
    int64_t hang_after_ms;  /* a gang that makes no steps for this long is stalled */
    int64_t slow_after_ms;  /* a rank that is slower than it should be for this long is slow */
    int clock_limit_ms;     /* allowed difference between a node's clock and ours; 0 = any */
    /* silence after which a running job gives up its containers on a node */
    int64_t lost_after_ms;
    int gc_interval_ms;
    int gc_grace_ms;                             /* age at which an orphan is freed */
    int versions_keep;                           /* versions kept per job; 0 = all */
    const char *durability;                      /* of versions; NULL = pool */
    int durability_timeout_ms;                   /* without progress */
    int jobs_keep;                               /* finished jobs kept; 0 = all */
    const char *switches;                        /* file of nodes.switches; "" = none */
    int nodes_keep;                              /* lost nodes kept; 0 = all */
    int64_t jobs_keep_age_ms, nodes_keep_age_ms; /* 0 = for ever */
    int copy_timeout_ms;                         /* of one copy between tiers */
    int stop_grace_ms;                           /* SIGTERM to SIGKILL */
    int stop_resend_ms;
    int start_timeout_ms;   /* from placement until every container runs */
    const char *queue_list; /* core/queue/queue.h; NULL = one */
    int queue_pending;      /* jobs that may wait; 0 = any number */
    bool queue_preempt;
    int64_t queue_half_life_ms; /* half-life of a queue's past use; 0 = the past does not count */
    int64_t queue_age_ms;       /* waiting time that adds one priority; 0 = never */
    int64_t queue_recovery_ms;  /* how long the slots of a restarting job are reserved */
};

extern const struct hl_option_rows hl_controller_rows;
extern const struct hl_option_rows hl_kube_rows;
extern const struct hl_option_rows hl_placement_rows; /* rows into hl_placement_conf */
extern const struct hl_option_rows hl_policy_rows;    /* rows into its params */

hl_status hl_controller_start(const struct hl_controller_opts *opts,
                              struct hl_controller **out) HL_CHECK;
/* NULL is fine. Running containers and the pool are left alone. */
void hl_controller_stop(struct hl_controller *c);
const char *hl_controller_address(const struct hl_controller *c);
/* Appends the Controller's own metrics: nodes, jobs, and what ranks transferred. */
hl_status hl_controller_gauges(struct hl_controller *c, struct hl_buf *out) HL_CHECK;

#endif
