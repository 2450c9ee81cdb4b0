/* Loops over floats that the compiler vectorises, in several builds for different CPUs. The same
 * inputs give the same bits wherever they are in an array. exp is Cephes' expf without branches,
 * erf uses N. Juffa's two polynomials; both are within two units in the last place. */
#include <math.h>

#include "base/cpu.h"
#include "base/float_bits.h"
#include "maco/kernels/body_private.h"

typedef float lanes __attribute__((vector_size(4 * HL_LANES), aligned(4), may_alias));
typedef int32_t bits __attribute__((vector_size(4 * HL_LANES)));

#if defined(__x86_64__) && !defined(HL_PORTABLE)
#define BUILDS(type, name, params, args)                                                           \
    HL_FOR_AVX2 static type name##_avx2 params                                                     \
    {                                                                                              \
        return name##_any args;                                                                    \
    }                                                                                              \
    HL_FOR_AVX512 static type name##_avx512 params                                                 \
    {                                                                                              \
        return name##_any args;                                                                    \
    }                                                                                              \
    type hl_vec_##name params                                                                      \
    {                                                                                              \
        if (hl_cpu() == HL_CPU_AVX512)                                                             \
            return name##_avx512 args;                                                             \
        if (hl_cpu() == HL_CPU_AVX2)                                                               \
            return name##_avx2 args;                                                               \
        return name##_any args;                                                                    \
    }
#else
#define BUILDS(type, name, params, args)                                                           \
    type hl_vec_##name params                                                                      \
    {                                                                                              \
        return name##_any args;                                                                    \
    }
#endif

/* Computes 2^n as two factors, so that neither leaves the range of normal numbers. */
HL_ALWAYS_INLINE float exp_x(float x)
{
    float y = x < -104.0f ? -104.0f : x; /* keeps NaN */
    y = y > 89.0f ? 89.0f : y;
    float shifted = y * 1.44269504f + 12582912.0f; /* the integer is in the lowest bits */
    float n = shifted - 12582912.0f;
    int32_t k = (int32_t)(hl_bits_of(shifted) - 0x4b400000u), half = k >> 1;
    float r = y - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    float low = hl_float_of((uint32_t)(half + 127) << 23);
    float high = hl_float_of((uint32_t)(k - half + 127) << 23);
    return p * low * high;
}

HL_ALWAYS_INLINE float erf_x(float x)
{
    float t = fabsf(x), s = x * x;
    float r = -1.72853470e-5f * t + 3.83197126e-4f, u = -3.88396438e-3f * t + 2.42546219e-2f;
    r = r * s + u;
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    r = 1.0f - exp_x(r * t - t);
    float far = hl_float_of(hl_bits_of(r) | (hl_bits_of(x) & 0x80000000u));
    float q = -5.96761703e-4f;
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    float near = q * x + x;
    return t > 0.927734375f ? far : near;
}

HL_ALWAYS_INLINE void gelu_erf_any(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * 0.5f * (1.0f + erf_x(x[i] * 0.707106781f));
}

/* (1 + tanh u) / 2 is 1 / (1 + exp(-2u)). */
HL_ALWAYS_INLINE void gelu_tanh_any(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float u = 0.797884561f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
        x[i] = x[i] / (1.0f + exp_x(-2.0f * u));
    }
}

HL_ALWAYS_INLINE void silu_any(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + exp_x(-x[i]));
}

/* Adds lane by lane, then halves of the lanes. */
HL_ALWAYS_INLINE float add_lanes(float *lane)
{
    for (size_t half = HL_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

HL_ALWAYS_INLINE float max_any(const float *x, size_t n)
{
    lanes lane = (lanes){0} - INFINITY;
    float most = -INFINITY;
    for (size_t i = 0; i < n; i += HL_LANES) {
        lanes y = *(const lanes *)(x + i);
        bits more = y > lane; /* all ones where y is larger */
        lane = (lanes)(((bits)y & more) | ((bits)lane & ~more));
    }
    for (size_t j = 0; j < HL_LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    return most;
}

HL_ALWAYS_INLINE float sum_any(const float *x, size_t n)
{
    float lane[HL_LANES] = {0};
    for (size_t i = 0; i < n; i += HL_LANES)
        for (size_t j = 0; j < HL_LANES; j++)
            lane[j] += x[i + j];
    return add_lanes(lane);
}

HL_ALWAYS_INLINE float exp_any(float *x, size_t n, float shift)
{
    float lane[HL_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        x[i] = exp_x(x[i] - shift);
    for (size_t i = 0; i < n; i += HL_LANES)
        for (size_t j = 0; j < HL_LANES; j++)
            lane[j] += x[i + j];
    return add_lanes(lane);
}

HL_ALWAYS_INLINE float squares_any(const float *x, size_t n, float mean)
{
    float lane[HL_LANES] = {0};
    for (size_t i = 0; i < n; i += HL_LANES)
        for (size_t j = 0; j < HL_LANES; j++)
            lane[j] += (x[i + j] - mean) * (x[i + j] - mean);
    return add_lanes(lane);
}

HL_ALWAYS_INLINE void norm_any(float *x, size_t n, float mean, float scale, const float *gamma,
                               const float *beta)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) * scale;
    for (size_t i = 0; gamma != NULL && i < n; i++)
        x[i] *= gamma[i];
    for (size_t i = 0; beta != NULL && i < n; i++)
        x[i] += beta[i];
}

HL_ALWAYS_INLINE void scale_any(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= by;
}

HL_ALWAYS_INLINE void fma_any(float *x, size_t n, float alpha, const float *b, float beta)
{
    if (b == NULL)
        for (size_t i = 0; i < n; i++)
            x[i] = __builtin_fmaf(x[i], alpha, beta);
    else
        for (size_t i = 0; i < n; i++)
            x[i] = __builtin_fmaf(alpha, x[i], b[i]);
}

BUILDS(void, gelu_erf, (float *x, size_t n), (x, n))
BUILDS(void, gelu_tanh, (float *x, size_t n), (x, n))
BUILDS(void, silu, (float *x, size_t n), (x, n))
BUILDS(float, max, (const float *x, size_t n), (x, n))
BUILDS(float, sum, (const float *x, size_t n), (x, n))
BUILDS(float, exp, (float *x, size_t n, float shift), (x, n, shift))
BUILDS(float, squares, (const float *x, size_t n, float mean), (x, n, mean))
BUILDS(void, norm,
       (float *x, size_t n, float mean, float scale, const float *gamma, const float *beta),
       (x, n, mean, scale, gamma, beta))
BUILDS(void, scale, (float *x, size_t n, float by), (x, n, by))
BUILDS(void, fma, (float *x, size_t n, float alpha, const float *b, float beta),
       (x, n, alpha, b, beta))
