/* support/bytes.h - bytes to send about, and their checksum by other code than Helios's own;
 * optimised, for tests are not and have megabytes of them.
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

/* The same for the same seed. */
uint8_t *noise(size_t len, uint64_t seed);
/* CRC-32 by a table that the polynomial itself makes. */
uint32_t plain_crc(const uint8_t *p, size_t len);

#endif
