/* The GPU kernels as a library of functions that tests/support/cuda_stub_run.c calls instead of a
 * GPU. CUDA_STUB_THREADS: threads of a CTA, instead of the launch's; CUDA_STUB_SEED. */
#include "support/cuda_cpu.h"

#include "maco/cuda/device/kernel.cu"

#define API extern "C" __attribute__((visibility("default")))

thread_local gpu::cta_of_fibers *gpu::cta;

static void one_cta(void *argument)
{
    kernel_of_cta(*(const hl_gpu_run *)argument);
}

static uint32_t setting(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? (uint32_t)strtoul(text, nullptr, 0) : otherwise;
}

static void one_window(void *argument)
{
    gpu::pointers_of_window(*(const hl_gpu_window *)argument);
}

API const size_t hl_maco_window_22809_argument = sizeof(hl_gpu_window);

API void hl_maco_window_22809(unsigned grid, unsigned block, void *argument)
{
    gpu::run_grid(grid, setting("CUDA_STUB_THREADS", block), setting("CUDA_STUB_SEED", 1),
                  one_window, argument);
}

API const size_t hl_maco_persistent_argument = sizeof(hl_gpu_run);

API void hl_maco_persistent(unsigned grid, unsigned block, void *argument)
{
    gpu::run_grid(grid, setting("CUDA_STUB_THREADS", block), setting("CUDA_STUB_SEED", 1), one_cta,
                  argument);
}
