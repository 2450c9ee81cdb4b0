/* core/reshard/elements.h - compares the elements of two tensors of the same dtype bit by bit.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  none.
 * Units:   elements, counted from the start of the tensor.
 * Limits:  none.
 */
#ifndef HL_CORE_RESHARD_ELEMENTS_H
#define HL_CORE_RESHARD_ELEMENTS_H

#include <stdbool.h>

#include "core/safetensors/safetensors.h"

/* Accumulates the differences, piece by piece; zero-initialise. */
struct hl_elements_diff {
    uint64_t differing;  /* elements whose bits differ; includes 0 and -0, and different NaNs */
    uint64_t first;      /* number of the first of them */
    double largest;      /* largest finite |a - b| of floats */
    uint64_t not_finite; /* differing pairs of floats with an infinity or NaN */
};

/* True for F64, F32, F16, BF16 and the three F8 types. */
bool hl_dtype_is_float(enum hl_dtype dtype);
/* The value of the element of a float dtype at `bytes`. */
double hl_element_value(enum hl_dtype dtype, const void *bytes);
/* Compares `count` elements at a and b; the first is number `at` of the tensor. Pieces must come in
 * the tensor's order. */
void hl_elements_compare(enum hl_dtype dtype, const void *a, const void *b, uint64_t at,
                         uint64_t count, struct hl_elements_diff *diff);

#endif
