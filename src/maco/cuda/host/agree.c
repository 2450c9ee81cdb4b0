/* Before a plan's first run its ranks compare the order of their collectives, as the CPU's runtime
 * does (maco/plan/plan.h): over the group that the caller gave, otherwise over its NCCL
 * communicator. Then they check that the plan fits the number of ranks. */
#include "helios/hybridps.h"
#include "maco/cuda/host/context.h"
#include "maco/kernels/bodies.h"
#include "maco/plan/plan.h"

#define SAID 128 /* largest message of a rank, in bytes */

struct ask {
    maco_cuda *c;
    uint32_t group;
    int world;
    cu_ptr words; /* on the device: this rank's message, then all messages */
};

static hl_status by_group(void *arg, const void *mine, size_t bytes, void *all)
{
    const struct ask *a = arg;
    return (hl_status)hybridps_group_allgather(a->c->groups[a->group], "the order of collectives",
                                               mine, all, bytes);
}

static hl_status by_nccl(void *arg, const void *mine, size_t bytes, void *all)
{
    const struct ask *a = arg;
    maco_cuda *c = a->c;
    struct CUstream_st *s = c->streams[a->group];
    if (bytes > SAID)
        return hl_fail(HL_EINTERNAL, "ranks compare %zu bytes at once", bytes);
    HL_TRY(hl_cuda_upload(c, a->words, mine, bytes));
    nccl_result r = c->nccl.ncclAllGather((const void *)(uintptr_t)a->words,
                                          (void *)(uintptr_t)(a->words + SAID), bytes, HL_ncclUint8,
                                          c->comms[a->group], s);
    if (r != HL_ncclSuccess)
        return hl_nccl_fail(&c->nccl, "ncclAllGather", "of the order of collectives", r);
    CUDA_TRY(&c->cu, cuEventRecord, (c->copied, s));
    HL_TRY(hl_cuda_await(c, c->copied, c->options.timeout_ns,
                         "comparing the order of collectives over NCCL"));
    return hl_cuda_download(c, all, a->words + SAID, bytes * (size_t)a->world);
}

static hl_status agree_by_nccl(struct ask *a)
{
    maco_cuda *c = a->c;
    CUDA_TRY(&c->cu, cuMemAlloc_v2, (&a->words, SAID * ((size_t)a->world + 1)));
    hl_status st = hl_maco_agree_on_order(c->plan, a->group, a->world, by_nccl, a);
    /* NCCL still waits for a rank, and freeing the memory that it uses would wait for that too. */
    if (st == HL_ETIMEDOUT)
        (void)hl_cuda_comm_abort(c, a->group, a->words);
    else
        (void)c->cu.cuMemFree_v2(a->words);
    return st;
}

static hl_status world_of(const maco_cuda *c, uint32_t group, int *world)
{
    *world = 1;
    if (c->groups[group] != NULL)
        *world = hybridps_group_world(c->groups[group]);
    else if (c->comms[group] != NULL) {
        nccl_result r = c->nccl.ncclCommCount(c->comms[group], world);
        if (r != HL_ncclSuccess)
            return hl_nccl_fail(&c->nccl, "ncclCommCount", "of the order of collectives", r);
    }
    return HL_OK;
}

static hl_status check_ranks(const maco_cuda *c, uint32_t group, int world)
{
    for (uint32_t i = 0; i < c->view.n_comm; i++) {
        const maco_task *t = &c->view.tasks[c->view.comm[i]];
        if (t->group == group && t->type != MACO_TASK_CUSTOM_COMM)
            HL_TRY(hl_maco_comm_fits(t, hl_maco_plan_name(c->plan, c->view.comm[i]), world));
    }
    return HL_OK;
}

static hl_status agree_on(maco_cuda *c, uint32_t group)
{
    struct ask a = {.c = c, .group = group};
    int by_groups = c->groups[group] != NULL;
    if (!by_groups && c->dead[group])
        return HL_OK; /* the ranks that communicate report the error */
    HL_TRY(world_of(c, group, &a.world));
    if (a.world > 1 && hl_maco_plan_collective(c->plan, group, 0) != MACO_NONE)
        HL_TRY(by_groups ? hl_maco_agree_on_order(c->plan, group, a.world, by_group, &a)
                         : agree_by_nccl(&a));
    return check_ranks(c, group, a.world);
}

hl_status hl_cuda_agree(maco_cuda *c)
{
    for (uint32_t g = 0; !c->agreed && c->view.n_comm > 0 && g < c->options.n_comms; g++)
        HL_TRY(agree_on(c, g));
    c->agreed = 1;
    return HL_OK;
}
