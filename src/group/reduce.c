/* Reduces arrays element by element in the order of their owners, rounding each step to the type. A
 * NaN stays a NaN, in a minimum too. */
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "group/group.h"

#define BLOCK 1024 /* elements; two blocks are on the stack */

size_t hl_collective_size(int type)
{
    static const uint8_t sizes[] = {
        [HYBRIDPS_F32] = 4, [HYBRIDPS_F16] = 2, [HYBRIDPS_BF16] = 2, [HYBRIDPS_F64] = 8,
        [HYBRIDPS_I32] = 4, [HYBRIDPS_I64] = 8, [HYBRIDPS_U8] = 1};
    return type >= 0 && type < (int)HL_ARRAY_LEN(sizes) ? sizes[type] : 0;
}

bool hl_collective_op_fits(int op, int type)
{
    int whole = type >= HYBRIDPS_I32;
    return op >= HYBRIDPS_SUM && op <= HYBRIDPS_PROD && (op != HYBRIDPS_MEAN || !whole);
}

/* Integers wrap around: they are added and multiplied as unsigned. */
#define STEP(name, type, wide, op)                                                                 \
    static void name(void *restrict into, const void *restrict from, size_t n)                     \
    {                                                                                              \
        type *restrict a = into;                                                                   \
        const type *restrict b = from;                                                             \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (type)((wide)a[i] op(wide) b[i]);                                               \
    }
#define CHOICE(name, type, op)                                                                     \
    static void name(void *restrict into, const void *restrict from, size_t n)                     \
    {                                                                                              \
        type *restrict a = into;                                                                   \
        const type *restrict b = from;                                                             \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (a[i] op b[i]) | (a[i] != a[i]) ? a[i] : b[i];                                  \
    }
#define STEPS(t, type, wide)                                                                       \
    STEP(t##_sum, type, wide, +)                                                                   \
    STEP(t##_prod, type, wide, *) CHOICE(t##_min, type, <) CHOICE(t##_max, type, >)

STEPS(f32, float, float)
STEPS(f64, double, double)
STEPS(i32, int32_t, uint32_t)
STEPS(i64, int64_t, uint64_t)
STEPS(u8, uint8_t, uint8_t)

typedef void (*step_fn)(void *restrict into, const void *restrict from, size_t n);

static step_fn step_of(int type, int op)
{
    /* Indexed by HYBRIDPS_SUM ... PROD. The two half types are added as float32. */
    static const step_fn steps[][5] = {
        [HYBRIDPS_F32] = {f32_sum, f32_sum, f32_min, f32_max, f32_prod},
        [HYBRIDPS_F16] = {f32_sum, f32_sum, f32_min, f32_max, f32_prod},
        [HYBRIDPS_BF16] = {f32_sum, f32_sum, f32_min, f32_max, f32_prod},
        [HYBRIDPS_F64] = {f64_sum, f64_sum, f64_min, f64_max, f64_prod},
        [HYBRIDPS_I32] = {i32_sum, i32_sum, i32_min, i32_max, i32_prod},
        [HYBRIDPS_I64] = {i64_sum, i64_sum, i64_min, i64_max, i64_prod},
        [HYBRIDPS_U8] = {u8_sum, u8_sum, u8_min, u8_max, u8_prod},
    };
    return steps[type][op];
}

static void half_block(void *dst, const void *const *parts, int count, int type, step_fn step,
                       size_t at, size_t n)
{
    float sum[BLOCK], part[BLOCK];
    hl_half_load(parts[0], type, at, n, sum);
    for (int k = 1; k < count; k++) {
        hl_half_load(parts[k], type, at, n, part);
        step(sum, part, n);
        if (k + 1 == count)
            break;
        hl_half_store(sum, n, part, type, 0); /* rounds each step */
        hl_half_load(part, type, 0, n, sum);
    }
    hl_half_store(sum, n, dst, type, at);
}

static void reduce_block(void *dst, const void *const *parts, int count, size_t size, step_fn step,
                         size_t at, size_t n)
{
    uint64_t sum[BLOCK]; /* of any type */
    memcpy(sum, (const uint8_t *)parts[0] + at * size, n * size);
    for (int k = 1; k < count; k++)
        step(sum, (const uint8_t *)parts[k] + at * size, n);
    memcpy((uint8_t *)dst + at * size, sum, n * size);
}

void hl_collective_reduce(void *dst, const void *const *parts, int count, int type, int op,
                          size_t first, size_t n)
{
    step_fn step = step_of(type, op);
    for (size_t at = first; at < first + n; at += BLOCK) {
        size_t here = first + n - at < BLOCK ? first + n - at : BLOCK;
        if (type == HYBRIDPS_F16 || type == HYBRIDPS_BF16)
            half_block(dst, parts, count, type, step, at, here);
        else
            reduce_block(dst, parts, count, hl_collective_size(type), step, at, here);
    }
}

void hl_collective_divide(void *data, size_t n, int type, int by)
{
    float *f32 = data, part[BLOCK], divisor = (float)by;
    double *f64 = data;
    if (type == HYBRIDPS_F32) {
        for (size_t i = 0; i < n; i++)
            f32[i] /= divisor;
        return;
    }
    if (type == HYBRIDPS_F64) {
        for (size_t i = 0; i < n; i++)
            f64[i] /= by;
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
