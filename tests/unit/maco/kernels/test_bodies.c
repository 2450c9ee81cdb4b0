/* Each body compared with the textbook in double precision, from the rounded inputs, within the
 * type's accuracy; and chunks with the whole, bit for bit. */
#include "support/test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "maco/graph/types.h"
#include "maco/kernels/blas.h"
#include "maco/kernels/bodies.h"
#include "unit/maco/kernels/body_arrays.h"

/* ---- MATMUL, LINEAR ---- */

struct product {
    int m, n, k, ta, tb, bias, fixed, gap;
    float alpha, beta;
};

static void check_product(const struct product *p, int dtype)
{
    size_t lda = (size_t)(p->ta ? p->m : p->k) + (size_t)p->gap;
    size_t ldb = (size_t)(p->tb ? p->k : p->n) + (size_t)p->gap;
    size_t ldc = (size_t)(p->n + p->gap), m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    struct array v[] = {made(dtype, (p->ta ? k : m) * lda, 1, 1, 0),
                        made(dtype, (p->tb ? n : k) * ldb, 2, 1, 0.1f), made(dtype, n, 3, 4, 0),
                        fresh(dtype, m * ldc), fresh(dtype, m * ldc)};
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0; c < n; c++)
            put(&v[3], r * ldc + c, p->beta == 0 ? NAN : noise(4, r * n + c)); /* 0: unread */
    memcpy(v[4].data, v[3].data, m * ldc * hl_maco_dtype_size(dtype));
    maco_task t = {
        .type = MACO_TASK_MATMUL,
        .flags = (uint16_t)(dtype | (p->fixed ? MACO_FLAG_DETERMINISTIC : 0)),
        .inputs = {address(&v[0], 0), address(&v[1], 0), p->bias ? address(&v[2], 0) : 0},
        .outputs = {address(&v[3], 0)},
        .dims = {p->m, p->n, p->k, (int)lda, (int)ldb, (int)ldc, p->ta, p->tb},
        .aux = {p->alpha, p->beta}};
    if (!p->ta && p->tb && p->alpha == 1 && p->beta == 0) {
        t.type = MACO_TASK_LINEAR;
        memset(t.aux, 0xff, sizeof(t.aux)); /* it has none */
        t.dims[6] = t.dims[7] = 99;
    }
    run(&t);
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0; c < n; c++) {
            double sum = 0, size = 0;
            for (size_t i = 0; i < k; i++) {
                double x = get(&v[0], p->ta ? i * lda + r : r * lda + i) *
                           get(&v[1], p->tb ? c * ldb + i : i * ldb + c);
                sum += x;
                size += fabs(x);
            }
            double old = p->beta == 0 ? 0 : p->beta * get(&v[4], r * ldc + c);
            double bias = p->bias ? get(&v[2], c) : 0;
            size = fabs(p->alpha) * size + fabs(old) + fabs(bias);
            near(&v[3], r * ldc + c, p->alpha * sum + old + bias, (double)(k + 4) * EPS * size);
        }
    gaps_untouched(&v[3], m, n, ldc);
    let_go(v, 5);
}

TEST(products_are_those_of_double_precision)
{
    static const struct product shapes[] = {
        {1, 1, 1, 0, 0, 0, 0, 0, 1, 0},        {1, 33, 70, 0, 1, 1, 0, 3, 1, 0},
        {7, 5, 3, 0, 0, 1, 0, 2, 0.5f, 0},     {13, 65, 31, 1, 0, 0, 0, 1, 1, 1},
        {65, 13, 129, 0, 1, 0, 0, 0, 2, -1},   {31, 97, 64, 1, 1, 1, 0, 5, -1.5f, 0.25f},
        {97, 33, 300, 0, 0, 1, 0, 0, 1, 0},    {12, 32, 256, 0, 1, 1, 0, 0, 1, 0},
        {50, 800, 20, 0, 0, 0, 0, 7, 1, 0.5f}, {800, 17, 257, 1, 0, 1, 0, 0, 1, 0},
        {5, 6, 0, 0, 0, 1, 0, 0, 1, 0.5f},     {0, 6, 4, 0, 0, 0, 0, 0, 1, 0},
        {1, 790, 300, 0, 1, 0, 0, 0, 1, 0},    {4, 16, 8200, 0, 1, 1, 0, 1, -1, 1},
        {2, 790, 302, 1, 0, 1, 0, 2, 1, 0},    {8, 33, 8200, 1, 0, 0, 0, 0, 1, 0.5f},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(shapes); i++)
        for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++)
            for (int fixed = 0; fixed <= 1; fixed++) {
                struct product p = shapes[i];
                p.fixed = fixed;
                check_product(&p, dtype);
            }
}

