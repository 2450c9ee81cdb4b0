#include "maco/types.h"

#include <stddef.h>

#include "base/status.h"

static const struct hl_maco_type types[] = {
    {MACO_TASK_NOP, "NOP", 0, 0, 0, 0, 0, 0},
    {MACO_TASK_MATMUL, "MATMUL", 2, 3, 1, 1, 8, 1},
    {MACO_TASK_ATTENTION, "ATTENTION", 3, 4, 1, 2, 7, 1},
    {MACO_TASK_LINEAR, "LINEAR", 2, 3, 1, 1, 6, 1},
    {MACO_TASK_LAYERNORM, "LAYERNORM", 1, 3, 1, 1, 4, 1},
    {MACO_TASK_GELU, "GELU", 1, 1, 1, 1, 5, 1},
    {MACO_TASK_SILU, "SILU", 1, 1, 1, 1, 4, 1},
    {MACO_TASK_SOFTMAX, "SOFTMAX", 1, 1, 1, 1, 4, 1},
    {MACO_TASK_RMSNORM, "RMSNORM", 1, 2, 1, 1, 4, 1},
    {MACO_TASK_ELEMENTWISE, "ELEMENTWISE", 1, 2, 1, 1, 7, 1},
    {MACO_TASK_CUSTOM_COMPUTE, "CUSTOM_COMPUTE", 0, 4, 0, 2, 8, 2},
    {MACO_TASK_ALLREDUCE, "ALLREDUCE", 1, 1, 1, 1, 6, 2},
    {MACO_TASK_ALLGATHER, "ALLGATHER", 1, 1, 1, 1, 6, 2},
    {MACO_TASK_REDUCE_SCATTER, "REDUCE_SCATTER", 1, 1, 1, 1, 6, 2},
    {MACO_TASK_ALL_TO_ALL, "ALL_TO_ALL", 1, 1, 1, 1, 6, 2},
    {MACO_TASK_SEND, "SEND", 1, 1, 0, 0, 6, 2},
    {MACO_TASK_RECV, "RECV", 0, 0, 1, 1, 6, 2},
    {MACO_TASK_BROADCAST, "BROADCAST", 1, 1, 1, 1, 6, 2},
    {MACO_TASK_CUSTOM_COMM, "CUSTOM_COMM", 0, 4, 0, 2, 8, 2},
    {MACO_TASK_MEMCPY, "MEMCPY", 1, 1, 1, 1, 4, 2},
    {MACO_TASK_MEMSET, "MEMSET", 0, 0, 1, 1, 5, 2},
};

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

int hl_maco_is_collective(int type)
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
