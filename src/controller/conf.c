/* The options of the Controller and of Kubernetes. */
#include "base/plane.h"
#include "conf/options.h"
#include "controller/controller.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_controller_opts, field)
static const struct hl_option controller_options[] = {
    {"controller.listen", "--listen", ":7400",
     "Address where helios-controller serves RPC; no host: on its network; port 0: a free one.",
     HL_OPT_LISTEN, HL_PLANE_MANAGEMENT, 0, NULL, AT(listen)},
    {"controller.state", "--state", "/var/lib/helios/controller",
     "Directory of the Controller's metadata.",
     HL_OPT_PATH, 0, 0, NULL, AT(state_dir)},
    {"controller.l3", "--l3", "127.0.0.1:7402",
     "RPC address of helios-l3d, as ranks reach it too.",
     HL_OPT_STRING, 0, 0, NULL, AT(l3_address)},
    {"controller.executor", "--executor", "agents",
     "What runs the containers: the Agents, as processes or by docker or podman (their --executor "
     "must match), or Kubernetes with Volcano, one Volcano Job per gang.",
     HL_OPT_ENUM, 0, 0, "agents|docker|podman|kubernetes", AT(executor)},
    {"heartbeat", "--heartbeat", "1s",
     "Interval of the Agents' heartbeats.",
     HL_OPT_DURATION, 50, 60000, NULL, AT(heartbeat_ms)},
    {"node_lost", "--node-lost", "5s",
     "A node that is silent for this long is shown as lost and gets no new containers.",
     HL_OPT_DURATION, 200, 3600000, NULL, AT(node_lost_ms)},
    {"node_clock", "--node-clock", "10s",
     "How far a node's clock may differ from the Controller's; beyond that the node gets no new "
     "containers. 0 for any difference.",
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(clock_limit_ms)},
    {"nodes.lost_after", "--nodes-lost-after", "2m",
     "Silence of a node after which a running job counts its containers there as lost, unless the "
     "job sets nodeLostAfter; never less than node_lost.",
     HL_OPT_DURATION, 200, 30 * HL_OPTION_DAY_MS, NULL, AT(lost_after_ms)},
    {"copy.timeout", "--copy-timeout", "60s",
     "Deadline of one copy of a shard between tiers.",
     HL_OPT_DURATION, 10, 3600000, NULL, AT(copy_timeout_ms)},
    {"job.start_timeout", "--job-start-timeout", "5m",
     "How long all containers of a job may take to start.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(start_timeout_ms)},
    {"job.stop_grace", "--job-stop-grace", "10s",
     "Time between SIGTERM and SIGKILL, unless the job sets stopGrace.",
     HL_OPT_DURATION, 0, 3600000, NULL, AT(stop_grace_ms)},
    {"job.stop_resend", "--job-stop-resend", "5s",
     "Interval at which the order to stop is repeated for a container that does not end.",
     HL_OPT_DURATION, 100, 3600000, NULL, AT(stop_resend_ms)},
    {"job.hang_after", "--job-hang-after", "5s",
     "A gang that reports steps but makes none for this long is shown as stalled, with the rank "
     "that holds it up; never earlier than the time of ten of its steps.",
     HL_OPT_DURATION, 500, HL_OPTION_DAY_MS, NULL, AT(hang_after_ms)},
    {"job.slow_after", "--job-slow-after", "5s",
     "A rank whose own time per step is twice what it should be for this long, while that of the "
     "others is not, is shown as slow.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(slow_after_ms)},
    {"queue.list", "--queues", "default",
     "The queues of waiting jobs, the first for jobs that name none, each with weight=N, "
     "quota=SLOTS, preempt=on|off: \"prod weight=4, dev quota=16\".",
     HL_OPT_STRING, 0, 0, NULL, AT(queue_list)},
    {"queue.pending", "--queue-pending", "20000",
     "How many jobs can wait for slots; further jobs are refused. 0 for any number.",
     HL_OPT_INT, 0, 10000000, NULL, AT(queue_pending)},
    {"queue.preempt", "--queue-preempt", "true",
     "Whether running jobs of lower priority are stopped for a job that does not fit; they wait "
     "again.",
     HL_OPT_BOOL, 0, 0, NULL, AT(queue_preempt)},
    {"queue.half_life", "--queue-half-life", "1d",
     "Time after which a queue's past use counts half towards its share; 0 to count only the "
     "slots that it holds now.",
     HL_OPT_DURATION, 0, 3650 * HL_OPTION_DAY_MS, NULL, AT(queue_half_life_ms)},
    {"queue.age", "--queue-age", "1h",
     "A waiting job's priority in the line rises by one each time it has waited this long; 0 for "
     "never.",
     HL_OPT_DURATION, 0, 3650 * HL_OPTION_DAY_MS, NULL, AT(queue_age_ms)},
    {"queue.recovery_timeout", "--queue-recovery-timeout", "10m",
     "How long a job that failed or lost a node is first in the line, while its slots are kept "
     "for it.",
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(queue_recovery_ms)},
    {"versions.keep", "--versions-keep", "3",
     "How many of a job's newest whole versions stay in the pool; 0 for all.",
     HL_OPT_INT, 0, 1000000, NULL, AT(versions_keep)},
    {"versions.durability", "--versions-durability", "pool",
     "Where each shard of a version must be before the version is visible: in the pool; in two "
     "failure domains (hosts and the archive); or in the archive.",
     HL_OPT_ENUM, 0, 0, "pool|two|archive", AT(durability)},
    {"versions.durability_timeout", "--versions-durability-timeout", "60s",
     "A save or an import fails if no further shard has got there for this long.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(durability_timeout_ms)},
    {"jobs.keep", "--jobs-keep", "1000",
     "How many ended jobs are remembered with their logs; 0 for all. A job with a version is "
     "always remembered.",
     HL_OPT_INT, 0, 1000000, NULL, AT(jobs_keep)},
    {"jobs.keep_age", "--jobs-keep-age", "30d",
     "How long an ended job is remembered with its logs; 0 for ever. A job with a version is "
     "always remembered.",
     HL_OPT_DURATION, 0, 3650 * HL_OPTION_DAY_MS, NULL, AT(jobs_keep_age_ms)},
    {"nodes.switches", "--switches", "",
     "File in the format of Slurm's topology.conf that says which leaf and spine switch each node "
     "is attached to; empty to use agent.leaf and agent.spine of the Agents.",
     HL_OPT_PATH, 0, 0, NULL, AT(switches)},
    {"nodes.keep", "--nodes-keep", "1000",
     "How many lost nodes are remembered; 0 for all. A node that a job waits for is always "
     "remembered.",
     HL_OPT_INT, 0, 1000000, NULL, AT(nodes_keep)},
    {"nodes.keep_age", "--nodes-keep-age", "7d",
     "How long a lost node is remembered; 0 for ever. A node that a job waits for is always "
     "remembered.",
     HL_OPT_DURATION, 0, 3650 * HL_OPTION_DAY_MS, NULL, AT(nodes_keep_age_ms)},
    {"gc.interval", "--gc-interval", "10s",
     "Interval at which shards that belong to no version are searched for and freed.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(gc_interval_ms)},
    {"gc.grace", "--gc-grace", "10m",
     "How long a shard that belongs to no version is left alone while a job writes a version, and "
     "how long a version that no job writes can stay open without a commit.",
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(gc_grace_ms)},
};
#undef AT

#define AT(field) HL_OPTION_FIELD(struct hl_kube_opts, field)
static const struct hl_option kube_options[] = {
    {"kube.config", "--kubeconfig", "",
     "A kubeconfig; empty for $KUBECONFIG, ~/.kube/config, or the credentials of the pod.",
     HL_OPT_PATH, 0, 0, NULL, AT(config)},
    {"kube.master", "--master", "",
     "URL of the API server, instead of that in the kubeconfig.",
     HL_OPT_STRING, 0, 0, NULL, AT(master)},
    {"kube.namespace", "--kube-namespace", "",
     "Namespace of the jobs; empty for the context's.",
     HL_OPT_STRING, 0, 0, NULL, AT(ns)},
    {"kube.queue", "--kube-queue", "default",
     "Volcano's queue.",
     HL_OPT_STRING, 0, 0, NULL, AT(queue)},
    {"kube.device", "--kube-device", "",
     "Resource that a rank with a GPU or NPU asks for, such as nvidia.com/gpu or "
     "huawei.com/Ascend910; empty for a cluster without such devices.",
     HL_OPT_STRING, 0, 0, NULL, AT(device)},
    {"kube.table_label", "--kube-table-label", "ascend-910",
     "With a huawei.com/ device: value of the label ring-controller.atlas on the gang's objects, "
     "helios-ranktable's --label-value: ascend-910, ascend-910b, ascend-npu.",
     HL_OPT_STRING, 0, 0, NULL, AT(table_label)},
    {"kube.accelerator_type", "--kube-accelerator-type", "",
     "With a huawei.com/ device: pods go to nodes with this value of the label accelerator-type, "
     "and must have a number of devices that this product gives (docs/ranktable.md); empty for "
     "any node.",
     HL_OPT_STRING, 0, 0, NULL, AT(accelerator)},
    {"kube.slot_devices", "--kube-slot-devices", "1",
     "Devices of one NUMA node: the number of ranks in a pod if the job does not set "
     "ranks_per_slot.",
     HL_OPT_INT, 1, 64, NULL, AT(slot_devices)},
    {"kube.topology_policy", "--kube-topology-policy", "best-effort",
     "NUMA policy of the pods, for Volcano's numa-aware plugin.",
     HL_OPT_ENUM, 0, 0, "none|best-effort|restricted|single-numa-node", AT(topology_policy)},
    {"kube.topology_key", "--kube-topology-key", "",
     "Label of nodes, such as topology.kubernetes.io/rack, by which pods of one tensor-parallel "
     "group, and then of one gang, are placed near each other; empty for none.",
     HL_OPT_STRING, 0, 0, NULL, AT(topology_key)},
    {"kube.podgroups", "--kube-podgroups", "auto",
     "What starts the pods of a gang together: Volcano, or Kubernetes' own PodGroups of this "
     "version of scheduling.k8s.io. auto takes what the API server serves, Volcano first, then "
     "the newest version, and keeps that choice.",
     HL_OPT_ENUM, 0, 0, "auto|volcano|v1alpha2|v1alpha3|v1beta1", AT(podgroups)},
    {"kube.host_paths", "--kube-host-paths", "",
     "Directories of the nodes, separated by commas; jobs can mount what is below them (mounts, "
     "hostPath).",
     HL_OPT_STRING, 0, 0, NULL, AT(host_paths)},
    {"kube.keep", "--kube-keep", "1d",
     "How long the Volcano Job of a job that succeeded stays, with its pods.",
     HL_OPT_DURATION, 0, 365 * HL_OPTION_DAY_MS, NULL, AT(keep_ms)},
    {"kube.node_lost", "--kube-node-lost", "20s",
     "How long a node's condition Ready can be Unknown before its pods count as lost, unless the "
     "job sets nodeLostAfter. Kubernetes sets it 40 s after the kubelet was last heard.",
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(node_lost_ms)},
};
#undef AT

#define AT(field) HL_OPTION_FIELD(struct hl_placement_conf, field)
static const struct hl_option placement_options[] = {
    {"placement.policy", "--placement-policy", "observe",
     "Whether reads of shards move them: off; observe, which only shows what would be moved; on.",
     HL_OPT_ENUM, 0, 0, "off|observe|on", AT(policy)},
    {"placement.interval", "--placement-interval", "1s",
     "Interval at which the policy looks at shards that were read or changed.",
     HL_OPT_DURATION, 50, 3600000, NULL, AT(interval_ms)},
    {"placement.moves", "--placement-moves", "8",
     "How many shards are moved at the same time; others wait by priority.",
     HL_OPT_INT, 1, 1024, NULL, AT(moves)},
    {"placement.moves_per_node", "--placement-moves-per-node", "4",
     "How many moves from or to one node are in flight at the same time.",
     HL_OPT_INT, 1, 1024, NULL, AT(moves_per_node)},
    {"placement.rate", "--placement-rate", "0",
     "Rate that all moves of the policy together may use on each network; 0 for no limit.",
     HL_OPT_RATE, 0, 0, NULL, AT(rate)},
    {"placement.keep_use", "--placement-keep-use", "10s",
     "Shortest interval at which the use of a shard is stored for the next Controller; 0: a "
     "restart forgets the use.",
     HL_OPT_DURATION, 0, 3600000, NULL, AT(keep_use_ms)},
    {"placement.grace", "--placement-grace", "5s",
     "How long a copy that is no longer offered stays for processes that are reading it.",
     HL_OPT_DURATION, 0, 3600000, NULL, AT(grace_ms)},
    {"placement.clean", "--placement-clean", "10m",
     "How long the Controller tries to drop the old copy of a move, for example from a node "
     "that does not answer; after that it stays as an ordinary copy.",
     HL_OPT_DURATION, 1000, HL_OPTION_DAY_MS, NULL, AT(clean_ms)},
    {"placement.retry", "--placement-retry", "2s",
     "Interval at which a step of a move that failed is tried again.",
     HL_OPT_DURATION, 50, 3600000, NULL, AT(retry_ms)},
    {"placement.prefetch_wait", "--placement-prefetch-wait", "0",
     "How long the containers of a gang wait at most for shards that are fetched ahead to their "
     "nodes, with placement.policy=on; 0 for not at all.",
     HL_OPT_DURATION, 0, 3600000, NULL, AT(prefetch_wait_ms)},
    {"placement.warm", "--placement-warm", "false",
     "Whether versions that only the archive holds are loaded into the pool after the start of "
     "helios-l3d, up to tier.low, while nothing else is loaded from the archive.",
     HL_OPT_BOOL, 0, 0, NULL, AT(warm)},
};
#undef AT

#define X(kind, field, name, flag, text, least, most, help)                                     \
    {name, flag, text, help, HL_OPT_##kind, least, most, NULL,                                  \
     HL_OPTION_FIELD(struct hl_placement_params, field)},
static const struct hl_option policy_options[] = {HL_POLICY_MAP(X)};
#undef X
/* clang-format on */

const struct hl_option_rows hl_controller_rows = HL_OPTION_ROWS(controller_options);
const struct hl_option_rows hl_kube_rows = HL_OPTION_ROWS(kube_options);
const struct hl_option_rows hl_placement_rows = HL_OPTION_ROWS(placement_options);
const struct hl_option_rows hl_policy_rows = HL_OPTION_ROWS(policy_options);
