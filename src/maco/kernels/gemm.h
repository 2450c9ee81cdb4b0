/* maco/kernels/gemm.h - matrix products that sum each element in one fixed order of k.
 *
 * Operands are packed into panels of float32: `mr` rows (A) or `nr` columns (B) side by side, k
 * after k. A tile is mr x nr elements in registers. Each element is one chain of multiply-adds over
 * k from 0 up, regardless of its tile, block or chunk.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOMEM.
 * Units:   elements.
 * Limits:  panels are read in whole tiles: pack fills the rest with zeros.
 */
#ifndef HL_MACO_KERNELS_GEMM_H
#define HL_MACO_KERNELS_GEMM_H

#include <stddef.h>

#include "maco/kernels/bodies.h"

/* Element (r, k) is data[r * ld + k], or data[k * ld + r] if transposed. For A r is the row, for B
 * the column. */
struct hl_matrix {
    const void *data;
    int dtype;
    size_t ld;
    int transposed;
};

struct hl_tile {
    size_t mr, nr;
    /* c[mr][nr] (+)= panel a x panel b over k; c has ldc elements a row. */
    void (*run)(size_t k, const float *a, const float *b, float *c, size_t ldc, int add);
};

/* The tile for this CPU. */
const struct hl_tile *hl_tile(void);

/* Packs rows [r0, r0 + rows) by k [k0, k0 + n) into panels of `width`. */
void hl_pack(const struct hl_matrix *m, size_t r0, size_t rows, size_t k0, size_t n, size_t width,
             float *to);
/* c = (+) a x b of packed panels, rows and columns rounded up to whole tiles. */
void hl_multiply(const struct hl_tile *t, size_t rows, size_t cols, size_t k, const float *a,
                 const float *b, float *c, size_t ldc, int add);

/* B is packed only for more rows than this. */
#define HL_FEW 8

/* c[rows][cols] = (+) a x b over n of b's k from k0 on; a is float32. Columns are written in whole
 * tiles. */
struct hl_few {
    const struct hl_matrix *b;
    size_t c0, cols, k0, n;
    size_t rows, lda, ldc;
    const float *a;
    float *c;
    int add;
};

void hl_few(const struct hl_few *f);

struct hl_gemm {
    struct hl_matrix a, b;
    size_t m, n, k, ldc;
    float alpha, beta;
    const void *bias; /* of n elements, may be NULL */
    void *c;
    int dtype; /* of c and bias */
};

/* c = alpha a b + beta c + bias */
hl_status hl_gemm(const struct hl_gemm *g, struct hl_maco_scratch *s) HL_CHECK;

#endif
