/* maco/cuda/host/job.h - a call of a library that waits for other processes without a deadline,
 * made on a thread of its own so that the caller has one.
 *
 * Owns:    a job belongs to its caller and its thread; the last to let go frees it. Its thread
 *          holds the device's context.
 * Threads: start, wait and drop from one; `work` runs on the job's, in the device's context.
 * Errors:  HL_ENOMEM: no thread; HL_ETIMEDOUT: not back yet, the job may be waited for again.
 * Units:   nanoseconds.
 * Limits:  a thread that never comes back stays, with its job.
 */
#ifndef HL_MACO_CUDA_HOST_JOB_H
#define HL_MACO_CUDA_HOST_JOB_H

#include <pthread.h>

#include "maco/cuda/host/context.h"

/* The first member of a struct from calloc that holds what `work` reads and what it finds. */
struct hl_cuda_job {
    void (*work)(struct hl_cuda_job *job);
    struct cuda_driver cu;
    struct CUctx_st *context;
    cu_device device;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_over, holders;
};

/* On an error the job is freed. */
hl_status hl_cuda_job_start(maco_cuda *c, struct hl_cuda_job *job,
                            void (*work)(struct hl_cuda_job *)) HL_CHECK;
hl_status hl_cuda_job_wait(struct hl_cuda_job *job, uint64_t timeout_ns, const char *what) HL_CHECK;
void hl_cuda_job_drop(struct hl_cuda_job *job);

#endif
