/* maco/graph/span.h - the bytes that a task reads and writes.
 *
 * A span is a matrix in memory: rows of row_bytes, stride bytes apart. Rows without gaps between
 * them are one row, so two row chunks of a matrix do not touch, and its column slices, which lie
 * within each other's bounds, are told apart.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes; sizes past 2^64 are UINT64_MAX.
 * Limits:  spans of several rows with different strides overlap where their bounds do.
 */
#ifndef HL_MACO_GRAPH_SPAN_H
#define HL_MACO_GRAPH_SPAN_H

#include <stdint.h>

#include "helios/maco.h"

struct hl_maco_span {
    uint64_t first, rows, row_bytes, stride;
};

/* An input or output of a task, as its type and dims say. */
struct hl_maco_operand {
    const char *name; /* "A" */
    uint8_t reads, writes;
    int8_t cols_dim, ld_dim; /* their places in dims; -1 = none */
    uint32_t elem;           /* bytes of an element */
    uint64_t address, rows, cols, ld;
};

#define HL_MACO_OPERANDS 6

/* The ones that are there, of all types but CUSTOM_...; returns how many. dims must be positive
 * where they are sizes. */
int hl_maco_operands(const maco_task *t, struct hl_maco_operand out[HL_MACO_OPERANDS]);

struct hl_maco_span hl_maco_span_of(const struct hl_maco_operand *o);
/* Byte after the last; UINT64_MAX also where that is past the address space. */
uint64_t hl_maco_span_end(const struct hl_maco_span *s);
int hl_maco_span_overlap(const struct hl_maco_span *a, const struct hl_maco_span *b);

/* Bytes that a collective or copy moves: the larger of what it reads and writes. */
uint64_t hl_maco_bytes_moved(const maco_task *t);

#endif
