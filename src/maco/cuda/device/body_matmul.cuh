/* maco/cuda/device/body_matmul.cuh - MATMUL and LINEAR: a CTA computes its product in tiles of 128
 * by 128.
 *
 * float32 uses the ordinary units (8 by 8 elements per thread). float16 and bfloat16 use the tensor
 * cores if there are any (8.0), with float32 sums. The sum of an element runs over k in the same
 * order whatever the tile, so rows can be cut without changing bits. Operands can be transposed:
 * "along k" means that the elements of one row of op(A) (column of op(B)) are adjacent.
 */
#ifndef HL_MACO_CUDA_DEVICE_BODY_MATMUL_CUH
#define HL_MACO_CUDA_DEVICE_BODY_MATMUL_CUH

#include "helios/maco.h"
#include "maco/cuda/device/element.cuh"

namespace gpu
{

#define HL_TILE 128u

struct hl_operand {
    const void *at;
    uint64_t ld;
    uint32_t rows; /* rows of op(A), or columns of op(B) */
    uint32_t k;
    int along_k;
};

struct hl_product {
    hl_operand a, b;
    const void *bias;
    void *c;
    uint64_t ldc;
    uint32_t m, n, k;
    float alpha, beta;
};

template <typename T> HL_DEV const T *element_of(const hl_operand *o, uint32_t row, uint32_t k)
{
    return (const T *)o->at + (o->along_k ? row * o->ld + k : k * o->ld + row);
}

template <int n> struct hl_few {
    float v[n];
};

/* Makes neighbouring elements of C from their sums. Not inlined, because it takes little of the
 * time. */
template <typename T, int n>
HL_BODY void finish(const hl_product *p, uint32_t row, uint32_t col, hl_few<n> sum)
{
    T *c = (T *)p->c + row * p->ldc + col;
    if (row >= p->m)
        return;
    for (int i = 0; i < n; i++) {
        if (col + i >= p->n)
            break;
        float v = p->alpha * sum.v[i];
        if (p->beta != 0.0f)
            v += p->beta * to_float(c[i]);
        if (p->bias != nullptr)
            v += to_float(((const T *)p->bias)[col + i]);
        sum.v[i] = v;
    }
    if (n == 4 && col + 4 <= p->n && aligned4(c)) {
        store4(c, sum.v);
        return;
    }
    for (int i = 0; i < n; i++)
        if (col + i < p->n)
            from_float(sum.v[i], &c[i]);
}

/* ---- the ordinary units ---- */

#define HL_PLAIN_K   8u
#define HL_PLAIN_ROW (HL_TILE + 4)

struct hl_plain_tiles {
    alignas(16) float a[2][HL_PLAIN_K][HL_PLAIN_ROW];
    alignas(16) float b[2][HL_PLAIN_K][HL_PLAIN_ROW];
};

/* Which four elements of a tile this thread loads; along k, two threads per row. */
HL_DEV void plain_place(const hl_operand *o, uint32_t *row, uint32_t *k)
{
    uint32_t t = thread_id();
    *row = o->along_k ? t / 2 : t % 32 * 4;
    *k = o->along_k ? t % 2 * 4 : t / 32;
}

template <typename T>
HL_DEV void plain_load(const hl_operand *o, uint32_t row0, uint32_t k0, float *out)
{
    uint32_t row, k;
    plain_place(o, &row, &k);
    row += row0;
    k += k0;
    int inside = o->along_k ? row < o->rows && k + 4 <= o->k : row + 4 <= o->rows && k < o->k;
    const T *p = element_of<T>(o, row, k);
    if (inside && aligned4(p)) {
        load4(p, out);
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t r = row + (o->along_k ? 0 : i), j = k + (o->along_k ? i : 0);
        out[i] = r < o->rows && j < o->k ? to_float(*element_of<T>(o, r, j)) : 0.0f;
    }
}

HL_DEV void plain_store(const hl_operand *o, float (*tile)[HL_PLAIN_ROW], const float *in)
{
    uint32_t row, k;
    plain_place(o, &row, &k);
    if (o->along_k)
        for (uint32_t i = 0; i < 4; i++)
            tile[k + i][row] = in[i];
    else
        store4(&tile[k][row], in);
}

/* A thread's rows are ty*4.. and 64 + ty*4.., its columns likewise by tx. */
HL_DEV void plain_multiply(const float (*a)[HL_PLAIN_ROW], const float (*b)[HL_PLAIN_ROW],
                           float sum[8][8])
{
    uint32_t ty = thread_id() / 16 * 4, tx = thread_id() % 16 * 4;
    HL_UNROLL
    for (uint32_t k = 0; k < HL_PLAIN_K; k++) {
        float x[8], y[8];
        load4(&a[k][ty], x);
        load4(&a[k][ty + 64], x + 4);
        load4(&b[k][tx], y);
        load4(&b[k][tx + 64], y + 4);
        HL_UNROLL
        for (int i = 0; i < 8; i++)
            HL_UNROLL
        for (int j = 0; j < 8; j++)
            sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
}

template <typename T>
HL_DEV void plain_tile(const hl_product *p, uint32_t m0, uint32_t n0, hl_plain_tiles &tiles)
{
    float sum[8][8] = {}, a[4], b[4];
    uint32_t buffer = 0;
    plain_load<T>(&p->a, m0, 0, a);
    plain_load<T>(&p->b, n0, 0, b);
    block_sync(); /* the previous tile has been read */
    plain_store(&p->a, tiles.a[0], a);
    plain_store(&p->b, tiles.b[0], b);
    block_sync();
    for (uint32_t k = 0; k < p->k; k += HL_PLAIN_K) {
        int more = k + HL_PLAIN_K < p->k;
        if (more) {
            plain_load<T>(&p->a, m0, k + HL_PLAIN_K, a);
            plain_load<T>(&p->b, n0, k + HL_PLAIN_K, b);
        }
        plain_multiply(tiles.a[buffer], tiles.b[buffer], sum);
        buffer ^= 1;
        if (more) {
            /* all threads have read it before the last barrier */
            plain_store(&p->a, tiles.a[buffer], a);
            plain_store(&p->b, tiles.b[buffer], b);
        }
        block_sync();
    }
    uint32_t ty = thread_id() / 16 * 4, tx = thread_id() % 16 * 4;
    HL_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        HL_UNROLL
        for (uint32_t j = 0; j < 8; j += 4) {
            hl_few<4> few = {{sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]}};
            finish<T, 4>(p, m0 + ty + i % 4 + i / 4 * 64, n0 + tx + j / 4 * 64, few);
        }
    }
}