static maco_task linear(const struct array *v, int dtype, size_t row, int rows, size_t col,
                        int cols, int k, int n)
{
    return (maco_task){.type = MACO_TASK_LINEAR,
                       .flags = (uint16_t)(dtype | MACO_FLAG_DETERMINISTIC),
                       .inputs = {address(&v[0], row * (size_t)k), address(&v[1], col * (size_t)k),
                                  address(&v[2], col)},
                       .outputs = {address(&v[3], row * (size_t)n + col)},
                       .dims = {rows, cols, k, k, k, n}};
}

TEST(deterministic_products_have_the_bits_of_the_whole_in_any_chunks)
{

    enum { M = 157, N = 203, K = 777 };

    static const int steps[][2] = {{1, N},   {3, 17},  {13, 100}, {M, 1}, {100, 31},
                                   {32, 64}, {4, 203}, {7, 48},   {8, N}, {9, N}};
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
        struct array v[] = {made(dtype, M * K, 1, 3, 0), made(dtype, N * K, 2, 1, 0),
                            made(dtype, N, 3, 1, 0), fresh(dtype, M * N), fresh(dtype, M * N)};
        maco_task t = linear(v, dtype, 0, M, 0, N, K, N);
        t.outputs[0] = address(&v[4], 0);
        run(&t);
        for (size_t s = 0; s < HL_ARRAY_LEN(steps); s++) {
            memset(v[3].data, 0, M * N * hl_maco_dtype_size(dtype));
            for (int r = 0; r < M; r += steps[s][0])
                for (int c = 0; c < N; c += steps[s][1]) {
                    int rows = M - r < steps[s][0] ? M - r : steps[s][0];
                    int cols = N - c < steps[s][1] ? N - c : steps[s][1];
                    t = linear(v, dtype, (size_t)r, rows, (size_t)c, cols, K, N);
                    run(&t);
                }
            same_bits(&v[3], &v[4]);
        }
        let_go(v, 5);
    }
}

/* Uniform in [0, n), the same in each run. */
static int any(uint32_t *seed, int n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (int)((*seed >> 8) % (uint32_t)n);
}

TEST(products_of_any_shape_are_right)
{
    uint32_t seed = 1;
    for (int i = 0; i < 60; i++) {
        struct product p = {.m = 1 + any(&seed, 60),
                            .n = 1 + any(&seed, 90),
                            .k = 1 + any(&seed, i % 4 ? 80 : 600),
                            .ta = any(&seed, 2),
                            .tb = any(&seed, 2),
                            .bias = any(&seed, 2),
                            .fixed = any(&seed, 2),
                            .gap = any(&seed, 4),
                            .alpha = any(&seed, 2) ? 1 : 0.5f,
                            .beta = any(&seed, 2) ? 0 : -0.5f};
        check_product(&p, any(&seed, 3));
    }
}

/* ---- ATTENTION ---- */

struct attention {
    int b, hq, hkv, sq, sk, d, causal, mask;
};

static double score(const struct attention *s, const struct array *v, size_t head, size_t kv,
                    size_t i, size_t j, double scale)
{
    size_t d = (size_t)s->d, sk = (size_t)s->sk;
    double sum = 0;
    for (size_t x = 0; x < d; x++)
        sum += get(&v[0], (head * (size_t)s->sq + i) * d + x) * get(&v[1], (kv * sk + j) * d + x);
    if (s->causal && (int)j > (int)i + s->sk - s->sq)
        return -INFINITY;
    return sum * scale + (s->mask ? get(&v[3], i * sk + j) : 0);
}

