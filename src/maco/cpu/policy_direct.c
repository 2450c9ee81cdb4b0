/* Policy direct: the worker that completes an event launches its successors.
 *
 * A single successor is run next by the same worker, in a loop. A range has a cursor, from which
 * all workers that know the range take chunks of 1/(4W) of the rest. If earlier runs have shown
 * that its tasks are short, a chunk is at least as long as it takes to get it from another
 * processor. Workers learn that an event has fired by its number in the `ready` queue of the worker
 * that fired it. A range's number can be in several queues and can outlive the range, since only
 * the cursor counts. While a range has tasks left, its number is in a queue or a worker is taking
 * from it.
 *
 *    worker 0: ready [e7 e9]   spill -> e12 -> e13     inbox -> t4 -> t1
 *    worker 1: ready [e9]      spill                   inbox
 *                    |                                    ^
 *                    | others take the oldest             | give_task: a task that only it may run
 *                    v                                    |
 *               claim_range: e9.cursor moves by a chunk, run_span runs it
 *
 *   ready   pushed by its owner, taken by any worker (ring.h)
 *   spill   used by its owner only: events that did not fit in `ready`, linked by next_event
 *   inbox   a stack linked by next_task: any worker pushes with compare-and-swap, and its owner
 *           empties it with one exchange, so ABA can't happen
 *   cursor  moved by compare-and-swap, relaxed: a worker with the event's number has fired it or
 *           taken it from a queue; that acquire makes all writes of earlier tasks visible
 *
 * An event is in next_event of one list at a time, since it fires once per run. */
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

static uint64_t range_width(const maco_event *e)
{
    return e->last - e->first;
}

/* Ticks per task of this range, learned in earlier runs; 0 = unknown. */
static uint64_t avg_task_ticks(const maco_event *e)
{
    return __atomic_load_n(&e->reserved2[2], __ATOMIC_RELAXED);
}

/* Moves the average by a quarter of the difference. A sample counts at most four times the average,
 * because the thread may have been preempted meanwhile. */
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

/* Claims tasks [*first, *last) for the caller; false: none are left. The cursor can be before the
 * start of this iteration, because a run can end while tasks of a proxy at the end of the range are
 * still to be skipped. */
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

/* ---- events that other workers can take ---- */

static bool share_event(struct hl_maco_thread *w, uint32_t event)
{
    if (!hl_maco_share_push(&w->ready, event))
        return false;
    hl_maco_unpark_worker(w->rt);
    return true;
}

/* Called once per run for each event that has fired. If the queue is full, the event waits in a
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

/* Takes the oldest event of its own. Room in the queue is refilled from the spill, so that others
 * can take those events. */
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

/* Starts with the next worker, so that thieves spread over the owners. */
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
    /* Sequentially consistent: the owner may be parking, and checks its inbox after it has set
     * `parked`. */
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
        while (top != MACO_NONE) { /* the last task given is on top */
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

/* A proxy finds its tasks by their events; a task of another worker is handed over. */
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

/* Returns the event that the worker continues with after this one has fired, or MACO_NONE. If there
 * are more, the others are offered to all workers. */
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

/* Runs tasks; returns what the last one launches, for this worker to continue with. */
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

/* Runs one task, and then all tasks linked after it. */
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
    bool known = false; /* other workers know the event */
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

/* Called after `parked` is set, so work that becomes visible later wakes this thread. */
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

/* Looks for work for a while. false: the run is over, or this thread has slept. */
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

/* A proxy runs no tasks: if its queue is full, it waits until workers make room. */
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

/* Between runs the caller owns all queues. */
static void direct_start(maco_runtime *rt)
{
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        hl_maco_share_reset(&w->ready);
        w->spill = w->given = MACO_NONE;
        __atomic_store_n(&w->inbox, MACO_NONE, __ATOMIC_RELAXED);
    }
    if (!hl_maco_share_push(&rt->threads[0].ready, rt->state->view.n_events))
        __builtin_unreachable(); /* can't fail: the queue was just emptied */
}

const struct hl_maco_policy_ops hl_maco_direct_policy = {
    .start = direct_start, .work = direct_work, .offer = direct_offer};
