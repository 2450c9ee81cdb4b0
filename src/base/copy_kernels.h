/* base/copy_kernels.h - the two halves of the kernel family; private to base/copy.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  each writes at most HL_COPY_KERNELS_MAX / 2 kernels, the ones that run everywhere first.
 */
#ifndef HL_BASE_COPY_KERNELS_H
#define HL_BASE_COPY_KERNELS_H

#include "base/copy.h"

size_t hl_copy_plain_kernels(const struct hl_copy_kernel *out[]);
size_t hl_copy_crc_kernels(const struct hl_copy_kernel *out[]);

#if defined(__x86_64__)
/* Whole blocks of HL_COPY_STREAM_BLOCK bytes to an address aligned to 64, by streaming stores. */
#define HL_COPY_STREAM_BLOCK ((size_t)256)
void hl_copy_stream_avx2(void *dst, const void *src, size_t len);
void hl_copy_stream_avx512(void *dst, const void *src, size_t len);

/* Bytes up to the next address at which a streaming store can begin. */
static inline size_t hl_copy_head(const void *dst, size_t len)
{
    size_t head = -(uintptr_t)dst & 63;
    return head < len ? head : len;
}
#endif

#endif
