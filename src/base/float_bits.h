/* base/float_bits.h - a float's bits; always inlined, whatever build the surrounding loop has.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   IEEE 754 binary32.
 * Limits:  none.
 */
#ifndef HL_BASE_FLOAT_BITS_H
#define HL_BASE_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

#define HL_ALWAYS_INLINE __attribute__((always_inline)) static inline

HL_ALWAYS_INLINE uint32_t hl_bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

HL_ALWAYS_INLINE float hl_float_of(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof(x));
    return x;
}

#endif
