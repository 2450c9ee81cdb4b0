#include "maco/graph/types.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define ROWS                                                                                       \
    {"rows", '+'},                                                                                 \
    {                                                                                              \
        "cols", '+'                                                                                \
    }
#define ROWS_XY                                                                                    \
    ROWS, {"ldx", 's'},                                                                            \
    {                                                                                              \
        "ldy", 's'                                                                                 \
    }
#define COUNT                                                                                      \
    {"count", 'x'}, {"count", 'x'}, {"op", 'x'}, {"peer", 'x'}, {"tag", 'x'},                      \
    {                                                                                              \
        "ranks", 'x'                                                                               \
    }
#define ANY                                                                                        \
    {"", 'x'}, {"", 'x'}, {"", 'x'}, {"", 'x'}, {"", 'x'}, {"", 'x'}, {"", 'x'},                   \
    {                                                                                              \
        "", 'x'                                                                                    \
    }

/* clang-format off */
static const struct hl_maco_type types[] = {
    {MACO_TASK_NOP, "NOP", 0, 0, 0, 0, 1, {{NULL, 0}}},
    {MACO_TASK_MATMUL, "MATMUL", 2, 3, 1, 1, 0,
     {{"M", '+'}, {"N", '+'}, {"K", '+'}, {"lda", 's'}, {"ldb", 's'}, {"ldc", 's'},
      {"transA", 'b'}, {"transB", 'b'}}},
    {MACO_TASK_ATTENTION, "ATTENTION", 3, 4, 1, 2, 0,
     {{"B", '+'}, {"Hq", '+'}, {"Hkv", '+'}, {"Sq", '+'}, {"Sk", '+'}, {"D", '+'},
      {"causal", 'b'}}},
    {MACO_TASK_LINEAR, "LINEAR", 2, 3, 1, 1, 0,
     {{"M", '+'}, {"N", '+'}, {"K", '+'}, {"ldx", 's'}, {"ldw", 's'}, {"ldy", 's'}}},
    {MACO_TASK_LAYERNORM, "LAYERNORM", 1, 3, 1, 1, 0, {ROWS_XY}},
    {MACO_TASK_GELU, "GELU", 1, 1, 1, 1, 0, {ROWS_XY, {"tanh", 'b'}}},
    {MACO_TASK_SILU, "SILU", 1, 1, 1, 1, 0, {ROWS_XY}},
    {MACO_TASK_SOFTMAX, "SOFTMAX", 1, 1, 1, 1, 0, {ROWS_XY}},
    {MACO_TASK_RMSNORM, "RMSNORM", 1, 2, 1, 1, 0, {ROWS_XY}},
    {MACO_TASK_ELEMENTWISE, "ELEMENTWISE", 1, 2, 1, 1, 0,
     {ROWS, {"lda", 's'}, {"ldb", 's'}, {"ldy", 's'}, {"op", 'x'}, {"dtype of Y", 'x'}}},
    {MACO_TASK_CUSTOM_COMPUTE, "CUSTOM_COMPUTE", 0, 4, 0, 2, 1, {ANY}},
    {MACO_TASK_ALLREDUCE, "ALLREDUCE", 1, 1, 1, 1, 1, {COUNT}},
    {MACO_TASK_ALLGATHER, "ALLGATHER", 1, 1, 1, 1, 1, {COUNT}},
    {MACO_TASK_REDUCE_SCATTER, "REDUCE_SCATTER", 1, 1, 1, 1, 1, {COUNT}},
    {MACO_TASK_ALL_TO_ALL, "ALL_TO_ALL", 1, 1, 1, 1, 1, {COUNT}},
    {MACO_TASK_SEND, "SEND", 1, 1, 0, 0, 1, {COUNT}},
    {MACO_TASK_RECV, "RECV", 0, 0, 1, 1, 1, {COUNT}},
    {MACO_TASK_BROADCAST, "BROADCAST", 1, 1, 1, 1, 1, {COUNT}},
    {MACO_TASK_CUSTOM_COMM, "CUSTOM_COMM", 0, 4, 0, 2, 1, {ANY}},
    {MACO_TASK_MEMCPY, "MEMCPY", 1, 1, 1, 1, 1,
     {{"rows", '+'}, {"bytes of a row", '+'}, {"stride of X", 's'}, {"stride of Y", 's'}}},
    {MACO_TASK_MEMSET, "MEMSET", 0, 0, 1, 1, 1,
     {{"rows", '+'}, {"bytes of a row", '+'}, {NULL, 0}, {"stride of Y", 's'}, {"value", 'x'}}},
};

/* clang-format on */

const struct hl_maco_type *hl_maco_type(int type)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(types); i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

const char *hl_maco_type_name(int type)
{
    const struct hl_maco_type *t = hl_maco_type(type);
    return t != NULL ? t->name : "?";
}

bool hl_maco_is_collective(int type)
{
    return hl_maco_is_comm(type) && type != MACO_TASK_SEND && type != MACO_TASK_RECV;
}

static const struct {
    const char *name;
    uint32_t size;
} dtypes[] = {
    [MACO_F32] = {"F32", 4}, [MACO_F16] = {"F16", 2}, [MACO_BF16] = {"BF16", 2},
    [MACO_F64] = {"F64", 8}, [MACO_I32] = {"I32", 4}, [MACO_I64] = {"I64", 8},
    [MACO_U8] = {"U8", 1},
};

uint32_t hl_maco_dtype_size(int dtype)
{
    return dtype >= 0 && (size_t)dtype < HL_ARRAY_LEN(dtypes) ? dtypes[dtype].size : 0;
}

const char *hl_maco_dtype_name(int dtype)
{
    return dtype >= 0 && (size_t)dtype < HL_ARRAY_LEN(dtypes) ? dtypes[dtype].name : "?";
}
