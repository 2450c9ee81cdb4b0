/* maco/graph/graph.h - a graph as its compiler reads it: tasks, their order and its cycles, and
 * which of them touch the same memory so that their order matters. The face of this wing: types.h
 * comes with it.
 *
 * Owns:    a graph copies of what was added; memory that tasks name stays the caller's. Lists are
 *          freed with hl_maco_csr_fini, cycles with free.
 * Threads: a graph one at a time; orders and conflicts any.
 * Errors:  HL_EINVAL in one sentence: task, what, and a hint; HL_ENOMEM; what `found` returns.
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
    uint32_t first_range; /* of CUSTOM_...: n_reads, then n_writes */
    uint32_t n_reads, n_writes;
    bool named; /* so that ranks compare it */
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
    struct hl_maco_edge *edges; /* task waits for on; may repeat */
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

/* What maco_graph_add checks of an op, and what a plan may be built of. `name` is for messages. */
hl_status hl_maco_check(const maco_op *op, const maco_task *task, const char *name) HL_CHECK;

/* Room for `more` elements of `size` bytes after `count` in *list; both the pointer and the
 * capacity are the caller's. */
hl_status hl_maco_grow(void *list, size_t *cap, size_t count, size_t more, size_t size) HL_CHECK;

/* ---- orders (topo.c) ---- */

/* Lists of numbers, one for each node: item[first[i]] .. item[first[i + 1] - 1], ascending. */
struct hl_maco_csr {
    uint32_t *first, *item;
};

void hl_maco_csr_fini(struct hl_maco_csr *c);
/* The predecessors and successors of each node, each once. */
hl_status hl_maco_csr_build(uint32_t n, const struct hl_maco_edge *edges, size_t n_edges,
                            struct hl_maco_csr *parents, struct hl_maco_csr *children) HL_CHECK;
/* The same relation from the other side. */
hl_status hl_maco_csr_turn(uint32_t n, const struct hl_maco_csr *a,
                           struct hl_maco_csr *out) HL_CHECK;

/* A topological order; among those that may come next the one of the highest priority (NULL: all
 * the same), then the least. `placed` is below n when there is a cycle. */
hl_status hl_maco_topo(uint32_t n, const struct hl_maco_csr *parents,
                       const struct hl_maco_csr *children, const int32_t *priority, uint32_t *order,
                       uint32_t *placed) HL_CHECK;
/* A cycle of a graph that has one: each node waits for the next, the last for the first. free() it.
 */
hl_status hl_maco_cycle(uint32_t n, const struct hl_maco_csr *parents,
                        const struct hl_maco_csr *children, uint32_t **cycle,
                        uint32_t *length) HL_CHECK;
/* HL_ECONFLICT with the names along a cycle: `what`: "a" waits for "b" waits for "a". */
hl_status hl_maco_fail_cycle(const char *what, const uint32_t *cycle, uint32_t length,
                             const char *(*name)(const void *arg, uint32_t node), const void *arg);

/* Sorts `key` with `value`, stable. */
hl_status hl_maco_sort(uint64_t *key, uint32_t *value, size_t n) HL_CHECK;

/* ---- order by memory (infer.c) ---- */

enum hl_maco_conflict { HL_MACO_RAW, HL_MACO_WAR, HL_MACO_WAW };

typedef hl_status (*hl_maco_conflict_fn)(void *arg, uint32_t task, uint32_t on,
                                         enum hl_maco_conflict how);

/* Calls `found` for pairs of which `task` comes after `on` in `order`, one writes what the other
 * uses, and nothing between them does: every other such pair is ordered by a chain of these. Calls
 * for one task come together, in order. */
hl_status hl_maco_conflicts(const maco_graph *g, const uint32_t *order, hl_maco_conflict_fn found,
                            void *arg) HL_CHECK;

#endif
