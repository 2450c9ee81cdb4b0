#include "maco/cuda/host/context.h"

#include <time.h>

#include "base/clock.h"

#define COPY_NS ((uint64_t)30 * HL_NS_PER_S)
#define SPIN_NS 50000
#define NAP_NS  20000

hl_status hl_cuda_enter(maco_cuda *c)
{
    CUDA_TRY(&c->cu, cuCtxPushCurrent_v2, (c->context));
    return HL_OK;
}

void hl_cuda_leave(maco_cuda *c)
{
    struct CUctx_st *old;
    (void)c->cu.cuCtxPopCurrent_v2(&old);
}

/* Polls, because the driver's own waits have no deadline. */
hl_status hl_cuda_await(maco_cuda *c, struct CUevent_st *event, uint64_t timeout_ns,
                        const char *what)
{
    uint64_t start = hl_now_ns();
    for (;;) {
        cu_result r = c->cu.cuEventQuery(event);
        if (r == HL_CUDA_SUCCESS)
            return HL_OK;
        if (r != HL_CUDA_ERROR_NOT_READY)
            return cuda_fail(&c->cu, what, r);
        uint64_t waited = hl_now_ns() - start;
        if (waited > timeout_ns)
            return hl_fail(HL_ETIMEDOUT, "%s: not done after %llu ms", what,
                           (unsigned long long)(timeout_ns / HL_NS_PER_MS));
        if (waited > SPIN_NS)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static hl_status finish_copy(maco_cuda *c)
{
    CUDA_TRY(&c->cu, cuEventRecord, (c->copied, c->own));
    return hl_cuda_await(c, c->copied, COPY_NS, "copying the tables of a plan");
}

hl_status hl_cuda_upload(maco_cuda *c, cu_ptr to, const void *from, size_t bytes)
{
    CUDA_TRY(&c->cu, cuMemcpyHtoDAsync_v2, (to, from, bytes, c->own));
    return finish_copy(c);
}

hl_status hl_cuda_download(maco_cuda *c, void *to, cu_ptr from, size_t bytes)
{
    CUDA_TRY(&c->cu, cuMemcpyDtoHAsync_v2, (to, from, bytes, c->own));
    return finish_copy(c);
}

void maco_cuda_cancel(maco_cuda *c)
{
    if (c != NULL && c->host != NULL)
        __atomic_store_n(&c->host->cancel, 1, __ATOMIC_SEQ_CST);
}
