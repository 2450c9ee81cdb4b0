/* os/cond.h - condition variables and mutexes whose deadlines are times of hl_now_ns.
 *
 * Owns:    nothing; the caller ends the condition with pthread_cond_destroy.
 * Threads: initialized by one thread, before others use it.
 * Errors:  0, or the error number of pthread_cond_init.
 * Units:   pthread_cond_timedwait takes CLOCK_MONOTONIC.
 * Limits:  none.
 */
#ifndef HL_OS_COND_H
#define HL_OS_COND_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline int hl_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int err = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return err;
}

/* 0 if signalled, or spuriously; ETIMEDOUT when hl_now_ns has reached until_ns. */
static inline int hl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000),
                         .tv_nsec = (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &t);
}

/* 0, EOWNERDEAD, or ETIMEDOUT when hl_now_ns has reached until_ns; else as pthread_mutex_lock. */
static inline int hl_mutex_lock_until(pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000),
                         .tv_nsec = (long)(until_ns % 1000000000)};
#if defined(__SANITIZE_THREAD__) /* it lacks clocklock, and timedlock of robust mutexes */
    int rc;
    struct timespec now;
    const struct timespec nap = {0, 100000};
    while ((rc = pthread_mutex_trylock(lock)) == EBUSY &&
           clock_gettime(CLOCK_MONOTONIC, &now) == 0 &&
           (now.tv_sec < t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec < t.tv_nsec)))
        nanosleep(&nap, NULL);
    return rc == EBUSY ? ETIMEDOUT : rc;
#else
    return pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &t);
#endif
}

#endif
