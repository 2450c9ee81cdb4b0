/* Tiles in vector registers: two vectors of columns by as many rows as registers allow. */
#include <string.h>

#include "base/cpu.h"
#include "maco/gemm.h"

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float vec16 __attribute__((vector_size(64), aligned(4), may_alias));

#define TILE(name, vec, ROWS, how)                                                                 \
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
                acc[i][0] += a[i] * b0;                                                            \
                acc[i][1] += a[i] * b1;                                                            \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                    \
        {                                                                                          \
            *(vec *)(c + (size_t)i * ldc) = acc[i][0];                                             \
            *(vec *)(c + (size_t)i * ldc + LEN) = acc[i][1];                                       \
        }                                                                                          \
    }

#if defined(__x86_64__) && !defined(HL_PORTABLE)
TILE(run_sse, vec4, 4, )
TILE(run_avx2, vec8, 6, __attribute__((target("avx2,fma"))))
TILE(run_avx512, vec16, 12, __attribute__((target("avx512f,fma"))))

const struct hl_tile *hl_tile(void)
{
    static const struct hl_tile avx512 = {12, 32, run_avx512}, avx2 = {6, 16, run_avx2},
                                sse = {4, 8, run_sse};
    return hl_cpu() == HL_CPU_AVX512 ? &avx512 : hl_cpu() == HL_CPU_AVX2 ? &avx2 : &sse;
}
#else
TILE(run_plain, vec4, 8, ) /* 32 registers and more: POWER, Arm */

const struct hl_tile *hl_tile(void)
{
    static const struct hl_tile plain = {8, 8, run_plain};
    return &plain;
}
#endif
