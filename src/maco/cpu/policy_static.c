/* Policy static: each worker has its list and waits for the events of its tasks; nothing is
 * launched. A proxy works the same way, through the communication of its group, under every policy.
 *
 *    list:   t3  t7  t1  t9
 *                 ^ w->at; w->at_run says of which run, for a thread that slept in the midst
 *
 * `waits` names the event that it waits for. It is stored before the count is read, and the thread
 * that fires the event adds to the count before it reads `waits` of threads (hl_maco_launch); both
 * are sequentially consistent, so that a sleeper is found. */
#include "maco/cpu/runtime_private.h"

static bool event_fired(struct hl_maco_thread *w)
{
    return hl_maco_fired(w->rt->state, w->waits);
}

/* false: the run is over or this thread has slept; it is not active any more. */
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

/* Counts what is held back; before this worker waits, for others may wait for it. */
static void static_settle(struct hl_maco_thread *w, struct hl_maco_held *h)
{
    struct hl_maco_state *s = w->rt->state;
    if (h->n > 0 && hl_maco_event_add(s, h->event, h->n)) {
        uint32_t fired = h->event;
        s->next_event[fired] = MACO_NONE;
        while (hl_maco_launch(w, &fired) != MACO_NONE)
            ; /* whose list it is in waits for it */
    }
    h->n = 0;
}

static bool may_start(const struct hl_maco_state *s, const maco_task *t)
{
    return t->dependent_event == MACO_NONE || hl_maco_fired(s, t->dependent_event);
}

/* Nothing more for it in this run. */
static void leave_run(struct hl_maco_thread *w)
{
    w->last = w->run;
    __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
    hl_maco_leave(w);
}

static void begin_list(struct hl_maco_thread *w)
{
    if (w->at_run != w->run) { /* else it has slept in the midst */
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
            static_settle(w, &held); /* others may wait for it, and we for them */
            if (!await_event(w, t->dependent_event))
                return;
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
        if (!may_start(s, t) && !await_event(w, t->dependent_event))
            return;
        if (!hl_maco_execute(w, hot, list[w->at])) {
            hl_maco_leave(w);
            return;
        }
        w->rt->ops->offer(w, trigger);
    }
    leave_run(w);
}
