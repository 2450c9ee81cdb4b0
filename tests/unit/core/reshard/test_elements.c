#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/reshard/elements.h"

static void value_is(enum hl_dtype dtype, uint32_t bits, double want)
{
    double got = hl_element_value(dtype, &bits); /* the low bytes come first */
    if (isnan(want) ? !isnan(got) : got != want)
        fail_msg("%s %#x is %g, not %g", hl_dtype_name(dtype), bits, got, want);
}

TEST(floats_have_the_values_of_their_formats)
{
    value_is(HL_DTYPE_F32, 0x3fc00000, 1.5);
    value_is(HL_DTYPE_BF16, 0x3f80, 1);
    value_is(HL_DTYPE_BF16, 0xc040, -3);
    value_is(HL_DTYPE_BF16, 0x0001, 0x1p-133);
    value_is(HL_DTYPE_BF16, 0x7f80, INFINITY);
    value_is(HL_DTYPE_F16, 0x3e00, 1.5);
    value_is(HL_DTYPE_F16, 0x7bff, 65504);
    value_is(HL_DTYPE_F16, 0x8001, -0x1p-24);
    value_is(HL_DTYPE_F16, 0xfc00, -INFINITY);
    value_is(HL_DTYPE_F16, 0x7e00, NAN);
    value_is(HL_DTYPE_F8_E4M3, 0x38, 1);
    value_is(HL_DTYPE_F8_E4M3, 0xfe, -448);
    value_is(HL_DTYPE_F8_E4M3, 0x01, 0x1p-9);
    value_is(HL_DTYPE_F8_E4M3, 0x7f, NAN);
    value_is(HL_DTYPE_F8_E5M2, 0x3c, 1);
    value_is(HL_DTYPE_F8_E5M2, 0x7b, 57344);
    value_is(HL_DTYPE_F8_E5M2, 0x7c, INFINITY);
    value_is(HL_DTYPE_F8_E8M0, 0x80, 2);
    value_is(HL_DTYPE_F8_E8M0, 0x00, 0x1p-127);
    value_is(HL_DTYPE_F8_E8M0, 0xff, NAN);
    const double wide = -2.25;
    assert_true(hl_element_value(HL_DTYPE_F64, &wide) == wide);
    assert_false(hl_dtype_is_float(HL_DTYPE_I32));
    assert_false(hl_dtype_is_float(HL_DTYPE_BOOL));
}

TEST(differing_elements_are_counted_from_piece_to_piece)
{
    enum { N = 10000 };

    float *a = calloc(N, sizeof(*a)), *b = calloc(N, sizeof(*b));
    struct hl_elements_diff diff = {0};
    hl_elements_compare(HL_DTYPE_F32, a, b, 0, N, &diff);
    assert_int_equal(diff.differing, 0);
    b[4095] = 0.25f;
    b[4096] = -3;
    a[9999] = INFINITY;
    a[7] = -0.0f; /* other bits, the same value */
    hl_elements_compare(HL_DTYPE_F32, a + 8, b + 8, 8, 8000, &diff);
    assert_int_equal(diff.differing, 2);
    assert_int_equal(diff.first, 4095);
    hl_elements_compare(HL_DTYPE_F32, a + 8008, b + 8008, 8008, N - 8008, &diff);
    assert_int_equal(diff.differing, 3);
    assert_int_equal(diff.first, 4095);
    assert_int_equal(diff.not_finite, 1);
    assert_true(diff.largest == 3);
    diff = (struct hl_elements_diff){0};
    hl_elements_compare(HL_DTYPE_F32, a, b, 0, 8, &diff);
    assert_int_equal(diff.differing, 1);
    assert_int_equal(diff.first, 7);
    assert_true(diff.largest == 0);
    free(a);
    free(b);
}

TEST(integers_are_compared_by_their_bits_alone)
{
    const int64_t a[] = {1, 2, 3}, b[] = {1, -2, 4};
    struct hl_elements_diff diff = {0};
    hl_elements_compare(HL_DTYPE_I64, a, b, 30, 3, &diff);
    assert_int_equal(diff.differing, 2);
    assert_int_equal(diff.first, 31);
    assert_true(diff.largest == 0);
    assert_int_equal(diff.not_finite, 0);
}
