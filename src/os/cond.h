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

#endif