/* One row of one head. */
static void check_row(const struct attention *s, const struct array *v, size_t head, size_t i,
                      double scale)
{
    size_t b = head / (size_t)s->hq, d = (size_t)s->d, sk = (size_t)s->sk;
    size_t kv = b * (size_t)s->hkv + head % (size_t)s->hq / (size_t)(s->hq / s->hkv);
    size_t row = head * (size_t)s->sq + i;
    double *p = malloc((sk + 1) * sizeof(double)), most = -INFINITY, sum = 0;
    for (size_t j = 0; j < sk; j++) {
        p[j] = score(s, v, head, kv, i, j, scale);
        most = fmax(most, p[j]);
    }
    for (size_t j = 0; j < sk; j++)
        sum += p[j] = most == -INFINITY ? 0 : exp(p[j] - most);
    double allowed = (fabs(most) + d + 32) * EPS * 4; /* for an exponential of scores that large */
    if (most == -INFINITY)
        allowed = 0;
    for (size_t x = 0; x < d; x++) {
        double out = 0, size = 0;
        for (size_t j = 0; j < sk && sum > 0; j++) {
            out += p[j] / sum * get(&v[2], (kv * sk + j) * d + x);
            size += p[j] / sum * fabs(get(&v[2], (kv * sk + j) * d + x));
        }
        near(&v[4], row * d + x, out, allowed * size);
    }
    near(&v[5], row, sum > 0 ? most + log(sum) : -INFINITY, allowed);
    free(p);
}

static void make_attention(const struct attention *s, int dtype, float by, struct array *v)
{
    size_t q = (size_t)(s->b * s->hq * s->sq), k = (size_t)(s->b * s->hkv * s->sk),
           d = (size_t)s->d;
    v[0] = made(dtype, q * d, 1, by, 0);
    v[1] = made(dtype, k * d, 2, 1, 0);
    v[2] = made(dtype, k * d, 3, 1, 0.2f);
    v[3] = made(dtype, (size_t)(s->sq * s->sk), 4, 2, 0);
    v[4] = fresh(dtype, q * d);
    v[5] = fresh(MACO_F32, q);
    for (size_t i = 0; s->mask && i < (size_t)s->sk; i++) {
        put(&v[3], i, -INFINITY); /* the first query sees nothing, */
        if (s->sq > 1 && i < (size_t)s->sk / 2 + 1)
            put(&v[3], (size_t)s->sk + i, -INFINITY); /* the second only the last half */
    }
}

static maco_task attention(const struct attention *s, const struct array *v, int dtype, float scale)
{
    return (maco_task){.type = MACO_TASK_ATTENTION,
                       .flags = (uint16_t)dtype,
                       .inputs = {address(&v[0], 0), address(&v[1], 0), address(&v[2], 0),
                                  s->mask ? address(&v[3], 0) : 0},
                       .outputs = {address(&v[4], 0), address(&v[5], 0)},
                       .dims = {s->b, s->hq, s->hkv, s->sq, s->sk, s->d, s->causal},
                       .aux = {scale}};
}

static void check_attention(const struct attention *s, int dtype, float by)
{
    struct array v[6];
    float scale = 1.0f / sqrtf((float)s->d);
    make_attention(s, dtype, by, v);
    maco_task t = attention(s, v, dtype, scale);
    run(&t);
    for (size_t h = 0; h < (size_t)(s->b * s->hq); h++)
        for (size_t i = 0; i < (size_t)s->sq; i++)
            check_row(s, v, h, i, scale);
    let_go(v, 6);
}

TEST(attention_of_any_shape_is_right)
{
    uint32_t seed = 1;
    for (int i = 0; i < 30; i++) {
        int heads = 1 + any(&seed, 3);
        struct attention s = {.b = 1 + any(&seed, 2),
                              .hq = heads * (1 + any(&seed, 4)),
                              .hkv = heads,
                              .sq = 1 + any(&seed, 12),
                              .sk = 1 + any(&seed, i % 4 ? 40 : 290),
                              .d = 1 + any(&seed, 40),
                              .causal = any(&seed, 2),
                              .mask = any(&seed, 2)};
        check_attention(&s, any(&seed, 3), (float)(1 + any(&seed, 20)));
    }
}

