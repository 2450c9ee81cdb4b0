/* core/reshard/elements.h - the elements of two tensors of one dtype, compared bit by bit.
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

/* What is found is added up, piece after piece; all zero at first. */
struct hl_elements_diff {
    uint64_t differing;  /* their bits differ: also 0 and -0, and two NaN */
    uint64_t first;      /* the first of them */
    double largest;      /* |a - b| of floats, where that is finite */
    uint64_t not_finite; /* differing floats of which one is infinite or NaN */
};

/* F64, F32, F16, BF16 and the three F8. */
bool hl_dtype_is_float(enum hl_dtype dtype);
/* The value of the element at `bytes`, of a float dtype. */
double hl_element_value(enum hl_dtype dtype, const void *bytes);
/* `count` elements at a and b, of which the first is number `at` of the tensor. Pieces come in the
 * tensor's order. */
void hl_elements_compare(enum hl_dtype dtype, const void *a, const void *b, uint64_t at,
                         uint64_t count, struct hl_elements_diff *diff);

#endif
