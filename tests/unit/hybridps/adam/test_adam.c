/* Adam compared with a scalar oracle written from torch's source, with libm's fused operations; the
 * comparison with torch itself is tests/e2e/test_hybridps_adam.py. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/status.h"
#include "helios/hybridps.h"

#define N_MAX 5000

struct state {
    float p[N_MAX], g[N_MAX], m[N_MAX], v[N_MAX];
};

struct hyper {
    double lr, b1, b2, eps, wd;
    int adamw, torch1;
};

static uint32_t seed_now;

static float noise(void)
{
    seed_now = seed_now * 1664525u + 1013904223u;
    return ((float)(seed_now >> 8) / 8388608.0f - 1.0f) * (float)(1 + (seed_now & 7));
}

static void fill(struct state *s, uint32_t seed)
{
    seed_now = seed;
    for (size_t i = 0; i < N_MAX; i++) {
        s->p[i] = noise();
        s->g[i] = noise();
        s->m[i] = 0;
        s->v[i] = 0;
    }
}

static void oracle(struct state *s, size_t n, long step, const struct hyper *h)
{
    double bc1 = 1 - pow(h->b1, (double)step), bc2 = 1 - pow(h->b2, (double)step);
    float rest1 = (float)(1 - h->b1), rest2 = (float)(1 - h->b2);
    for (size_t i = 0; i < n; i++) {
        volatile float x = s->p[i], d = s->g[i];
        if (h->wd != 0 && h->adamw)
            x = x * (float)(1 - h->lr * h->wd);
        if (h->wd != 0 && !h->adamw)
            d = fmaf(x, (float)h->wd, d);
        volatile float old = s->m[i] * (float)h->b1, diff = d - s->m[i];
        if (h->torch1)
            s->m[i] = fmaf(d, rest1, old);
        else if (rest1 < 0.5f)
            s->m[i] = fmaf(rest1, diff, s->m[i]);
        else
            s->m[i] = fmaf(-diff, 1.0f - rest1, d);
        volatile float kept = s->v[i] * (float)h->b2, scaled = rest2 * d;
        s->v[i] = fmaf(scaled, d, kept);
        volatile float root = sqrtf(s->v[i]) / (float)sqrt(bc2);
        volatile float denom = root + (float)h->eps;
        volatile float move = (float)-(h->lr / bc1) * s->m[i];
        volatile float quotient = move / denom;
        s->p[i] = x + quotient;
    }
}

static void check_hyper(const struct hyper *h, size_t n, int threads)
{
    struct state *want = calloc(1, sizeof(*want)), *got = calloc(1, sizeof(*got));
    assert_non_null(want);
    assert_non_null(got);
    fill(want, (uint32_t)n + 1);
    fill(got, (uint32_t)n + 1);
    assert_int_equal(hybridps_adam_set_rounding(h->torch1), 0);
    for (long step = 1; step <= 4; step++) {
        oracle(want, n, step, h);
        assert_int_equal(hybridps_adam_step(got->p, got->g, got->m, got->v, n, step, h->lr, h->b1,
                                            h->b2, h->eps, h->wd, h->adamw, threads),
                         0);
    }
    /* Elements from n on are untouched: the oracle left them alone, too. */
    assert_memory_equal(want, got, sizeof(*want));
    free(want);
    free(got);
}

TEST(every_case_rounds_as_torch_does)
{
    static const size_t sizes[] = {0, 1, 15, 17, 1024, 1025, N_MAX};
    for (int c = 0; c < 16; c++) {
        struct hyper h = {.lr = 1e-3,
                          .b1 = c & 8 ? 0.4 : 0.9,
                          .b2 = 0.999,
                          .eps = 1e-8,
                          .wd = c & 1 ? 0.01 : 0,
                          .adamw = c & 2,
                          .torch1 = (c & 4) != 0};
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            check_hyper(&h, sizes[i], 1);
    }
}

/* Second moments from zero to infinity, for every bias correction. All NaNs count as equal. */
TEST(values_of_any_size_round_as_torch_does)
{
    static const float edges[] = {0,     -0.0f, 1e-45f, 1e-38f, -1e-30f,  1e-20f,
                                  1e18f, 1e19f, 3e38f,  -3e38f, INFINITY, -INFINITY,
                                  NAN,   1,     3e-39f, 1e-23f};
    static const double b2s[] = {0, 0.5, 0.95, 0.999, 0.9999999999};
    static const long steps[] = {1, 2, 3, 7, 10, 100, 1001, 100003};
    struct state *want = calloc(1, sizeof(*want)), *got = calloc(1, sizeof(*got));
    assert_non_null(want);
    assert_non_null(got);
    assert_int_equal(hybridps_adam_set_rounding(HYBRIDPS_ROUNDING_TORCH2), 0);
    for (size_t c = 0; c < 40; c++) {
        struct hyper h = {.lr = 1e-3, .b1 = 0.9, .b2 = b2s[c % 5], .eps = c & 1 ? 1e-8 : 0};
        fill(want, (uint32_t)c + 1);
        for (size_t i = 0; i < N_MAX; i += 3) {
            want->v[i] = fabsf(edges[i % 16]);
            want->g[i] = edges[i / 16 % 16];
            want->v[i + 1] = fabsf(want->g[i + 1] * edges[3 + i % 5]);
        }
        *got = *want;
        oracle(want, N_MAX, steps[c / 5], &h);
        assert_int_equal(hybridps_adam_step(got->p, got->g, got->m, got->v, N_MAX, steps[c / 5],
                                            h.lr, h.b1, h.b2, h.eps, 0, 0, 1),
                         0);
        for (size_t i = 0; i < N_MAX; i++)
            if (memcmp(&want->p[i], &got->p[i], 4) != 0 && !(isnan(want->p[i]) && isnan(got->p[i])))
                fail_msg("b2 %g step %ld v %a g %a: %a, not %a", h.b2, steps[c / 5], want->v[i],
                         want->g[i], got->p[i], want->p[i]);
    }
    free(want);
    free(got);
}

