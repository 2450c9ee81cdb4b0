/* maco/graph/graph.h - a graph as its compiler reads it.
 *
 * Owns:    copies of what was added; memory that tasks name stays the caller's.
 * Threads: one at a time.
 * Errors:  HL_EINVAL in one sentence: task, what, and a hint; HL_ENOMEM.
 * Units:   ids count tasks in the order of adding.
 * Limits:  MACO_MAX_TASKS tasks, 2^32 - 1 dependencies, 4 GiB of names.
 */
#ifndef HL_MACO_GRAPH_GRAPH_H
#define HL_MACO_GRAPH_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"

struct hl_maco_node {
    int32_t priority;
    int32_t worker;       /* -1 = any */
    uint32_t first_range; /* of CUSTOM_...: n_reads, then n_writes */
    uint32_t n_reads, n_writes;
    int named; /* so that ranks compare it */
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

#endif
