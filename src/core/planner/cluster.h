/* core/planner/cluster.h - what the planner sees of the cluster: servers, their slots, who holds
 * them, and where the servers are in the network.
 *
 * Levels are NUMA node (a slot) < server < leaf < spine. A server without a leaf or a spine is in
 * none that is known: no rule can be kept by it beyond itself.
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
    bool busy; /* hl_cluster_set_busy alone changes it */
    int cpu_count;
    int gpu_count;
    char *cpus;  /* "0-3,8" */
    char **gpus; /* ids */
    uint64_t memory_bytes;
    uint64_t gpu_memory_bytes; /* of its smallest GPU; 0 = unknown */
    enum hl_nic_class nic;     /* the newest one on its NUMA node */
};

/* A time in which nothing runs on a node, until 0 = none. */
struct hl_node_window {
    int64_t from_ms, until_ms;
};

/* Whether what runs from `begin` to `end` would meet it. */
static inline bool hl_window_meets(struct hl_node_window w, int64_t begin_ms, int64_t end_ms)
{
    return begin_ms < w.until_ms && end_ms > w.from_ms;
}

struct hl_cluster_node {
    char name[HL_NODE_NAME_MAX + 1];
    char *host_id;
    char *rank_address;
    char *host_address;     /* IP address of rank_address, "" = unknown */
    char *leaf, *spine;     /* "" = not known */
    char *device_addresses; /* by the devices' numbers, with commas; "" = not known */
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
    int64_t now_ms;   /* when what is planned starts: hl_cluster_set_time */
    int64_t grace_ms; /* that ranks need to stop, where a job does not say */
    struct hl_place_index *index;
};

void hl_cluster_fini(struct hl_cluster *c);
/* Adds or replaces a node; slots held there stay held, and a draining node drains. host_address
 * NULL: its rank_address. */
hl_status hl_cluster_put(struct hl_cluster *c, const struct hl_api_node_info *node) HL_CHECK;
/* Absent name: fine. */
void hl_cluster_remove(struct hl_cluster *c, const char *name);
/* NULL when there is none. Borrowed until the next put or remove. */
struct hl_cluster_node *hl_cluster_find(const struct hl_cluster *c, const char *name);
/* 0 = lost: its slots are neither free nor counted. Unknown name: fine. */
void hl_cluster_set_ready(struct hl_cluster *c, const char *name, bool ready);
/* What runs there stays, nothing new is placed. Unknown name: fine. */
void hl_cluster_set_draining(struct hl_cluster *c, const char *name, bool draining);
/* Gangs start there only if their time limits end before it, or after it. Unknown name: fine. */
void hl_cluster_set_window(struct hl_cluster *c, const char *name, struct hl_node_window w);
/* Of the plans that follow; it changes nothing of the cluster. */
void hl_cluster_set_time(struct hl_cluster *c, int64_t now_ms, int64_t grace_ms);
/* Mark a slot held or free. Unknown: fine. */
void hl_cluster_set_busy(struct hl_cluster *c, const char *name, int numa_id, bool busy);
/* The same where the node's place in nodes[] is probably known; *at is put right. */
void hl_cluster_set_busy_at(struct hl_cluster *c, size_t *at, const char *name, int numa_id,
                            bool busy);

#endif
