/* Peers' memory through CUDA's IPC handles between processes; within one process addresses are
 * enough. */
#include <string.h>

#include "helios/hybridps.h"
#include "maco/cuda/peers/source.h"

static hl_status ipc_take(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine)
{
    struct hl_cuda_peers *m = &c->memories[g];
    struct cu_ipc_handle handle;
    _Static_assert(sizeof(handle) <= HL_PEER_HANDLE, "CUDA's handle is too large for an offer");
    CUDA_TRY(&c->cu, cuMemAlloc_v2, (&m->own, bytes));
    if (hybridps_group_world(c->groups[g]) > 1) {
        CUDA_TRY(&c->cu, cuIpcGetMemHandle, (&handle, m->own));
        memcpy(mine->handle, &handle, sizeof(handle));
    }
    return HL_OK;
}

static hl_status reach_one(maco_cuda *c, uint32_t g, uint32_t k, const struct hl_peer_offer *mine,
                           const struct hl_peer_offer *other, uint64_t *at)
{
    struct cu_ipc_handle handle;
    if (other->process == mine->process && other->device != mine->device)
        return hl_fail(HL_EUNSUPPORTED,
                       "ranks of one process on devices %d and %d: they need a process each",
                       mine->device, other->device);
    *at = other->address;
    if (other->process == mine->process)
        return HL_OK;
    memcpy(&handle, other->handle, sizeof(handle));
    CUDA_TRY(&c->cu, cuIpcOpenMemHandle_v2,
             (&c->memories[g].mapped[k], handle, HL_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    *at = c->memories[g].mapped[k];
    return HL_OK;
}

static hl_status ipc_reach(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all, uint64_t *at)
{
    uint32_t ranks = (uint32_t)hybridps_group_world(c->groups[g]);
    uint32_t rank = (uint32_t)hybridps_group_rank(c->groups[g]);
    for (uint32_t k = 0; k < ranks; k++)
        if (k != rank)
            HL_TRY(reach_one(c, g, k, &all[rank], &all[k], &at[k]));
    return HL_OK;
}

static void ipc_drop(maco_cuda *c, uint32_t g)
{
    struct hl_cuda_peers *m = &c->memories[g];
    for (uint32_t k = 0; k < HL_GPU_RANKS; k++)
        if (m->mapped[k] != 0)
            (void)c->cu.cuIpcCloseMemHandle(m->mapped[k]);
    if (m->own != 0)
        (void)c->cu.cuMemFree_v2(m->own);
}

const struct hl_peer_source hl_peer_ipc = {"over CUDA IPC", ipc_take, ipc_reach, ipc_drop};
