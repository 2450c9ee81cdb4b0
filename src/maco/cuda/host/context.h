/* maco/cuda/host/context.h - what the parts of the CUDA runtime share.
 *
 * Every call of the driver is made inside the device's primary context, which is pushed and popped
 * around it.
 *
 * Owns:    a runtime owns everything that it opened or allocated; plan, communicators and groups
 *          are borrowed.
 * Threads: one at a time, except maco_cuda_cancel from any; a job's `work` runs on its own thread.
 * Errors:  those of cuda/driver.h and helios/maco.h.
 * Units:   bytes, nanoseconds.
 * Limits:  HL_GPU_GROUPS groups.
 */
#ifndef HL_MACO_CUDA_HOST_CONTEXT_H
#define HL_MACO_CUDA_HOST_CONTEXT_H

#include <pthread.h>

#include "cuda/driver.h"
#include "helios/maco.h"
#include "maco/cuda/host/nccl.h"
#include "maco/cuda/host/tables.h"
#include "maco/plan/plan.h"

/* A CUSTOM_COMM of the loaded plan, for the driver's thread, which calls it. */
struct hl_cuda_call {
    maco_cuda *cuda;
    uint32_t task;
    maco_function function;
    void *arg;
};

/* The memory of a group that communicates inside the kernel, and how it was chosen. */
struct hl_cuda_peers {
    const struct hl_peer_source *source; /* the source that owns the rest; NULL */
    cu_ptr own;
    size_t bytes;
    cu_ptr mapped[HL_GPU_RANKS];      /* CUDA IPC: memory of other processes; 0 */
    struct ncclWindow_vidmem *window; /* NCCL's; NULL */
    const struct hl_nvshmem *nvshmem; /* NVSHMEM's; NULL */
    int begun, entered; /* NVSHMEM's world: this rank tried to enter, and has entered */
    int apart;          /* a run failed: the ranks' counts of each other no longer agree */
    char route[640];    /* for maco_cuda_route */
};

struct maco_cuda {
    struct cuda_driver cu;
    struct hl_nccl nccl; /* loaded with the first group that has a communicator */
    cu_device device;
    int retained;
    struct CUctx_st *context;
    struct CUmod_st *module;
    struct CUfunc_st *kernel;
    struct CUstream_st *own; /* uploads and downloads */
    struct CUevent_st *begun, *ended, *copied;
    maco_cuda_info info;
    maco_cuda_options options; /* its arrays are copies */
    void *comms[HL_GPU_GROUPS];
    struct CUstream_st *streams[HL_GPU_GROUPS];
    int dead[HL_GPU_GROUPS]; /* its communicator was aborted, or never completed */
    hybridps_group *groups[HL_GPU_GROUPS];
    struct hl_cuda_peers memories[HL_GPU_GROUPS];
    struct hl_gpu_peers *peers; /* n_peers groups that communicate inside the kernel */
    uint32_t n_peers;
    int agreed; /* all ranks agree on the loaded plan's collectives */

    const maco_plan *plan;
    maco_plan_view view;
    struct hl_cuda_tables tables;
    cu_ptr memory; /* the tables on the device */
    struct hl_gpu_host *host;
    cu_ptr host_on_device;
    uint32_t ctas;
    int clean; /* the tables are in the state that the last iteration left */
    uint64_t iteration;
    int running;
    struct hl_cuda_call *calls; /* n_comm */
    int call_status;            /* status of the first call that failed */
    char call_why[256];
};

hl_status hl_cuda_enter(maco_cuda *c) HL_CHECK;
void hl_cuda_leave(maco_cuda *c);
/* Copies between host and device, complete on return. */
hl_status hl_cuda_upload(maco_cuda *c, cu_ptr to, const void *from, size_t bytes) HL_CHECK;
hl_status hl_cuda_download(maco_cuda *c, void *to, cu_ptr from, size_t bytes) HL_CHECK;
/* Polls the event until it has occurred, at most `timeout_ns`; what: for the message. */
hl_status hl_cuda_await(maco_cuda *c, struct CUevent_st *event, uint64_t timeout_ns,
                        const char *what) HL_CHECK;
void hl_cuda_unload(maco_cuda *c);
/* Resets the tables to their state before the first run. */
hl_status hl_cuda_reset(maco_cuda *c) HL_CHECK;

/* Whether the group communicates inside the kernel instead of on its stream. */
static inline int hl_cuda_is_inside(const maco_cuda *c, uint32_t group)
{
    return hl_gpu_has_peers(c->peers, c->n_peers, group);
}

/* Compares the plan among all ranks of its groups; once per plan. */
hl_status hl_cuda_agree(maco_cuda *c) HL_CHECK;
/* Enqueues the run's communication after its kernel. */
hl_status hl_cuda_comm_start(maco_cuda *c, const struct hl_gpu_run *run) HL_CHECK;
/* Aborts the group's communicator, which is unusable afterwards. `memory` of the driver (0: none)
 * is freed once NCCL has released it. Returns 0 if NCCL hangs in the abort too; the error being
 * reported is kept. */
int hl_cuda_comm_abort(maco_cuda *c, uint32_t g, cu_ptr memory);
/* Releases streams that still wait after a failed run. */
void hl_cuda_comm_abandon(maco_cuda *c, const struct hl_gpu_run *run);
/* The status of a run that the kernel ended early. */
hl_status hl_cuda_report(maco_cuda *c);

/* ---- jobs (job.c): library calls that wait for other processes without a deadline ----
 *
 * Each call is made on a thread of its own, so that the caller has a deadline. A job is held by its
 * caller and its thread; the last holder frees it. One thread calls start, wait and drop; `work`
 * runs on the job's thread, in the device's context. HL_ENOMEM: no thread. HL_ETIMEDOUT: the call
 * has not returned yet; the job may be waited for again. A thread whose call never returns is
 * leaked, with its job. */

/* The first member of a calloc'ed struct that holds the input and output of `work`. */
struct hl_cuda_job {
    void (*work)(struct hl_cuda_job *job);
    struct cuda_driver cu;
    struct CUctx_st *context;
    cu_device device;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_over, holders;
};

/* Frees the job on failure. */
hl_status hl_cuda_job_start(maco_cuda *c, struct hl_cuda_job *job,
                            void (*work)(struct hl_cuda_job *)) HL_CHECK;
hl_status hl_cuda_job_wait(struct hl_cuda_job *job, uint64_t timeout_ns, const char *what) HL_CHECK;
void hl_cuda_job_drop(struct hl_cuda_job *job);

/* ---- the GPU kernels that are built into the library (image.c) ---- */

/* A fatbin, for cuModuleLoadData. HL_EUNSUPPORTED: the library was built without them; the text
 * says why. */
hl_status hl_maco_cuda_image(const void **image, size_t *size) HL_CHECK;

#endif
