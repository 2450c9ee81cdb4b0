/* maco/cpu/futex.h - sleeping on a word of this process, and the processor's hint for spin loops.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: a wait may wake up spuriously, so its caller checks again.
 * Units:   nanoseconds.
 * Limits:  none.
 */
#ifndef HL_MACO_CPU_FUTEX_H
#define HL_MACO_CPU_FUTEX_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static inline void hl_futex_wait(uint32_t *word, uint32_t while_it_is, uint64_t at_most_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(at_most_ns / HL_NS_PER_S),
                          .tv_nsec = (long)(at_most_ns % HL_NS_PER_S)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, &ts, NULL, 0);
}

static inline void hl_futex_wake(uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void hl_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__powerpc64__)
    __asm__ volatile("or 27,27,27");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
