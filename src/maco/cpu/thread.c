/* How threads enter and leave a run, sleep and are woken (runtime_private.h says why).
 *
 *             hl_maco_enter                 hl_maco_leave
 *    outside ---------------> in the run ------------------> outside
 *       |                         |
 *       | between_runs            | hl_maco_park: parked = 1, looks once more, leaves
 *       v                         v
 *    asleep between runs       asleep in a run
 *       |                         |
 *       +---- hl_maco_unpark: parked = 0, wakes the futex; the thread enters again
 *
 * word        written by
 * rt->run     the caller makes it odd (start_run); the first compare-and-swap makes it even: by a
 *             worker when the graph is done (hl_maco_finish), by any thread on failure
 *             (hl_maco_abort_run)
 * rt->active  each thread for itself, when it enters and when it leaves
 * w->parked   1 by its thread; back to 0 by compare-and-swap, by the waker or by itself, so
 *             that n_parked is decremented once
 * rt->ended   the last thread that leaves, or one that aborts, to wake the caller
 *
 * All of these are sequentially consistent. Two pairs need it:
 *   - a thread counts itself in `active`, then reads `run`; the caller reads `run`, then `active`.
 *     A thread that the caller has not counted finds an even number and does not use the plan;
 *   - a thread sets `parked`, then looks for work; a producer makes work visible, then reads
 *     `n_parked`. One of them sees the other, so no wake-up is lost. */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

#ifndef LOOKS    /* a test lets threads sleep sooner */
#define LOOKS 64 /* looks without a pause */
#endif
#define YIELDS 8 /* at the end */
#define SLICE  (1000 * HL_NS_PER_MS)

bool hl_maco_enter(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    /* Counted before it looks: from here on the caller does not free the plan. */
    __atomic_add_fetch(&rt->active, 1, __ATOMIC_SEQ_CST);
    w->run = __atomic_load_n(&rt->run, __ATOMIC_SEQ_CST);
    if (w->run & 1)
        return true;
    hl_maco_leave(w);
    return false;
}

/* The last thread to leave a run that is over wakes the caller. */
void hl_maco_leave(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    if (__atomic_sub_fetch(&rt->active, 1, __ATOMIC_SEQ_CST) == 0 &&
        (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) & 1) == 0) {
        __atomic_add_fetch(&rt->ended, 1, __ATOMIC_SEQ_CST);
        hl_futex_wake(&rt->ended, 1);
    }
}

