/* maco/graph/span.h - the bytes that a task reads and writes.
 *
 * A span is a matrix in memory: rows of row_bytes, stride bytes apart. Rows without gaps between
 * them are merged into one. So two row chunks of a matrix do not overlap, and neither do its column
 * slices, although these lie within each other's bounds.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes; sizes past 2^64 are UINT64_MAX.
 * Limits:  spans of several rows with different strides overlap where their bounds do.
 */
#ifndef HL_MACO_GRAPH_SPAN_H
#define HL_MACO_GRAPH_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#include "maco/graph/types.h"

struct hl_maco_span {
    uint64_t first, rows, row_bytes, stride;
};

struct hl_maco_span hl_maco_span_of(const struct hl_maco_operand *o);
/* Byte after the last; UINT64_MAX also if that is past the address space. */
uint64_t hl_maco_span_end(const struct hl_maco_span *s);
bool hl_maco_span_overlap(const struct hl_maco_span *a, const struct hl_maco_span *b);

#endif
