/* tests/support/weak_memory.h - a machine for code with C11 atomics on which loads can be late: x86
 * does not do that, other processors and compilers can. Included before all else in the sources
 * that run on it.
 *
 * Each location keeps its last values, and each thread knows the oldest one that it can still read.
 * A release store carries what its thread knows, and an acquire load learns it; sequentially
 * consistent accesses see each other in the order in which they run. Threads are coroutines that
 * switch at their atomic accesses, in an order that the seed gives. There is no time: a sleeper
 * whose wake-up was lost sleeps on, and when all do, the program ends with the words "a wake-up was
 * lost". Plain memory is not checked: ThreadSanitizer finds races.
 *
 * Owns:    its threads' stacks, and a table of the locations; free() takes them out of it.
 * Threads: one system thread.
 * Errors:  the program ends and says why.
 * Units:   bytes.
 * Limits:  WM_THREADS threads, WM_LOCATIONS locations of 4 or 8 bytes, the last WM_KEPT values. It
 *          knows no speculation: a load reads nothing that is not yet written.
 */
#ifndef TESTS_SUPPORT_WEAK_MEMORY_H
#define TESTS_SUPPORT_WEAK_MEMORY_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include "maco/cpu/futex.h"
#include "maco/cpu/tick.h"

#define WM_THREADS   8
#define WM_LOCATIONS 512
#define WM_KEPT      4

enum wm_change { WM_ADD, WM_SET };

/* Starts a new order of turns and of late loads. `weaken`: a function whose accesses (or "*": all
 * accesses) are acquire and release instead of sequentially consistent; NULL: none. */
void wm_begin(uint64_t seed, const char *weaken);

uint64_t wm_load(const void *p, uint32_t size, int order, const char *where);
void wm_store(void *p, uint32_t size, uint64_t value, int order, const char *where);
/* Returns the previous value. */
uint64_t wm_change(void *p, uint32_t size, enum wm_change how, uint64_t value, int order,
                   const char *where);
int wm_swap(void *p, uint32_t size, void *expected, uint64_t value, int order, int failed,
            const char *where);
int wm_create(pthread_t *t, void *(*run)(void *), void *arg);
int wm_join(pthread_t t);
/* The only mutex. */
int wm_lock(void);
int wm_unlock(void);
void wm_wait(const uint32_t *word, uint32_t while_it_is);
void wm_wake(const uint32_t *word, int n);
int wm_yield(void);
uint64_t wm_clock(void);
void wm_free(void *p);

#ifndef WM_REAL /* the machine's own */
#define WM_OF(p, value)           ({ (__typeof__(*(p) + 0))(value); })
#define __atomic_load_n(p, o)     WM_OF(p, wm_load(p, sizeof(*(p)), o, __func__))
#define __atomic_store_n(p, v, o) wm_store(p, sizeof(*(p)), (uint64_t)(v), o, __func__)
#define __atomic_add_fetch(p, v, o)                                                                \
    WM_OF(p, wm_change(p, sizeof(*(p)), WM_ADD, (uint64_t)(v), o, __func__) + (uint64_t)(v))
#define __atomic_fetch_add(p, v, o)                                                                \
    WM_OF(p, wm_change(p, sizeof(*(p)), WM_ADD, (uint64_t)(v), o, __func__))
#define __atomic_sub_fetch(p, v, o)                                                                \
    WM_OF(p, wm_change(p, sizeof(*(p)), WM_ADD, -(uint64_t)(v), o, __func__) - (uint64_t)(v))
#define __atomic_exchange_n(p, v, o)                                                               \
    WM_OF(p, wm_change(p, sizeof(*(p)), WM_SET, (uint64_t)(v), o, __func__))
#define __atomic_compare_exchange_n(p, e, v, weak, o, f)                                           \
    wm_swap(p, sizeof(*(p)), e, (uint64_t)(v), o, f, __func__)
#define hl_futex_wait(word, value, ns) ((void)(ns), wm_wait(word, value))
#define hl_futex_wake(word, n)         wm_wake(word, n)
#define hl_pause()                     (void)wm_yield()
#define sched_yield()                  wm_yield()
#define hl_now_ns()                    wm_clock()
#define hl_tick()                      wm_clock()
#define hl_tick_mark(s, end)           ((s)->tick[end] = (s)->ns[end] = wm_clock())
#define pthread_create(t, a, run, arg) wm_create(t, run, arg)
#define pthread_join(t, result)        wm_join(t)
#define pthread_mutex_lock(m)          wm_lock()
#define pthread_mutex_unlock(m)        wm_unlock()
#define free(p)                        wm_free(p)
#endif

#endif
