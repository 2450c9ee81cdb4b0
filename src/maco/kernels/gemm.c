/* Blocks of rows, columns and k: a packed block of B stays in the second-level cache, and a panel
 * of it in the first, while the tiles iterate over A's panels. Sums over several blocks of k are
 * kept in the scratch as float32. */
#include "maco/kernels/gemm.h"

#include "maco/kernels/body_private.h"

#define BLOCK_K 256
#define BLOCK_N 768 /* a multiple of the columns of every tile */
#define BLOCK_M 96  /* a multiple of the rows of every tile */
#define HELD_M  768 /* rows whose sums are kept at once */
#define FEW_K   8192

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

/* Selects four of the eight elements of a and b. */
#define INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Packs one panel whose rows are contiguous in memory for each k. */
static void pack_across(const struct hl_matrix *m, size_t r0, size_t rows, size_t k0, size_t n,
                        size_t width, float *to)
{
    const float *f32 = (const float *)m->data + k0 * m->ld + r0;
    for (size_t k = 0; k < n; k++, to += width) {
        if (m->dtype != MACO_F32)
            hl_half_load(m->data, m->dtype, (k0 + k) * m->ld + r0, rows, to);
        else
            memcpy(to, f32 + k * m->ld, rows * sizeof(float));
        for (size_t r = rows; r < width; r++)
            to[r] = 0;
    }
}

/* Interleaves four rows of n elements, in blocks of four by four. */
static void interleave_rows4(const float *const line[4], size_t n, size_t width, float *to)
{
    size_t k = 0;
    for (; k + 4 <= n; k += 4, to += 4 * width) {
        vec4 a = *(const vec4 *)(line[0] + k), b = *(const vec4 *)(line[1] + k);
        vec4 c = *(const vec4 *)(line[2] + k), d = *(const vec4 *)(line[3] + k);
        vec4 ac0 = INTERLEAVE(a, c, 0, 4, 1, 5), ac1 = INTERLEAVE(a, c, 2, 6, 3, 7);
        vec4 bd0 = INTERLEAVE(b, d, 0, 4, 1, 5), bd1 = INTERLEAVE(b, d, 2, 6, 3, 7);
        *(vec4 *)to = INTERLEAVE(ac0, bd0, 0, 4, 1, 5);
        *(vec4 *)(to + width) = INTERLEAVE(ac0, bd0, 2, 6, 3, 7);
        *(vec4 *)(to + 2 * width) = INTERLEAVE(ac1, bd1, 0, 4, 1, 5);
        *(vec4 *)(to + 3 * width) = INTERLEAVE(ac1, bd1, 2, 6, 3, 7);
    }
    for (; k < n; k++, to += width)
        for (size_t r = 0; r < 4; r++)
            to[r] = line[r][k];
}

/* Packs one panel whose k are contiguous in memory for each row: transposes it. */
static void pack_along(const struct hl_matrix *m, size_t r0, size_t rows, size_t k0, size_t n,
                       size_t width, float *to)
{
    static const float zeros[BLOCK_K];
    float as_float[4][BLOCK_K];
    for (size_t r = 0; r < width; r += 4) {
        const float *line[4];
        for (size_t i = 0; i < 4; i++) {
            size_t at = (r0 + r + i) * m->ld + k0;
            line[i] = r + i >= rows ? zeros : (const float *)m->data + at;
            if (m->dtype != MACO_F32 && r + i < rows) {
                hl_half_load(m->data, m->dtype, at, n, as_float[i]);
                line[i] = as_float[i];
            }
        }
        if (r + 4 <= width)
            interleave_rows4(line, n, width, to + r);
        else
            for (size_t k = 0; k < n; k++)
                for (size_t i = 0; r + i < width; i++)
                    to[k * width + r + i] = line[i][k];
    }
}

void hl_pack(const struct hl_matrix *m, size_t r0, size_t rows, size_t k0, size_t n, size_t width,
             float *to)
{
    for (size_t r = 0; r < rows; r += width, to += width * n) {
        size_t here = rows - r < width ? rows - r : width;
        if (m->transposed)
            pack_across(m, r0 + r, here, k0, n, width, to);
        else
            for (size_t k = 0; k < n; k += BLOCK_K)
                pack_along(m, r0 + r, here, k0 + k, n - k < BLOCK_K ? n - k : BLOCK_K, width,
                           to + k * width);
    }
}

void hl_multiply(const struct hl_tile *t, size_t rows, size_t cols, size_t k, const float *a,
                 const float *b, float *c, size_t ldc, int add)
{
    for (size_t j = 0; j < cols; j += t->nr)
        for (size_t i = 0; i < rows; i += t->mr)
            t->run(k, a + i * k, b + j * k, c + i * ldc + j, ldc, add);
}

struct work {
    const struct hl_gemm *g;
    const struct hl_tile *tile;
    float *a, *b, *sums, *bias, *line;
};

