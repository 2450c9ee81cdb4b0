/* Adam with the same rounding as torch. Constants are computed in double and rounded once. This
 * file fuses exactly the multiply-adds that torch's vector code fuses, so it is compiled with
 * -ffp-contract=off. The compiler vectorises the plain loops; there are three builds of them, and
 * the CPU's features select one. The order of operations was found by comparison with torch, see
 * tests/unit/hybridps. */
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/status.h"
#include "base/text.h"
#include "helios/hybridps.h"
#include "hybridps/adam/split.h"

#define BLOCK 1024 /* elements: gradient and parameters of a block stay in the L1 cache */
#define PART  64   /* elements between two rounds of prefetching */
#define AHEAD 256  /* prefetch distance, 1 KiB of each stream; 2 KiB is as good, 4 KiB is worse */
#define LINE  16

struct consts {
    float keep; /* 1 - lr * wd, AdamW */
    float wd;
    /* 1 - not_b1: torch's lerp is only given not_b1, and in float 1 - 0.6f is not 0.4f */
    float lerp_b1;
    float b1, not_b1, b2, not_b2;
    float step; /* -(lr / bias correction 1) */
    float root; /* sqrt(bias correction 2) */
    float over; /* 1 / root */
    float eps;
};

enum decay { DECAY_NONE, DECAY_L2, DECAY_WEIGHT };

struct adam_job {
    struct hybridps_adam s;
    struct consts k;
    enum decay decay;
    int torch1;
    int lerp_from_end; /* use torch's formula of lerp for weights of 0.5 and more */
};

#define ALWAYS __attribute__((always_inline)) static inline

ALWAYS float blend_moment1(const struct consts *k, float g, float m, int torch1, int from_end)
{
    if (torch1)
        return __builtin_fmaf(g, k->not_b1, m * k->b1);
    if (from_end)
        return __builtin_fmaf(-(g - m), k->lerp_b1, g);
    return __builtin_fmaf(k->not_b1, g - m, m);
}

/* x / root, exact to the last bit, but without the divider, which the other division and the square
 * root keep busy. The rounded reciprocal and one exact remainder give a correctly rounded quotient
 * (Markstein). x is a square root, so no product leaves the range of normal numbers. */
ALWAYS float over_root(const struct consts *k, float x)
{
    float q = x * k->over;
    q = __builtin_fmaf(__builtin_fmaf(-q, k->root, x), k->over, q);
    return x <= __FLT_MAX__ ? q : x;
}

/* Prefetches lines of four streams: the processor's own prefetching stops at each page, and stores
 * wait for lines that it did not fetch. Addresses beyond the end of an array do no harm, since a
 * prefetch is only a hint. */
ALWAYS void call_ahead(const float *p, const float *g, const float *m, const float *v)
{
    for (size_t i = AHEAD; i < AHEAD + PART; i += LINE) {
        __builtin_prefetch(p + i, 1);
        __builtin_prefetch(g + i, 0);
        __builtin_prefetch(m + i, 1);
        __builtin_prefetch(v + i, 1);
    }
}

ALWAYS void adam_span(const struct consts *k, float *restrict p, const float *restrict g,
                      float *restrict m, float *restrict v, size_t n, enum decay decay, int torch1,
                      int from_end)
{
    for (size_t at = 0; at < n; at += PART) {
        size_t end = n - at < PART ? n : at + PART;
        call_ahead(p + at, g + at, m + at, v + at);
        for (size_t i = at; i < end; i++) {
            float x = p[i], d = g[i];
            if (decay == DECAY_WEIGHT)
                x = x * k->keep;
            if (decay == DECAY_L2)
                d = __builtin_fmaf(x, k->wd, d);
            float m1 = blend_moment1(k, d, m[i], torch1, from_end);
            float v1 = __builtin_fmaf(k->not_b2 * d, d, v[i] * k->b2);
            float denom = over_root(k, __builtin_sqrtf(v1)) + k->eps;
            p[i] = x + (k->step * m1) / denom;
            m[i] = m1;
            v[i] = v1;
        }
    }
}

