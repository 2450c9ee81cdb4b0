/* base/copy.h - copies of bulk data, with and without a CRC-32 in the same pass.
 *
 * There is a family of kernels (memcpy, prefetching, streaming stores, ...); which is fastest
 * depends on the host, and differs by a factor of two and more. os/copy_measure.h measures and
 * chooses; before that, kernels that are good on most hosts are used.
 *
 * Owns:    the choice, one per process.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes. CRC-32 as in base/crc32.h.
 * Limits:  the ranges don't overlap.
 */
#ifndef HL_BASE_COPY_H
#define HL_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A transfer of at least so much doesn't stay in the caches next to a core: its destination need
 * not pass through them. */
#define HL_COPY_LARGE ((size_t)4 << 20)

/* From here on a transfer is bulk: a process measures (os/copy_measure.h) before its first one. */
#define HL_COPY_BULK ((size_t)1 << 20)

/* Copies any number of bytes between any alignments. With `sums`, returns the CRC continued from
 * `crc` over the bytes; else returns `crc`. */
struct hl_copy_kernel {
    const char *name;
    bool sums;
    uint32_t (*copy)(uint32_t crc, void *dst, const void *src, size_t len);
};

/* The kernels that this processor can run, within hl_cpu(). They live as long as the process. */
#define HL_COPY_KERNELS_MAX 16
size_t hl_copy_kernels(const struct hl_copy_kernel *all[HL_COPY_KERNELS_MAX]);

/* [0] without, [1] with a CRC. */
struct hl_copy_choice {
    const struct hl_copy_kernel *small[2];
    const struct hl_copy_kernel *large[2];
};

struct hl_copy_choice hl_copy_chosen(void);
void hl_copy_choose(const struct hl_copy_choice *choice);

/* `total`: size of the transfer that these bytes are a part of. */
void hl_copy(void *dst, const void *src, size_t len, size_t total);
uint32_t hl_copy_crc32(uint32_t crc, void *dst, const void *src, size_t len, size_t total);

/* One row of many: a short one is not worth the call. */
#define HL_COPY_ROW_MIN ((size_t)4096)

static inline void hl_copy_row(void *dst, const void *src, size_t len)
{
    if (len >= HL_COPY_ROW_MIN)
        hl_copy(dst, src, len, len);
    else
        memcpy(dst, src, len);
}

#endif
