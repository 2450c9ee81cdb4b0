/* maco/cuda/device/bodies.cuh - selects the body of a task. */
#ifndef HL_MACO_CUDA_DEVICE_BODIES_CUH
#define HL_MACO_CUDA_DEVICE_BODIES_CUH

#include "maco/cuda/device/body_attention.cuh"
#include "maco/cuda/device/body_copy.cuh"
#include "maco/cuda/device/body_elementwise.cuh"
#include "maco/cuda/device/body_matmul.cuh"
#include "maco/cuda/device/body_norm.cuh"

namespace gpu
{

/* Shared memory of the body that runs. */
union hl_space {
    float reduce[HL_GPU_THREADS / 32];
    hl_matmul_space matmul;
    hl_attention_space attention;
};

/* Called by all threads. 0: no such body. */
HL_DEV int run_body(const maco_task *t, hl_space &space)
{
    switch (t->type) {
    case MACO_TASK_NOP:
        return 1;
    case MACO_TASK_ELEMENTWISE:
    case MACO_TASK_GELU:
    case MACO_TASK_SILU:
        return body_elementwise(t);
    case MACO_TASK_LAYERNORM:
    case MACO_TASK_RMSNORM:
    case MACO_TASK_SOFTMAX:
        return body_norm(t, space.reduce);
    case MACO_TASK_MATMUL:
    case MACO_TASK_LINEAR:
        return body_matmul(t, space.matmul);
    case MACO_TASK_ATTENTION:
        return body_attention(t, space.attention);
    case MACO_TASK_MEMCPY:
        return body_memcpy(t);
    case MACO_TASK_MEMSET:
        return body_memset(t);
    }
    return 0;
}

} // namespace gpu

#endif
