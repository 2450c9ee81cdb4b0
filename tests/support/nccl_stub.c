/* An NCCL of one rank for tests: it records its calls, and copies in the stream as the real one
 * does for one rank. NCCL_STUB_FAIL names a call that fails. With several ranks, the others do what
 * this one does; NCCL_STUB_OTHER, if set, is what rank 1 contributes to an ALLGATHER of bytes. With
 * NCCL_STUB_ALONE the others do not join an ALLGATHER, which then lasts until the communicator is
 * aborted. Linked with the driver for tests. Built three times: NCCL_STUB_VERSION 21805 has no
 * windows (nccl_stub_window.c), 22809 has them, 22902 also reports their addresses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/cuda_stub.h"
#include "support/nccl_stub.h"

#define X(name, result, args) API result name args;
NCCL_CALLS(X)
#undef X

API char nccl_stub_log[4096];
API int nccl_stub_holds_aborts;

nccl_result nccl_stub_note(const char *call, size_t count, int type, int more)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *fails = getenv("NCCL_STUB_FAIL");
    pthread_mutex_lock(&lock);
    size_t used = strlen(nccl_stub_log);
    snprintf(nccl_stub_log + used, sizeof(nccl_stub_log) - used, "%s(%zu, %d, %d) ", call, count,
             type, more);
    pthread_mutex_unlock(&lock);
    return fails != NULL && strcmp(fails, call) == 0 ? 3 : HL_ncclSuccess;
}

static nccl_result copy(nccl_result r, const void *from, void *to, size_t count, nccl_type type,
                        struct CUstream_st *s)
{
    size_t size = type == HL_ncclFloat32 ? 4 : 2;
    if (r != HL_ncclSuccess || from == to)
        return r;
    return cuMemcpyAsync((cu_ptr)(uintptr_t)to, (cu_ptr)(uintptr_t)from, count * size, s) == 0 ? 0
                                                                                               : 1;
}

const char *ncclGetErrorString(nccl_result r)
{
    return r == 3 ? "internal error of the stub" : r == 6 ? "another rank is gone" : "no error";
}

nccl_result ncclGetVersion(int *version)
{
    *version = NCCL_STUB_VERSION;
    return HL_ncclSuccess;
}

nccl_result ncclCommCount(const struct ncclComm *c, int *n)
{
    *n = c->ranks;
    return HL_ncclSuccess;
}

static cu_ptr missed; /* what the stream of an ALLGATHER waits for, while it is mapped */

static nccl_result await_nobody(struct CUstream_st *s)
{
    if (cuMemAlloc_v2(&missed, sizeof(uint64_t)) != 0)
        return 1;
    return cuStreamWaitValue64_v2(s, missed, 1, HL_CU_STREAM_WAIT_VALUE_GEQ) != 0;
}

nccl_result ncclCommAbort(struct ncclComm *c)
{
    while (__atomic_load_n(&nccl_stub_holds_aborts, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
#if NCCL_STUB_VERSION >= 22800
    nccl_stub_drop_windows(c);
#endif
    cu_ptr word =
        __atomic_exchange_n(&missed, 0, __ATOMIC_ACQ_REL); /* ranks can abort at the same time */
    if (word != 0)
        (void)cuMemFree_v2(word);
    __atomic_store_n(&c->aborted, 1, __ATOMIC_RELEASE); /* tests wait for it */
    return nccl_stub_note("ncclCommAbort", 0, 0, c->ranks);
}

nccl_result ncclGroupStart(void)
{
    return nccl_stub_note("ncclGroupStart", 0, 0, 0);
}

nccl_result ncclGroupEnd(void)
{
    return nccl_stub_note("ncclGroupEnd", 0, 0, 0);
}

nccl_result ncclAllReduce(const void *x, void *y, size_t n, nccl_type t, nccl_op op,
                          struct ncclComm *c, struct CUstream_st *s)
{
    (void)c;
    return copy(nccl_stub_note("ncclAllReduce", n, t, op), x, y, n, t, s);
}

nccl_result ncclReduceScatter(const void *x, void *y, size_t n, nccl_type t, nccl_op op,
                              struct ncclComm *c, struct CUstream_st *s)
{
    (void)c;
    return copy(nccl_stub_note("ncclReduceScatter", n, t, op), x, y, n, t, s);
}

nccl_result ncclAllGather(const void *x, void *y, size_t n, nccl_type t, struct ncclComm *c,
                          struct CUstream_st *s)
{
    nccl_result r = nccl_stub_note("ncclAllGather", n, t, 0);
    const char *other = getenv("NCCL_STUB_OTHER");
    if (t != HL_ncclUint8)
        return copy(r, x, y, n, t, s);
    if (getenv("NCCL_STUB_ALONE") != NULL)
        return await_nobody(s);
    for (int k = 0; r == 0 && k < c->ranks; k++)
        r = cuMemcpyAsync((cu_ptr)(uintptr_t)y + (size_t)k * n, (cu_ptr)(uintptr_t)x, n, s) != 0;
    if (r == 0 && other != NULL && c->ranks > 1)
        r = cuMemcpyHtoDAsync_v2((cu_ptr)(uintptr_t)y + n, other, strnlen(other, n), s) != 0;
    return r;
}

nccl_result ncclBroadcast(const void *x, void *y, size_t n, nccl_type t, int root,
                          struct ncclComm *c, struct CUstream_st *s)
{
    (void)c;
    return copy(nccl_stub_note("ncclBroadcast", n, t, root), x, y, n, t, s);
}

/* Data that a rank sends to itself: kept until it is received in the same group of calls. */
static const void *sent;

nccl_result ncclSend(const void *x, size_t n, nccl_type t, int peer, struct ncclComm *c,
                     struct CUstream_st *s)
{
    (void)c;
    (void)s;
    sent = x;
    return nccl_stub_note("ncclSend", n, t, peer);
}

nccl_result ncclRecv(void *y, size_t n, nccl_type t, int peer, struct ncclComm *c,
                     struct CUstream_st *s)
{
    (void)c;
    return copy(nccl_stub_note("ncclRecv", n, t, peer), sent, y, n, t, s);
}
