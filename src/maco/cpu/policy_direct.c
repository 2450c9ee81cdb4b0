/* Policy direct: the worker that completes an event launches what follows.
 *
 * One successor is run by the same worker next, by a loop. A range has a cursor, from which all
 * that know of it take chunks: 1/(4W) of what is left, but where earlier runs have shown that its
 * tasks are short, as many as last as long as it takes to get them from another processor. That an
 * event has fired is known by its number in the `ready` queue of the one that fired it. A range's
 * number may be in several queues and outlive the range: what counts is the cursor. While a range
 * has tasks to give, its number is in a queue or a worker is taking from it.
 *
 *    worker 0: ready [e7 e9]   spill -> e12 -> e13     inbox -> t4 -> t1
 *    worker 1: ready [e9]      spill                   inbox
 *                    |                                    ^
 *                    | others take the oldest             | give_task: a task that only it may run
 *                    v                                    |
 *               claim_range: e9.cursor moves by a chunk, run_span runs it
 *
 *   ready   pushed by its owner, taken by anybody (ring.h)
 *   spill   its owner's alone: what did not fit in `ready`, linked by next_event
 *   inbox   a stack linked by next_task: pushed by anybody with compare-and-swap, emptied by its
 *           owner with one exchange, so ABA can't happen
 *   cursor  moved by compare-and-swap, relaxed: whichever worker has the event's number fired it or
 *           took it from a queue, and that acquire shows all that the tasks before it wrote
 *
 * An event is in next_event of one list at a time, since it fires once a run. */
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

static uint64_t range_width(const maco_event *e)
{
    return e->last - e->first;
}

/* Ticks of a task of this range, as earlier runs had it; 0 = not known. */
static uint64_t avg_task_ticks(const maco_event *e)
{
    return __atomic_load_n(&e->reserved2[2], __ATOMIC_RELAXED);
}

/* Moves by a quarter, and to four times at most: a thread may have been put aside meanwhile. */
static void learn_task_ticks(maco_event *e, uint64_t ticks, uint32_t tasks)
{
    uint64_t old = avg_task_ticks(e), now = ticks / tasks + 1;
    if (old > 0)
        now = (3 * old + (now < 4 * old ? now : 4 * old)) / 4;
    __atomic_store_n(&e->reserved2[2], now, __ATOMIC_RELAXED);
}

static uint64_t share_of(const maco_runtime *rt, const maco_event *e, uint64_t left)
{
    if (rt->workers == 1)
        return left;
    uint64_t guided = left / (4 * (uint64_t)rt->workers), ticks = avg_task_ticks(e);
    uint64_t least = ticks > 0 ? rt->handoff_ticks / ticks : 1;
    least = least < left ? least : left;
    guided += guided == 0;
    return guided > least ? guided : least;
}

/* [*first, *last) is the caller's now; false: there is nothing left. A cursor may stand before
 * where this iteration begins: a run may end while its last tasks, a proxy's, are still to be
 * skipped. */