TEST(attention_is_that_of_double_precision)
{
    static const struct attention shapes[] = {
        {1, 1, 1, 1, 1, 1, 0, 0},    {2, 4, 2, 5, 7, 16, 0, 0},    {1, 6, 2, 33, 33, 8, 1, 0},
        {1, 2, 2, 9, 300, 33, 1, 1}, {1, 8, 1, 1, 257, 64, 1, 0},  {2, 3, 3, 130, 129, 20, 1, 1},
        {1, 2, 1, 40, 20, 5, 1, 0},  {1, 1, 1, 3, 128, 128, 0, 1}, {1, 2, 2, 4, 0, 8, 0, 0},
    };
    for (size_t k = 0; k < HL_ARRAY_LEN(shapes); k++)
        for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++)
            for (float by = 1; by < 60; by *= 50) /* scores of some, and of hundreds */
                check_attention(&shapes[k], dtype, by);
}

/* The last rows of a causal attention equal one with fewer queries, the first ones one with fewer
 * keys. */
TEST(attention_has_the_bits_of_the_whole_in_chunks_of_queries)
{

    enum { SQ = 301, SK = 340, D = 40 };
    struct attention s = {1, 1, 1, SQ, SK, D, 1, 0};
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
        struct array v[6], whole = fresh(dtype, SQ * D);
        make_attention(&s, dtype, 3, v);
        maco_task t = attention(&s, v, dtype, 0.2f);
        t.outputs[0] = address(&whole, 0);
        run(&t);
        for (int first = 0, step = 1; first < SQ; first += step, step += 7) {
            int n = SQ - first < step ? SQ - first : step;
            t = attention(&s, v, dtype, 0.2f);
            t.inputs[0] = address(&v[0], (size_t)first * D);
            t.outputs[0] = address(&v[4], (size_t)first * D);
            t.dims[3] = n;
            t.dims[4] = SK - (SQ - first - n);
            run(&t);
        }
        same_bits(&v[4], &whole);
        free(whole.data);
        let_go(v, 6);
    }
}

/* ---- rows ---- */

struct rows_case {
    int type, rows, cols, gap, gamma, beta;
    float by, plus;
};

static void norm_row(const struct rows_case *c, const struct array *v, size_t r, double eps)
{
    size_t cols = (size_t)c->cols, ld = cols + (size_t)c->gap, out = ld + 1;
    double mean = 0, squares = 0, largest = 0;
    for (size_t i = 0; i < cols; i++) {
        mean += get(&v[0], r * ld + i) / (double)cols;
        largest = fmax(largest, fabs(get(&v[0], r * ld + i)));
    }
    mean = c->type == MACO_TASK_LAYERNORM ? mean : 0;
    for (size_t i = 0; i < cols; i++)
        squares += pow(get(&v[0], r * ld + i) - mean, 2) / (double)cols;
    double scale = 1 / sqrt(squares + eps);
    for (size_t i = 0; i < cols; i++) {
        double x = (get(&v[0], r * ld + i) - mean) * scale;
        double gamma = c->gamma ? get(&v[1], i) : 1, beta = c->beta ? get(&v[2], i) : 0;
        double allowed = 8 * EPS * (largest * scale + fabs(x) + (double)cols / 64) * fabs(gamma);
        near(&v[3], r * out + i, x * gamma + beta, allowed + 2 * EPS * fabs(beta));
    }
}

static void softmax_row(const struct rows_case *c, const struct array *v, size_t r)
{
    size_t cols = (size_t)c->cols, ld = cols + (size_t)c->gap, out = ld + 1;
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < cols; i++)
        most = fmax(most, get(&v[0], r * ld + i));
    for (size_t i = 0; i < cols; i++)
        sum += exp(get(&v[0], r * ld + i) - most);
    for (size_t i = 0; i < cols; i++) {
        double x = get(&v[0], r * ld + i) - most, p = exp(x) / sum;
        near(&v[3], r * out + i, p, (fabs(x) + (double)cols / 16 + 8) * EPS * p + FLT_MIN);
    }
}

