/* base/copy.h - copies of much memory to where nobody looks soon.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  the ranges don't overlap. For some KiB and less memcpy is as good.
 */
#ifndef HL_BASE_COPY_H
#define HL_BASE_COPY_H

#include <stddef.h>

/* memcpy into memory that is in no cache. */
void hl_copy_cold(void *dst, const void *src, size_t len);

#endif
