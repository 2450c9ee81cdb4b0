/* base/backoff.h - how long to wait before the next attempt.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms.
 * Limits:  first_ms below 2^32.
 */
#ifndef HL_BASE_BACKOFF_H
#define HL_BASE_BACKOFF_H

#include <stdint.h>

/* first_ms, doubled for each failure so far, up to top_ms. */
static inline uint64_t hl_backoff_ms(uint64_t first_ms, uint64_t top_ms, unsigned failed)
{
    uint64_t ms = first_ms << (failed < 31 ? failed : 31);
    return ms < top_ms ? ms : top_ms;
}

#endif
