/* Policy static: each worker has its list and waits for the events of its tasks; nothing is
 * launched. Under every policy a proxy works in the same way, through the communication of its
 * group.
 *
 *    list:   t3  t7  t1  t9
 *                 ^ w->at; w->at_run: the run it belongs to, for a thread that slept during a run
 *
 * `waits` names the event that the thread waits for. It is stored before the count is read. The
 * thread that fires the event adds to the count before it reads the `waits` of threads
 * (hl_maco_launch). Both are sequentially consistent, so a sleeper is always found. */
#include "maco/cpu/runtime_private.h"

static bool event_fired(struct hl_maco_thread *w)
{
    return hl_maco_fired(w->rt->state, w->waits);
}

/* false: the run is over, or this thread has slept; in both cases it is not active any more. */
static bool await_event(struct hl_maco_thread *w, uint32_t event)
{
    uint64_t from = w->rt->tracing ? hl_tick() : 0;
    __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(&w->waits, event, __ATOMIC_SEQ_CST);
    for (uint32_t k = 0; !hl_maco_over(w); k++) {
        if (hl_maco_fired(w->rt->state, event)) {
            __atomic_store_n(&w->waits, MACO_NONE, __ATOMIC_RELAXED);
            if (w->rt->tracing)
                hl_maco_record(w, MACO_NONE, HL_MACO_WAIT, from, hl_tick_acquire());
            return true;
        }
        if (hl_maco_relax(w->rt->spins, k))
            continue;
        hl_maco_park(w, event_fired);
        return false;
    }
    hl_maco_leave(w);
    return false;
}

/* Adds the held-back count to its event. Call it before this worker waits, because others may wait
 * for the event. */
static void static_settle(struct hl_maco_thread *w, struct hl_maco_held *h)
{
    struct hl_maco_state *s = w->rt->state;
    if (h->n > 0 && hl_maco_event_add(s, h->event, h->n)) {
        uint32_t fired = h->event;
        s->next_event[fired] = MACO_NONE;
        while (hl_maco_launch(w, &fired) != MACO_NONE)
            ; /* the worker that has it in its list waits for the event */
    }
    h->n = 0;
}

static bool may_start(const struct hl_maco_state *s, const maco_task *t)
{
    return t->dependent_event == MACO_NONE || hl_maco_fired(s, t->dependent_event);
}

/* A task whose event has fired begins now, not where the last record ended: the thread may have
 * been preempted between that and its look at the event, and the event's tasks may have ended
 * since. */
static inline void begin_record(struct hl_maco_thread *w, const maco_task *t)
{
    if (HL_UNLIKELY(w->rt->tracing) && t->dependent_event != MACO_NONE)
        w->tick = hl_tick_acquire();
}

/* This worker has finished its list in this run. */
static void leave_run(struct hl_maco_thread *w)
{
    w->last = w->run;
    __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
    hl_maco_leave(w);
}

static void begin_list(struct hl_maco_thread *w)
{
    if (w->at_run != w->run) { /* otherwise it has slept during the run */
        w->at_run = w->run;
        w->at = 0;
    }
    if (w->rt->tracing)
        w->tick = hl_tick_acquire();
}

static void static_work(struct hl_maco_thread *w)
{
    struct hl_maco_state *s = w->rt->state;
    struct hl_maco_held held = {.event = MACO_NONE};
    begin_list(w);
    const uint32_t *list = s->list + s->list_first[w->index];
    uint32_t n = s->list_first[w->index + 1] - s->list_first[w->index];
    for (; w->at < n; w->at++) {
        const maco_task *t = &s->view.tasks[list[w->at]];
        const struct hl_maco_hot *hot = &s->hot[list[w->at]];
        uint32_t trigger = hot->trigger;
        if (!may_start(s, t)) {
            static_settle(w, &held); /* others may wait for it while this worker waits for them */
            if (!await_event(w, t->dependent_event))
                return;
        } else {
            begin_record(w, t);
        }
        if (trigger != held.event)
            static_settle(w, &held);
        if (!hl_maco_execute(w, hot, list[w->at])) {
            hl_maco_leave(w);
            return;
        }
        held = (struct hl_maco_held){.event = trigger, .n = held.n + 1};
    }
    static_settle(w, &held);
    leave_run(w);
}

static void static_offer(struct hl_maco_thread *w, uint32_t event)
{
    struct hl_maco_held one = {.event = event, .n = 1};
    static_settle(w, &one);
}

const struct hl_maco_policy_ops hl_maco_static_policy = {.work = static_work,
                                                         .offer = static_offer};

void hl_maco_proxy(struct hl_maco_thread *w)
{
    struct hl_maco_state *s = w->rt->state;
    begin_list(w);
    if (w->index >= s->n_proxies) {
        leave_run(w);
        return;
    }
    const uint32_t *list = s->comm + s->comm_first[w->index];
    uint32_t n = s->comm_first[w->index + 1] - s->comm_first[w->index];
    for (; w->at < n; w->at++) {
        const maco_task *t = &s->view.tasks[list[w->at]];
        const struct hl_maco_hot *hot = &s->hot[list[w->at]];
        uint32_t trigger = hot->trigger;
        if (may_start(s, t))
            begin_record(w, t);
        else if (!await_event(w, t->dependent_event))
            return;
        if (!hl_maco_execute(w, hot, list[w->at])) {
            hl_maco_leave(w);
            return;
        }
        w->rt->ops->offer(w, trigger);
    }
    leave_run(w);
}
