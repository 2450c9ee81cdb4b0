/* maco/graph/infer.h - which tasks touch the same memory so that their order matters.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOMEM; whatever `found` returns.
 * Units:   ids of the graph.
 * Limits:  those of maco/graph/pieces.h.
 */
#ifndef HL_MACO_GRAPH_INFER_H
#define HL_MACO_GRAPH_INFER_H

#include <stdint.h>

#include "base/status.h"
#include "maco/graph/graph.h"

enum hl_maco_conflict { HL_MACO_RAW, HL_MACO_WAR, HL_MACO_WAW };

typedef hl_status (*hl_maco_conflict_fn)(void *arg, uint32_t task, uint32_t on,
                                         enum hl_maco_conflict how);

/* Calls `found` for pairs of which `task` comes after `on` in `order`, one writes what the other
 * uses, and nothing between them does: every other such pair is ordered by a chain of these. Calls
 * for one task come together, in order. */
hl_status hl_maco_conflicts(const maco_graph *g, const uint32_t *order, hl_maco_conflict_fn found,
                            void *arg) HL_CHECK;

#endif
