/* The options of an Agent and of its store. */
#include "agent/agent.h"
#include "base/plane.h"
#include "conf/options.h"
#include "core/placement/keep.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_agent_opts, field)
static const struct hl_option agent_options[] = {
    {"agent.name", "--name", "",
     "Name of this node (serverId); empty for the host name.",
     HL_OPT_STRING, 0, 0, NULL, AT(name)},
    {"agent.listen", "--listen", ":0",
     "Address where helios-agent serves RPC; no host: on its network; port 0: a free one.",
     HL_OPT_LISTEN, HL_PLANE_MANAGEMENT, 0, NULL, AT(listen)},
    {"agent.state", "--state", "/var/lib/helios/agent",
     "Directory of container records and logs.",
     HL_OPT_PATH, 0, 0, NULL, AT(state_dir)},
    {"agent.executor", "--executor", "process",
     "What runs containers: plain processes, or docker or podman with the job's image.",
     HL_OPT_ENUM, 0, 0, "process|docker|podman", AT(executor)},
    {"agent.topology", "--topology", "",
     "hwloc XML file (version 1 or 2) to take the slots from; empty for this machine.",
     HL_OPT_PATH, 0, 0, NULL, AT(topology)},
    {"agent.share", "--share", "",
     "Offer share I of N of the machine as M slots: I/N or I/NxM, I from 0; empty for all of it.",
     HL_OPT_STRING, 0, 0, NULL, AT(share)},
    {"agent.rank_address", "--rank-address", "",
     "Host name or address that ranks of other nodes can reach; empty to ask the system.",
     HL_OPT_STRING, 0, 0, NULL, AT(rank_address)},
    {"agent.device_addresses", "--device-addresses", "",
     "IP addresses of the devices' own network ports for rank tables, separated by commas, in the "
     "order of the devices' numbers; empty if unknown.",
     HL_OPT_STRING, 0, 0, NULL, AT(device_addresses)},
    {"agent.leaf", "--leaf", "",
     "Name of the leaf switch that the node is attached to, for placement; empty if unknown. "
     "nodes.switches of the Controller takes precedence.",
     HL_OPT_STRING, 0, 0, NULL, AT(leaf)},
    {"agent.spine", "--spine", "",
     "Name of the spine switch above the leaf; empty if unknown.",
     HL_OPT_STRING, 0, 0, NULL, AT(spine)},
    {"agent.python", "--python", "",
     "Directory put on PYTHONPATH of every rank; empty for the one installed with the program.",
     HL_OPT_PATH, 0, 0, NULL, AT(python_dir)},
    {"agent.log_max", "--log-max", "64MiB",
     "Bytes kept of one rank's output.",
     HL_OPT_BYTES, 4096, HL_OPTION_TIB, NULL, AT(log_max_bytes)},
    {"agent.stop_containers", "--stop-containers-on-exit", "false",
     "Stop the containers when the Agent ends; otherwise they keep running, and the next Agent "
     "takes them over.",
     HL_OPT_BOOL, 0, 0, NULL, AT(stop_containers)},
    {"agent.telemetry_period", "--telemetry-period", "1s",
     "Interval at which processors, memory, GPUs, network ports and containers are measured; "
     "figures in a heartbeat are at most this old.",
     HL_OPT_DURATION, 100, 3600000, NULL, AT(telemetry_period_ms)},
    {"agent.nvml", "--nvml", "libnvidia-ml.so.1",
     "Library of the NVIDIA driver, used to measure GPUs; empty to leave GPUs alone.",
     HL_OPT_STRING, 0, 0, NULL, AT(nvml)},
    {"agent.log_free", "--log-free", "64MiB",
     "Free space that the disk of agent.state must have for a container to be placed here, but at "
     "most a thirty-second of the disk; 0 for none.",
     HL_OPT_BYTES, 0, 64 * HL_OPTION_TIB, NULL, AT(log_free_bytes)},
    {"agent.health", "--health", "true",
     "Test the node's memory, checksums, network and disk when its Agent starts and on `helios "
     "node test`. A node that fails gets no containers.",
     HL_OPT_BOOL, 0, 0, NULL, AT(health)},
    {"agent.health_memory", "--health-memory", "256MiB",
     "Bytes that a slot must copy per second of CPU time to pass the test; 0 for any.",
     HL_OPT_BYTES, 0, 64 * HL_OPTION_TIB, NULL, AT(health_memory)},
    {"agent.health_script", "--health-script", "",
     "The site's own program that the test also runs, without arguments; exit code 0 passes, and "
     "the last line of its output is shown. Empty for none.",
     HL_OPT_PATH, 0, 0, NULL, AT(health_script)},
    {"agent.health_deadline", "--health-deadline", "5s",
     "How long the whole test may take; checks that are not done by then have failed.",
     HL_OPT_DURATION, 100, 60000, NULL, AT(health_deadline_ms)},
    {"agent.chunk_memory", "--chunk-memory", "0",
     "Host memory that HybridPS chunks of all ranks of the node may use; 0 for all of it.",
     HL_OPT_BYTES, 0, 64 * HL_OPTION_TIB, NULL, AT(chunk_memory)},
};
#undef AT

