/* support/copy_count.h - counts the bytes that the chosen copy kernels copy.
 *
 * Owns:    the choice of kernels from begin to end.
 * Threads: copies from any; begin and end from the test's.
 * Errors:  none.
 * Units:   bytes, copied without and with a CRC.
 * Limits:  a measurement in between would choose others: code that measures does it before.
 */
#ifndef TESTS_SUPPORT_COPY_COUNT_H
#define TESTS_SUPPORT_COPY_COUNT_H

#include <stdatomic.h>
#include <string.h>

#include "base/copy.h"
#include "base/crc32.h"

static _Atomic uint64_t copy_counts[2]; /* [sums] */

static uint32_t copy_count_plain(uint32_t crc, void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    atomic_fetch_add(&copy_counts[0], len);
    return crc;
}

static uint32_t copy_count_sum(uint32_t crc, void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    atomic_fetch_add(&copy_counts[1], len);
    return hl_crc32(crc, dst, len);
}

/* Returns the previous choice. */
static inline struct hl_copy_choice copy_count_begin(void)
{
    static const struct hl_copy_kernel plain = {"counted", false, copy_count_plain},
                                       sum = {"counted-sum", true, copy_count_sum};
    struct hl_copy_choice before = hl_copy_chosen();
    hl_copy_choose(&(struct hl_copy_choice){{&plain, &sum}, {&plain, &sum}});
    return before;
}

/* Bytes counted since the last call. */
static inline uint64_t copy_count_take(bool sums)
{
    return atomic_exchange(&copy_counts[sums], 0);
}

#endif
