/* maco/kernels/madd.h - a * b + sum on vectors of floats.
 *
 * The result is rounded once if the CPU has an instruction for it. This is explicit because GCC 14,
 * left to itself, fuses in one loop and not in another, and products of few and of many rows must
 * have the same bits.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   floats.
 * Limits:  the caller is compiled for the instruction set of its vector.
 */
#ifndef HL_MACO_KERNELS_MADD_H
#define HL_MACO_KERNELS_MADD_H

#include "base/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__powerpc64__)
#include <altivec.h>
#undef bool /* <altivec.h> takes these names */
#undef pixel
#undef vector
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef float hl_vec4 __attribute__((vector_size(16), aligned(4), may_alias));

#define HL_MADD __attribute__((always_inline)) static inline

HL_MADD hl_vec4 hl_madd4(float a, hl_vec4 b, hl_vec4 sum)
{
#if defined(__powerpc64__)
    return (hl_vec4)vec_madd((__vector float){a, a, a, a}, (__vector float)b, (__vector float)sum);
#elif defined(__aarch64__)
    return (hl_vec4)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)b, a);
#else
    return sum + a * b; /* two steps: -ffp-contract=off */
#endif
}

#if defined(__x86_64__)
typedef float hl_vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float hl_vec16 __attribute__((vector_size(64), aligned(4), may_alias));

HL_FOR_AVX2 HL_MADD hl_vec8 hl_madd8(float a, hl_vec8 b, hl_vec8 sum)
{
    return (hl_vec8)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)sum);
}

HL_FOR_AVX512 HL_MADD hl_vec16 hl_madd16(float a, hl_vec16 b, hl_vec16 sum)
{
    return (hl_vec16)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)sum);
}
#endif

#undef HL_MADD

#endif
