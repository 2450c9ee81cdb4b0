/* MATMUL and LINEAR: BLAS if the order of summation is free, otherwise our own kernel. */
#include "maco/kernels/blas.h"
#include "maco/kernels/body_private.h"
#include "maco/kernels/gemm.h"

/* BLAS is column-major, so our rows are its columns: C' = B' A'. */
static void by_blas(const struct hl_blas *blas, const struct hl_gemm *g)
{
    int m = (int)g->m, n = (int)g->n, k = (int)g->k;
    int lda = (int)g->a.ld, ldb = (int)g->b.ld, ldc = (int)g->ldc;
    blas->sgemm(g->b.transposed ? "N" : "T", g->a.transposed ? "T" : "N", &n, &m, &k, &g->alpha,
                g->b.data, &ldb, g->a.data, &lda, &g->beta, g->c, &ldc, 1, 1);
    if (g->bias == NULL)
        return;
    const float *bias = g->bias;
    for (size_t r = 0; r < g->m; r++) {
        float *c = (float *)g->c + r * g->ldc;
        for (size_t i = 0; i < g->n; i++)
            c[i] += bias[i];
    }
}

static hl_status run_gemm(const maco_task *t, const struct hl_gemm *g, struct hl_maco_scratch *s)
{
    const struct hl_blas *blas = hl_blas();
    int fixed = (t->flags & MACO_FLAG_DETERMINISTIC) != 0;
    if (g->m == 0 || g->n == 0)
        return HL_OK;
    if (fixed || g->dtype != MACO_F32 || blas == NULL || g->k == 0 || g->m <= HL_FEW)
        return hl_gemm(g, s);
    by_blas(blas, g);
    return HL_OK;
}

hl_status hl_body_matmul(const maco_task *t, struct hl_maco_scratch *s)
{
    int dtype = hl_maco_dtype(t);
    struct hl_gemm g = {
        .a = {hl_at(t->inputs[0], dtype, 0), dtype, (size_t)t->dims[3], t->dims[6] != 0},
        /* B's columns are contiguous unless B is transposed */
        .b = {hl_at(t->inputs[1], dtype, 0), dtype, (size_t)t->dims[4], t->dims[7] == 0},
        .m = (size_t)t->dims[0],
        .n = (size_t)t->dims[1],
        .k = (size_t)t->dims[2],
        .ldc = (size_t)t->dims[5],
        .alpha = t->aux[0],
        .beta = t->aux[1],
        .bias = hl_at(t->inputs[2], dtype, 0),
        .c = hl_at(t->outputs[0], dtype, 0),
        .dtype = dtype};
    return run_gemm(t, &g, s);
}

hl_status hl_body_linear(const maco_task *t, struct hl_maco_scratch *s)
{
    int dtype = hl_maco_dtype(t);
    struct hl_gemm g = {.a = {hl_at(t->inputs[0], dtype, 0), dtype, (size_t)t->dims[3], 0},
                        .b = {hl_at(t->inputs[1], dtype, 0), dtype, (size_t)t->dims[4], 0},
                        .m = (size_t)t->dims[0],
                        .n = (size_t)t->dims[1],
                        .k = (size_t)t->dims[2],
                        .ldc = (size_t)t->dims[5],
                        .alpha = 1,
                        .bias = hl_at(t->inputs[2], dtype, 0),
                        .c = hl_at(t->outputs[0], dtype, 0),
                        .dtype = dtype};
    return run_gemm(t, &g, s);
}
