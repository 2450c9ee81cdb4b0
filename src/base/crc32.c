#include "base/crc32.h"

#include <zlib.h>

#if defined(__x86_64__)
#include <isa-l.h>
#endif

uint32_t hl_crc32(uint32_t crc, const void *data, size_t len)
{
#if defined(__x86_64__)
    return crc32_gzip_refl(crc, data, len);
#else
    return len > 0 ? (uint32_t)crc32_z(crc, data, len) : crc; /* of no pointer it is 0 to zlib */
#endif
}

uint32_t hl_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    return (uint32_t)crc32_combine64(crc_a, crc_b, (z_off64_t)len_b);
}
