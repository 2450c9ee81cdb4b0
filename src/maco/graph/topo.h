/* maco/graph/topo.h - orders of a directed graph, and its cycles.
 *
 * Owns:    what it hands out is freed with hl_maco_csr_fini or free.
 * Threads: any.
 * Errors:  HL_ENOMEM.
 * Units:   nodes are numbers below n.
 * Limits:  2^32 - 1 edges.
 */
#ifndef HL_MACO_GRAPH_TOPO_H
#define HL_MACO_GRAPH_TOPO_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "maco/graph/graph.h"

/* Lists of numbers, one for each node: item[first[i]] .. item[first[i + 1] - 1], ascending. */
struct hl_maco_csr {
    uint32_t *first, *item;
};

void hl_maco_csr_fini(struct hl_maco_csr *c);
/* Who each node waits for and who waits for it, each once. */
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

#endif