static hl_status prepare_gemm(struct work *w, struct hl_maco_scratch *s)
{
    size_t held = w->g->m < HELD_M ? hl_round_up(w->g->m, w->tile->mr) : HELD_M;
    size_t cols = w->g->n < BLOCK_N ? hl_round_up(w->g->n, w->tile->nr) : BLOCK_N;
    void *data;
    HL_TRY(hl_scratch_reserve(
        s, (BLOCK_M * BLOCK_K + cols * BLOCK_K + held * cols + 2 * cols) * sizeof(float), &data));
    w->a = data;
    w->b = w->a + BLOCK_M * BLOCK_K;
    w->sums = w->b + cols * BLOCK_K;
    w->bias = w->sums + held * cols;
    w->line = w->bias + cols;
    return HL_OK;
}

/* Each step is rounded separately, so that vectors and remainders give the same result. */
static void finish_block(const struct work *w, size_t m0, size_t rows, size_t n0, size_t cols,
                         size_t ld)
{
    const struct hl_gemm *g = w->g;
    if (g->bias != NULL)
        hl_half_load(g->bias, g->dtype, n0, cols, w->bias);
    for (size_t r = 0; r < rows; r++) {
        float *restrict x = w->sums + r * ld;
        const float *restrict bias = w->bias, *restrict old = w->line;
        size_t at = (m0 + r) * g->ldc + n0;
        if (g->alpha != 1)
            for (size_t i = 0; i < cols; i++)
                x[i] *= g->alpha;
        if (g->beta != 0) {
            hl_half_load(g->c, g->dtype, at, cols, w->line);
            for (size_t i = 0; i < cols; i++)
                x[i] += g->beta * old[i];
        }
        if (g->bias != NULL)
            for (size_t i = 0; i < cols; i++)
                x[i] += bias[i];
        hl_store(x, cols, g->c, g->dtype, at);
    }
}

static void multiply_block(const struct work *w, size_t m0, size_t rows, size_t n0, size_t cols)
{
    const struct hl_gemm *g = w->g;
    const struct hl_tile *tile = w->tile;
    size_t ld = hl_round_up(cols, tile->nr);
    for (size_t k = 0; k < g->k; k += BLOCK_K) {
        size_t kn = g->k - k < BLOCK_K ? g->k - k : BLOCK_K;
        hl_pack(&g->b, n0, cols, k, kn, tile->nr, w->b);
        for (size_t i = 0; i < rows; i += BLOCK_M) {
            size_t here = rows - i < BLOCK_M ? rows - i : BLOCK_M;
            hl_pack(&g->a, m0 + i, here, k, kn, tile->mr, w->a);
            hl_multiply(tile, here, cols, kn, w->a, w->b, w->sums + i * ld, ld, k > 0);
        }
    }
    if (g->k == 0)
        memset(w->sums, 0, rows * ld * sizeof(float));
    finish_block(w, m0, rows, n0, cols, ld);
}

/* Writes A's rows as float32, one after the other. */
static void lay_out(const struct hl_matrix *m, size_t rows, size_t k0, size_t n, float *to)
{
    float col[HL_FEW];
    if (!m->transposed) {
        for (size_t r = 0; r < rows; r++)
            hl_half_load(m->data, m->dtype, r * m->ld + k0, n, to + r * FEW_K);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        hl_half_load(m->data, m->dtype, (k0 + k) * m->ld, rows, col);
        for (size_t r = 0; r < rows; r++)
            to[r * FEW_K + k] = col[r];
    }
}

static hl_status few_rows(const struct hl_gemm *g, struct hl_maco_scratch *s)
{
    struct work w = {.g = g};
    size_t sums = HL_FEW * BLOCK_N;
    void *data;
    HL_TRY(hl_scratch_reserve(s, (g->m * FEW_K + sums + 2 * BLOCK_N) * sizeof(float), &data));
    w.sums = data;
    w.bias = w.sums + sums;
    w.line = w.bias + BLOCK_N;
    w.a = w.line + BLOCK_N;
    for (size_t n = 0; n < g->n; n += BLOCK_N) {
        size_t cols = g->n - n < BLOCK_N ? g->n - n : BLOCK_N;
        for (size_t k = 0; k < g->k; k += FEW_K) {
            size_t kn = g->k - k < FEW_K ? g->k - k : FEW_K;
            if (n == 0 || g->k > FEW_K)
                lay_out(&g->a, g->m, k, kn, w.a);
            hl_few(
                &(struct hl_few){&g->b, n, cols, k, kn, g->m, FEW_K, BLOCK_N, w.a, w.sums, k > 0});
        }
        if (g->k == 0)
            memset(w.sums, 0, g->m * BLOCK_N * sizeof(float));
        finish_block(&w, 0, g->m, n, cols, BLOCK_N);
    }
    return HL_OK;
}

hl_status hl_gemm(const struct hl_gemm *g, struct hl_maco_scratch *s)
{
    struct work w = {.g = g, .tile = hl_tile()};
    if (g->m <= HL_FEW)
        return few_rows(g, s);
    HL_TRY(prepare_gemm(&w, s));
    for (size_t m = 0; m < g->m; m += HELD_M)
        for (size_t n = 0; n < g->n; n += BLOCK_N)
            multiply_block(&w, m, g->m - m < HELD_M ? g->m - m : HELD_M, n,
                           g->n - n < BLOCK_N ? g->n - n : BLOCK_N);
    return HL_OK;
}
