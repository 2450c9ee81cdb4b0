/* The persistent kernel: one launch runs a whole plan. A CTA is a worker, the scheduler or the
 * proxy by its number; it runs until its part is done or the run is ended. It is launched
 * cooperatively, so that all CTAs are on the device at once or none is. */
#include "maco/cuda/proxy.cuh"
#include "maco/cuda/scheduler.cuh"
#include "maco/cuda/worker.cuh"

namespace gpu
{

union hl_block_shared {
    hl_worker_shared worker;
    hl_scheduler_shared scheduler;
    hl_proxy_shared proxy;
};

} // namespace gpu

HL_DEV void kernel_of_cta(const hl_gpu_run &r)
{
    HL_SHARED(gpu::hl_block_shared, shared);
    uint32_t block = gpu::block_id();
    if (block < r.workers)
        gpu::worker_run(&r, block, shared.worker);
    else if (block == r.workers && r.policy == MACO_SCHEDULER)
        gpu::scheduler_run(&r, shared.scheduler);
    else
        gpu::proxy_run(&r, shared.proxy);
}

#ifdef __CUDACC__
HL_KERNEL hl_maco_persistent(HL_GRID_CONSTANT hl_gpu_run r)
{
    kernel_of_cta(r);
}
#endif
