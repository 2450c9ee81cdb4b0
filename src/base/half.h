/* base/half.h - converts arrays of float16 and bfloat16 to and from float32.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none; types are checked by the caller.
 * Units:   elements; types are HYBRIDPS_F32, _F16, _BF16 of helios/hybridps.h.
 * Limits:  none. Rounding is to nearest, ties to even; NaN stays NaN.
 */
#ifndef HL_BASE_HALF_H
#define HL_BASE_HALF_H

#include <stddef.h>

/* dst[0..n) = src[at..at+n), whose elements are of `type`. */
void hl_half_load(const void *src, int type, size_t at, size_t n, float *dst);
/* dst[at..at+n) of `type` (f16 or bf16) = src[0..n). */
void hl_half_store(const float *src, size_t n, void *dst, int type, size_t at);

#endif
