/* base/copy.h - copies of bulk data, with and without a CRC-32 in the same pass.
 *
 * There is a family of kernels (memcpy, prefetching, streaming stores, ...); which one is fastest
 * depends on the host, and the difference is a factor of two or more. os/copy_measure.h measures
 * and chooses; before that, kernels are used that are good on most hosts.
 *
 * Owns:    the choice, one per process.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes. CRC-32 as in base/crc32.h.
 * Limits:  the ranges must not overlap.
 */
#ifndef HL_BASE_COPY_H
#define HL_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A transfer of at least this size doesn't fit into the caches next to a core, so its destination
 * may bypass them. */
#define HL_COPY_LARGE ((size_t)4 << 20)

/* A transfer of at least this size is bulk: a process measures (os/copy_measure.h) before its first
 * one. */
#define HL_COPY_BULK ((size_t)1 << 20)

/* Copies any number of bytes between any alignments. With `sums`, returns the CRC continued from
 * `crc` over the bytes; else returns `crc`. */
struct hl_copy_kernel {
    const char *name;
    bool sums;
    uint32_t (*copy)(uint32_t crc, void *dst, const void *src, size_t len);
};

/* Lists the kernels that this processor can run, within hl_cpu(). They live as long as the
 * process. */
#define HL_COPY_KERNELS_MAX 16
size_t hl_copy_kernels(const struct hl_copy_kernel *all[HL_COPY_KERNELS_MAX]);

/* Index 0 is without a CRC, index 1 with one. */
struct hl_copy_choice {
    const struct hl_copy_kernel *small[2];
    const struct hl_copy_kernel *large[2];
};

struct hl_copy_choice hl_copy_chosen(void);
void hl_copy_choose(const struct hl_copy_choice *choice);

/* total: size of the transfer to which these bytes belong. */
void hl_copy(void *dst, const void *src, size_t len, size_t total);
uint32_t hl_copy_crc32(uint32_t crc, void *dst, const void *src, size_t len, size_t total);

/* Copies one row of many: for a short one the call is not worth it. */
#define HL_COPY_ROW_MIN ((size_t)4096)

static inline void hl_copy_row(void *dst, const void *src, size_t len)
{
    if (len >= HL_COPY_ROW_MIN)
        hl_copy(dst, src, len, len);
    else
        memcpy(dst, src, len);
}

#endif
