/* agent/agent.h - the Agent of a node: serves interface Agent, keeps the Controller informed.
 *
 * It tries to register with the Controller for as long as it takes, then sends heartbeats with
 * telemetry and the full list of containers, and an extra one at once whenever a container changes.
 * Blocking work runs in the loop's worker threads.
 *
 * Owns:    the executor, the store, the server and the peer; not the loop and not the RPC runtime.
 * Threads: start and stop on the loop's thread while the loop does not run.
 * Errors:  HL_EBUSY (port or state directory in use), HL_EINVAL, HL_EPERM, HL_ENOSPC. An absent
 *          Controller is not an error: it is logged once and retried.
 * Units:   milliseconds, bytes.
 * Limits:  one slice of a log is at most 1 MiB. After hl_agent_stop the loop may only be destroyed.
 */
#ifndef HL_AGENT_AGENT_H
#define HL_AGENT_AGENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/store.h"
#include "auth/conf.h"
#include "base/buf.h"
#include "base/status.h"
#include "fetch/conf.h"
#include "rpc/conf.h"

struct hl_agent;
struct hl_loop;
struct hl_rpc;

struct hl_agent_opts {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    const struct hl_rpc_conf *calls;
    const struct hl_auth_conf *auth; /* these three are passed on to ranks */
    const struct hl_net_conf *data;
    const struct hl_read_conf *read;
    const char *library; /* HELIOS_LIBRARY of the ranks; "" = the one of their system */
    const struct hl_api_slot_list *slots; /* borrowed */
    /* the machine of which they are a share; NULL: they are the whole machine */
    const struct hl_api_slot_list *machine;
    bool foreign_topology;   /* the slots describe another machine */
    struct store_opts store; /* loop, rpc, node, machine, data, retry and changed are filled in;
                                host_id "" = the system's, l2_pool "" = by the node's name */

    /* Options, from hl_agent_rows. */
    const char *name;   /* "" = host name */
    const char *listen; /* "127.0.0.1:0" */
    const char *state_dir;
    const char *executor;     /* "process" */
    const char *leaf, *spine; /* switches; "" = unknown */
    const char *rank_address; /* "" = the address of the interface that reaches the Controller */
    const char *device_addresses; /* addresses of the devices' own ports; "" = unknown */
    const char *python_dir;       /* prepended to the ranks' PYTHONPATH; "" = nothing */
    uint64_t log_max_bytes;
    uint64_t chunk_memory; /* host memory for HybridPS chunks of ranks; 0 = all */
    int telemetry_period_ms;
    const char *nvml; /* library of the NVIDIA driver; "" = GPUs are not measured */
    /* minimum free space on the disk of state_dir; less is reported as trouble */
    uint64_t log_free_bytes;
    bool health;            /* test the node at start */
    uint64_t health_memory; /* minimum copy rate of a slot, bytes per second; 0 = any */
    const char *health_script;
    int health_deadline_ms;
    /* For the program that starts it: */
    const char *topology; /* hwloc XML; "" = this machine; `slots` takes precedence */
    const char *share;    /* share of that machine; "" = all */
    bool stop_containers; /* stop containers when the Agent ends */
};

extern const struct hl_option_rows hl_agent_rows;

hl_status hl_agent_start(const struct hl_agent_opts *opts, struct hl_agent **out) HL_CHECK;
/* Address with the actual port, as other machines reach it. Borrowed. */
const char *hl_agent_address(const struct hl_agent *agent);
/* Node name in use. Borrowed. */
const char *hl_agent_name(const struct hl_agent *agent);
/* Addresses of the store, as other machines reach it; "" = none. Borrowed. */
const char *hl_agent_data_address(const struct hl_agent *agent);
const char *hl_agent_migrate_address(const struct hl_agent *agent);
/* New for every start; "" before it. */
const char *hl_agent_incarnation(const struct hl_agent *agent);
const char *hl_agent_store_socket(const struct hl_agent *agent);
/* Appends gauges of containers and tiers; any thread. */
hl_status hl_agent_gauges(struct hl_agent *agent, struct hl_buf *out) HL_CHECK;
/* Asks every container to stop, with this grace period (-1: its own), and waits for them, at most
 * timeout_ms. */
void hl_agent_stop_containers(struct hl_agent *agent, int grace_ms, int timeout_ms);
/* Containers keep running. NULL is fine. Returns true, or false if a worker is still busy after a
 * second: then nothing was freed, and the process should end with _exit(). */
bool hl_agent_stop(struct hl_agent *agent);

#endif
