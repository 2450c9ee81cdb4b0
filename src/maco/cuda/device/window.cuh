/* maco/cuda/device/window.cuh - where a symmetric window of NCCL's has the memory of each rank, by
 * NCCL's device API (nccl_device.h, 2.28 and later), which is inline: nothing is linked. The window
 * alone is enough for that; a device communicator (ncclDevCommCreate) would bring barriers and
 * multicast, and peers.cuh has its own meeting.
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
