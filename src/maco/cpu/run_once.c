/* A run from its caller's side. The caller hands the roots to the workers, wakes them and sleeps.
 * Now and then it samples what each worker does, so that it can report that when the deadline
 * passes. The caller runs no task itself, so a body that never ends does not block it.
 *
 *    hl_maco_load   make_room   start_run        watch_run                        run_verdict
 *   |------------|------------|-----------|--------------------------------|-----|
 *                              run is odd: workers enter                    run is even and none
 *                                                                           is active
 *   deadline, failure or cancel: run is even
 *      + 1 s   collectives that still wait are cancelled, and their groups are lost
 *      + 2 s   the caller returns; threads still in a body keep the runtime busy
 *
 * Between runs (even, none active) threads only read `run`, `quit` and spins_between. So only the
 * last store of start_run needs an order: making `run` odd publishes everything. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "helios/hybridps.h"
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

#define HANDOFF_NS 1000 /* of a chunk: two counts that others write to, times two */
#define LOOK_MIN   (1 * HL_NS_PER_MS)
#ifndef SPINS         /* a test lets threads sleep sooner */
#define SPINS     512 /* about 20 us */
#define SPINS_FEW 80  /* if there are more threads than processors */
#endif

/* Converts the ticks of records to the clock, by the line from the runtime's opening to now. */
static void mark_clock(maco_runtime *rt)
{
    hl_tick_mark(&rt->clock, 1);
    rt->handoff_ticks = hl_tick_ticks(&rt->clock, HANDOFF_NS);
}

/* Makes room for what threads write during a run without a check: logs as long as the plan. */
static hl_status make_room(maco_runtime *rt)
{
    uint32_t n = rt->state->view.n_tasks;
    uint32_t threads = hl_maco_threads(rt);
    rt->spins = threads > rt->cpus ? SPINS_FEW : SPINS;
    /* Between runs the caller needs a processor too. */
    __atomic_store_n(&rt->spins_between, threads + 1 > rt->cpus ? SPINS_FEW : SPINS,
                     __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < threads; i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        w->done = 0;
        w->n_records = 0;
        w->unrecorded = 0;
        __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
        __atomic_store_n(&w->waits, MACO_NONE, __ATOMIC_RELAXED);
        HL_TRY(hl_maco_thread_start(rt, w)); /* a proxy starts with the first plan that uses it */
        if (w->role == HL_MACO_SCHEDULER || w->log_room >= n)
            continue;
        uint32_t *log = malloc(n * sizeof(*log)); /* the kernel maps pages as they are written */
        if (log == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating the notes of %u tasks", n);
        free(w->log);
        w->log = log;
        w->log_room = n;
    }
    return HL_OK;
}

static uint64_t start_run(maco_runtime *rt)
{
    struct hl_maco_state *s = rt->state;
    memset(rt->samples, 0, hl_maco_threads(rt) * sizeof(*rt->samples));
    if (s->dirty)
        hl_maco_rewind(s);
    s->iteration++;
    s->dirty = true; /* until the run has ended well */
    __atomic_store_n(&s->events[s->view.n_events].count, s->iteration, __ATOMIC_RELAXED);
    if (rt->ops->start != NULL)
        rt->ops->start(rt);
    rt->verdict = HL_OK;
    rt->why[0] = '\0';
    /* From here on threads may be in the run: nothing above may be written any more. */
    uint64_t run = __atomic_add_fetch(&rt->run, 1, __ATOMIC_SEQ_CST);
    uint32_t wanted =
        rt->policy == MACO_STATIC || s->view.n_roots > rt->workers ? rt->workers : s->view.n_roots;
    if (rt->policy == MACO_SCHEDULER) {
        hl_maco_unpark(scheduler_thread(rt));
        wanted = 0;
    }
    for (uint32_t i = 0; i < wanted; i++)
        hl_maco_unpark(&rt->threads[i]);
    for (uint32_t i = 0; i < s->n_proxies; i++)
        hl_maco_unpark(proxy_thread(rt, i));
    return run;
}

static void abort_late_run(maco_runtime *rt, uint64_t run)
{
    char why[HL_ERROR_TEXT_MAX], text[HL_ERROR_TEXT_MAX - 80];
    hl_maco_report(rt, text, sizeof(text));
    snprintf(why, sizeof(why), "after %" PRIu64 " ms %s", rt->timeout_ns / HL_NS_PER_MS, text);
    hl_maco_abort_run(rt, run, HL_ETIMEDOUT, why);
}

/* A collective waits for other ranks, which may never come. Its group is lost: some ranks have
 * called the collective and others have not. */
static void cancel_collectives(maco_runtime *rt)
{
    for (uint32_t g = 0; g < rt->state->n_proxies && g < rt->n_groups; g++)
        if (__atomic_load_n(&proxy_thread(rt, g)->task, __ATOMIC_RELAXED) != MACO_NONE)
            hybridps_group_cancel(rt->groups[g]);
}

/* Asks the caller whether to continue; has no effect after the run has ended. */
static void poll_caller(maco_runtime *rt, uint64_t run)
{
    if (rt->poll != NULL && rt->poll(rt->poll_arg) != 0)
        hl_maco_abort_run(rt, run, HL_ECANCELED, "the run was cancelled by its caller");
}

/* Sleeps until the run is over and its threads have left it. */
static void watch_run(maco_runtime *rt, uint64_t run, uint64_t deadline)
{
    uint64_t step = rt->timeout_ns / 64;
    step = step < LOOK_MIN ? LOOK_MIN : step > HL_MACO_LOOK_MAX ? HL_MACO_LOOK_MAX : step;
    uint64_t next = hl_now_ns() + step, grace = 0;
    int cut = 0;
    for (;;) {
        /* Read before the check: if it changes after the check, the futex does not sleep. */
        uint32_t seen = __atomic_load_n(&rt->ended, __ATOMIC_SEQ_CST);
        if (hl_maco_quiet(rt))
            return;
        uint64_t now = hl_now_ns();
        int going = __atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) == run;
        if (now >= next || now >= deadline) {
            hl_maco_sample(rt, now);
            next = now + step;
        }
        if (going && now >= deadline) {
            abort_late_run(rt, run);
            continue;
        }
        if (!going && grace == 0)
            grace = now + HL_MACO_GRACE_NS;
        if (!going && now >= grace)
            return;
        if (!going && !cut && now >= grace - HL_MACO_GRACE_NS / 2) {
            cancel_collectives(rt);
            cut = 1;
        }
        uint64_t until = going && deadline < next ? deadline : next;
        hl_futex_wait(&rt->ended, seen, until > now ? until - now : 1);
        if (going && !hl_maco_quiet(rt))
            poll_caller(rt, run);
    }
}

