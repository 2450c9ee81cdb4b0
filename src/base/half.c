/* Written with bit operations and without branches, so that the compiler vectorises it for any CPU.
 * There are three builds; the CPU's features decide which is used. */
#include "base/half.h"

#include <stdint.h>
#include <string.h>

#include "base/cpu.h"
#include "base/float_bits.h"
#include "helios/hybridps.h"

HL_ALWAYS_INLINE void any_load_bf16(const uint16_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = hl_float_of((uint32_t)src[i] << 16);
}

HL_ALWAYS_INLINE void any_store_bf16(const float *src, size_t n, uint16_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t b = hl_bits_of(src[i]);
        uint32_t rounded = b + 0x7fff + (b >> 16 & 1);
        uint32_t nan = b | 0x400000; /* still a NaN when the lower half is cut off */
        dst[i] = (uint16_t)(((b & 0x7fffffff) > 0x7f800000 ? nan : rounded) >> 16);
    }
}

/* A factor of 2^112 moves float16's exponent to float32's, and makes its subnormals normal
 * numbers. */
HL_ALWAYS_INLINE float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    float scaled = hl_float_of(rest) * 0x1p112f;
    uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    return hl_float_of(sign | hl_bits_of(scaled) | special);
}

HL_ALWAYS_INLINE uint16_t float_to_half(float x)
{
    uint32_t b = hl_bits_of(x), sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
    uint32_t normal = (a + 0xc8000fff + (a >> 13 & 1)) >> 13;
    /* The last bit of 0.5 has the weight of a float16 subnormal's last bit, so the addition
     * rounds. */
    uint32_t small = hl_bits_of(hl_float_of(a) + 0.5f) - 0x3f000000;
    uint32_t r = a < 0x38800000 ? small : normal;
    r = a >= 0x47800000 ? 0x7c00 : r; /* 65536 and more; values that round up to it carry */
    r = a > 0x7f800000 ? 0x7e00 | (a >> 13 & 0x3ff) : r;
    return (uint16_t)(sign | r);
}

HL_ALWAYS_INLINE void any_load_f16(const uint16_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = half_to_float(src[i]);
}

HL_ALWAYS_INLINE void any_store_f16(const float *src, size_t n, uint16_t *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_to_half(src[i]);
}

#if defined(__x86_64__)
#define BUILDS(name, from, to)                                                                     \
    HL_FOR_AVX2 static void name##_avx2(from, size_t n, to)                                        \
    {                                                                                              \
        any_##name(src, n, dst);                                                                   \
    }                                                                                              \
    HL_FOR_AVX512 static void name##_avx512(from, size_t n, to)                                    \
    {                                                                                              \
        any_##name(src, n, dst);                                                                   \
    }                                                                                              \
    static void name(from, size_t n, to)                                                           \
    {                                                                                              \
        if (hl_cpu() == HL_CPU_AVX512)                                                             \
            name##_avx512(src, n, dst);                                                            \
        else if (hl_cpu() == HL_CPU_AVX2)                                                          \
            name##_avx2(src, n, dst);                                                              \
        else                                                                                       \
            any_##name(src, n, dst);                                                               \
    }
#else
#define BUILDS(name, from, to)                                                                     \
    static void name(from, size_t n, to)                                                           \
    {                                                                                              \
        any_##name(src, n, dst);                                                                   \
    }
#endif

BUILDS(load_bf16, const uint16_t *src, float *dst)
BUILDS(store_bf16, const float *src, uint16_t *dst)
BUILDS(load_f16, const uint16_t *src, float *dst)
BUILDS(store_f16, const float *src, uint16_t *dst)

void hl_half_load(const void *src, int type, size_t at, size_t n, float *dst)
{
    if (type == HYBRIDPS_F32)
        memcpy(dst, (const float *)src + at, n * sizeof(float));
    else if (type == HYBRIDPS_BF16)
        load_bf16((const uint16_t *)src + at, n, dst);
    else
        load_f16((const uint16_t *)src + at, n, dst);
}

void hl_half_store(const float *src, size_t n, void *dst, int type, size_t at)
{
    if (type == HYBRIDPS_BF16)
        store_bf16(src, n, (uint16_t *)dst + at);
    else
        store_f16(src, n, (uint16_t *)dst + at);
}
