/* base/crc32.h - CRC-32 with the IEEE polynomial (the CRC of zlib, gzip and zip).
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes; a running CRC starts at 0 and is already final after every call, as in zlib.
 * Limits:  none. Uses ISA-L on x86-64, or a 256-bit fold on processors that support that but not
 *          512 bits; zlib elsewhere. The results are the same.
 */
#ifndef HL_BASE_CRC32_H
#define HL_BASE_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t hl_crc32(uint32_t crc, const void *data, size_t len);
/* CRC of the concatenation A|B from crc(A), crc(B) and the length of B. */
uint32_t hl_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

#endif
