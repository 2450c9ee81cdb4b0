/* support/bytes.h - bytes to send, and their checksum computed without Helios's own code. Compiled
 * with optimisation, because tests are not and send megabytes.
 *
 * Owns:    nothing; noise is the caller's to free.
 * Threads: any.
 * Errors:  a failed allocation fails the test.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef TESTS_SUPPORT_BYTES_H
#define TESTS_SUPPORT_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* The same bytes for the same seed. */
uint8_t *noise(size_t len, uint64_t seed);
/* CRC-32 with a table computed from the polynomial. */
uint32_t plain_crc(const uint8_t *p, size_t len);

#endif
