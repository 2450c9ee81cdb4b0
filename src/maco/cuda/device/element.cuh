/* maco/cuda/device/element.cuh - float32, float16 and bfloat16 in memory, float in registers; four
 * elements at a time if their address allows that; sums and maxima over a warp or a block.
 */
#ifndef HL_MACO_CUDA_DEVICE_ELEMENT_CUH
#define HL_MACO_CUDA_DEVICE_ELEMENT_CUH

#include "maco/cuda/device/atoms.cuh"

namespace gpu
{

struct f16 {
    uint16_t bits;
};

struct bf16 {
    uint16_t bits;
};

HL_DEV float to_float(float x)
{
    return x;
}

HL_DEV float to_float(bf16 x)
{
    return float_of_bits((uint32_t)x.bits << 16);
}

HL_DEV float to_float(f16 x)
{
    return float_of_half(x.bits);
}

HL_DEV void from_float(float x, float *out)
{
    *out = x;
}

HL_DEV void from_float(float x, f16 *out)
{
    out->bits = half_of_float(x);
}

HL_DEV void from_float(float x, bf16 *out)
{
    out->bits = bfloat_of_float(x);
}

/* The number after it was stored in that type. */
template <typename T> HL_DEV float rounded(float x)
{
    T t;
    from_float(x, &t);
    return to_float(t);
}

/* ---- four at once ---- */

struct alignas(16) hl_quad {
    uint32_t word[4];
};

struct alignas(8) hl_pair {
    uint32_t word[2];
};

template <typename T> HL_DEV int aligned4(const T *p)
{
    return (uint64_t)p % (4 * sizeof(T)) == 0;
}

HL_DEV void load4(const float *p, float *out)
{
    hl_quad q = *(const hl_quad *)p;
    for (int i = 0; i < 4; i++)
        out[i] = float_of_bits(q.word[i]);
}

template <typename T> HL_DEV void load4(const T *p, float *out)
{
    hl_pair q = *(const hl_pair *)p;
    for (int i = 0; i < 4; i++) {
        T t;
        t.bits = (uint16_t)(q.word[i / 2] >> (16 * (i % 2)));
        out[i] = to_float(t);
    }
}

HL_DEV void store4(float *p, const float *x)
{
    hl_quad q;
    for (int i = 0; i < 4; i++)
        q.word[i] = bits_of_float(x[i]);
    *(hl_quad *)p = q;
}

template <typename T> HL_DEV void store4(T *p, const float *x)
{
    hl_pair q;
    for (int i = 0; i < 2; i++) {
        T low, high;
        from_float(x[2 * i], &low);
        from_float(x[2 * i + 1], &high);
        q.word[i] = low.bits | (uint32_t)high.bits << 16;
    }
    *(hl_pair *)p = q;
}

/* ---- over threads ---- */

HL_DEV float warp_sum(float x)
{
    for (uint32_t mask = HL_LANES / 2; mask > 0; mask /= 2)
        x += across(x, mask);
    return x;
}

HL_DEV float warp_max(float x)
{
    for (uint32_t mask = HL_LANES / 2; mask > 0; mask /= 2)
        x = fmaxf(x, across(x, mask));
    return x;
}

/* A team is a warp or the block. `scratch` has a number for each warp of the block, and nothing
 * else uses it until the next barrier. All threads of the team get the result. */
template <int whole_block> HL_DEV float team_sum(float x, float *scratch)
{
    x = warp_sum(x);
    if (!whole_block)
        return x;
    block_sync(); /* the previous result has been read */
    if (thread_id() % HL_LANES == 0)
        scratch[thread_id() / HL_LANES] = x;
    block_sync();
    float sum = 0;
    for (uint32_t i = 0; i < thread_count() / HL_LANES; i++)
        sum += scratch[i];
    return sum;
}

template <int whole_block> HL_DEV float team_max(float x, float *scratch)
{
    x = warp_max(x);
    if (!whole_block)
        return x;
    block_sync();
    if (thread_id() % HL_LANES == 0)
        scratch[thread_id() / HL_LANES] = x;
    block_sync();
    float max = scratch[0];
    for (uint32_t i = 1; i < thread_count() / HL_LANES; i++)
        max = fmaxf(max, scratch[i]);
    return max;
}

} // namespace gpu

#endif
