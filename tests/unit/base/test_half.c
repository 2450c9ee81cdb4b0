/* All halves, and floats around every rounding, compared with arithmetic on their values. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "helios/hybridps.h"

#define ALL 65536

struct form {
    int type, fraction, bias;
};

static const struct form forms[] = {{HYBRIDPS_F16, 10, 15}, {HYBRIDPS_BF16, 7, 127}};

/* The value of the 16 bits. */
static double meaning(const struct form *f, uint16_t h)
{
    int exponent = (h & 0x7fff) >> f->fraction, most = 2 * f->bias + 1;
    double fraction = h & ((1 << f->fraction) - 1), sign = h & 0x8000 ? -1 : 1;
    if (exponent == most)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - f->bias - f->fraction);
    return sign * ldexp(fraction + (1 << f->fraction), exponent - f->bias - f->fraction);
}

TEST(every_half_is_read_as_what_it_stands_for)
{
    static uint16_t h[ALL];
    static float x[ALL];
    for (size_t i = 0; i < ALL; i++)
        h[i] = (uint16_t)i;
    for (size_t k = 0; k < 2; k++) {
        hl_half_load(h, forms[k].type, 0, ALL, x);
        for (size_t i = 0; i < ALL; i++) {
            double want = meaning(&forms[k], h[i]);
            assert_true(isnan(want) ? isnan(x[i]) : (double)x[i] == want);
            assert_int_equal(signbit(x[i]) != 0, h[i] >> 15);
        }
    }
}

/* Between positive h and the next half: a value goes to the nearer one, the midpoint to the even
 * one. */
static void check_between(const struct form *f, uint16_t h)
{
    double low = meaning(f, h), high = meaning(f, (uint16_t)(h + 1));
    if (isinf(high)) /* as if there were further exponents */
        high = 2 * low - meaning(f, (uint16_t)(h - 1));
    float middle = (float)((low + high) / 2);
    float x[6] = {(float)low, nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
    uint16_t even = h & 1 ? (uint16_t)(h + 1) : h, out[6];
    uint16_t want[4] = {h, h, even, (uint16_t)(h + 1)};
    hl_half_store(x, 4, out, f->type, 0);
    assert_memory_equal(out, want, sizeof(want));
    for (int i = 0; i < 4; i++)
        x[i] = -x[i];
    hl_half_store(x, 4, out, f->type, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i], want[i] | 0x8000);
}

TEST(floats_go_to_the_nearest_half_and_ties_to_the_even_one)
{
    for (size_t k = 0; k < 2; k++)
        for (uint16_t h = 0; isfinite(meaning(&forms[k], h)); h++)
            check_between(&forms[k], h);
}

/* Vectors and the elements left over after them. */
TEST(the_ends_of_the_range_hold_at_every_place)
{

    enum { N = 77 };

    float x[N];
    uint16_t h[N + 1];
    for (size_t k = 0; k < 2; k++)
        for (size_t at = 0; at < N; at++) {
            static const float ends[] = {INFINITY, -INFINITY, 3.4e38f, NAN};
            for (size_t e = 0; e < 4; e++) {
                for (size_t i = 0; i < N; i++)
                    x[i] = 1;
                x[at] = ends[e];
                h[N] = 0x1234;
                hl_half_store(x, N, h, forms[k].type, 0);
                float back[N];
                hl_half_load(h, forms[k].type, 0, N, back);
                for (size_t i = 0; i < N; i++)
                    assert_true(i == at ? (isnan(ends[e]) ? isnan(back[i])
                                                          : isinf(back[i]) && signbit(back[i]) ==
                                                                                  signbit(ends[e]))
                                        : back[i] == 1);
                assert_int_equal(h[N], 0x1234);
            }
        }
}
