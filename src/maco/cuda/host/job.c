/* A driver call that may never return runs in a thread of its own, and its caller waits with a
 * deadline.
 *
 *     caller                                job's thread
 *     hl_cuda_job_start: holders = 2 -----> work(job), without the lock
 *     hl_cuda_job_wait:  waits  <---------- is_over, `changed`
 *     hl_cuda_job_drop:  holders - 1        holders - 1
 *
 * The last holder frees the job: a caller that gives up at its deadline leaves it to the thread,
 * which is detached and may outlive the runtime. So the job has its own copy of the driver table
 * and its own reference to the context. `lock` guards is_over and holders; everything else is
 * constant before the thread starts, or written by `work` and read after is_over. */
#include "maco/cuda/host/context.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "os/cond.h"

void hl_cuda_job_drop(struct hl_cuda_job *job)
{
    pthread_mutex_lock(&job->lock);
    int left = --job->holders;
    pthread_mutex_unlock(&job->lock);
    if (left > 0)
        return;
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static void *job_main(void *arg)
{
    struct hl_cuda_job *job = arg;
    struct CUctx_st *old;
    int entered = job->cu.cuCtxPushCurrent_v2(job->context) == HL_CUDA_SUCCESS;
    job->work(job);
    if (entered)
        (void)job->cu.cuCtxPopCurrent_v2(&old);
    (void)job->cu.cuDevicePrimaryCtxRelease_v2(job->device);
    pthread_mutex_lock(&job->lock);
    job->is_over = 1;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->lock);
    hl_cuda_job_drop(job);
    return NULL;
}

hl_status hl_cuda_job_start(maco_cuda *c, struct hl_cuda_job *job,
                            void (*work)(struct hl_cuda_job *))
{
    pthread_t thread;
    /* The thread may return after the runtime is closed, so the job retains the context. */
    cu_result r = c->cu.cuDevicePrimaryCtxRetain(&job->context, c->device);
    if (r != HL_CUDA_SUCCESS) {
        free(job);
        return cuda_fail(&c->cu, "cuDevicePrimaryCtxRetain", r);
    }
    job->work = work;
    job->cu = c->cu;
    job->device = c->device;
    job->holders = 2;
    pthread_mutex_init(&job->lock, NULL);
    hl_cond_init(&job->changed);
    if (pthread_create(&thread, NULL, job_main, job) != 0) {
        job->holders = 1;
        hl_cuda_job_drop(job);
        (void)c->cu.cuDevicePrimaryCtxRelease_v2(c->device);
        return hl_fail(HL_ENOMEM, "starting a thread for a call that may block");
    }
    pthread_detach(thread);
    return HL_OK;
}

hl_status hl_cuda_job_wait(struct hl_cuda_job *job, uint64_t timeout_ns, const char *what)
{
    uint64_t until_ns = hl_now_ns() + timeout_ns;
    int late = 0;
    pthread_mutex_lock(&job->lock);
    while (!job->is_over && late != ETIMEDOUT)
        late = hl_cond_wait_until(&job->changed, &job->lock, until_ns);
    int is_over = job->is_over;
    pthread_mutex_unlock(&job->lock);
    if (is_over)
        return HL_OK;
    return hl_fail(HL_ETIMEDOUT, "%s: not back after %llu ms", what,
                   (unsigned long long)(timeout_ns / HL_NS_PER_MS));
}
