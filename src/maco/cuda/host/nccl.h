/* maco/cuda/host/nccl.h - NCCL, loaded when a group has a communicator.
 *
 * Declared here because Helios is also built without NCCL.
 * tests/unit/maco/cuda/host/test_cuda_nccl.c compares every line with nccl.h if it is installed.
 *
 * Owns:    nothing; the library stays loaded until the process ends.
 * Threads: any.
 * Errors:  HL_EUNAVAIL: no such library, or it lacks a function; HL_EIO with NCCL's text.
 * Units:   elements.
 * Limits:  NCCL 2.10 and later (averages); windows: 2.28 and later.
 */
#ifndef HL_MACO_CUDA_HOST_NCCL_H
#define HL_MACO_CUDA_HOST_NCCL_H

#include <stddef.h>

#include "base/status.h"

#define NCCL_NAME "libnccl.so.2"

struct ncclComm;
struct ncclWindow_vidmem; /* on the device */
struct CUstream_st;

typedef int nccl_result; /* ncclResult_t */
typedef int nccl_type;   /* ncclDataType_t */
typedef int nccl_op;     /* ncclRedOp_t */

struct nccl_team { /* ncclTeam_t */
    int ranks, rank, stride;
};

/* clang-format off */
#define NCCL_NUMBERS(X) \
    X(ncclSuccess,  0)  \
    X(ncclSum,      0)  \
    X(ncclProd,     1)  \
    X(ncclMax,      2)  \
    X(ncclMin,      3)  \
    X(ncclAvg,      4)  \
    X(ncclUint8,    1)  \
    X(ncclInt32,    2)  \
    X(ncclInt64,    4)  \
    X(ncclFloat16,  6)  \
    X(ncclFloat32,  7)  \
    X(ncclFloat64,  8)  \
    X(ncclBfloat16, 9)

#define NCCL_WINDOW_NUMBERS(X)     \
    X(ncclInProgress,           7) \
    X(NCCL_WIN_COLL_SYMMETRIC,  1) \
    X(NCCL_WIN_REQUIRED_ALIGNMENT, 4096)

#define NCCL_STREAM struct ncclComm *, struct CUstream_st *
#define NCCL_CALLS(X)                                                                          \
    X(ncclGetErrorString, const char *, (nccl_result))                                         \
    X(ncclGetVersion, nccl_result, (int *))                                                    \
    X(ncclCommCount, nccl_result, (const struct ncclComm *, int *))                            \
    X(ncclCommAbort, nccl_result, (struct ncclComm *))                                         \
    X(ncclGroupStart, nccl_result, (void))                                                     \
    X(ncclGroupEnd, nccl_result, (void))                                                       \
    X(ncclAllReduce, nccl_result, (const void *, void *, size_t, nccl_type, nccl_op, NCCL_STREAM)) \
    X(ncclReduceScatter, nccl_result,                                                          \
      (const void *, void *, size_t, nccl_type, nccl_op, NCCL_STREAM))                         \
    X(ncclAllGather, nccl_result, (const void *, void *, size_t, nccl_type, NCCL_STREAM))      \
    X(ncclBroadcast, nccl_result, (const void *, void *, size_t, nccl_type, int, NCCL_STREAM)) \
    X(ncclSend, nccl_result, (const void *, size_t, nccl_type, int, NCCL_STREAM))              \
    X(ncclRecv, nccl_result, (void *, size_t, nccl_type, int, NCCL_STREAM))

/* Windows (memory of all ranks), since NCCL 2.28; a library without these functions has no
 * windows. */
#define NCCL_WINDOW_CALLS(X)                                                                   \
    X(ncclCommCuDevice, nccl_result, (const struct ncclComm *, int *))                         \
    X(ncclCommUserRank, nccl_result, (const struct ncclComm *, int *))                         \
    X(ncclCommGetAsyncError, nccl_result, (struct ncclComm *, nccl_result *))                  \
    X(ncclMemAlloc, nccl_result, (void **, size_t))                                            \
    X(ncclMemFree, nccl_result, (void *))                                                      \
    X(ncclCommWindowRegister, nccl_result,                                                     \
      (struct ncclComm *, void *, size_t, struct ncclWindow_vidmem **, int))                   \
    X(ncclCommWindowDeregister, nccl_result, (struct ncclComm *, struct ncclWindow_vidmem *))  \
    X(ncclTeamLsa, struct nccl_team, (struct ncclComm *))

/* The host's counterpart of what device code asks a window for; since NCCL 2.29.2. */
#define NCCL_POINTER_CALLS(X)                                                                  \
    X(ncclGetPeerDevicePointer, nccl_result, (struct ncclWindow_vidmem *, size_t, int, void **))

/* clang-format on */

enum {

#define X(name, value) HL_##name = (value),
    NCCL_NUMBERS(X) NCCL_WINDOW_NUMBERS(X)
#undef X
};

struct hl_nccl {
#define X(name, result, args) result(*name) args;
    NCCL_CALLS(X)
    NCCL_WINDOW_CALLS(X)
    NCCL_POINTER_CALLS(X)
#undef X
    int version;
    const char *lacks; /* first missing function of NCCL_WINDOW_CALLS; NULL: none is missing */
};

/* `library` NULL = NCCL_NAME. */
hl_status hl_nccl_load(const char *library, struct hl_nccl *out) HL_CHECK;
hl_status hl_nccl_fail(const struct hl_nccl *n, const char *call, const char *task, nccl_result r);
/* Convert MACO's numbers to NCCL's. */
nccl_type hl_nccl_type(int dtype);
nccl_op hl_nccl_op(int op);

#endif
