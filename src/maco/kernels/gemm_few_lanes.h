/* maco/kernels/gemm_few_lanes.h - products of few rows, written for vectors of LANES floats.
 * gemm_few.c includes it once per instruction set, with LANES, MADD, NAME(x), HOW (attributes of
 * its functions), and LOW and HIGH, the indices that interleave the halves of two vectors. It
 * undefines these macros at its end.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   elements.
 * Limits:  1 to FEW rows at once.
 */
#define INLINE HOW __attribute__((always_inline)) static inline
#define vec    NAME(vec_)
#define words  NAME(words_)
#define ints   NAME(ints_)
#define halfs  NAME(halfs_)
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t halfs __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* The same conversion as in base/half.c. */
INLINE vec NAME(wide)(words half, const int dtype)
{
    if (dtype == MACO_BF16)
        return (vec)(half << 16);
    /* the exponent is at float32's place, below three copies of the sign */
    ints moved = (ints)(half << 16) >> 3;
    vec scaled = (vec)(moved & (int32_t)0x8fffffff) * 0x1p112f;
    words special = (words)((half & 0x7c00) == 0x7c00) & 0x7f800000;
    return (vec)((words)scaled | special);
}

/* Transpose: word j of x[i] becomes word i of x[j]. Each round rotates the bits of the two indices
 * by one. */
INLINE void NAME(turn)(words x[LANES])
{
    words y[LANES];
    _Pragma("GCC unroll 16") for (int bit = 1; bit < LANES; bit *= 2)
    {
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES / 2; i++)
        {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + LANES / 2], LOW);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + LANES / 2], HIGH);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

INLINE void NAME(add)(vec acc[FEW], const float *a, size_t lda, const int rows, vec b)
{
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) acc[r] =
        MADD(a[(size_t)r * lda], b, acc[r]);
}

/* The rest of k that does not fill a whole vector. */
INLINE void NAME(along_rest)(const uint8_t *const *line, size_t at, size_t n, const float *a,
                             size_t lda, const int rows, const int dtype, vec acc[FEW])
{
    float b[LANES][2 * LANES];
    for (int i = 0; i < LANES; i++)
        hl_half_load(line[i], dtype, at, n, b[i]);
    for (size_t k = 0; k < n; k++) {
        float one[LANES];
        for (int i = 0; i < LANES; i++)
            one[i] = b[i][k];
        NAME(add)(acc, a + k, lda, rows, *(const vec *)one);
    }
}

/* LANES columns, each with contiguous k. */
INLINE void NAME(along)(const struct hl_few *f, size_t col, const float *a, float *c,
                        const int rows, const int dtype)
{
    enum { PAIR = sizeof(words) / sizeof(uint16_t) };

    const size_t size = dtype == MACO_F32 ? 4 : 2, step = dtype == MACO_F32 ? LANES : PAIR;
    const size_t row = f->b->ld * size, ahead = row < SHORT ? LANES * row : 0;
    const uint8_t *line[LANES];
    vec acc[FEW];
    for (size_t i = 0; i < LANES; i++) { /* beyond the last column: repeat it */
        size_t at = col + i < f->cols ? col + i : f->cols - 1;
        line[i] = (const uint8_t *)f->b->data + ((f->c0 + at) * f->b->ld + f->k0) * size;
    }
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) acc[r] =
        f->add ? *(const vec *)(c + (size_t)r * f->ldc) : (vec){0};
    size_t k = 0;
    for (; k + step <= f->n; k += step) {
        words x[LANES];
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++)
        {
            if (ahead != 0)
                __builtin_prefetch(line[i] + k * size + ahead);
            x[i] = *(const words *)(line[i] + k * size);
        }
        NAME(turn)(x);
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++)
        {
            const float *at = a + k + (dtype == MACO_F32 ? (size_t)i : 2 * (size_t)i);
            if (dtype == MACO_F32) {
                NAME(add)(acc, at, f->lda, rows, (vec)x[i]);
            } else { /* two elements per word, the first in the low half */
                NAME(add)(acc, at, f->lda, rows, NAME(wide)(x[i] & 0xffff, dtype));
                NAME(add)(acc, at + 1, f->lda, rows, NAME(wide)(x[i] >> 16, dtype));
            }
        }
    }
    if (k < f->n)
        NAME(along_rest)(line, k, f->n - k, a + k, f->lda, rows, dtype, acc);
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) * (vec *)(c + (size_t)r * f->ldc) =
        acc[r];
}

