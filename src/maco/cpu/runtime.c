/* Opening and closing a runtime, and a run as its caller sees it: he puts the roots in front of the
 * workers, wakes them, sleeps, and looks now and then what each does, so that he can tell when the
 * deadline passes. He runs no task himself: a body that never ends does not keep him. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "helios/hybridps.h"
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"
#include "os/cpus.h"

#define TIMEOUT_NS (60 * HL_NS_PER_S)
#define RING       1024
#define HANDOFF_NS 1000 /* a chunk: what two counts that others write to cost, and twice that */
#define RING_MAX   (1u << 24)
#define LOOK_MIN   (1 * HL_NS_PER_MS)
#define LOOK_MAX   (250 * HL_NS_PER_MS)
#ifndef SPINS         /* a test sleeps sooner */
#define SPINS     512 /* about 20 us */
#define SPINS_FEW 80  /* where threads are more than processors */
#endif

/* ---- threads ---- */

static hl_status start_thread(maco_runtime *rt, struct hl_maco_thread *w)
{
    if (w->started)
        return HL_OK;
    int err = pthread_create(&w->thread, NULL, hl_maco_thread_main, w);
    if (err != 0)
        return hl_fail(HL_ENOMEM, "thread %u of the runtime can't be started: %s",
                       (unsigned)(w - rt->threads), strerror(err));
    w->started = 1;
    return HL_OK;
}

static const struct hl_maco_policy_ops *const policies[] = {
    [MACO_DIRECT] = &hl_maco_direct_policy,
    [MACO_SCHEDULER] = &hl_maco_scheduler_policy,
    [MACO_STATIC] = &hl_maco_static_policy,
};

static hl_status init_thread(maco_runtime *rt, uint32_t i)
{
    struct hl_maco_thread *w = &rt->threads[i];
    w->rt = rt;
    w->role = i < rt->workers            ? HL_MACO_WORKER
              : w >= proxy_thread(rt, 0) ? HL_MACO_PROXY
                                         : HL_MACO_SCHEDULER;
    w->work = w->role == HL_MACO_PROXY       ? hl_maco_proxy
              : w->role == HL_MACO_SCHEDULER ? hl_maco_schedule
                                             : rt->ops->work;
    w->index = w->role == HL_MACO_PROXY ? (uint32_t)(w - proxy_thread(rt, 0)) : i;
    w->task = w->waits = w->inbox = w->given = w->spill = MACO_NONE;
    HL_TRY(hl_maco_share_init(&w->ready, rt->ring));
    if (w->role == HL_MACO_WORKER && rt->policy == MACO_SCHEDULER)
        HL_TRY(hl_maco_spsc_init(&w->queue, rt->ring));
    return HL_OK;
}