static maco_task rows_task(const struct rows_case *c, const struct array *v, size_t row, int rows)
{
    size_t ld = (size_t)(c->cols + c->gap);
    return (maco_task){.type = (uint16_t)c->type,
                       .flags = (uint16_t)v[0].dtype,
                       .inputs = {address(&v[0], row * ld), c->gamma ? address(&v[1], 0) : 0,
                                  c->beta ? address(&v[2], 0) : 0},
                       .outputs = {address(&v[3], row * (ld + 1))},
                       .dims = {rows, c->cols, (int)ld, (int)ld + 1},
                       .aux = {1e-5f}};
}

static void make_rows(const struct rows_case *c, int dtype, struct array *v)
{
    size_t ld = (size_t)(c->cols + c->gap);
    v[0] = made(dtype, (size_t)c->rows * ld, 1, c->by, c->plus);
    v[1] = made(dtype, (size_t)c->cols, 2, 1, 1);
    v[2] = made(dtype, (size_t)c->cols, 3, 1, 0);
    v[3] = fresh(dtype, (size_t)c->rows * (ld + 1));
}

TEST(norms_and_softmax_are_those_of_double_precision)
{
    static const struct rows_case cases[] = {
        {MACO_TASK_LAYERNORM, 1, 1, 0, 1, 1, 1, 0},
        {MACO_TASK_LAYERNORM, 3, 17, 2, 1, 1, 1, 0},
        {MACO_TASK_LAYERNORM, 5, 1000, 0, 1, 0, 3, 1},
        {MACO_TASK_LAYERNORM, 2, 4099, 1, 0, 0, 1, 1000}, /* a mean far above the deviations */
        {MACO_TASK_LAYERNORM, 2, 64, 0, 0, 1, 0, 5},      /* none at all */
        {MACO_TASK_RMSNORM, 1, 1, 0, 0, 0, 1, 0},
        {MACO_TASK_RMSNORM, 4, 130, 3, 1, 0, 2, 0},
        {MACO_TASK_RMSNORM, 2, 4097, 0, 1, 0, 100, 0},
        {MACO_TASK_SOFTMAX, 1, 1, 0, 0, 0, 1, 0},
        {MACO_TASK_SOFTMAX, 4, 33, 1, 0, 0, 5, 0},
        {MACO_TASK_SOFTMAX, 3, 1024, 0, 0, 0, 80, 20000},
        {MACO_TASK_SOFTMAX, 2, 3000, 7, 0, 0, 0.01f, 0},
    };
    for (size_t k = 0; k < HL_ARRAY_LEN(cases); k++)
        for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
            const struct rows_case *c = &cases[k];
            struct array v[4];
            make_rows(c, dtype, v);
            maco_task t = rows_task(c, v, 0, c->rows);
            run(&t);
            for (size_t r = 0; r < (size_t)c->rows; r++)
                if (c->type == MACO_TASK_SOFTMAX)
                    softmax_row(c, v, r);
                else
                    norm_row(c, v, r, 1e-5f);
            gaps_untouched(&v[3], (size_t)c->rows, (size_t)c->cols, (size_t)(c->cols + c->gap) + 1);
            let_go(v, 4);
        }
}

TEST(rows_have_the_bits_of_the_whole_in_any_chunks)
{
    static const int types[] = {MACO_TASK_LAYERNORM, MACO_TASK_RMSNORM, MACO_TASK_SOFTMAX};
    for (size_t k = 0; k < HL_ARRAY_LEN(types); k++) {
        struct rows_case c = {types[k], 23, 391, 5, 1, types[k] == MACO_TASK_LAYERNORM, 4, 1};
        struct array v[4], parts[4];
        make_rows(&c, MACO_BF16, v);
        make_rows(&c, MACO_BF16, parts);
        maco_task t = rows_task(&c, v, 0, c.rows);
        run(&t);
        for (int r = 0; r < c.rows; r += 3) {
            t = rows_task(&c, parts, (size_t)r, c.rows - r < 3 ? c.rows - r : 3);
            run(&t);
        }
        same_bits(&v[3], &parts[3]);
        let_go(v, 4);
        let_go(parts, 4);
    }
}

