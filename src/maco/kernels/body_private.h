/* maco/kernels/body_private.h - what the bodies share: one function per kind of task, rows as
 * float32, and loops that are built for several instruction sets.
 *
 * Threads: any; a body works on the operands of its task.
 */
#ifndef HL_MACO_KERNELS_BODY_PRIVATE_H
#define HL_MACO_KERNELS_BODY_PRIVATE_H

#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "maco/graph/graph.h"
#include "maco/kernels/bodies.h"

/* Loops run over a multiple of this, so that no element is computed by remainder code. */
#define HL_LANES 16
/* Elements of a block on the stack. */
#define HL_BLOCK 1024

_Static_assert(MACO_F32 == 0 && MACO_F16 == 1 && MACO_BF16 == 2, "as in base/half.h");

hl_status hl_body_matmul(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_linear(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_attention(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_layernorm(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_rmsnorm(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_softmax(const maco_task *t, struct hl_maco_scratch *s);
hl_status hl_body_unary(const maco_task *t);
hl_status hl_body_elementwise(const maco_task *t);
hl_status hl_body_memcpy(const maco_task *t);
hl_status hl_body_memset(const maco_task *t);

/* Makes room for at least `bytes`, aligned to 64; the old content is lost. */
hl_status hl_scratch_reserve(struct hl_maco_scratch *s, size_t bytes, void **out);

static inline size_t hl_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline size_t hl_float_size(int dtype)
{
    return dtype == MACO_F32 ? 4 : 2;
}

/* The address `base`, given as a number, plus `at` elements of `dtype`. */
static inline void *hl_at(uint64_t base, int dtype, size_t at)
{
    return (uint8_t *)(uintptr_t)base + at * hl_float_size(dtype);
}

/* dst[0, n) = src[at, at + n), and `pad` up to a multiple of HL_LANES. */
static inline void hl_load(const void *src, int dtype, size_t at, size_t n, float pad, float *dst)
{
    hl_half_load(src, dtype, at, n, dst);
    for (size_t i = n, end = hl_round_up(n, HL_LANES); i < end; i++)
        dst[i] = pad;
}

static inline void hl_store(const float *src, size_t n, void *dst, int dtype, size_t at)
{
    if (dtype == MACO_F32)
        memcpy((float *)dst + at, src, n * sizeof(float));
    else
        hl_half_store(src, n, dst, dtype, at);
}

/* ---- loops over floats; n is a multiple of HL_LANES, sums are accumulated per lane ---- */

void hl_vec_gelu_erf(float *x, size_t n);
void hl_vec_gelu_tanh(float *x, size_t n);
void hl_vec_silu(float *x, size_t n);
float hl_vec_max(const float *x, size_t n); /* ignores NaNs */
float hl_vec_sum(const float *x, size_t n);
/* x = exp(x - shift); returns the sum. */
float hl_vec_exp(float *x, size_t n, float shift);
/* Sum of (x - mean)^2. */
float hl_vec_squares(const float *x, size_t n, float mean);
/* x = (x - mean) * scale, * gamma, + beta; these may be NULL. */
void hl_vec_norm(float *x, size_t n, float mean, float scale, const float *gamma,
                 const float *beta);
void hl_vec_scale(float *x, size_t n, float by);
/* x = fma(x, alpha, b), where b is the array `b` or, if that is NULL, the number `beta`. */
void hl_vec_fma(float *x, size_t n, float alpha, const float *b, float beta);

#endif
