/* maco/cuda/device/window.cuh - finds the address of each rank's memory in a symmetric window of
 * NCCL, through NCCL's device API (nccl_device.h, 2.28 and later). That API is inline, so nothing
 * is linked. The window alone is enough: a device communicator (ncclDevCommCreate) would add
 * barriers and multicast, but peers.cuh has its own meetings.
 */
#ifndef HL_MACO_CUDA_DEVICE_WINDOW_CUH
#define HL_MACO_CUDA_DEVICE_WINDOW_CUH

#include <nccl_device.h>

#include "maco/cuda/device/abi.h"
#include "maco/cuda/device/atoms.cuh"

#define HL_JOINED(a, b)  a##b
#define HL_WINDOW_OF(v)  HL_JOINED(hl_maco_window_, v)
#define HL_WINDOW_KERNEL HL_WINDOW_OF(NCCL_VERSION_CODE)

namespace gpu
{

HL_DEV void pointers_of_window(const hl_gpu_window &w)
{
    ncclWindow_t window = (ncclWindow_t)w.window;
    uint64_t *out = (uint64_t *)w.out;
    for (uint32_t k = thread_id(); k < w.ranks; k += thread_count())
        out[k] = (uint64_t)ncclGetPeerPointer(window, 0, w.rank[k]);
}

} // namespace gpu

#endif