/* The thread is awake by itself; a waker may have cleared `parked` already. */
static void unmark_parked(struct hl_maco_thread *w)
{
    uint32_t one = 1;
    if (__atomic_compare_exchange_n(&w->parked, &one, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        __atomic_sub_fetch(&w->rt->n_parked, 1, __ATOMIC_SEQ_CST);
}

/* n_parked first: a waker that reads 0 does not have to look at single threads. */
static void mark_parked(struct hl_maco_thread *w)
{
    __atomic_add_fetch(&w->rt->n_parked, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&w->parked, 1, __ATOMIC_SEQ_CST);
}

/* A futex can wake spuriously; `parked` tells whether a thread meant to wake it. The slice limits
 * the delay if the kernel loses a wake-up. */
static void sleep_here(struct hl_maco_thread *w)
{
    while (__atomic_load_n(&w->parked, __ATOMIC_SEQ_CST) == 1)
        hl_futex_wait(&w->parked, 1, SLICE);
}

void hl_maco_park(struct hl_maco_thread *w, bool (*ready)(struct hl_maco_thread *w))
{
    mark_parked(w);
    /* Finds what came before `parked` was visible; whatever comes later wakes this thread. */
    int stay = hl_maco_over(w) || ready(w);
    if (stay)
        unmark_parked(w);
    hl_maco_leave(w);
    if (!stay)
        sleep_here(w);
}

void hl_maco_unpark(struct hl_maco_thread *w)
{
    uint32_t one = 1;
    if (__atomic_load_n(&w->parked, __ATOMIC_SEQ_CST) == 1 &&
        __atomic_compare_exchange_n(&w->parked, &one, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        __atomic_sub_fetch(&w->rt->n_parked, 1, __ATOMIC_SEQ_CST);
        hl_futex_wake(&w->parked, 1);
    }
}

void hl_maco_unpark_worker(maco_runtime *rt)
{
    if (HL_LIKELY(__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) == 0))
        return;
    for (uint32_t i = 0; i < rt->workers; i++)
        if (__atomic_load_n(&rt->threads[i].parked, __ATOMIC_SEQ_CST) == 1) {
            hl_maco_unpark(&rt->threads[i]);
            return;
        }
}

/* First looks without a pause, then pauses, then yields the processor a few times. */
bool hl_maco_relax(uint32_t spins, uint32_t k)
{
    if (k < LOOKS)
        return true;
    if (k + YIELDS < spins) {
        hl_pause();
        return true;
    }
    if (k < spins) {
        sched_yield();
        return true;
    }
    return false;
}

void hl_maco_abort_run(maco_runtime *rt, uint64_t run, hl_status st, const char *why)
{
    /* The lock orders threads that abort; the swap decides between them and the regular end of the
     * graph. */
    pthread_mutex_lock(&rt->verdict_lock);
    if (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) == run && rt->verdict == HL_OK) {
        rt->verdict = st;
        snprintf(rt->why, sizeof(rt->why), "%s", why);
        uint64_t seen = run;
        if (!__atomic_compare_exchange_n(&rt->run, &seen, run + 1, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            rt->verdict = HL_OK; /* the graph ended first */
    }
    pthread_mutex_unlock(&rt->verdict_lock);
    /* Also if this call was not the first: the caller then looks and sleeps again. */
    __atomic_add_fetch(&rt->ended, 1, __ATOMIC_SEQ_CST);
    hl_futex_wake(&rt->ended, 1);
}

void hl_maco_finish(struct hl_maco_thread *w)
{
    uint64_t seen = w->run;
    __atomic_compare_exchange_n(&w->rt->run, &seen, w->run + 1, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

/* True if there is a new run to join, or shutdown was requested. */
static bool has_call(const struct hl_maco_thread *w)
{
    uint64_t run = __atomic_load_n(&w->rt->run, __ATOMIC_SEQ_CST);
    return ((run & 1) && run != w->last) || __atomic_load_n(&w->rt->quit, __ATOMIC_SEQ_CST);
}

static void between_runs(struct hl_maco_thread *w)
{
    uint32_t spins = __atomic_load_n(&w->rt->spins_between, __ATOMIC_RELAXED);
    for (uint32_t k = 0; hl_maco_relax(spins, k); k++)
        if (has_call(w))
            return;
    mark_parked(w);
    if (has_call(w))
        unmark_parked(w);
    else
        sleep_here(w);
}

void *hl_maco_thread_main(void *arg)
{
    struct hl_maco_thread *w = arg;
    maco_runtime *rt = w->rt;
    /* Only a hint: a thread checks again when it enters or sleeps, and that check counts. */
    while (!__atomic_load_n(&rt->quit, __ATOMIC_RELAXED)) {
        uint64_t run = __atomic_load_n(&rt->run, __ATOMIC_RELAXED);
        if ((run & 1) == 0 || run == w->last) {
            between_runs(w);
            continue;
        }
        if (hl_maco_enter(w))
            w->work(w);
    }
    return NULL;
}

hl_status hl_maco_thread_start(maco_runtime *rt, struct hl_maco_thread *w)
{
    if (w->started)
        return HL_OK;
    int err = pthread_create(&w->thread, NULL, hl_maco_thread_main, w);
    if (err != 0)
        return hl_fail(HL_ENOMEM, "thread %u of the runtime can't be started: %s",
                       (unsigned)(w - rt->threads), strerror(err));
    w->started = true;
    return HL_OK;
}
