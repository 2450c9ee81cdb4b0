/* maco/cpu/tick.h - the processor's cycle counter, for records of tasks that take a few
 * nanoseconds.
 *
 * A clock_gettime costs as much as several small tasks. Ticks are converted to nanoseconds of
 * CLOCK_MONOTONIC afterwards, by linear interpolation between two points where both were read.
 *
 * Owns:    nothing.
 * Threads: any; the counter is the same on all processors (invariant TSC, time base, virtual
 *          count).
 * Errors:  none: processors without such a counter read the clock.
 * Units:   ticks; nanoseconds.
 * Limits:  none.
 */
#ifndef HL_MACO_CPU_TICK_H
#define HL_MACO_CPU_TICK_H

#include <stdint.h>

#include "base/clock.h"

static inline uint64_t hl_tick(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__powerpc64__)
    return __builtin_ppc_get_timebase();
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return hl_now_ns();
#endif
}

/* The same, but never read before the loads that precede it. For the end of a wait, which must not
 * appear earlier than the end of what was waited for. It costs half as much again. */
static inline uint64_t hl_tick_acquire(void)
{
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#elif defined(__powerpc64__)
    __asm__ volatile("isync" ::: "memory");
#endif
    return hl_tick();
}

struct hl_tick_span {
    uint64_t tick[2], ns[2];
};

static inline void hl_tick_mark(struct hl_tick_span *s, int end)
{
    s->tick[end] = hl_tick();
    s->ns[end] = hl_now_ns();
}

static inline uint64_t hl_tick_ticks(const struct hl_tick_span *s, uint64_t ns)
{
    uint64_t all = s->ns[1] - s->ns[0];
    return all > 0 ? (uint64_t)((double)(s->tick[1] - s->tick[0]) * (double)ns / (double)all) : 0;
}

static inline uint64_t hl_tick_ns(const struct hl_tick_span *s, uint64_t tick)
{
    uint64_t ticks = s->tick[1] - s->tick[0];
    double rate = ticks > 0 ? (double)(s->ns[1] - s->ns[0]) / (double)ticks : 1.0;
    return s->ns[0] + (uint64_t)(int64_t)((double)(int64_t)(tick - s->tick[0]) * rate);
}

#endif
