/* Arrays of any type, for tests of bodies: made, run on, and compared with doubles. */
#ifndef UNIT_MACO_KERNELS_BODY_ARRAYS_H
#define UNIT_MACO_KERNELS_BODY_ARRAYS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "maco/graph/types.h"
#include "maco/kernels/bodies.h"

#define EPS 0x1p-24 /* half a unit in the last place of float32 */

static struct hl_maco_scratch scratch;

struct array {
    uint8_t *data;
    int dtype;
    size_t n;
};

static double get(const struct array *a, size_t i)
{
    float x;
    assert_true(i < a->n);
    hl_half_load(a->data, a->dtype, i, 1, &x);
    return x;
}

static void put(const struct array *a, size_t i, float x)
{
    assert_true(i < a->n);
    if (a->dtype == MACO_F32)
        memcpy(a->data + i * 4, &x, 4);
    else
        hl_half_store(&x, 1, a->data, a->dtype, i);
}

/* Uniform in (-1, 1). */
static float noise(uint32_t seed, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + seed * 40503u + 1u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return (float)(int32_t)x * 0x1p-31f;
}

static struct array fresh(int dtype, size_t n)
{
    size_t size = hl_maco_dtype_size(dtype);
    struct array a = {malloc(n * size + 1), dtype, n}; /* one byte more: nothing is empty */
    assert_non_null(a.data);
    memset(a.data, 0x3c, n * size + 1);
    return a;
}

static struct array made(int dtype, size_t n, uint32_t seed, float by, float plus)
{
    struct array a = fresh(dtype, n);
    for (size_t i = 0; i < n; i++)
        put(&a, i, noise(seed, i) * by + plus);
    return a;
}

static void let_go(struct array *arrays, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(arrays[i].data);
}

static uint64_t address(const struct array *a, size_t at)
{
    return (uintptr_t)(a->data + at * hl_maco_dtype_size(a->dtype));
}

/* Rounding unit of the type; half's least number is 2^-24. */
static double unit(int dtype, double x)
{
    return dtype == MACO_F32   ? fabs(x) * EPS
           : dtype == MACO_F16 ? fmax(fabs(x) * 0x1p-11, 0x1p-25)
                               : fabs(x) * 0x1p-8;
}

static void near(const struct array *a, size_t i, double want, double allowed)
{
    double is = get(a, i), most = allowed + unit(a->dtype, want);
    if (isnan(want) ? !isnan(is) : isinf(want) ? is != want : !(fabs(is - want) <= most))
        fail_msg("type %d, element %zu: %.9g, should be %.9g +- %.3g", a->dtype, i, is, want, most);
}

static void run(const maco_task *t)
{
    if (hl_maco_body(t, &scratch) != HL_OK)
        fail_msg("%s", hl_error_text());
}

/* The gaps between rows must stay untouched. */
static void gaps_untouched(const struct array *a, size_t rows, size_t cols, size_t ld)
{
    size_t size = hl_maco_dtype_size(a->dtype);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = (r * ld + cols) * size; i < (r + 1) * ld * size && i < a->n * size; i++)
            assert_int_equal(a->data[i], 0x3c);
    assert_int_equal(a->data[a->n * size], 0x3c);
}

static void same_bits(const struct array *a, const struct array *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->data, b->data, a->n * hl_maco_dtype_size(a->dtype));
}

#endif