TEST(any_number_of_threads_gives_the_same_bits)
{
    struct hyper h = {.lr = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-6, .wd = 0.1, .adamw = 1};
    for (int threads = 0; threads <= 8; threads++)
        check_hyper(&h, N_MAX, threads);
}

TEST(a_scaled_bf16_gradient_is_the_same_step_as_the_float_it_stands_for)
{
    struct state *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
    uint16_t *g16 = calloc(N_MAX, 2);
    assert_true(a != NULL && b != NULL && g16 != NULL);
    fill(a, 7);
    fill(b, 7);
    hl_half_store(a->g, N_MAX, g16, HYBRIDPS_BF16, 0);
    for (size_t i = 0; i < N_MAX; i++) {
        uint32_t bits = (uint32_t)g16[i] << 16;
        memcpy(&a->g[i], &bits, 4);
        a->g[i] *= 0.25f;
    }
    struct hybridps_adam step = {HYBRIDPS_ADAM_INIT, .p = b->p,
                                 .m = b->m,          .v = b->v,
                                 .g = g16,           .grad_type = HYBRIDPS_BF16,
                                 .p16 = g16,         .p16_type = HYBRIDPS_BF16,
                                 .n = N_MAX,         .step = 1,
                                 .lr = 1e-3,         .b1 = 0.9,
                                 .b2 = 0.999,        .eps = 1e-8,
                                 .grad_scale = 0.25, .nthreads = 2};
    assert_int_equal(hybridps_adam_set_rounding(0), 0);
    assert_int_equal(hybridps_adam_run(&step), 0);
    assert_int_equal(
        hybridps_adam_step(a->p, a->g, a->m, a->v, N_MAX, 1, 1e-3, 0.9, 0.999, 1e-8, 0, 0, 1), 0);
    assert_memory_equal(a->p, b->p, sizeof(a->p));
    assert_memory_equal(a->m, b->m, sizeof(a->m));
    for (size_t i = 0; i < N_MAX; i++) { /* written over the gradient, rounded to nearest */
        float x;
        uint32_t bits = (uint32_t)g16[i] << 16;
        memcpy(&x, &bits, 4);
        assert_true(fabsf(x - a->p[i]) <= fabsf(a->p[i]) / 256);
    }
    free(a);
    free(b);
    free(g16);
}

TEST(the_norm_is_exact_on_small_integers_and_sees_what_is_not_finite)
{
    float g[3000];
    double sum;
    int finite;
    for (int i = 0; i < 3000; i++)
        g[i] = (float)(i % 7);
    double want = 0; /* halves, squared: every step is exact in float64 */
    for (int i = 0; i < 3000; i++)
        want += (i % 7) * 0.5 * (i % 7) * 0.5;
    for (int threads = 1; threads < 5; threads++) {
        assert_int_equal(hybridps_grad_norm(g, HYBRIDPS_F32, 3000, 0.5, threads, &sum, &finite), 0);
        assert_true(sum == want);
        assert_true(finite);
    }
    g[2999] = INFINITY;
    assert_int_equal(hybridps_grad_norm(g, HYBRIDPS_F32, 3000, 1, 2, &sum, &finite), 0);
    assert_false(finite);
    g[2999] = NAN;
    assert_int_equal(hybridps_grad_norm(g, HYBRIDPS_F32, 3000, 1, 2, &sum, &finite), 0);
    assert_false(finite);
    assert_int_equal(hybridps_grad_norm(NULL, HYBRIDPS_F32, 0, 1, 2, &sum, &finite), 0);
    assert_true(sum == 0 && finite);
}

TEST(bad_arguments_are_refused_and_change_nothing)
{
    float x = 1, g = 1, m = 0, v = 0;
    double sum;
    int finite;
    assert_int_equal(hybridps_adam_step(&x, &g, &m, &v, 1, 0, 1e-3, .9, .999, 1e-8, 0, 0, 1),
                     HL_EINVAL);
    assert_int_equal(hybridps_adam_step(&x, &g, &m, &v, 1, 1, 1e-3, 1, .999, 1e-8, 0, 0, 1),
                     HL_EINVAL);
    assert_int_equal(hybridps_adam_step(&x, &g, &m, &v, 1, 1, NAN, .9, .999, 1e-8, 0, 0, 1),
                     HL_EINVAL);
    assert_int_equal(hybridps_adam_step(NULL, &g, &m, &v, 1, 1, 1e-3, .9, .999, 1e-8, 0, 0, 1),
                     HL_EINVAL);
    assert_int_equal(hybridps_adam_set_rounding(7), HL_EINVAL);
    assert_int_equal(hybridps_grad_norm(&g, 9, 1, 1, 1, &sum, &finite), HL_EINVAL);
    assert_true(x == 1 && m == 0 && v == 0);
}

TEST(a_gradient_is_put_whole_and_nothing_beside_it)
{
    enum { MOST = 300 };

    uint8_t from[MOST], to[MOST + 2];
    for (size_t i = 0; i < MOST; i++)
        from[i] = (uint8_t)(i * 7 + 1);
    for (size_t n = 0; n <= MOST; n++) {
        memset(to, 0xee, sizeof(to));
        hybridps_grad_put(to + 1, from, n);
        assert_memory_equal(to + 1, from, n);
        assert_int_equal(to[0], 0xee);
        assert_int_equal(to[n + 1], 0xee);
    }
}
