/* maco/cuda/device/atoms.cuh - loads, stores and counters between CTAs, as PTX.
 *
 * To publish: all threads of a CTA store, the block synchronises (block_sync), one thread releases.
 * To read: one thread acquires, the block synchronises, all threads load. Every one of these
 * functions has a "memory" clobber, so that the compiler moves no access across it. Data of tasks
 * is never read through the non-coherent path (no __ldg, no const __restrict__), because acquires
 * don't cover that.
 */
#ifndef HL_MACO_CUDA_DEVICE_ATOMS_CUH
#define HL_MACO_CUDA_DEVICE_ATOMS_CUH

#include <stdint.h>

#ifndef __CUDACC__
#include "support/cuda_cpu.h"
#else

#define HL_DEV           static __device__ __forceinline__
#define HL_BODY          static __device__ __noinline__
#define HL_KERNEL        extern "C" __global__ void __launch_bounds__(256, HL_GPU_BLOCKS)
#define HL_GRID_CONSTANT const __grid_constant__
#define HL_UNROLL        _Pragma("unroll")
#define HL_SHARED(type, name)                                                                      \
    __shared__ __align__(128) unsigned char name##_bytes[sizeof(type)];                            \
    type &name = *reinterpret_cast<type *>(name##_bytes)
#define HL_LANES      32u
/* How many CTAs must fit on a multiprocessor; limits the registers. */
#define HL_GPU_BLOCKS 1
#if __CUDA_ARCH__ >= 800
#define HL_TENSOR_CORES 1
#else
#define HL_TENSOR_CORES 0
#endif

namespace gpu
{

HL_DEV uint32_t thread_id()
{
    return threadIdx.x;
}

HL_DEV uint32_t thread_count()
{
    return blockDim.x;
}

HL_DEV uint32_t block_id()
{
    return blockIdx.x;
}

HL_DEV void block_sync()
{
    __syncthreads();
}

HL_DEV void warp_sync()
{
    __syncwarp();
}

HL_DEV uint64_t load_relaxed(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

HL_DEV uint64_t load_acquire(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

HL_DEV uint64_t load_acquire_sys(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

HL_DEV void store_relaxed(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

HL_DEV void store_release(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

HL_DEV void store_release_sys(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Returns the old value. */
HL_DEV uint64_t add_relaxed(uint64_t *p, uint64_t n)
{
    uint64_t v;
    asm volatile("atom.add.relaxed.gpu.global.u64 %0, [%1], %2;"
                 : "=l"(v)
                 : "l"(p), "l"(n)
                 : "memory");
    return v;
}

HL_DEV uint64_t add_acq_rel(uint64_t *p, uint64_t n)
{
    uint64_t v;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
                 : "=l"(v)
                 : "l"(p), "l"(n)
                 : "memory");
    return v;
}

HL_DEV uint64_t add_acq_rel_sys(uint64_t *p, uint64_t n)
{
    uint64_t v;
    asm volatile("atom.add.acq_rel.sys.global.u64 %0, [%1], %2;"
                 : "=l"(v)
                 : "l"(p), "l"(n)
                 : "memory");
    return v;
}

/* No thread waits for the old value or for earlier writes. */
HL_DEV void count_relaxed(uint64_t *p, uint64_t n)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}

HL_DEV void max_relaxed(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

HL_DEV uint64_t swap_if(uint64_t *p, uint64_t is, uint64_t v)
{
    uint64_t was;
    asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
                 : "=l"(was)
                 : "l"(p), "l"(is), "l"(v)
                 : "memory");
    return was;
}

HL_DEV uint64_t timer_ns()
{
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v)::"memory");
    return v;
}

HL_DEV void pause_ns(uint32_t ns)
{
    __nanosleep(ns);
}

/* The value of the warp's lane `from`, or of the lane whose number differs by `mask`; call it on
 * all lanes. */
HL_DEV uint32_t from_lane(uint32_t v, uint32_t from)
{
    return __shfl_sync(0xffffffffu, v, (int)from);
}

HL_DEV uint32_t across(uint32_t v, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}

HL_DEV float across(float v, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}

/* Copies 16 bytes from global to shared memory, without registers if the hardware can do that
 * (8.0): the first `bytes` of them, and zeros after that. Both addresses are multiples of 16. */
HL_DEV void copy_async(void *to, const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 800
    uint32_t s = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(from), "r"(bytes)
                 : "memory");
#else
    uint4 v = make_uint4(0, 0, 0, 0);
    if (bytes == 16)
        v = *(const uint4 *)from;
    else
        for (uint32_t i = 0; i < bytes; i++)
            ((unsigned char *)&v)[i] = ((const unsigned char *)from)[i];
    *(uint4 *)to = v;
#endif
}

HL_DEV void copy_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until all but the last `left` groups of the calling thread have arrived. */
template <int left> HL_DEV void copy_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

HL_DEV float float_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}

HL_DEV uint32_t bits_of_float(float x)
{
    return __float_as_uint(x);
}

HL_DEV float float_of_half(uint16_t bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

HL_DEV uint16_t half_of_float(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

HL_DEV uint16_t bfloat_of_float(float x)
{
#if __CUDA_ARCH__ >= 800
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)0x7fffu;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

/* ---- tensor cores; all lanes of a warp ---- */

/* Loads four 8x8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the addresses of the rows of
 * matrix i, and each lane gets two neighbouring elements of each matrix; transposed: of its
 * transpose. */
HL_DEV void load_matrices(uint32_t *out, const void *row)
{
    uint32_t s = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(s)
                 : "memory");
}

HL_DEV void load_matrices_transposed(uint32_t *out, const void *row)
{
    uint32_t s = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(s)
                 : "memory");
}

#if HL_TENSOR_CORES
/* c[16x8] += a[16x16] b[16x8]; the last argument selects the type. */
#define HL_MULTIPLY_ADD(type, name)                                                                \
    HL_DEV void multiply_add(float *c, const uint32_t *a, const uint32_t *b, const type *)         \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
struct f16;
struct bf16;
HL_MULTIPLY_ADD(f16, "f16")
HL_MULTIPLY_ADD(bf16, "bf16")
#endif

/* Counters in shared memory. */
HL_DEV uint32_t shared_add(uint32_t *p, uint32_t n)
{
    return atomicAdd(p, n);
}

} // namespace gpu

#endif
#endif
