/* core/planner/cluster.h - the planner's view of the cluster: servers, their slots and which are
 * held, and where the servers are in the network.
 *
 * Levels are NUMA node (a slot) < server < leaf < spine. If a server's leaf or spine is unknown, a
 * rule on those levels can only be satisfied within the server itself.
 *
 * Owns:    hl_cluster owns copies of the nodes, and an index of them (core/planner/index.h).
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM, HL_EINVAL names the node and what is wrong.
 * Units:   bytes; ms since 1970; version counts changes.
 * Limits:  node names <= 63 bytes, names of leaves and spines <= 127.
 */
#ifndef HL_CORE_PLANNER_CLUSTER_H
#define HL_CORE_PLANNER_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "core/planner/topo.h"

#define HL_NODE_NAME_MAX   63
#define HL_SWITCH_NAME_MAX 127

struct hl_cluster_slot {
    int numa_id;
    bool busy; /* only hl_cluster_set_busy changes it */
    int cpu_count;
    int gpu_count;
    char *cpus;  /* "0-3,8" */
    char **gpus; /* ids */
    uint64_t memory_bytes;
    uint64_t gpu_memory_bytes; /* of its smallest GPU; 0 = unknown */
    enum hl_nic_class nic;     /* the newest one on its NUMA node */
};

/* A time window in which nothing may run on a node; until_ms 0 = none. */
struct hl_node_window {
    int64_t from_ms, until_ms;
};

/* Whether a run from begin_ms to end_ms overlaps the window. */
static inline bool hl_window_meets(struct hl_node_window w, int64_t begin_ms, int64_t end_ms)
{
    return begin_ms < w.until_ms && end_ms > w.from_ms;
}

struct hl_cluster_node {
    char name[HL_NODE_NAME_MAX + 1];
    char *host_id;
    char *rank_address;
    char *host_address; /* IP address of rank_address, "" = unknown */
    char *leaf, *spine; /* "" = not known */
    /* comma-separated, in the order of the devices' numbers; "" = not known */
    char *device_addresses;
    bool ready;
    bool draining;
    struct hl_node_window reserved;
    struct hl_cluster_slot *slots;
    int slot_count;
};

struct hl_place_index;

/* Zero-initialise. Nodes are kept in order of name ("node-2" before "node-10"). */
struct hl_cluster {
    struct hl_cluster_node *nodes;
    size_t count, cap;
    uint64_t version; /* grows with every change */
    int64_t now_ms;   /* when a gang that is planned now would start: hl_cluster_set_time */
    int64_t grace_ms; /* time that ranks get to stop, if the job does not say */
    struct hl_place_index *index;
};

void hl_cluster_fini(struct hl_cluster *c);
/* Adds or replaces a node; slots held there stay held, and a draining node keeps draining.
 * host_address NULL: use its rank_address. */
hl_status hl_cluster_put(struct hl_cluster *c, const struct hl_api_node_info *node) HL_CHECK;
/* An unknown name is fine. */
void hl_cluster_remove(struct hl_cluster *c, const char *name);
/* NULL when there is none. Borrowed until the next put or remove. */
struct hl_cluster_node *hl_cluster_find(const struct hl_cluster *c, const char *name);
/* false = the node is lost: its slots are neither free nor counted. An unknown name is fine. */
void hl_cluster_set_ready(struct hl_cluster *c, const char *name, bool ready);
/* A draining node keeps what runs there, but gets nothing new. An unknown name is fine. */
void hl_cluster_set_draining(struct hl_cluster *c, const char *name, bool draining);
/* Gangs start there only if their time limit ends before the window, or they start after it. An
 * unknown name is fine. */
void hl_cluster_set_window(struct hl_cluster *c, const char *name, struct hl_node_window w);
/* Sets the time for later plans; does not count as a change of the cluster. */
void hl_cluster_set_time(struct hl_cluster *c, int64_t now_ms, int64_t grace_ms);
/* Marks a slot held or free. An unknown slot is fine. */
void hl_cluster_set_busy(struct hl_cluster *c, const char *name, int numa_id, bool busy);
/* The same, with a guess of the node's place in nodes[]; *at is corrected. */
void hl_cluster_set_busy_at(struct hl_cluster *c, size_t *at, const char *name, int numa_id,
                            bool busy);

#endif
