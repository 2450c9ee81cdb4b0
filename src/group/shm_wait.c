/* Waiting for another rank in shared memory: polls, then sleeps on a futex, and now and then checks
 * whether the other rank is still alive.
 *
 *    look LOOKS times -> ready? done
 *                     -> asleep for a slice or until woken -> look; after a slice: left? dead?
 *                        cancelled? late? -> the reason; the caller leaves the group
 *
 * A rank that gives up stores the reason (`because`) before `left`, so all others name the same
 * rank. */
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/shm.h"

#define SLICE_MS 20   /* a sleep, after which this rank checks the others */
#define LOOKS    2000 /* before the first sleep */

void hl_collective_wake(struct hl_collective_shm *g, uint32_t *word)
{
    if (__atomic_load_n(&g->s->sleepers, __ATOMIC_SEQ_CST) > 0)
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

hl_status hl_collective_give_up(struct hl_collective_shm *g, int rank, hl_status st)
{
    const struct hl_collective_row *other = &g->s->rows[rank];
    uint32_t because = (uint32_t)rank + 1;
    if (__atomic_load_n(&other->left, __ATOMIC_SEQ_CST) == HL_COLLECTIVE_GAVE_UP &&
        other->because != 0)
        because = other->because;
    g->s->rows[g->rank].because = because;
    __atomic_store_n(&g->s->rows[g->rank].left, HL_COLLECTIVE_GAVE_UP, __ATOMIC_SEQ_CST);
    return st;
}

/* Returns the rank that failed first; it may have told others before this rank looked. */
static hl_status given_up(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    uint32_t because = g->s->rows[w->rank].because;
    char why[64] = "";
    if (because > 0 && because <= (uint32_t)g->world && (int)because - 1 != w->rank) {
        const struct hl_process process = g->s->rows[because - 1].process;
        snprintf(why, sizeof(why), " for rank %u (process %d)%s", because - 1, (int)process.pid,
                 process.pid == 0 || hl_process_ended(process) ? ", which has died" : "");
    }
    return hl_fail(HL_EUNAVAIL, "%s: rank %d has given up the group%s; %s needs it in %s", g->path,
                   w->rank, why, g->who, w->what);
}

static hl_status check_alive(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    const struct hl_collective_row *row = &g->s->rows[w->rank];
    uint32_t left = __atomic_load_n(&row->left, __ATOMIC_SEQ_CST);
    int ended = left == 0 && (row->process.pid == 0 || hl_process_ended(row->process));
    hl_error_clear();
    if (left == HL_COLLECTIVE_GAVE_UP)
        return given_up(g, w);
    if (w->ready(g, w)) /* checked last: it may have left, or ended, after this step */
        return HL_OK;
    if (left == HL_COLLECTIVE_LEFT)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d has closed the group; %s waits for it in %s",
                       g->path, w->rank, g->who, w->what);
    if (ended)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d (process %d) has died; %s waits for it in %s",
                       g->path, w->rank, (int)row->process.pid, g->who, w->what);
    return HL_OK;
}

/* Sleepers are counted, so that a rank for which no other waits makes no system call in a step. A
 * sleeper is counted before the kernel reads the word, so a later change finds it. */
void hl_collective_sleep(struct hl_collective_shm *g, uint32_t *word, uint32_t seen)
{
    struct timespec slice = {.tv_nsec = SLICE_MS * (long)HL_NS_PER_MS};
    __atomic_add_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0);
    __atomic_sub_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void sleep_on(struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    uint32_t seen = __atomic_load_n(w->word, __ATOMIC_SEQ_CST);
    if (!w->ready(g, w))
        hl_collective_sleep(g, w->word, seen);
}

hl_status hl_collective_wait_until(struct hl_collective_shm *g, const struct hl_collective_wait *w,
                                   uint64_t until)
{
    const struct hl_collective_row *row = &g->s->rows[w->rank];
    for (int i = 0; i < LOOKS && !w->ready(g, w); i++)
        ;
    for (;;) {
        int here = w->ready(g, w);
        if (!here ||
            (here == 1 && __atomic_load_n(&row->left, __ATOMIC_SEQ_CST) == HL_COLLECTIVE_GAVE_UP))
            HL_TRY(check_alive(g, w));
        if (here)
            return HL_OK;
        if (__atomic_load_n(&g->cancelled, __ATOMIC_RELAXED))
            return hl_fail(HL_ECANCELED, "%s: cancelled while %s waited for rank %d in %s", g->path,
                           g->who, w->rank, w->what);
        if (hl_now_ns() > until)
            return hl_fail(HL_ETIMEDOUT,
                           "%s: rank %d (process %d) did not come within %d ms; %s waits for it in "
                           "%s",
                           g->path, w->rank, (int)row->process.pid, g->timeout_ms, g->who, w->what);
        sleep_on(g, w);
    }
}

uint64_t hl_collective_deadline(const struct hl_collective_shm *g)
{
    return hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
}

hl_status hl_collective_await(struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    hl_status st = hl_collective_wait_until(g, w, hl_collective_deadline(g));
    return st == HL_OK ? HL_OK : hl_collective_give_up(g, w->rank, st);
}
