/* base/clock.h - reads the clocks; the pure core gets times as arguments and never calls these.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   ns of CLOCK_MONOTONIC for intervals and deadlines, ms since 1970 for records shown to
 *          people.
 * Limits:  none.
 */
#ifndef HL_BASE_CLOCK_H
#define HL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define HL_NS_PER_MS UINT64_C(1000000)
#define HL_NS_PER_S  UINT64_C(1000000000)

static inline uint64_t hl_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * HL_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The same clock, as of the kernel's last tick: at most a few milliseconds behind, at a fifth of
 * the cost. */
static inline uint64_t hl_now_coarse_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * HL_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* CPU time of this thread: hardly affected by what else runs on the machine. */
static inline uint64_t hl_thread_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * HL_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline int64_t hl_wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