static hl_status make_threads(maco_runtime *rt)
{
    rt->n_threads = rt->workers + (rt->policy == MACO_SCHEDULER) + HL_MACO_GROUPS;
    rt->threads = aligned_alloc(HL_LINE, rt->n_threads * sizeof(*rt->threads));
    rt->samples = calloc(rt->n_threads, sizeof(*rt->samples));
    if (rt->threads == NULL || rt->samples == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %u workers", rt->workers);
    memset(rt->threads, 0, rt->n_threads * sizeof(*rt->threads));
    for (uint32_t i = 0; i < rt->n_threads; i++)
        HL_TRY(init_thread(rt, i));
    if (rt->policy == MACO_SCHEDULER) {
        HL_TRY(hl_maco_mpsc_init(&rt->events, rt->ring));
        HL_TRY(start_thread(rt, scheduler_thread(rt)));
    }
    for (uint32_t i = 0; i < rt->workers; i++)
        HL_TRY(start_thread(rt, &rt->threads[i]));
    return HL_OK;
}

static hl_status check_options(const maco_runtime_options *o)
{
    if (o->workers < 0 || o->workers > HL_MACO_WORKERS)
        return hl_fail(HL_EINVAL, "%d workers: 0 (those this process may use) to %d", o->workers,
                       HL_MACO_WORKERS);
    if (o->policy < MACO_DIRECT || o->policy > MACO_STATIC)
        return hl_fail(HL_EINVAL, "there is no policy %d", o->policy);
    if (o->balance < MACO_ROUND_ROBIN || o->balance > MACO_LEAST_LOADED)
        return hl_fail(HL_EINVAL, "there is no balance %d", o->balance);
    if (o->ring != 0 && (o->ring < 2 || o->ring > RING_MAX || (o->ring & (o->ring - 1)) != 0))
        return hl_fail(HL_EINVAL, "a ring of %u slots: a power of two from 2 to %u", o->ring,
                       RING_MAX);
    if (o->n_groups > HL_MACO_GROUPS || (o->n_groups > 0 && o->groups == NULL))
        return hl_fail(HL_EINVAL, "%u groups: at most %d, in an array", o->n_groups,
                       HL_MACO_GROUPS);
    return HL_OK;
}

int maco_runtime_open(const maco_runtime_options *options, maco_runtime **out)
{
    static const maco_runtime_options none;
    const maco_runtime_options *o = options != NULL ? options : &none;
    if (out == NULL)
        return hl_fail(HL_EINVAL, "a place for the runtime is wanted");
    HL_TRY(check_options(o));
    maco_runtime *rt = aligned_alloc(HL_LINE, sizeof(*rt));
    if (rt == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a runtime");
    memset(rt, 0, sizeof(*rt));
    pthread_mutex_init(&rt->verdict_lock, NULL);
    rt->pid = getpid();
    rt->policy = o->policy;
    rt->ops = policies[o->policy];
    rt->balance = o->balance;
    rt->tracing = o->trace != 0;
    rt->poll = o->poll;
    rt->poll_arg = o->poll_arg;
    rt->timeout_ns = o->timeout_ns > 0 ? o->timeout_ns : TIMEOUT_NS;
    rt->ring = o->ring > 0 ? o->ring : RING;
    rt->cpus = hl_cpus_usable();
    uint32_t spare = o->policy == MACO_SCHEDULER && rt->cpus > 1; /* for the scheduler */
    rt->workers = o->workers > 0 ? (uint32_t)o->workers : rt->cpus - spare;
    rt->workers = rt->workers < HL_MACO_WORKERS ? rt->workers : HL_MACO_WORKERS;
    hl_status st = HL_OK;
    if (o->n_groups > 0) {
        hybridps_group **groups = malloc(o->n_groups * sizeof(*groups));
        if (groups == NULL)
            st = hl_fail(HL_ENOMEM, "out of memory allocating %u groups", o->n_groups);
        else
            memcpy(groups, o->groups, o->n_groups * sizeof(*groups));
        rt->groups = groups;
        rt->n_groups = groups != NULL ? o->n_groups : 0;
    }
    hl_tick_mark(&rt->clock, 0);
    if (st == HL_OK)
        st = make_threads(rt);
    if (st != HL_OK) {
        maco_runtime_close(rt);
        return st;
    }
    *out = rt;
    return HL_OK;
}

int hl_maco_quiet(const maco_runtime *rt)
{
    return (__atomic_load_n(&rt->run, __ATOMIC_SEQ_CST) & 1) == 0 &&
           __atomic_load_n(&rt->active, __ATOMIC_SEQ_CST) == 0;
}

/* 0: some thread is still in a task at that time, or when the caller had enough. */
static int await_quiet(maco_runtime *rt, uint64_t until, int (*poll)(void *arg))
{
    for (;;) {
        uint32_t seen = __atomic_load_n(&rt->ended, __ATOMIC_SEQ_CST);
        if (hl_maco_quiet(rt))
            return 1;
        uint64_t now = hl_now_ns();
        if (now >= until || (poll != NULL && poll(rt->poll_arg) != 0))
            return 0;
        hl_futex_wait(&rt->ended, seen, until - now < LOOK_MAX ? until - now : LOOK_MAX);
    }
}

static void release_runtime(maco_runtime *rt)
{
    for (uint32_t i = 0; rt->threads != NULL && i < rt->n_threads; i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        hl_maco_share_fini(&w->ready);
        hl_maco_spsc_fini(&w->queue);
        hl_maco_scratch_free(&w->scratch);
        free(w->log);
        free(w->records);
    }
    for (uint32_t i = 0; i < HL_MACO_PLANS; i++)
        hl_maco_unload(&rt->plans[i]);
    hl_maco_mpsc_fini(&rt->events);
    pthread_mutex_destroy(&rt->verdict_lock);
    free((void *)(uintptr_t)rt->groups);
    free(rt->agreed);
    free(rt->samples);
    free(rt->threads);
    free(rt);
}

void maco_runtime_close(maco_runtime *rt)
{
    if (rt == NULL || rt->pid != getpid())
        return; /* after fork() the threads are the parent's */
    __atomic_store_n(&rt->quit, 1, __ATOMIC_SEQ_CST);
    /* A body that does not end keeps its thread, and with it this memory. */
    int all = await_quiet(rt, hl_now_ns() + HL_MACO_GRACE_NS, NULL);
    for (uint32_t i = 0; rt->threads != NULL && i < rt->n_threads; i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        if (!w->started)
            continue;
        hl_maco_unpark(w);
        if (all)
            pthread_join(w->thread, NULL);
        else
            pthread_detach(w->thread);
    }
    if (all)
        release_runtime(rt);
}

/* ---- a run ---- */

/* Records are put on the clock by the line from the runtime's opening to here. */
static void mark_clock(maco_runtime *rt)
{
    hl_tick_mark(&rt->clock, 1);
    rt->handoff_ticks = hl_tick_ticks(&rt->clock, HANDOFF_NS);
}

static hl_status make_room(maco_runtime *rt)
{
    uint32_t n = rt->state->view.n_tasks;
    uint32_t threads = hl_maco_threads(rt);
    rt->spins = threads > rt->cpus ? SPINS_FEW : SPINS;
    /* The caller wants a processor then. */
    __atomic_store_n(&rt->spins_between, threads + 1 > rt->cpus ? SPINS_FEW : SPINS,
                     __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < threads; i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        w->done = 0;
        w->n_records = 0;
        w->unrecorded = 0;
        __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
        __atomic_store_n(&w->waits, MACO_NONE, __ATOMIC_RELAXED);
        HL_TRY(start_thread(rt, w)); /* a proxy is, when a plan has something for it */
        if (w->role == HL_MACO_SCHEDULER || w->log_room >= n)
            continue;
        uint32_t *log = malloc(n * sizeof(*log)); /* pages come as they are written */
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
    s->dirty = 1; /* until it ends well */
    __atomic_store_n(&s->events[s->view.n_events].count, s->iteration, __ATOMIC_RELAXED);
    if (rt->ops->start != NULL)
        rt->ops->start(rt);
    rt->verdict = HL_OK;
    rt->why[0] = '\0';
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

/* A collective waits for other ranks, which may never come. Its group is lost: here it was called,
 * there it was not. */
static void cancel_collectives(maco_runtime *rt)
{
    for (uint32_t g = 0; g < rt->state->n_proxies && g < rt->n_groups; g++)
        if (__atomic_load_n(&proxy_thread(rt, g)->task, __ATOMIC_RELAXED) != MACO_NONE)
            hybridps_group_cancel(rt->groups[g]);
}

/* The caller may have had enough; what was ended is asked no more. */
static void poll_caller(maco_runtime *rt, uint64_t run)
{
    if (rt->poll != NULL && rt->poll(rt->poll_arg) != 0)
        hl_maco_abort_run(rt, run, HL_ECANCELED, "the run was cancelled by its caller");
}

/* Sleeps until the run is over and its threads have left it. */
static void watch_run(maco_runtime *rt, uint64_t run, uint64_t deadline)
{
    uint64_t step = rt->timeout_ns / 64;
    step = step < LOOK_MIN ? LOOK_MIN : step > LOOK_MAX ? LOOK_MAX : step;
    uint64_t next = hl_now_ns() + step, grace = 0;
    int cut = 0;
    for (;;) {
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

/* Names who is still in a task. */
static hl_status report_busy_workers(maco_runtime *rt, hl_status st, const char *before)
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
                   "%s%sstill at work: %s; its memory is in use until it returns, and nothing "
                   "else runs here before",
                   before, before[0] != '\0' ? "; " : "", text);
}

static hl_status run_verdict(maco_runtime *rt)
{
    pthread_mutex_lock(&rt->verdict_lock);
    hl_status st = rt->verdict;
    pthread_mutex_unlock(&rt->verdict_lock);
    if (!hl_maco_quiet(rt))
        return report_busy_workers(rt, st, rt->why);
    if (st != HL_OK)
        return hl_fail(st, "%s", rt->why);
    rt->state->dirty = 0;
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

static hl_status run_alone(maco_runtime *rt, const struct hl_maco_source *source)
{
    uint64_t deadline = hl_now_ns() + rt->timeout_ns;
    if (!await_quiet(rt, deadline, rt->poll))
        return report_busy_workers(rt, HL_EBUSY, "");
    rt->plan = NULL;
    HL_TRY(hl_maco_agree(rt, source, deadline));
    hl_status st = hl_maco_run_once(rt, source, deadline);
    rt->plan = rt->state != NULL ? source->plan : NULL;
    return st;
}

hl_status hl_maco_run_source(maco_runtime *rt, const struct hl_maco_source *source)
{
    if (rt->pid != getpid())
        return hl_fail(HL_EPERM, "the runtime was opened by process %d; after fork() open one here",
                       (int)rt->pid);
    if (__atomic_exchange_n(&rt->busy, 1, __ATOMIC_ACQUIRE))
        return hl_fail(HL_EBUSY, "another thread runs a plan on this runtime");
    hl_status st = source->view.n_tasks > 0 ? run_alone(rt, source) : HL_OK;
    __atomic_store_n(&rt->busy, 0, __ATOMIC_RELEASE);
    return st;
}

void maco_cancel(maco_runtime *rt)
{
    if (rt == NULL)
        return;
    uint64_t run = __atomic_load_n(&rt->run, __ATOMIC_SEQ_CST);
    if (run & 1)
        hl_maco_abort_run(rt, run, HL_ECANCELED, "the run was cancelled");
}
