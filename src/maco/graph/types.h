/* maco/graph/types.h - what is the same for all tasks of a type: names, kinds, sizes.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: NULL or 0 for what there is not.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MACO_GRAPH_TYPES_H
#define HL_MACO_GRAPH_TYPES_H

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

/* NULL: there is no such type. */
const struct hl_maco_type *hl_maco_type(int type);
/* "MATMUL"; "?" */
const char *hl_maco_type_name(int type);

/* Run by the proxy of its group, not by a worker. */
static inline int hl_maco_is_comm(int type)
{
    return type >= MACO_TASK_ALLREDUCE && type <= MACO_TASK_CUSTOM_COMM;
}

/* All ranks of a group must do it together. */
int hl_maco_is_collective(int type);

/* 0: there is no such dtype. */
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

#endif
