/* How threads come into a run, leave it, sleep and are woken (runtime_private.h says why).
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
 * rt->run     the caller makes it odd (start_run); the first compare-and-swap makes it even: a
 *             worker's when the graph is done (hl_maco_finish), anybody's on failure
 *             (hl_maco_abort_run)
 * rt->active  a thread for itself, when it enters and when it leaves
 * w->parked   1 by its thread; back to 0 by compare-and-swap, by the waker or by itself, so
 *             that n_parked goes down once
 * rt->ended   the last thread to leave or one that aborts, to wake the caller
 *
 * All of these are sequentially consistent. The two pairs that need it:
 *   - a thread counts itself in `active`, then reads `run`; the caller reads `run`, then `active`.
 *     A thread that the caller has not counted finds an even number and leaves the plan alone;
 *   - a thread says `parked`, then looks for work; a producer makes work visible, then looks for
 *     `n_parked`. One of them sees the other, so no wake-up is lost. */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

#ifndef LOOKS    /* a test sleeps sooner */
#define LOOKS 64 /* without a pause */
#endif
#define YIELDS 8 /* at the end */
#define SLICE  (1000 * HL_NS_PER_MS)

bool hl_maco_enter(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    /* Counted before it looks: from here on the caller keeps the plan. */
    __atomic_add_fetch(&rt->active, 1, __ATOMIC_SEQ_CST);
    w->run = __atomic_load_n(&rt->run, __ATOMIC_SEQ_CST);
    if (w->run & 1)
        return true;
    hl_maco_leave(w);
    return false;
}

/* The last one to leave a run that is over wakes its caller. */
void hl_maco_leave(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    if (__atomic_sub_fetch(&rt->active, 1, __ATOMIC_SEQ_CST) == 0 &&
        (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) & 1) == 0) {
        __atomic_add_fetch(&rt->ended, 1, __ATOMIC_SEQ_CST);
        hl_futex_wake(&rt->ended, 1);
    }
}

/* No other thread may have woken it: it is awake by itself. */
static void unmark_parked(struct hl_maco_thread *w)
{
    uint32_t one = 1;
    if (__atomic_compare_exchange_n(&w->parked, &one, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        __atomic_sub_fetch(&w->rt->n_parked, 1, __ATOMIC_SEQ_CST);
}

/* n_parked first: a waker that finds it 0 need not look at single threads. */
static void mark_parked(struct hl_maco_thread *w)
{
    __atomic_add_fetch(&w->rt->n_parked, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&w->parked, 1, __ATOMIC_SEQ_CST);
}

/* A futex may wake spuriously; `parked` says whether a thread meant it. The slice bounds what a
 * wake-up that the kernel lost would cost. */
static void sleep_here(struct hl_maco_thread *w)
{
    while (__atomic_load_n(&w->parked, __ATOMIC_SEQ_CST) == 1)
        hl_futex_wait(&w->parked, 1, SLICE);
}

void hl_maco_park(struct hl_maco_thread *w, bool (*ready)(struct hl_maco_thread *w))
{
    mark_parked(w);
    /* What came before `parked` could be seen is found here; what comes later wakes this thread. */
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

/* First looks without a pause, then pauses, then gives the processor away a few times. */
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
    /* The lock orders threads that abort; the swap decides between them and the graph's own end. */
    pthread_mutex_lock(&rt->verdict_lock);
    if (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) == run && rt->verdict == HL_OK) {
        rt->verdict = st;
        snprintf(rt->why, sizeof(rt->why), "%s", why);
        uint64_t seen = run;
        if (!__atomic_compare_exchange_n(&rt->run, &seen, run + 1, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            rt->verdict = HL_OK; /* the graph's end came first */
    }
    pthread_mutex_unlock(&rt->verdict_lock);
    /* Also where it was not the first: the caller looks and sleeps again. */
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
    /* Only a hint: a thread that enters or sleeps looks again, and that counts. */
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
