/* maco/kernels/blas.h - the installed BLAS, if there is one.
 *
 * Owns:    nothing; the library stays loaded.
 * Threads: any.
 * Errors:  none; hl_blas() is NULL if there is none.
 * Units:   elements.
 * Limits:  dimensions of 32 bits; column-major arrays, as in Fortran.
 */
#ifndef HL_MACO_KERNELS_BLAS_H
#define HL_MACO_KERNELS_BLAS_H

#include <stddef.h>

struct hl_blas {
    /* The last two are the lengths of transa and transb, which Fortran passes. */
    void (*sgemm)(const char *transa, const char *transb, const int *m, const int *n, const int *k,
                  const float *alpha, const float *a, const int *lda, const float *b,
                  const int *ldb, const float *beta, float *c, const int *ldc, size_t, size_t);
    /* Process-wide; NULL: this BLAS has no threads. */
    void (*set_threads)(int n);
    int (*get_threads)(void);
    const char *name;
};

/* The library is looked up at the first call. */
const struct hl_blas *hl_blas(void);

#endif
