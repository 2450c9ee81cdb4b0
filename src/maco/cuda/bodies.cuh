/* maco/cuda/bodies.cuh - which body a task has. */
#ifndef HL_MACO_CUDA_BODIES_CUH
#define HL_MACO_CUDA_BODIES_CUH

#include "maco/cuda/body_copy.cuh"
#include "maco/cuda/body_elementwise.cuh"

namespace gpu
{

/* Shared memory of whichever body runs. */
union hl_space {
    float reduce[HL_GPU_THREADS / 32];
};

/* Called by all threads. 0: no such body. */
HL_DEV int run_body(const maco_task *t, hl_space &space)
{
    (void)space;
    switch (t->type) {
    case MACO_TASK_NOP:
        return 1;
    case MACO_TASK_ELEMENTWISE:
    case MACO_TASK_GELU:
    case MACO_TASK_SILU:
        return body_elementwise(t);
    case MACO_TASK_MEMCPY:
        return body_memcpy(t);
    case MACO_TASK_MEMSET:
        return body_memset(t);
    }
    return 0;
}

} // namespace gpu

#endif