#define AT(field) HL_OPTION_FIELD(struct store_opts, field)
static const struct hl_option store_options[] = {
    {"agent.l2_size", "--l2-size", "0",
     "Capacity of the node's L2, host memory that keeps copies of shards; 0 for none.",
     HL_OPT_BYTES, 0, 64 * HL_OPTION_TIB, NULL, AT(l2_size)},
    {"agent.l2_keep", "--l2-keep", HL_KEEP_SHARE,
     "Share of the L2 for copies that reads on this node leave, as long as placed copies leave "
     "room; 0 for none.",
     HL_OPT_PERCENT, 0, 100, NULL, AT(l2_keep)},
    {"agent.l1_keep", "--l1-keep", HL_KEEP_L1_SHARE,
     "Share of each device with a size in --devices for shards that ranks map there; 0 for none.",
     HL_OPT_PERCENT, 0, 100, NULL, AT(l1_keep)},
    {"agent.l2_pool", "--l2-pool", "",
     "File of the L2, on tmpfs or hugetlbfs; empty for /dev/shm/helios-UID-NAME.l2. Its socket is "
     "beside it, with .sock.",
     HL_OPT_PATH, 0, 0, NULL, AT(l2_pool)},
    {"agent.devices", "--devices", "",
     "Devices whose memory is an L1: emu:BYTES or cuda:INDEX[:BYTES], separated by commas; empty "
     "for none.",
     HL_OPT_STRING, 0, 0, NULL, AT(devices)},
    {"agent.data_listen", "--data-listen", ":0",
     "Address where other nodes read and write the L2; empty for none.",
     HL_OPT_LISTEN, HL_PLANE_BACKBONE, 0, NULL, AT(data_listen)},
    {"agent.migrate_listen", "--migrate-listen", ":0",
     "Address where the L2 takes migrations (ZeroMQ); empty for none.",
     HL_OPT_LISTEN, HL_PLANE_MIGRATION, 0, NULL, AT(migrate_listen)},
    {"agent.nic_class", "--nic-class", "auto",
     "Class of the NIC next to the devices, which decides whether copies take the plank path; "
     "auto to look at each slot.",
     HL_OPT_ENUM, 0, 0, "auto|other|cx3|cx4|cx5|cx6|cx7|cx8|bluefield", AT(nic_class)},
    {"agent.host_id", "--host-id", "",
     "Identity of this machine: nodes with the same one map each other's memory; empty to ask the "
     "system.",
     HL_OPT_STRING, 0, 0, NULL, AT(host_id)},
    {"agent.copies", "--copies", "2",
     "Copies of shards that are made at the same time.",
     HL_OPT_INT, 1, 64, NULL, AT(copies)},
    {"agent.loads", "--loads", "8",
     "Shards that are fetched for readers and kept at the same time.",
     HL_OPT_INT, 1, 64, NULL, AT(loads)},
    {"copy.locate_timeout", "--copy-locate-timeout", "1s",
     "How long another node may take to locate its copy before the next source is tried.",
     HL_OPT_DURATION, 10, 3600000, NULL, AT(locate_timeout_ms)},
    {"copy.pause", "--copy-pause", "20ms",
     "How long a copy waits before it is tried again if there was no room, or no network to the "
     "other node.",
     HL_OPT_DURATION, 1, 1000, NULL, AT(pause_ms)},
    {"route.retry_first", "--route-retry-first", "1s",
     "How long the direct path is not used after a failure; doubled with each further failure.",
     HL_OPT_DURATION, 1, HL_OPTION_DAY_MS, NULL, AT(retry_first_ms)},
    {"route.retry_max", "--route-retry-max", "60s",
     "Longest time for which the direct path is not used after failures.",
     HL_OPT_DURATION, 1, HL_OPTION_DAY_MS, NULL, AT(retry_max_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_agent_rows = HL_OPTION_ROWS(agent_options);
const struct hl_option_rows store_rows = HL_OPTION_ROWS(store_options);
