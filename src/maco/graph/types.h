/* maco/graph/types.h - what a task's type and dims say about it: names, kinds, sizes, operands.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: NULL or 0 for what does not exist.
 * Units:   bytes; sizes past 2^64 are UINT64_MAX.
 * Limits:  none.
 */
#ifndef HL_MACO_GRAPH_TYPES_H
#define HL_MACO_GRAPH_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "helios/maco.h"

struct hl_maco_dim {
    const char *name; /* NULL: not used, 0 */
    char kind;        /* '+' a size, 's' a stride, 'b' 0 or 1, 'x' anything here */
};

struct hl_maco_type {
    int type;
    const char *name;
    uint8_t min_inputs, max_inputs, min_outputs, max_outputs;
    uint8_t all_dtypes; /* else F32, F16, BF16 only */
    struct hl_maco_dim dims[8];
};

/* NULL: unknown type. */
const struct hl_maco_type *hl_maco_type(int type);
/* "MATMUL"; "?" */
const char *hl_maco_type_name(int type);

/* Whether the proxy of the group runs it, not a worker. */
static inline bool hl_maco_is_comm(int type)
{
    return type >= MACO_TASK_ALLREDUCE && type <= MACO_TASK_CUSTOM_COMM;
}

/* Whether all ranks of a group must do it together. */
bool hl_maco_is_collective(int type);

/* 0: unknown dtype. */
uint32_t hl_maco_dtype_size(int dtype);
const char *hl_maco_dtype_name(int dtype);

static inline int hl_maco_dtype(const maco_task *t)
{
    return t->flags & MACO_FLAG_DTYPE;
}

/* Elements that a collective counts. */
static inline uint64_t hl_maco_count(const maco_task *t)
{
    return (uint32_t)t->dims[0] | (uint64_t)(uint32_t)t->dims[1] << 32;
}

/* UINT64_MAX where the product is larger. */
static inline uint64_t hl_maco_mul_capped(uint64_t a, uint64_t b)
{
    uint64_t out;
    return __builtin_mul_overflow(a, b, &out) ? UINT64_MAX : out;
}

/* An input or output of a task, as its type and dims say. */
struct hl_maco_operand {
    const char *name; /* "A" */
    uint8_t reads, writes;
    int8_t cols_dim, ld_dim; /* their places in dims; -1 = none */
    uint32_t elem;           /* bytes of an element */
    uint64_t address, rows, cols, ld;
};

#define HL_MACO_OPERANDS 6

/* Lists the operands that are present, for all types but CUSTOM_...; returns how many. dims that
 * are sizes must be positive. */
int hl_maco_operands(const maco_task *t, struct hl_maco_operand out[HL_MACO_OPERANDS]);

/* Bytes that a collective or copy moves: the larger of what it reads and writes. */
uint64_t hl_maco_bytes_moved(const maco_task *t);

#endif
