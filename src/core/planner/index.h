/* core/planner/index.h - an index of free slots by server. It is updated as slots are taken and
 * freed, so that planning looks at classes of servers instead of at each one.
 *
 * Servers get positions in order of spine, leaf and name, so every domain is a range of positions.
 * Servers with the same slots form a kind. Servers of a kind with the same number of free slots,
 * the same state and the same reservation form a class, which is a bitmap over positions. Counting
 * the servers of a class in a leaf or a spine means counting bits in a range.
 *
 *     position  0 1 2 3 | 4 5 6 7 | 8 9 ...      leaf-0 | leaf-1 | ...
 *     2 free    1 0 1 1   0 0 1 0   1 1
 *     1 free    0 1 0 0   1 0 0 1   0 0
 *
 * Owns:    the index; it borrows the names of the cluster's nodes.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  2^32 - 1 servers.
 */
#ifndef HL_CORE_PLANNER_INDEX_H
#define HL_CORE_PLANNER_INDEX_H

#include <uthash.h>

#include "core/planner/cluster.h"

enum hl_server_state { HL_SERVER_READY, HL_SERVER_DRAINING, HL_SERVER_LOST };

/* Identical slots of a server. */
struct hl_slot_group {
    int gpus, cpus, nic, slots;
    uint64_t memory_bytes, gpu_memory_bytes;
};

struct hl_place_class {
    struct hl_place_kind *kind;
    struct hl_place_class *next; /* of the kind */
    enum hl_server_state state;
    struct hl_node_window reserved;
    uint32_t servers;
    uint64_t *bits;  /* by position, from kind->word on */
    uint16_t free[]; /* per group */
};

struct hl_place_kind {
    struct hl_slot_group *groups;
    int group_count;
    uint16_t *group_of; /* by slot */
    int slot_count;
    size_t word, words; /* the range of bitmap words that covers its servers */
    struct hl_place_class *classes;
    UT_hash_handle hh; /* by its slots */
    size_t key_len;
    unsigned char key[];
};

/* A leaf or a spine: positions lo .. hi - 1. */
struct hl_place_domain {
    uint32_t lo, hi;
    bool named; /* false: these servers have none */
};

struct hl_place_index {
    bool fresh;
    size_t count, words;
    uint32_t *position;           /* by place in cluster->nodes */
    uint32_t *node_at;            /* by position */
    uint32_t *leaf_of, *spine_of; /* by position: places in leaves and spines */
    struct hl_place_domain *leaves, *spines;
    size_t leaf_count, spine_count;
    struct hl_place_class **class_of; /* by place in cluster->nodes */
    struct hl_place_kind *kinds;
};

void hl_place_index_free(struct hl_place_index *x);
/* Rebuilds the index if nodes were added or removed since the last time. */
hl_status hl_place_index_refresh(struct hl_place_index *x, const struct hl_cluster *c) HL_CHECK;
/* Updates the index after a change of a node's state or of one of its slots. */
void hl_place_index_update(struct hl_place_index *x, const struct hl_cluster *c, size_t node);

#endif
