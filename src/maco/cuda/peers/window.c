/* Peers' memory through a symmetric window of NCCL, as its device API uses it. The addresses come
 * from the library if it provides them (2.29.2), otherwise from a kernel of ours that was compiled
 * with the header of exactly this version, because a window's layout is internal to NCCL.
 *
 * Before one rank registers, all ranks know that they are about to. So the wait can only be in vain
 * if a rank dies in the call, or fails there and does not tell the other ranks' NCCL: then the
 * communicator is aborted. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "helios/hybridps.h"
#include "maco/cuda/host/context.h"
#include "maco/cuda/peers/source.h"

#define REGISTER_NS ((uint64_t)20 * HL_NS_PER_S) /* at most, and no more than a run's deadline */
#define ENDED_NS    ((uint64_t)5 * HL_NS_PER_S)  /* after the end of its communicator */
#define DROP_NS     ((uint64_t)5 * HL_NS_PER_S)
#define NAP_NS      1000000
#define THREADS     64

static hl_status nccl_fail(const maco_cuda *c, const char *call, nccl_result r)
{
    const char *text = c->nccl.ncclGetErrorString(r);
    return hl_fail(HL_EIO, "%s: %s (%d)", call, text != NULL ? text : "?", r);
}

#define WINDOW_TRY(c, call, args)                                                                  \
    do {                                                                                           \
        nccl_result window_try_ = (c)->nccl.call args;                                             \
        if (window_try_ != HL_ncclSuccess)                                                         \
            return nccl_fail((c), #call, window_try_);                                             \
    } while (0)

/* ---- without other ranks ---- */

/* NULL: the library provides the addresses itself. */
static hl_status find_kernel(maco_cuda *c, struct CUfunc_st **out)
{
    char name[48];
    *out = NULL;
    if (c->nccl.ncclGetPeerDevicePointer != NULL)
        return HL_OK;
    snprintf(name, sizeof(name), HL_GPU_WINDOW "%d", c->nccl.version);
    if (c->cu.cuModuleGetFunction(out, c->module, name) != HL_CUDA_SUCCESS)
        return hl_fail(HL_EUNSUPPORTED,
                       "NCCL is version %d, and the kernels were not compiled with its header",
                       c->nccl.version);
    return HL_OK;
}

static hl_status check_comm(maco_cuda *c, uint32_t g, int *rank)
{
    int ranks = 0, device = -1;
    struct CUfunc_st *kernel;
    if (c->comms[g] == NULL)
        return hl_fail(HL_EUNAVAIL, "it has no communicator");
    if (c->nccl.lacks != NULL)
        return hl_fail(HL_EUNSUPPORTED, "NCCL is version %d and has no %s", c->nccl.version,
                       c->nccl.lacks);
    HL_TRY(find_kernel(c, &kernel));
    WINDOW_TRY(c, ncclCommCount, (c->comms[g], &ranks));
    WINDOW_TRY(c, ncclCommCuDevice, (c->comms[g], &device));
    WINDOW_TRY(c, ncclCommUserRank, (c->comms[g], rank));
    if (ranks != hybridps_group_world(c->groups[g]) || device != c->device)
        return hl_fail(HL_EINVAL,
                       "its communicator has %d ranks and device %d, the group %d and %d", ranks,
                       device, hybridps_group_world(c->groups[g]), c->device);
    return HL_OK;
}

static size_t round_to_window(size_t bytes)
{
    size_t unit = HL_NCCL_WIN_REQUIRED_ALIGNMENT;
    return (bytes + unit - 1) / unit * unit;
}

static hl_status window_take(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine)
{
    void *memory = NULL;
    HL_TRY(check_comm(c, g, &mine->rank));
    WINDOW_TRY(c, ncclMemAlloc, (&memory, round_to_window(bytes)));
    c->memories[g].own = (uintptr_t)memory;
    c->memories[g].bytes = round_to_window(bytes);
    return HL_OK;
}

/* ---- with all ranks ---- */

struct registration {
    struct hl_cuda_job job;
    struct hl_nccl nccl;
    struct ncclComm *comm;
    void *memory;
    size_t bytes;
    struct ncclWindow_vidmem *window;
    nccl_result result;
    int given_up;
};

/* A non-blocking communicator completes later, while it is polled. */
static void register_window(struct hl_cuda_job *job)
{
    struct registration *r = (struct registration *)job;
    r->result = r->nccl.ncclCommWindowRegister(r->comm, r->memory, r->bytes, &r->window,
                                               HL_NCCL_WIN_COLL_SYMMETRIC);
    while (r->result == HL_ncclInProgress && !__atomic_load_n(&r->given_up, __ATOMIC_ACQUIRE)) {
        nccl_result now = HL_ncclSuccess;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        nccl_result asked = r->nccl.ncclCommGetAsyncError(r->comm, &now);
        r->result = asked != HL_ncclSuccess ? asked : now;
    }
}

static hl_status start_registration(maco_cuda *c, uint32_t g, struct registration **out)
{
    struct registration *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a call of NCCL");
    r->nccl = c->nccl;
    r->comm = c->comms[g];
    r->memory = (void *)(uintptr_t)c->memories[g].own;
    r->bytes = c->memories[g].bytes;
    HL_TRY(hl_cuda_job_start(c, &r->job, register_window));
    *out = r;
    return HL_OK;
}

/* Ends the registration that waits. If NCCL does not return from the abort either, it keeps the
 * memory. */
static void give_up(maco_cuda *c, uint32_t g, struct registration *waits)
{
    __atomic_store_n(&waits->given_up, 1, __ATOMIC_RELEASE);
    if (!hl_cuda_comm_abort(c, g, 0) ||
        hl_cuda_job_wait(&waits->job, ENDED_NS, "ncclCommWindowRegister") != HL_OK)
        c->memories[g].own = 0;
}

static hl_status make_window(maco_cuda *c, uint32_t g)
{
    struct registration *r = NULL;
    uint64_t ns = c->options.timeout_ns < REGISTER_NS ? c->options.timeout_ns : REGISTER_NS;
    HL_TRY(start_registration(c, g, &r));
    hl_status st = hl_cuda_job_wait(&r->job, ns, "ncclCommWindowRegister");
    if (st != HL_OK) {
        give_up(c, g, r);
        st = hl_fail(st,
                     "ncclCommWindowRegister: not back after %llu ms, its communicator was "
                     "aborted",
                     (unsigned long long)(ns / HL_NS_PER_MS));
    } else if (r->result != HL_ncclSuccess) {
        st = nccl_fail(c, "ncclCommWindowRegister", r->result);
    } else if (r->window == NULL) {
        st = hl_fail(HL_EUNSUPPORTED, "NCCL has no symmetric memory here");
    } else {
        c->memories[g].window = r->window;
    }
    hl_cuda_job_drop(&r->job);
    return st;
}

static hl_status ask_library(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all,
                             uint64_t *at, uint32_t ranks)
{
    for (uint32_t k = 0; k < ranks; k++) {
        void *p = NULL;
        WINDOW_TRY(c, ncclGetPeerDevicePointer, (c->memories[g].window, 0, all[k].rank, &p));
        at[k] = (uintptr_t)p;
    }
    return HL_OK;
}

/* The kernel writes the table into the window itself, which is cleared afterwards. */
static hl_status ask_kernel(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all, uint64_t *at,
                            uint32_t ranks)
{
    struct CUfunc_st *kernel;
    struct hl_gpu_window w = {
        .window = (uintptr_t)c->memories[g].window, .out = c->memories[g].own, .ranks = ranks};
    void *arguments[] = {&w};
    HL_TRY(find_kernel(c, &kernel));
    for (uint32_t k = 0; k < ranks; k++)
        w.rank[k] = all[k].rank;
    CUDA_TRY(&c->cu, cuLaunchCooperativeKernel,
             (kernel, 1, 1, 1, THREADS, 1, 1, 0, c->own, arguments));
    return hl_cuda_download(c, at, w.out, ranks * sizeof(*at));
}

static hl_status window_reach(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all,
                              uint64_t *at)
{
    uint32_t ranks = (uint32_t)hybridps_group_world(c->groups[g]);
    HL_TRY(make_window(c, g));
    int near = c->nccl.ncclTeamLsa(c->comms[g]).ranks;
    if (near != (int)ranks)
        return hl_fail(HL_EUNSUPPORTED, "%d of its %u ranks reach each other's memory", near,
                       ranks);
    if (c->nccl.ncclGetPeerDevicePointer != NULL)
        HL_TRY(ask_library(c, g, all, at, ranks));
    else
        HL_TRY(ask_kernel(c, g, all, at, ranks));
    for (uint32_t k = 0; k < ranks; k++)
        if (at[k] == 0)
            return hl_fail(HL_EUNSUPPORTED, "NCCL has no address for the memory of rank %u", k);
    return HL_OK;
}

struct dropping {
    struct hl_cuda_job job;
    struct hl_nccl nccl;
    struct ncclComm *comm;
    struct ncclWindow_vidmem *window;
    void *memory;
};

static void give_to_nccl(struct hl_cuda_job *job)
{
    struct dropping *d = (struct dropping *)job;
    if (d->window != NULL)
        (void)d->nccl.ncclCommWindowDeregister(d->comm, d->window);
    if (d->memory != NULL)
        (void)d->nccl.ncclMemFree(d->memory);
}

static void window_drop(maco_cuda *c, uint32_t g)
{
    const struct hl_cuda_peers *m = &c->memories[g];
    if (m->window == NULL && m->own == 0)
        return;
    struct dropping *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return;
    d->nccl = c->nccl;
    d->comm = c->comms[g];
    d->window = m->window;
    d->memory = (void *)(uintptr_t)m->own;
    if (hl_cuda_job_start(c, &d->job, give_to_nccl) != HL_OK)
        return;
    if (hl_cuda_job_wait(&d->job, DROP_NS, "ncclCommWindowDeregister and ncclMemFree") != HL_OK)
        hl_warn("group %u: %s: NCCL keeps the memory until then", g, hl_error_text());
    hl_cuda_job_drop(&d->job);
}

const struct hl_peer_source hl_peer_window = {"over NCCL's windows", window_take, window_reach,
                                              window_drop};