/* One loop per case, so that no loop has a branch inside. */
ALWAYS void any_span(const struct adam_job *j, float *p, const float *g, float *m, float *v,
                     size_t n)
{
    const struct consts *k = &j->k;
    int rounding = j->torch1 ? 0 : j->lerp_from_end ? 2 : 1;
    switch (rounding * 3 + (int)j->decay) {
    case 0:
        adam_span(k, p, g, m, v, n, DECAY_NONE, 1, 0);
        break;
    case 1:
        adam_span(k, p, g, m, v, n, DECAY_L2, 1, 0);
        break;
    case 2:
        adam_span(k, p, g, m, v, n, DECAY_WEIGHT, 1, 0);
        break;
    case 3:
        adam_span(k, p, g, m, v, n, DECAY_NONE, 0, 0);
        break;
    case 4:
        adam_span(k, p, g, m, v, n, DECAY_L2, 0, 0);
        break;
    case 5:
        adam_span(k, p, g, m, v, n, DECAY_WEIGHT, 0, 0);
        break;
    case 6:
        adam_span(k, p, g, m, v, n, DECAY_NONE, 0, 1);
        break;
    case 7:
        adam_span(k, p, g, m, v, n, DECAY_L2, 0, 1);
        break;
    default:
        adam_span(k, p, g, m, v, n, DECAY_WEIGHT, 0, 1);
        break;
    }
}

typedef void (*span_fn)(const struct adam_job *j, float *p, const float *g, float *m, float *v,
                        size_t n);

static void span_portable(const struct adam_job *j, float *p, const float *g, float *m, float *v,
                          size_t n)
{
    any_span(j, p, g, m, v, n);
}

#if defined(__x86_64__)
HL_FOR_AVX2 static void span_avx2(const struct adam_job *j, float *p, const float *g, float *m,
                                  float *v, size_t n)
{
    any_span(j, p, g, m, v, n);
}

HL_FOR_AVX512 static void span_avx512(const struct adam_job *j, float *p, const float *g, float *m,
                                      float *v, size_t n)
{
    any_span(j, p, g, m, v, n);
}
#endif

