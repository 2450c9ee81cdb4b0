/* Tiles in vector registers: two vectors of columns times as many rows as the registers allow. */
#include <string.h>

#include "base/cpu.h"
#include "maco/kernels/gemm.h"
#include "maco/kernels/madd.h"

#define TILE(name, vec, madd, ROWS, how)                                                           \
    how static void name(size_t k, const float *a, const float *b, float *c, size_t ldc, int add)  \
    {                                                                                              \
        enum { LEN = sizeof(vec) / sizeof(float) };                                                \
        vec acc[ROWS][2];                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                    \
        {                                                                                          \
            acc[i][0] = add ? *(const vec *)(c + (size_t)i * ldc) : (vec){0};                      \
            acc[i][1] = add ? *(const vec *)(c + (size_t)i * ldc + LEN) : (vec){0};                \
        }                                                                                          \
        for (; k > 0; k--, a += ROWS, b += 2 * LEN) {                                              \
            vec b0 = *(const vec *)b, b1 = *(const vec *)(b + LEN);                                \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                \
            {                                                                                      \
                acc[i][0] = madd(a[i], b0, acc[i][0]);                                             \
                acc[i][1] = madd(a[i], b1, acc[i][1]);                                             \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                    \
        {                                                                                          \
            *(vec *)(c + (size_t)i * ldc) = acc[i][0];                                             \
            *(vec *)(c + (size_t)i * ldc + LEN) = acc[i][1];                                       \
        }                                                                                          \
    }

#if defined(__x86_64__) && !defined(HL_PORTABLE)
TILE(run_sse, hl_vec4, hl_madd4, 4, )
TILE(run_avx2, hl_vec8, hl_madd8, 6, HL_FOR_AVX2)
TILE(run_avx512, hl_vec16, hl_madd16, 12, HL_FOR_AVX512)

const struct hl_tile *hl_tile(void)
{
    static const struct hl_tile avx512 = {12, 32, run_avx512}, avx2 = {6, 16, run_avx2},
                                sse = {4, 8, run_sse};
    return hl_cpu() == HL_CPU_AVX512 ? &avx512 : hl_cpu() == HL_CPU_AVX2 ? &avx2 : &sse;
}
#else
TILE(run_plain, hl_vec4, hl_madd4, 8, ) /* 32 registers or more: POWER, Arm */

const struct hl_tile *hl_tile(void)
{
    static const struct hl_tile plain = {8, 8, run_plain};
    return &plain;
}
#endif
