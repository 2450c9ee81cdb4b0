#include "base/crc32.h"

#include <zlib.h>

#include "base/crc32_fold.h"

#if defined(__x86_64__)
#include <isa-l.h>
#endif

#ifdef HL_CRC32_FOLDS
#define WIDE_MIN 1024

/* The library folds by 512 or 128 bits; this is for processors that can fold by 256. */
HL_FOR_FOLD256 static uint32_t crc32_wide(uint32_t crc, const uint8_t *data, size_t len)
{
    size_t body = len / HL_FOLD256_STRIPE * HL_FOLD256_STRIPE;
    uint8_t *unused = (uint8_t *)(uintptr_t)data;
    crc = hl_fold256_stripes(crc, unused, data, body, HL_FOLD_READ);
    return crc32_gzip_refl(crc, data + body, len - body);
}
#endif

uint32_t hl_crc32(uint32_t crc, const void *data, size_t len)
{
#ifdef HL_CRC32_FOLDS
    if (len >= WIDE_MIN && hl_cpu() == HL_CPU_AVX2 && hl_fold256_runs())
        return crc32_wide(crc, data, len);
#endif
#if defined(__x86_64__)
    return crc32_gzip_refl(crc, data, len);
#else
    return len > 0 ? (uint32_t)crc32_z(crc, data, len) : crc; /* zlib returns 0 for NULL */
#endif
}

uint32_t hl_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    return (uint32_t)crc32_combine64(crc_a, crc_b, (z_off64_t)len_b);
}
