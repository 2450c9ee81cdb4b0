/* The persistent kernel: one launch runs a whole plan. A CTA's number makes it a worker, the
 * scheduler, the proxy, or a CTA of a group that communicates inside the kernel. It runs until its
 * part is done or the run is ended. The launch is cooperative, so that either all CTAs are on the
 * device at once or none is. */
#include "maco/cuda/device/peers.cuh"
#include "maco/cuda/device/proxy.cuh"
#include "maco/cuda/device/scheduler.cuh"
#ifdef HL_NCCL_DEVICE
#include "maco/cuda/device/window.cuh"
#endif
#include "maco/cuda/device/worker.cuh"

namespace gpu
{

union hl_block_shared {
    hl_worker_shared worker;
    hl_scheduler_shared scheduler;
    hl_proxy_shared proxy;
    hl_peer_shared peer;
};

} // namespace gpu

HL_DEV void kernel_of_cta(const hl_gpu_run &r)
{
    HL_SHARED(gpu::hl_block_shared, shared);
    uint32_t block = gpu::block_id();
    uint32_t peers = r.workers + (r.policy == MACO_SCHEDULER) + (r.groups > 0);
    if (block < r.workers)
        gpu::worker_run(&r, block, shared.worker);
    else if (block == r.workers && r.policy == MACO_SCHEDULER)
        gpu::scheduler_run(&r, shared.scheduler);
    else if (block >= peers)
        gpu::peers_run(&r, block - peers, shared.peer);
    else
        gpu::proxy_run(&r, shared.proxy);
}

#ifdef __CUDACC__
HL_KERNEL hl_maco_persistent(HL_GRID_CONSTANT hl_gpu_run r)
{
    kernel_of_cta(r);
}

#ifdef HL_NCCL_DEVICE
HL_KERNEL HL_WINDOW_KERNEL(HL_GRID_CONSTANT hl_gpu_window w)
{
    gpu::pointers_of_window(w);
}
#endif
#endif
