/* base/pace.h - sends bytes evenly instead of in bursts: after each piece the sender waits until
 * the rate allows the next one.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  none.
 * Units:   bytes per second, ns of hl_now_ns.
 * Limits:  a sender that is late may catch up by at most HL_PACE_LATE_NS.
 */
#ifndef HL_BASE_PACE_H
#define HL_BASE_PACE_H

#include <stdint.h>

#include "base/clock.h"

#define HL_PACE_LATE_NS (5 * HL_NS_PER_MS)

struct hl_pace {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_ns;     /* when the next piece may be sent */
};

static inline void hl_pace_sent(struct hl_pace *p, uint64_t bytes, uint64_t now_ns)
{
    if (p->bytes_per_s == 0)
        return;
    uint64_t oldest = now_ns > HL_PACE_LATE_NS ? now_ns - HL_PACE_LATE_NS : 0;
    if (p->free_ns < oldest || p->free_ns == 0)
        p->free_ns = p->free_ns == 0 ? now_ns : oldest;
    p->free_ns += (uint64_t)((double)bytes / (double)p->bytes_per_s * (double)HL_NS_PER_S);
}

/* Time until the next piece may be sent; 0: now. */
static inline uint64_t hl_pace_wait_ns(const struct hl_pace *p, uint64_t now_ns)
{
    return now_ns < p->free_ns ? p->free_ns - now_ns : 0;
}

#endif
