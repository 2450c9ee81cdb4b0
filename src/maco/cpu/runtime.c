/* Opens and closes a runtime, and controls who runs on it: one caller at a time, when all is quiet.
 *
 *     threads[]   | worker 0 .. workers - 1 | scheduler, of that policy | a proxy for each group |
 *
 * Workers and the scheduler start with the runtime and live until its close; a proxy starts with
 * the first plan that uses its group. Pictures of what they share during a run are where it is
 * implemented: rings in ring.h, sleeping and waking in thread.c, ready tasks in policy_*.c. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "helios/hybridps.h"
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"
#include "os/cpus.h"

#define TIMEOUT_NS (60 * HL_NS_PER_S)
#define RING       1024
#define RING_MAX   (1u << 24)

/* ---- threads ---- */

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
        HL_TRY(hl_maco_thread_start(rt, scheduler_thread(rt)));
    }
    for (uint32_t i = 0; i < rt->workers; i++)
        HL_TRY(hl_maco_thread_start(rt, &rt->threads[i]));
    return HL_OK;
}

static hl_status check_options(const maco_runtime_options *o)
{
    if (o->workers < 0 || o->workers > HL_MACO_WORKERS)
        return hl_fail(HL_EINVAL, "%d workers: 0 (those this process may use) to %d", o->workers,
                       HL_MACO_WORKERS);
    if (o->policy < MACO_DIRECT || o->policy > MACO_STATIC)
        return hl_fail(HL_EINVAL, "unknown policy %d", o->policy);
    if (o->balance < MACO_ROUND_ROBIN || o->balance > MACO_LEAST_LOADED)
        return hl_fail(HL_EINVAL, "unknown balance %d", o->balance);
    if (o->ring != 0 && (o->ring < 2 || o->ring > RING_MAX || (o->ring & (o->ring - 1)) != 0))
        return hl_fail(HL_EINVAL, "a ring of %u slots: a power of two from 2 to %u", o->ring,
                       RING_MAX);
    if (o->n_groups > HL_MACO_GROUPS || (o->n_groups > 0 && o->groups == NULL))
        return hl_fail(HL_EINVAL, "%u groups: at most %d, in an array", o->n_groups,
                       HL_MACO_GROUPS);
    return HL_OK;
}

static hl_status open_runtime(const maco_runtime_options *o, maco_runtime **out)
{
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

int maco_runtime_open(const maco_runtime_options *options, maco_runtime **out)
{
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT};
    if (out == NULL)
        return hl_fail(HL_EINVAL, "maco_runtime_open: out is NULL");
    if (options != NULL)
        HL_TRY(HL_ABI_READ(maco_runtime_options, options, &o));
    HL_TRY(check_options(&o));
    return open_runtime(&o, out);
}

/* false: a thread is still in a task at that time, or when the caller cancelled. */
static bool await_quiet(maco_runtime *rt, uint64_t until, int (*poll)(void *arg))
{
    for (;;) {
        uint32_t seen = __atomic_load_n(&rt->ended, __ATOMIC_SEQ_CST);
        if (hl_maco_quiet(rt))
            return true;
        uint64_t now = hl_now_ns();
        if (now >= until || (poll != NULL && poll(rt->poll_arg) != 0))
            return false;
        hl_futex_wait(&rt->ended, seen,
                      until - now < HL_MACO_LOOK_MAX ? until - now : HL_MACO_LOOK_MAX);
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
        return; /* after fork() the threads belong to the parent */
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

static hl_status run_alone(maco_runtime *rt, const struct hl_maco_source *source)
{
    uint64_t deadline = hl_now_ns() + rt->timeout_ns;
    if (!await_quiet(rt, deadline, rt->poll))
        return hl_maco_report_busy(rt, HL_EBUSY, "");
    rt->plan = NULL;
    HL_TRY(hl_maco_agree(rt, source, deadline));
    hl_status st = hl_maco_run_once(rt, source, deadline);
    rt->plan = rt->state != NULL ? source->plan : NULL;
    return st;
}

hl_status hl_maco_run_source(maco_runtime *rt, const struct hl_maco_source *source)
{
    if (rt->pid != getpid())
        return hl_fail(HL_EPERM, "process %d opened the runtime; open another one after fork()",
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
