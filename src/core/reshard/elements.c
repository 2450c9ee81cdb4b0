/* Most pieces are equal, which memcmp finds quickly; only pieces that differ are compared element
 * by element. */
#include "core/reshard/elements.h"

#include <math.h>
#include <string.h>

#define PIECE 4096 /* in elements */

/* Decodes a float with these numbers of exponent and mantissa bits; its highest exponent means
 * infinity or NaN. */
static double decode_float(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    uint32_t top = (1u << exponent_bits) - 1, exponent = bits >> mantissa_bits & top;
    int bias = (int)(top >> 1);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (exponent == top)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa | 1u << mantissa_bits, (int)exponent - bias - mantissa_bits);
}

/* The format has no infinities: only the highest exponent with the highest mantissa is NaN. */
static double decode_e4m3(uint32_t bits)
{
    uint32_t mantissa = bits & 7, exponent = bits >> 3 & 15;
    if (exponent < 15)
        return decode_float(bits, 4, 3);
    return mantissa == 7 ? NAN : (bits & 0x80 ? -1 : 1) * ldexp(8 + mantissa, 15 - 7 - 3);
}

bool hl_dtype_is_float(enum hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_F64:
    case HL_DTYPE_F32:
    case HL_DTYPE_F16:
    case HL_DTYPE_BF16:
    case HL_DTYPE_F8_E4M3:
    case HL_DTYPE_F8_E5M2:
    case HL_DTYPE_F8_E8M0:
        return true;
    default:
        return false;
    }
}

double hl_element_value(enum hl_dtype dtype, const void *bytes)
{
    const unsigned char *b = bytes;
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case HL_DTYPE_F64:
        memcpy(&value, b, sizeof(value));
        return value;
    case HL_DTYPE_F32:
        memcpy(&single, b, sizeof(single));
        return (double)single;
    case HL_DTYPE_F16:
    case HL_DTYPE_BF16:
        memcpy(&half, b, sizeof(half));
        return dtype == HL_DTYPE_F16 ? decode_float(half, 5, 10) : decode_float(half, 8, 7);
    case HL_DTYPE_F8_E4M3:
        return decode_e4m3(*b);
    case HL_DTYPE_F8_E5M2:
        return decode_float(*b, 5, 2);
    case HL_DTYPE_F8_E8M0: /* a power of two */
        return *b == 0xff ? NAN : ldexp(1, (int)*b - 127);
    default:
        return NAN;
    }
}

static void note_values(enum hl_dtype dtype, const unsigned char *a, const unsigned char *b,
                        struct hl_elements_diff *diff)
{
    double x = hl_element_value(dtype, a), y = hl_element_value(dtype, b);
    if (!isfinite(x) || !isfinite(y))
        diff->not_finite++;
    else if (fabs(x - y) > diff->largest)
        diff->largest = fabs(x - y);
}

void hl_elements_compare(enum hl_dtype dtype, const void *a, const void *b, uint64_t at,
                         uint64_t count, struct hl_elements_diff *diff)
{
    const unsigned char *x = a, *y = b;
    uint32_t size = hl_dtype_size(dtype);
    bool is_float = hl_dtype_is_float(dtype);
    for (uint64_t i = 0, n; i < count; i += n) {
        n = count - i < PIECE ? count - i : PIECE;
        if (memcmp(x + i * size, y + i * size, n * size) == 0)
            continue;
        for (uint64_t k = i; k < i + n; k++) {
            if (memcmp(x + k * size, y + k * size, size) == 0)
                continue;
            if (diff->differing++ == 0)
                diff->first = at + k;
            if (is_float)
                note_values(dtype, x + k * size, y + k * size, diff);
        }
    }
}
