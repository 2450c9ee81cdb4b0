/* maco/graph/graph.h - a graph as the compiler reads it: tasks, their order and cycles in it, and
 * which tasks touch the same memory, so that their order matters. This is the header that other
 * modules include; it brings types.h.
 *
 * Owns:    a graph owns copies of what was added; memory that tasks refer to stays the caller's.
 *          Free lists with hl_maco_csr_fini, cycles with free.
 * Threads: one at a time per graph; orders and conflicts from any.
 * Errors:  HL_EINVAL with one sentence: task, what is wrong, and a hint; HL_ENOMEM; what `found`
 *          returns.
 * Units:   ids count tasks in the order of adding; nodes of lists are numbers below n.
 * Limits:  MACO_MAX_TASKS tasks, 2^32 - 1 dependencies, 4 GiB of names; those of
 *          maco/graph/pieces.h.
 */
#ifndef HL_MACO_GRAPH_GRAPH_H
#define HL_MACO_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"
#include "maco/graph/types.h"

struct hl_maco_node {
    int32_t priority;
    int32_t worker;       /* -1 = any */
    uint32_t first_range; /* CUSTOM_...: n_reads ranges, then n_writes */
    uint32_t n_reads, n_writes;
    bool named; /* ranks compare the name */
};

struct hl_maco_edge {
    uint32_t task, on;
};

struct hl_maco_call {
    maco_function function;
    void *arg;
};

struct maco_graph {
    maco_task *tasks; /* events MACO_NONE, name within names, user within calls */
    struct hl_maco_node *nodes;
    struct hl_maco_edge *edges; /* task waits for on; may contain duplicates */
    maco_range *ranges;
    struct hl_maco_call *calls;
    char *names;
    size_t n, n_edges, n_ranges, n_calls, names_len;
    size_t task_cap, node_cap, edge_cap, range_cap, call_cap, name_cap;
};

static inline const char *hl_maco_graph_name(const maco_graph *g, uint32_t id)
{
    return g->names + g->tasks[id].name;
}

/* The checks of maco_graph_add on an op; plans are built only of tasks that pass them. `name` is
 * for messages. */
hl_status hl_maco_check(const maco_op *op, const maco_task *task, const char *name) HL_CHECK;

/* Grows *list to have room for `more` elements of `size` bytes after `count`; pointer and capacity
 * belong to the caller. */
hl_status hl_maco_grow(void *list, size_t *cap, size_t count, size_t more, size_t size) HL_CHECK;

/* ---- orders (topo.c) ---- */

/* Lists of numbers, one for each node: item[first[i]] .. item[first[i + 1] - 1], ascending. */
struct hl_maco_csr {
    uint32_t *first, *item;
};

void hl_maco_csr_fini(struct hl_maco_csr *c);
/* Builds the predecessors and successors of each node, without duplicates. */
hl_status hl_maco_csr_build(uint32_t n, const struct hl_maco_edge *edges, size_t n_edges,
                            struct hl_maco_csr *parents, struct hl_maco_csr *children) HL_CHECK;
/* Inverts the relation. */
hl_status hl_maco_csr_turn(uint32_t n, const struct hl_maco_csr *a,
                           struct hl_maco_csr *out) HL_CHECK;

/* A topological order. Among the nodes that may come next, the one with the highest priority (NULL:
 * all equal) and then the lowest number is taken. `placed` is below n when there is a cycle. */
hl_status hl_maco_topo(uint32_t n, const struct hl_maco_csr *parents,
                       const struct hl_maco_csr *children, const int32_t *priority, uint32_t *order,
                       uint32_t *placed) HL_CHECK;
/* Finds a cycle of a graph that has one: each node waits for the next, the last for the first.
 * free() it. */
hl_status hl_maco_cycle(uint32_t n, const struct hl_maco_csr *parents,
                        const struct hl_maco_csr *children, uint32_t **cycle,
                        uint32_t *length) HL_CHECK;
/* Fails with HL_ECONFLICT and the names along a cycle: `what`: "a" waits for "b" waits for "a". */
hl_status hl_maco_fail_cycle(const char *what, const uint32_t *cycle, uint32_t length,
                             const char *(*name)(const void *arg, uint32_t node), const void *arg);

/* Stable sort of `key`, together with `value`. */
hl_status hl_maco_sort(uint64_t *key, uint32_t *value, size_t n) HL_CHECK;

/* ---- order from memory accesses (infer.c) ---- */

enum hl_maco_conflict { HL_MACO_RAW, HL_MACO_WAR, HL_MACO_WAW };

typedef hl_status (*hl_maco_conflict_fn)(void *arg, uint32_t task, uint32_t on,
                                         enum hl_maco_conflict how);

/* Calls `found` for pairs in which `task` comes after `on` in `order`, one writes what the other
 * uses, and no task between them does. A chain of these pairs orders every other such pair. The
 * calls for one task come together, in order. */
hl_status hl_maco_conflicts(const maco_graph *g, const uint32_t *order, hl_maco_conflict_fn found,
                            void *arg) HL_CHECK;

#endif
