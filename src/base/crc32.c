/* The copy and the CRC walk the same 32 KiB block one after the other, so the second reader finds
 * it in L1/L2; a second pass over a large buffer would halve the throughput. */
#include "base/crc32.h"

#include <string.h>
#include <zlib.h>

#if defined(__x86_64__)
#include <isa-l.h>
#endif

#define COPY_BLOCK ((size_t)32 * 1024)

uint32_t hl_crc32(uint32_t crc, const void *data, size_t len)
{
#if defined(__x86_64__)
    return crc32_gzip_refl(crc, data, len);
#else
    return (uint32_t)crc32_z(crc, data, len);
#endif
}

uint32_t hl_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    return (uint32_t)crc32_combine64(crc_a, crc_b, (z_off64_t)len_b);
}

uint32_t hl_crc32_copy(uint32_t crc, void *dst, const void *src, size_t len)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    while (len > 0) {
        size_t n = len < COPY_BLOCK ? len : COPY_BLOCK;
        memcpy(to, from, n);
        crc = hl_crc32(crc, to, n);
        to += n;
        from += n;
        len -= n;
    }
    return crc;
}