/* Loads LANES contiguous elements, of which `left` exist. */
INLINE vec NAME(load)(const uint8_t *at, size_t left, const int dtype)
{
    uint32_t rest[LANES] = {0};
    if (left < LANES) {
        memcpy(rest, at, left * (dtype == MACO_F32 ? 4 : 2));
        at = (const uint8_t *)rest;
    }
    if (dtype == MACO_F32)
        return *(const vec *)at;
    return NAME(wide)(__builtin_convertvector(*(const halfs *)at, words), dtype);
}

/* All columns, which are contiguous, for `ks` steps of k. */
INLINE void NAME(across)(const struct hl_few *f, size_t k, const float *a, float *c, const int ks,
                         const int rows, const int dtype)
{
    const size_t size = dtype == MACO_F32 ? 4 : 2, line = f->b->ld * size;
    const uint8_t *b = (const uint8_t *)f->b->data + (f->k0 + k) * line + f->c0 * size;
    for (size_t col = 0; col < f->cols; col += LANES, b += LANES * size) {
        vec acc[FEW];
        _Pragma("GCC unroll 4") for (int i = 0; i < ks; i++)
            __builtin_prefetch(b + (size_t)(16 + i) * line);
        _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) acc[r] =
            *(const vec *)(c + (size_t)r * f->ldc + col);
        _Pragma("GCC unroll 4") for (int i = 0; i < ks; i++) NAME(add)(
            acc, a + k + i, f->lda, rows, NAME(load)(b + (size_t)i * line, f->cols - col, dtype));
        _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) *
            (vec *)(c + (size_t)r * f->ldc + col) = acc[r];
    }
}

INLINE void NAME(rows)(const struct hl_few *f, const float *a, float *c, const int rows,
                       const int dtype)
{
    if (!f->b->transposed) {
        for (size_t col = 0; col < f->cols; col += LANES)
            NAME(along)(f, col, a, c + col, rows, dtype);
        return;
    }
    for (int r = 0; r < rows && !f->add; r++)
        memset(c + (size_t)r * f->ldc, 0, f->cols * sizeof(float));
    size_t k = 0;
    for (; k + 4 <= f->n; k += 4)
        NAME(across)(f, k, a, c, 4, rows, dtype);
    for (; k < f->n; k++)
        NAME(across)(f, k, a, c, 1, rows, dtype);
}

INLINE void NAME(type)(const struct hl_few *f, const float *a, float *c, const int rows)
{
    if (f->b->dtype == MACO_F32)
        NAME(rows)(f, a, c, rows, MACO_F32);
    else if (f->b->dtype == MACO_F16)
        NAME(rows)(f, a, c, rows, MACO_F16);
    else
        NAME(rows)(f, a, c, rows, MACO_BF16);
}

HOW static void NAME(few)(const struct hl_few *f, size_t rows, const float *a, float *c)
{
    switch (rows) {
    case 1:
        NAME(type)(f, a, c, 1);
        break;
    case 2:
        NAME(type)(f, a, c, 2);
        break;
    case 3:
        NAME(type)(f, a, c, 3);
        break;
    default:
        NAME(type)(f, a, c, 4);
    }
}

#undef INLINE
#undef LANES
#undef MADD
#undef LOW
#undef HIGH
#undef HOW
#undef NAME
#undef vec
#undef words
#undef ints
#undef halfs
