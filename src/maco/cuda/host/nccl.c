#include "maco/cuda/host/nccl.h"

#include <dlfcn.h>
#include <string.h>

#include "helios/maco.h"

hl_status hl_nccl_load(const char *library, struct hl_nccl *out)
{
    struct hl_nccl n;
    if (library == NULL || library[0] == '\0')
        library = NCCL_NAME;
    void *so = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL)
        return hl_fail(HL_EUNAVAIL, "no NCCL: %s", dlerror());
    void *symbol;
#define X(name, result, args)                                                                      \
    symbol = dlsym(so, #name);                                                                     \
    if (symbol == NULL)                                                                            \
        return hl_fail(HL_EUNAVAIL, "%s has no %s: it is not NCCL, or too old", library, #name);   \
    memcpy(&n.name, &symbol, sizeof(symbol));
    NCCL_CALLS(X)
#undef X
    n.lacks = NULL;
#define X(name, result, args)                                                                      \
    symbol = dlsym(so, #name);                                                                     \
    if (symbol == NULL && n.lacks == NULL)                                                         \
        n.lacks = #name;                                                                           \
    memcpy(&n.name, &symbol, sizeof(symbol));
    NCCL_WINDOW_CALLS(X)
#undef X
    symbol = dlsym(so, "ncclGetPeerDevicePointer");
    memcpy(&n.ncclGetPeerDevicePointer, &symbol, sizeof(symbol));
    if (n.ncclGetVersion(&n.version) != HL_ncclSuccess)
        n.version = 0;
    *out = n;
    return HL_OK;
}

hl_status hl_nccl_fail(const struct hl_nccl *n, const char *call, const char *task, nccl_result r)
{
    const char *text = n->ncclGetErrorString(r);
    return hl_fail(HL_EIO, "task %s: %s: %s (%d)", task, call, text != NULL ? text : "?", r);
}

nccl_type hl_nccl_type(int dtype)
{
    static const nccl_type types[] = {
        [MACO_F32] = HL_ncclFloat32, [MACO_F16] = HL_ncclFloat16, [MACO_BF16] = HL_ncclBfloat16,
        [MACO_F64] = HL_ncclFloat64, [MACO_I32] = HL_ncclInt32,   [MACO_I64] = HL_ncclInt64,
        [MACO_U8] = HL_ncclUint8,
    };
    return dtype >= 0 && (size_t)dtype < HL_ARRAY_LEN(types) ? types[dtype] : HL_ncclUint8;
}

nccl_op hl_nccl_op(int op)
{
    static const nccl_op ops[] = {
        [MACO_SUM] = HL_ncclSum, [MACO_AVG] = HL_ncclAvg,   [MACO_MIN] = HL_ncclMin,
        [MACO_MAX] = HL_ncclMax, [MACO_PROD] = HL_ncclProd,
    };
    return op >= 0 && (size_t)op < HL_ARRAY_LEN(ops) ? ops[op] : HL_ncclSum;
}