template <typename T> HL_BODY void plain_product(const hl_product *p, hl_plain_tiles &tiles)
{
    for (uint32_t m0 = 0; m0 < p->m; m0 += HL_TILE)
        for (uint32_t n0 = 0; n0 < p->n; n0 += HL_TILE)
            plain_tile<T>(p, m0, n0, tiles);
}

/* ---- the tensor cores ---- */

#define HL_CORE_K      32u
#define HL_CORE_PAD    8u                        /* puts eight rows into different banks */
#define HL_CORE_ROW    (HL_CORE_K + HL_CORE_PAD) /* along k: [128][40] */
#define HL_CORE_ACROSS (HL_TILE + HL_CORE_PAD)   /* otherwise: [32][136] */
#define HL_CORE_TILE   (HL_TILE * HL_CORE_ROW)

struct hl_core_tiles {
    alignas(16) uint16_t a[2][HL_CORE_TILE];
    alignas(16) uint16_t b[2][HL_CORE_TILE];
};

HL_DEV uint16_t *core_at(const hl_operand *o, uint16_t *tile, uint32_t row, uint32_t k)
{
    return tile + (o->along_k ? row * HL_CORE_ROW + k : k * HL_CORE_ACROSS + row);
}

/* Copies eight elements whose addresses don't allow a copy of 16 bytes. */
HL_DEV void core_gather(const hl_operand *o, uint32_t row, uint32_t k, uint16_t *to)
{
    hl_quad q;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t pair[2];
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t e = 2 * i + h;
            uint32_t r = row + (o->along_k ? 0 : e), j = k + (o->along_k ? e : 0);
            pair[h] = r < o->rows && j < o->k ? *element_of<uint16_t>(o, r, j) : 0u;
        }
        q.word[i] = pair[0] | pair[1] << 16;
    }
    *(hl_quad *)to = q;
}

/* Loads the tile of op(A) at row0, k0: 512 pieces of eight elements. */
HL_DEV void core_load(const hl_operand *o, uint32_t row0, uint32_t k0, uint16_t *tile)
{
    int whole = (uint64_t)o->at % 16 == 0 && o->ld % 8 == 0;
    for (uint32_t piece = thread_id(); piece < HL_TILE * HL_CORE_K / 8; piece += thread_count()) {
        uint32_t row = o->along_k ? piece / 4 : piece % 16 * 8;
        uint32_t k = o->along_k ? piece % 4 * 8 : piece / 16;
        uint16_t *to = core_at(o, tile, row, k);
        row += row0;
        k += k0;
        if (!whole) {
            core_gather(o, row, k, to);
            continue;
        }
        uint32_t run = o->along_k ? k : row, end = o->along_k ? o->k : o->rows;
        uint32_t n = run >= end ? 0 : end - run < 8 ? end - run : 8;
        if (o->along_k ? row >= o->rows : k >= o->k)
            n = 0;
        copy_async(to, n > 0 ? (const void *)element_of<uint16_t>(o, row, k) : o->at, 2 * n);
    }
}

/* Reads 16 rows by 16 k of op(A) from row, k, in the form that the tensor cores need. */
HL_DEV void core_read_a(const hl_operand *o, uint16_t *tile, uint32_t row, uint32_t k, uint32_t *a)
{
    uint32_t lane = thread_id() % 32;
    if (o->along_k)
        load_matrices(a, core_at(o, tile, row + lane % 16, k + lane / 16 * 8));
    else
        load_matrices_transposed(
            a, core_at(o, tile, row + lane / 8 % 2 * 8, k + lane % 8 + lane / 16 * 8));
}

