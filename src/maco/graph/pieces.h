/* maco/graph/pieces.h - the memory of all tasks of a graph, cut into pieces so that intervals
 * decide every overlap.
 *
 * Two accesses touch the same bytes exactly when they have pieces in the same strip with
 * overlapping intervals. Memory used in rows without gaps is one strip, and coordinates are
 * addresses. Where spans with gaps between their rows overlap, as column slices of a matrix do, a
 * strip is a range of columns and coordinates are rows.
 *
 * Owns:    hl_maco_pieces owns what it holds; zero-initialise it, release it with
 *          hl_maco_pieces_fini.
 * Threads: any.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  overlapping spans with different strides, or with so many columns that there would be
 *          too many pieces, are replaced by their bounds. This gives too much order, never too
 *          little.
 */
#ifndef HL_MACO_GRAPH_PIECES_H
#define HL_MACO_GRAPH_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "maco/graph/graph.h"
#include "maco/graph/span.h"

struct hl_maco_access {
    struct hl_maco_span span;
    uint32_t task, write;
};

struct hl_maco_piece {
    uint64_t lo, hi;
    uint32_t strip, access;
};

struct hl_maco_pieces {
    struct hl_maco_access *access; /* by task in `order`; each task's reads before its writes */
    struct hl_maco_piece *piece;   /* in the order of accesses */
    size_t n_access, n, access_cap, piece_cap;
    uint32_t strips;
};

void hl_maco_pieces_fini(struct hl_maco_pieces *p);
hl_status hl_maco_pieces_make(const maco_graph *g, const uint32_t *order,
                              struct hl_maco_pieces *out) HL_CHECK;

#endif
