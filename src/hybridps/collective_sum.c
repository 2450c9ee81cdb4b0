/* Sums and means of arrays, element by element in the order of their owners. */
#include "hybridps/collective.h"
#include "hybridps/half.h"

#define BLOCK 1024 /* elements; two of them on the stack */

size_t hl_collective_size(int type)
{
    return type == HYBRIDPS_F32 ? 4 : type == HYBRIDPS_F16 || type == HYBRIDPS_BF16 ? 2 : 0;
}

static void sum_f32(float *restrict dst, const float *const *parts, int count, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = parts[0][i] + parts[1][i];
    for (int k = 2; k < count; k++)
        for (size_t i = 0; i < n; i++)
            dst[i] += parts[k][i];
}

static void sum_f32_block(float *dst, const void *const *parts, int count, size_t at, size_t n)
{
    const float *from[HL_COLLECTIVE_RANKS];
    float sum[BLOCK];
    for (int k = 0; k < count; k++)
        from[k] = (const float *)parts[k] + at;
    if (count == 1)
        hl_half_load(from[0], HYBRIDPS_F32, 0, n, sum);
    else
        sum_f32(sum, from, count, n);
    hl_half_load(sum, HYBRIDPS_F32, 0, n, dst + at);
}

static void sum_half_block(void *dst, const void *const *parts, int count, int type, size_t at,
                           size_t n)
{
    float sum[BLOCK], part[BLOCK];
    hl_half_load(parts[0], type, at, n, sum);
    for (int k = 1; k < count; k++) {
        hl_half_load(parts[k], type, at, n, part);
        for (size_t i = 0; i < n; i++)
            sum[i] += part[i];
        if (k + 1 == count)
            break;
        hl_half_store(sum, n, part, type, 0); /* each addition is rounded */
        hl_half_load(part, type, 0, n, sum);
    }
    hl_half_store(sum, n, dst, type, at);
}

void hl_collective_sum(void *dst, const void *const *parts, int count, int type, size_t first,
                       size_t n)
{
    for (size_t at = first; at < first + n; at += BLOCK) {
        size_t here = first + n - at < BLOCK ? first + n - at : BLOCK;
        if (type == HYBRIDPS_F32)
            sum_f32_block(dst, parts, count, at, here);
        else
            sum_half_block(dst, parts, count, type, at, here);
    }
}

void hl_collective_divide(void *data, size_t n, int type, int by)
{
    float *f32 = data, part[BLOCK], divisor = (float)by;
    if (type == HYBRIDPS_F32) {
        for (size_t i = 0; i < n; i++)
            f32[i] /= divisor;
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t here = n - at < BLOCK ? n - at : BLOCK;
        hl_half_load(data, type, at, here, part);
        for (size_t i = 0; i < here; i++)
            part[i] /= divisor;
        hl_half_store(part, here, data, type, at);
    }
}