static bool claim_range(const maco_runtime *rt, maco_event *e, uint32_t *first, uint32_t *last)
{
    uint64_t end = range_width(e) * rt->state->iteration, begin = end - range_width(e);
    uint64_t at = __atomic_load_n(&e->cursor, __ATOMIC_RELAXED), from, n;
    do {
        if (at >= end)
            return false;
        from = at > begin ? at : begin;
        n = share_of(rt, e, end - from);
    } while (!__atomic_compare_exchange_n(&e->cursor, &at, from + n, 0, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    *first = e->first + (uint32_t)(from - begin);
    *last = *first + (uint32_t)n;
    return true;
}

static bool has_more(const struct hl_maco_state *s, const maco_event *e)
{
    return __atomic_load_n(&e->cursor, __ATOMIC_RELAXED) < range_width(e) * s->iteration;
}

/* ---- events that others may take ---- */

static bool share_event(struct hl_maco_thread *w, uint32_t event)
{
    if (!hl_maco_share_push(&w->ready, event))
        return false;
    hl_maco_unpark_worker(w->rt);
    return true;
}

/* Each event comes here once in a run, when it has fired. Where the queue is full it waits in a
 * list of its owner. */
static void offer_event(struct hl_maco_thread *w, uint32_t event)
{
    uint32_t *next = w->rt->state->next_event;
    if (share_event(w, event))
        return;
    next[event] = MACO_NONE;
    if (w->spill == MACO_NONE)
        w->spill = event;
    else
        next[w->spill_last] = event;
    w->spill_last = event;
}

/* The oldest of its own; room in the queue is filled from the spill, so that others may take it. */
static uint32_t take_own(struct hl_maco_thread *w)
{
    uint32_t event = MACO_NONE, more = w->spill;
    if (!hl_maco_share_take(&w->ready, &event))
        event = MACO_NONE;
    if (more == MACO_NONE)
        return event;
    if (event == MACO_NONE) {
        w->spill = w->rt->state->next_event[more];
        return more;
    }
    uint32_t after = w->rt->state->next_event[more];
    if (share_event(w, more))
        w->spill = after;
    return event;
}

/* Begins behind itself, so that thieves spread over the owners. */
static uint32_t take_from_others(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    uint32_t n = hl_maco_threads(rt), event;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t i = w->index + k;
        i -= i >= n ? n : 0;
        if (hl_maco_share_any(&rt->threads[i].ready) &&
            hl_maco_share_take(&rt->threads[i].ready, &event))
            return event;
    }
    return MACO_NONE;
}

/* ---- tasks that only one worker may run ---- */

static void give_task(maco_runtime *rt, uint32_t worker, uint32_t task)
{
    struct hl_maco_thread *to = &rt->threads[worker];
    uint32_t *next = rt->state->next_task;
    uint32_t top = __atomic_load_n(&to->inbox, __ATOMIC_RELAXED);
    /* Sequentially consistent: its worker may be parking, and looks here after having said so. */
    do
        next[task] = top;
    while (!__atomic_compare_exchange_n(&to->inbox, &top, task, 1, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
    hl_maco_unpark(to);
}

static uint32_t take_given(struct hl_maco_thread *w)
{
    uint32_t *next = w->rt->state->next_task;
    if (w->given == MACO_NONE && __atomic_load_n(&w->inbox, __ATOMIC_RELAXED) != MACO_NONE) {
        uint32_t top = __atomic_exchange_n(&w->inbox, MACO_NONE, __ATOMIC_ACQUIRE);
        while (top != MACO_NONE) { /* the last one given is on top */
            uint32_t below = next[top];
            next[top] = w->given;
            w->given = top;
            top = below;
        }
    }
    uint32_t task = w->given;
    if (task != MACO_NONE)
        w->given = next[task];
    return task;
}

/* A proxy finds its tasks by their events; another worker's are handed over. */
static bool is_ours(struct hl_maco_thread *w, const struct hl_maco_hot *hot, uint32_t task)
{
    if (hl_maco_is_comm(hot->type))
        return false;
    if (hot->affinity == MACO_NONE || hot->affinity == w->index)
        return true;
    give_task(w->rt, hot->affinity, task);
    return false;
}

/* ---- running ---- */

/* What an event that has just fired gives its worker to do: it, or MACO_NONE. If there is more than
 * one, others may have them. */
static inline uint32_t launched_event(struct hl_maco_thread *w, uint32_t event)
{
    struct hl_maco_state *s = w->rt->state;
    const maco_event *e = &s->events[event];
    if (HL_LIKELY((e->reserved & ~HL_MACO_LINK) == 0 && e->kind < MACO_EVENT_END &&
                  e->kind != MACO_EVENT_EMPTY))
        return event;
    s->next_event[event] = MACO_NONE;
    uint32_t fired = event, first = hl_maco_launch(w, &fired);
    while (fired != MACO_NONE && (event = hl_maco_launch(w, &fired)) != MACO_NONE)
        offer_event(w, event);
    return first;
}

static inline void direct_settle(struct hl_maco_thread *w, struct hl_maco_held *h)
{
    if (h->n == 0 || !hl_maco_event_add(w->rt->state, h->event, h->n))
        return;
    uint32_t event = launched_event(w, h->event);
    if (event != MACO_NONE)
        offer_event(w, event);
}

/* Runs tasks; what the last of them launches is returned, for this worker to go on with. */
static uint32_t run_span(struct hl_maco_thread *w, uint32_t i, uint32_t last)
{
    struct hl_maco_state *s = w->rt->state;
    struct hl_maco_held held = {.event = MACO_NONE};
    for (; i < last; i++) {
        const struct hl_maco_hot *hot = &s->hot[i];
        if (HL_UNLIKELY(s->has_affinity) && !is_ours(w, hot, i))
            continue;
        uint32_t trigger = hot->trigger;
        if (trigger != held.event) { /* before the next task: others may wait for this one */
            direct_settle(w, &held);
            held = (struct hl_maco_held){.event = trigger};
        }
        if (!hl_maco_execute(w, hot, i))
            return MACO_NONE;
        held.n++;
    }
    if (held.n == 0 || !hl_maco_event_add(s, held.event, held.n))
        return MACO_NONE;
    return launched_event(w, held.event);
}

/* The same for one task, and for all that follow it link by link. */
static uint32_t run_chain(struct hl_maco_thread *w, uint32_t i)
{
    struct hl_maco_state *s = w->rt->state;
    const struct hl_maco_hot *hot = &s->hot[i];
    while (hl_maco_execute(w, hot, i)) {
        if (hot->next == MACO_NONE)
            return hl_maco_event_add(s, hot->trigger, 1) ? launched_event(w, hot->trigger)
                                                         : MACO_NONE;
        i = hot->next;
        hot = &s->hot[i];
    }
    return MACO_NONE;
}

static uint32_t run_event(struct hl_maco_thread *w, uint32_t event)
{
    struct hl_maco_state *s = w->rt->state;
    maco_event *e = &s->events[event];
    uint32_t first, last;
    int known = 0; /* to others */
    if (e->kind == MACO_EVENT_LAUNCH_TASK)
        return s->has_affinity ? run_span(w, e->first, e->last) : run_chain(w, e->first);
    while (claim_range(w->rt, e, &first, &last)) {
        int alone = w->rt->workers == 1;
        if (!known && !alone && has_more(s, e))
            known = share_event(w, event);
        uint64_t from = alone ? 0 : hl_tick();
        uint32_t next = run_span(w, first, last);
        if (hl_maco_over(w))
            return MACO_NONE;
        if (!alone)
            learn_task_ticks(e, hl_tick() - from, last - first);
        if (next == MACO_NONE)
            continue;
        if (!has_more(s, e))
            return next;
        if (share_event(w, event))
            return next;
        offer_event(w, next);
    }
    return MACO_NONE;
}

static uint32_t run_given(struct hl_maco_thread *w, uint32_t event)
{
    uint32_t task;
    while ((task = take_given(w)) != MACO_NONE && !hl_maco_over(w)) {
        uint32_t next = run_span(w, task, task + 1);
        if (next == MACO_NONE)
            continue;
        if (event == MACO_NONE)
            event = next;
        else
            offer_event(w, next);
    }
    return event;
}

/* Asked after `parked`: what a queue shows here is not lost. */
static bool has_work(struct hl_maco_thread *w)
{
    const maco_runtime *rt = w->rt;
    uint32_t n = hl_maco_threads(rt);
    if (__atomic_load_n(&w->inbox, __ATOMIC_SEQ_CST) != MACO_NONE)
        return true;
    for (uint32_t i = 0; i < n; i++)
        if (hl_maco_share_any(&rt->threads[i].ready))
            return true;
    return false;
}

/* Nothing to do: looks around for a while. false: the run is over, or this thread has slept. */
static bool wait_for_work(struct hl_maco_thread *w, uint32_t *event)
{
    uint64_t from = w->rt->tracing ? hl_tick() : 0;
    __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
    for (uint32_t k = 0; !hl_maco_over(w); k++) {
        if (__atomic_load_n(&w->inbox, __ATOMIC_RELAXED) != MACO_NONE ||
            (*event = take_from_others(w)) != MACO_NONE) {
            if (w->rt->tracing)
                hl_maco_record(w, MACO_NONE, HL_MACO_WAIT, from, hl_tick_acquire());
            return true;
        }
        if (hl_maco_relax(w->rt->spins, k))
            continue;
        hl_maco_park(w, has_work);
        return false;
    }
    hl_maco_leave(w);
    return false;
}

static void direct_work(struct hl_maco_thread *w)
{
    uint32_t event = MACO_NONE;
    if (w->rt->tracing)
        w->tick = hl_tick_acquire();
    for (;;) {
        if (HL_UNLIKELY(w->rt->state->has_affinity))
            event = run_given(w, event);
        if (hl_maco_over(w))
            break;
        if (event == MACO_NONE && (event = take_own(w)) == MACO_NONE) {
            if (!wait_for_work(w, &event))
                return;
            if (event == MACO_NONE)
                continue;
        }
        event = run_event(w, event);
    }
    hl_maco_leave(w);
}

/* A proxy runs no tasks: where its queue is full, workers make room. */
static void direct_offer(struct hl_maco_thread *w, uint32_t event)
{
    uint32_t fired = event;
    if (!hl_maco_event_add(w->rt->state, event, 1))
        return;
    w->rt->state->next_event[event] = MACO_NONE;
    while ((event = hl_maco_launch(w, &fired)) != MACO_NONE) {
        while (!hl_maco_share_push(&w->ready, event)) {
            if (hl_maco_over(w))
                return;
            hl_pause();
        }
        hl_maco_unpark_worker(w->rt);
    }
}

/* Between runs all queues are the caller's. */
static void direct_start(maco_runtime *rt)
{
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        hl_maco_share_reset(&w->ready);
        w->spill = w->given = MACO_NONE;
        __atomic_store_n(&w->inbox, MACO_NONE, __ATOMIC_RELAXED);
    }
    if (!hl_maco_share_push(&rt->threads[0].ready, rt->state->view.n_events))
        __builtin_unreachable(); /* it was just emptied */
}

const struct hl_maco_policy_ops hl_maco_direct_policy = {
    .start = direct_start, .work = direct_work, .offer = direct_offer};