/* Names the workers that are still in a task. */
hl_status hl_maco_report_busy(maco_runtime *rt, hl_status st, const char *before)
{
    char text[HL_ERROR_TEXT_MAX - 200] = "";
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++) {
        const struct hl_maco_thread *w = &rt->threads[i];
        uint32_t task = __atomic_load_n(&w->task, __ATOMIC_RELAXED);
        size_t used = strlen(text);
        if (task != MACO_NONE)
            snprintf(text + used, sizeof(text) - used, "%s%s %u in %s", used > 0 ? ", " : "",
                     w->role == HL_MACO_PROXY ? "proxy" : "worker", w->index,
                     hl_maco_task_name(rt->state, task));
    }
    return hl_fail(st,
                   "%s%sstill at work: %s; its memory is in use until it returns, and nothing else "
                   "can run here until then",
                   before, before[0] != '\0' ? "; " : "", text);
}

/* Reads `run` before `active`, in the reverse order of hl_maco_enter. */
bool hl_maco_quiet(const maco_runtime *rt)
{
    return (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) & 1) == 0 &&
           __atomic_load_n(&rt->active, __ATOMIC_SEQ_CST) == 0;
}

static hl_status run_verdict(maco_runtime *rt)
{
    pthread_mutex_lock(&rt->verdict_lock);
    hl_status st = rt->verdict;
    pthread_mutex_unlock(&rt->verdict_lock);
    if (!hl_maco_quiet(rt))
        return hl_maco_report_busy(rt, st, rt->why);
    if (st != HL_OK)
        return hl_fail(st, "%s", rt->why);
    rt->state->dirty = false;
    return HL_OK;
}

hl_status hl_maco_run_once(maco_runtime *rt, const struct hl_maco_source *source, uint64_t deadline)
{
    rt->runs++;
    rt->state = NULL;
    HL_TRY(hl_maco_load(rt, source, &rt->state));
    HL_TRY(make_room(rt));
    if (rt->state->has_bodies)
        hl_maco_bodies_begin();
    watch_run(rt, start_run(rt), deadline);
    if (rt->state->has_bodies)
        hl_maco_bodies_end();
    mark_clock(rt);
    return run_verdict(rt);
}