static span_fn best_span(void)
{
#if defined(__x86_64__)
    if (hl_cpu() == HL_CPU_AVX512)
        return span_avx512;
    if (hl_cpu() == HL_CPU_AVX2)
        return span_avx2;
#endif
    return span_portable;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void adam_block(const struct adam_job *j, span_fn fn, size_t at, size_t n)
{
    const struct hybridps_adam *s = &j->s;
    float g[BLOCK];
    const float *from = (const float *)s->g + at;
    if (s->grad_type != HYBRIDPS_F32) {
        hl_half_load(s->g, s->grad_type, at, n, g);
        from = g;
    }
    if (s->grad_scale != 1.0) {
        float scale = (float)s->grad_scale;
        for (size_t i = 0; i < n; i++)
            g[i] = from[i] * scale;
        from = g;
    }
    fn(j, s->p + at, from, s->m + at, s->v + at, n);
    if (s->p16 != NULL)
        hl_half_store(s->p + at, n, s->p16, s->p16_type, at);
}

static void adam_blocks(void *arg, size_t first, size_t last)
{
    const struct adam_job *j = arg;
    span_fn fn = best_span();
    for (size_t b = first; b < last; b++) {
        size_t at = b * BLOCK, left = j->s.n - at;
        adam_block(j, fn, at, left < BLOCK ? left : BLOCK);
    }
}

static struct consts make_consts(const struct hybridps_adam *s)
{
    double bc1 = 1.0 - pow(s->b1, (double)s->step);
    double bc2 = 1.0 - pow(s->b2, (double)s->step);
    return (struct consts){
        .keep = (float)(1.0 - s->lr * s->wd),
        .wd = (float)s->wd,
        .b1 = (float)s->b1,
        .not_b1 = (float)(1.0 - s->b1),
        .lerp_b1 = 1.0f - (float)(1.0 - s->b1),
        .b2 = (float)s->b2,
        .not_b2 = (float)(1.0 - s->b2),
        .step = (float)-(s->lr / bc1),
        .root = (float)sqrt(bc2),
        .over = 1.0f / (float)sqrt(bc2),
        .eps = (float)s->eps,
    };
}

static atomic_int rounding_set = -1;

int hybridps_adam_rounding(void)
{
    int r = atomic_load_explicit(&rounding_set, memory_order_relaxed);
    if (r >= 0)
        return r;
    const char *env = getenv("HYBRIDPS_ADAM_ROUNDING");
    return env != NULL && strcmp(env, "torch1") == 0 ? HYBRIDPS_ROUNDING_TORCH1
                                                     : HYBRIDPS_ROUNDING_TORCH2;
}

int hybridps_adam_set_rounding(int rounding)
{
    if (rounding != HYBRIDPS_ROUNDING_TORCH1 && rounding != HYBRIDPS_ROUNDING_TORCH2)
        return hl_fail(HL_EINVAL, "rounding %d is neither torch 2's (0) nor torch 1.13's (1)",
                       rounding);
    atomic_store_explicit(&rounding_set, rounding, memory_order_relaxed);
    return HL_OK;
}

static bool half_type(int type)
{
    return type == HYBRIDPS_F16 || type == HYBRIDPS_BF16;
}

static hl_status check_adam(const struct hybridps_adam *s)
{
    if (s->n > 0 && (s->p == NULL || s->g == NULL || s->m == NULL || s->v == NULL))
        return hl_fail(HL_EINVAL, "Adam: p, g, m and v must not be NULL for %zu elements", s->n);
    if (s->step < 1)
        return hl_fail(HL_EINVAL, "Adam: step %ld: steps count from 1", s->step);
    if (!(s->b1 >= 0 && s->b1 < 1) || !(s->b2 >= 0 && s->b2 < 1))
        return hl_fail(HL_EINVAL, "Adam: betas %g and %g must be in [0, 1)", s->b1, s->b2);
    if (!(s->lr >= 0) || !(s->eps >= 0) || !(s->wd >= 0))
        return hl_fail(HL_EINVAL, "Adam: lr %g, eps %g and weight decay %g must not be negative",
                       s->lr, s->eps, s->wd);
    if (s->grad_type != HYBRIDPS_F32 && !half_type(s->grad_type))
        return hl_fail(HL_EINVAL, "Adam: gradient type %d is not one of f32 0, f16 1, bf16 2",
                       s->grad_type);
    if (s->p16 != NULL && !half_type(s->p16_type))
        return hl_fail(HL_EINVAL, "Adam: type %d of the second copy is not one of f16 1, bf16 2",
                       s->p16_type);
    return HL_OK;
}

int hybridps_adam_run(const struct hybridps_adam *step)
{
    if (step == NULL)
        return hl_fail(HL_EINVAL, "Adam: step must not be NULL");
    struct adam_job j;
    HL_TRY(HL_ABI_READ(struct hybridps_adam, step, &j.s));
    const struct hybridps_adam *s = &j.s;
    HL_TRY(check_adam(s));
    j.k = make_consts(s);
    j.torch1 = hybridps_adam_rounding() == HYBRIDPS_ROUNDING_TORCH1;
    j.lerp_from_end = j.k.not_b1 >= 0.5f;
    j.decay = s->wd == 0 ? DECAY_NONE : s->adamw ? DECAY_WEIGHT : DECAY_L2;
    hl_split((s->n + BLOCK - 1) / BLOCK, s->nthreads, adam_blocks, &j);
    return HL_OK;
}

int hybridps_adam_step(float *p, const float *g, float *m, float *v, size_t n, long step, double lr,
                       double b1, double b2, double eps, double wd, int adamw, int nthreads)
{
    return hybridps_adam_run(&(struct hybridps_adam){
        HYBRIDPS_ADAM_INIT, .p = p, .g = g, .m = m, .v = v, .grad_type = HYBRIDPS_F32, .n = n,
        .step = step, .lr = lr, .b1 = b1, .b2 = b2, .eps = eps, .wd = wd, .grad_scale = 1,
        .adamw = adamw, .nthreads = nthreads});
}
