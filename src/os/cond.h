/* os/cond.h - a condition variable whose deadlines are times of hl_now_ns.
 *
 * Owns:    nothing; the caller ends the condition with pthread_cond_destroy.
 * Threads: initialized by one thread, before others use it.
 * Errors:  0, or the error number of pthread_cond_init.
 * Units:   pthread_cond_timedwait takes CLOCK_MONOTONIC.
 * Limits:  none.
 */
#ifndef HL_OS_COND_H
#define HL_OS_COND_H

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

/* 0 when it was signalled, or for no reason; ETIMEDOUT when the time of hl_now_ns has come. */
static inline int hl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000),
                         .tv_nsec = (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &t);
}

#endif
