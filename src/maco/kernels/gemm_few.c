/* Products with few rows. They are limited by memory bandwidth, so B is read once, in place, and
 * transposed in registers. Each element is the same chain of multiply-adds as in the tiles. */
#include "base/cpu.h"
#include "maco/kernels/body_private.h"
#include "maco/kernels/gemm.h"
#include "maco/kernels/madd.h"

#define FEW   4    /* rows at once */
#define SHORT 1024 /* in bytes: a shorter row ends before the CPU's prefetching begins */

#define LOW4   0, 4, 1, 5
#define HIGH4  2, 6, 3, 7
#define LOW8   0, 8, 1, 9, 2, 10, 3, 11
#define HIGH8  4, 12, 5, 13, 6, 14, 7, 15
#define LOW16  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

#define LANES 4
#define MADD  hl_madd4
#define LOW   LOW4
#define HIGH  HIGH4
#define HOW
#define NAME(x) x##_plain
#include "maco/kernels/gemm_few_lanes.h"

#if defined(__x86_64__) && !defined(HL_PORTABLE)
#define LANES   8
#define MADD    hl_madd8
#define LOW     LOW8
#define HIGH    HIGH8
#define HOW     HL_FOR_AVX2
#define NAME(x) x##_avx2
#include "maco/kernels/gemm_few_lanes.h"

#define LANES   16
#define MADD    hl_madd16
#define LOW     LOW16
#define HIGH    HIGH16
#define HOW     HL_FOR_AVX512
#define NAME(x) x##_avx512
#include "maco/kernels/gemm_few_lanes.h"
#endif

void hl_few(const struct hl_few *f)
{
    void (*run)(const struct hl_few *, size_t, const float *, float *) = few_plain;
#if defined(__x86_64__) && !defined(HL_PORTABLE)
    run = hl_cpu() == HL_CPU_AVX512 ? few_avx512 : hl_cpu() == HL_CPU_AVX2 ? few_avx2 : few_plain;
#endif
    for (size_t r = 0; r < f->rows; r += FEW)
        run(f, f->rows - r < FEW ? f->rows - r : FEW, f->a + r * f->lda, f->c + r * f->ldc);
}