/* Reads 16 columns by 16 k of op(B): two operands of eight columns. */
HL_DEV void core_read_b(const hl_operand *o, uint16_t *tile, uint32_t col, uint32_t k, uint32_t *b)
{
    uint32_t lane = thread_id() % 32;
    if (o->along_k)
        load_matrices(b, core_at(o, tile, col + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
    else
        load_matrices_transposed(
            b, core_at(o, tile, col + lane / 16 * 8, k + lane % 8 + lane / 8 % 2 * 8));
}

/* Computes a warp's part: 64 rows by 32 columns. */
template <typename T>
HL_DEV void core_multiply(const hl_product *p, uint16_t *a_tile, uint16_t *b_tile,
                          float sum[4][4][4])
{
    uint32_t warp = thread_id() / 32, row = warp / 4 * 64, col = warp % 4 * 32;
    HL_UNROLL
    for (uint32_t k = 0; k < HL_CORE_K; k += 16) {
        uint32_t a[4][4], b[2][4];
        HL_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            core_read_a(&p->a, a_tile, row + 16 * i, k, a[i]);
        HL_UNROLL
        for (uint32_t j = 0; j < 2; j++)
            core_read_b(&p->b, b_tile, col + 16 * j, k, b[j]);
        HL_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            HL_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            multiply_add(sum[i][j], a[i], &b[j / 2][j % 2 * 2], (T *)nullptr);
    }
}

template <typename T>
HL_DEV void core_tile(const hl_product *p, uint32_t m0, uint32_t n0, hl_core_tiles &tiles)
{
    float sum[4][4][4] = {};
    uint32_t buffer = 0;
    block_sync(); /* the previous tile has been read */
    core_load(&p->a, m0, 0, tiles.a[0]);
    core_load(&p->b, n0, 0, tiles.b[0]);
    copy_commit();
    for (uint32_t k = 0; k < p->k; k += HL_CORE_K) {
        copy_wait<0>();
        block_sync(); /* all threads see this tile, and have read the other one */
        if (k + HL_CORE_K < p->k) {
            core_load(&p->a, m0, k + HL_CORE_K, tiles.a[buffer ^ 1]);
            core_load(&p->b, n0, k + HL_CORE_K, tiles.b[buffer ^ 1]);
            copy_commit();
        }
        core_multiply<T>(p, tiles.a[buffer], tiles.b[buffer], sum);
        buffer ^= 1;
    }
    uint32_t warp = thread_id() / 32, lane = thread_id() % 32;
    uint32_t row = m0 + warp / 4 * 64 + lane / 4, col = n0 + warp % 4 * 32 + lane % 4 * 2;
    HL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        HL_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            hl_few<2> upper = {{sum[i][j][0], sum[i][j][1]}};
            hl_few<2> lower = {{sum[i][j][2], sum[i][j][3]}};
            finish<T, 2>(p, row + 16 * i, col + 8 * j, upper);
            finish<T, 2>(p, row + 16 * i + 8, col + 8 * j, lower);
        }
    }
}

template <typename T> HL_BODY void core_product(const hl_product *p, hl_core_tiles &tiles)
{
    for (uint32_t m0 = 0; m0 < p->m; m0 += HL_TILE)
        for (uint32_t n0 = 0; n0 < p->n; n0 += HL_TILE)
            core_tile<T>(p, m0, n0, tiles);
}

/* ---- tasks ---- */

union hl_matmul_space {
    hl_plain_tiles plain;
    hl_core_tiles core;
};

template <typename T> HL_DEV void half_product(const hl_product *p, hl_matmul_space &space)
{
#if HL_TENSOR_CORES
    core_product<T>(p, space.core);
#else
    plain_product<T>(p, space.plain);
#endif
}

HL_DEV int body_matmul(const maco_task *t, hl_matmul_space &space)
{
    hl_product p = {};
    int linear = t->type == MACO_TASK_LINEAR;
    p.m = (uint32_t)t->dims[0];
    p.n = (uint32_t)t->dims[1];
    p.k = (uint32_t)t->dims[2];
    p.a.at = (const void *)t->inputs[0];
    p.a.ld = (uint32_t)t->dims[3];
    p.a.rows = p.m;
    p.a.along_k = linear || t->dims[6] == 0;
    p.b.at = (const void *)t->inputs[1];
    p.b.ld = (uint32_t)t->dims[4];
    p.b.rows = p.n;
    p.b.along_k = linear || t->dims[7] != 0;
    p.a.k = p.b.k = p.k;
    p.c = (void *)t->outputs[0];
    p.ldc = (uint32_t)t->dims[5];
    p.bias = (const void *)t->inputs[2];
    p.alpha = linear ? 1.0f : t->aux[0];
    p.beta = linear ? 0.0f : t->aux[1];
    switch (t->flags & MACO_FLAG_DTYPE) {
    case MACO_F32:
        plain_product<float>(&p, space.plain);
        return 1;
    case MACO_F16:
        half_product<f16>(&p, space);
        return 1;
    case MACO_BF16:
        half_product<bf16>(&p, space);
        return 1;
    }
    return 0;
}

} // namespace gpu

#endif