TEST(softmax_of_infinities_is_what_arithmetic_says)
{
    float x[3][5] = {{-INFINITY, 1, -INFINITY, 1, -INFINITY},
                     {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
                     {3e38f, -3e38f, 0, NAN, 1}};
    float y[3][5];
    maco_task t = {.type = MACO_TASK_SOFTMAX,
                   .inputs = {(uintptr_t)x},
                   .outputs = {(uintptr_t)y},
                   .dims = {3, 5, 5, 5}};
    run(&t);
    assert_true(y[0][0] == 0 && y[0][1] == 0.5f && y[0][2] == 0 && y[0][3] == 0.5f);
    for (int i = 0; i < 5; i++)
        assert_true(isnan(y[1][i]) && isnan(y[2][i]));
    t.outputs[0] = t.inputs[0];
    run(&t); /* in place */
    assert_memory_equal(x[0], y[0], sizeof(x[0]));
}

/* ---- element by element ---- */

static double unary(int type, int tanh_form, double x)
{
    if (type == MACO_TASK_SILU)
        return x / (1 + exp(-x));
    if (!tanh_form)
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(activations_are_those_of_double_precision)
{

    enum { ROWS = 3, COLS = 2500, LDX = COLS + 3, LDY = COLS + 1 };

    static const struct {
        int type, form;
    } kinds[] = {{MACO_TASK_GELU, 0}, {MACO_TASK_GELU, 1}, {MACO_TASK_SILU, 0}};

    for (size_t k = 0; k < HL_ARRAY_LEN(kinds); k++)
        for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++)
            for (float by = 0.001f; by < 200; by *= 10) {
                struct array v[] = {made(dtype, ROWS * LDX, 1, by, 0), fresh(dtype, ROWS * LDY)};
                maco_task t = {.type = (uint16_t)kinds[k].type,
                               .flags = (uint16_t)dtype,
                               .inputs = {address(&v[0], 0)},
                               .outputs = {address(&v[1], 0)},
                               .dims = {ROWS, COLS, LDX, LDY, kinds[k].form}};
                run(&t);
                for (size_t i = 0; i < ROWS * COLS; i++) {
                    double x = get(&v[0], i / COLS * LDX + i % COLS);
                    near(&v[1], i / COLS * LDY + i % COLS, unary(kinds[k].type, kinds[k].form, x),
                         6 * EPS * fabs(x) + FLT_MIN);
                }
                gaps_untouched(&v[1], ROWS, COLS, LDY);
                let_go(v, 2);
            }
}

TEST(activations_end_well)
{
    static const float ends[] = {INFINITY, 3e38f, 1e5f, 0, -0.0f, -1e5f, -3e38f};
    float y[7];
    for (int form = 0; form <= 2; form++) {
        maco_task t = {.type = form < 2 ? MACO_TASK_GELU : MACO_TASK_SILU,
                       .inputs = {(uintptr_t)ends},
                       .outputs = {(uintptr_t)y},
                       .dims = {1, 7, 7, 7, form}};
        run(&t);
        for (int i = 0; i < 7; i++)
            assert_true(y[i] == (ends[i] > 0 ? ends[i] : 0));
    }
}

static double combined(int op, double a, double b)
{
    switch (op) {
    case MACO_ADD:
        return a + b;
    case MACO_MUL:
        return a * b;
    case MACO_AXPB:
        return a * 1.5f + 0.1f;
    case MACO_RELU:
        return a > 0 ? a : 0;
    case MACO_CAST:
        return a;
    case MACO_SUB:
        return a - b;
    default:
        return a * 1.5f + b;
    }
}

/* One rounding to float32 and one to the type: the bits are determined. */
TEST(elements_are_combined_with_one_rounding)
{

    enum { ROWS = 2, COLS = 1100, LDA = COLS + 1, LDB = COLS + 2, LDY = COLS + 3 };

    for (int in = MACO_F32; in <= MACO_BF16; in++)
        for (int out = MACO_F32; out <= MACO_BF16; out++)
            for (int op = MACO_ADD; op <= MACO_SCALE_ADD; op++) {
                struct array v[] = {made(in, ROWS * LDA, 1, 10, 0), made(in, ROWS * LDB, 2, 1, 0),
                                    fresh(out, ROWS * LDY), fresh(out, 1)};
                int two =
                    op == MACO_ADD || op == MACO_MUL || op == MACO_SUB || op == MACO_SCALE_ADD;
                maco_task t = {.type = MACO_TASK_ELEMENTWISE,
                               .flags = (uint16_t)in,
                               .inputs = {address(&v[0], 0), two ? address(&v[1], 0) : 0},
                               .outputs = {address(&v[2], 0)},
                               .dims = {ROWS, COLS, LDA, two ? LDB : 0, LDY, op, out},
                               .aux = {1.5f, 0.1f}};
                run(&t);
                for (size_t i = 0; i < ROWS * COLS; i++) {
                    size_t r = i / COLS, c = i % COLS;
                    /* for floats the double is exact, or rounds as one fma does except for ties */
                    put(&v[3], 0,
                        (float)combined(op, get(&v[0], r * LDA + c),
                                        two ? get(&v[1], r * LDB + c) : 0));
                    assert_true(get(&v[2], r * LDY + c) == get(&v[3], 0));
                }
                gaps_untouched(&v[2], ROWS, COLS, LDY);
                let_go(v, 4);
            }
}

/* ---- bytes ---- */

TEST(copies_and_fills_take_rows)
{
    uint8_t x[7 * 11], y[7 * 13 + 1];
    for (size_t i = 0; i < sizeof(x); i++)
        x[i] = (uint8_t)i;
    memset(y, 200, sizeof(y));
    maco_task t = {.type = MACO_TASK_MEMCPY,
                   .flags = MACO_I64, /* bytes can be of any type */
                   .inputs = {(uintptr_t)x},
                   .outputs = {(uintptr_t)y},
                   .dims = {7, 9, 11, 13}};
    run(&t);
    for (size_t i = 0; i < sizeof(y); i++)
        assert_int_equal(y[i], i < 91 && i % 13 < 9 ? i / 13 * 11 + i % 13 : 200);
    t = (maco_task){.type = MACO_TASK_MEMSET, .outputs = {(uintptr_t)y}, .dims = {7, 12, 0, 13, 5}};
    run(&t);
    for (size_t i = 0; i < sizeof(y); i++)
        assert_int_equal(y[i], i < 91 && i % 13 < 12 ? 5 : 200);
    t = (maco_task){.type = MACO_TASK_MEMCPY,
                    .inputs = {(uintptr_t)x},
                    .outputs = {(uintptr_t)y},
                    .dims = {7, 11, 11, 11}};
    run(&t);
    assert_memory_equal(x, y, sizeof(x));
}

/* ---- the rest ---- */

TEST(what_has_no_body_is_refused)
{
    maco_task t = {.type = MACO_TASK_NOP};
    run(&t);
    t = (maco_task){.type = MACO_TASK_ALLREDUCE};
    assert_int_equal(hl_maco_body(&t, &scratch), HL_EINVAL);
    t = (maco_task){.type = MACO_TASK_GELU, .flags = MACO_F64};
    assert_int_equal(hl_maco_body(&t, &scratch), HL_EUNSUPPORTED);
    t = (maco_task){.type = MACO_TASK_ELEMENTWISE, .dims = {0, 0, 0, 0, 0, 9}};
    assert_int_equal(hl_maco_body(&t, &scratch), HL_EINVAL);
    t = (maco_task){.type = MACO_TASK_ELEMENTWISE, .dims = {0, 0, 0, 0, 0, 4, MACO_I32}};
    assert_int_equal(hl_maco_body(&t, &scratch), HL_EUNSUPPORTED);
}

TEST(blas_has_its_threads_back_after_the_last_run)
{
    const struct hl_blas *blas = hl_blas();
    if (blas == NULL || blas->set_threads == NULL)
        TEST_SKIP("no BLAS whose threads can be set");
    blas->set_threads(2);
    int before = blas->get_threads(); /* a machine may have one */
    hl_maco_bodies_begin();
    hl_maco_bodies_begin();
    assert_int_equal(blas->get_threads(), 1);
    hl_maco_bodies_end();
    assert_int_equal(blas->get_threads(), 1);
    hl_maco_bodies_end();
    assert_int_equal(blas->get_threads(), before);
}

static int forget(void **state)
{
    (void)state;
    hl_maco_scratch_free(&scratch);
    return scratch.data != NULL;
}

TESTS_IN(NULL, forget)
