/* Policy scheduler: a dedicated thread receives the events that have fired and hands tasks to
 * workers.
 *
 *                  rt->events (mpsc)                 rt->pending, in next_event
 *    worker 0 --+                     hear_events
 *    worker 1 --+---> [e3 e8 e5] --> scheduler ----> e8 -> e3 -> e5  (priority, then firing)
 *    proxies ---+                        |
 *       ^                                | hand_out: at most BATCH tasks, then one publish
 *       |        w->queue (spsc)         v
 *       +------------ [t4 t9] <----------+        one queue to each worker
 *
 * Only the scheduler uses pending, turn, cursors and `spent`. `finished` is written by its worker
 * and read relaxed, because it is only used for balance. A worker stores its queue's tail after the
 * batch, which makes room; then it checks whether the scheduler sleeps because there was none.
 *
 * The scheduler never blocks. If queues are full, it keeps its position in the event at the head of
 * its list and continues to receive events, so no worker has to wait long to deliver one. */
#include "maco/cpu/futex.h"
#include "maco/cpu/runtime_private.h"

#define BATCH 64 /* tasks that are published together */

/* ---- workers ---- */

static bool queue_filled(struct hl_maco_thread *w)
{
    return hl_maco_spsc_batch(&w->queue) != __atomic_load_n(&w->queue.tail, __ATOMIC_RELAXED);
}

static bool has_event(struct hl_maco_thread *w)
{
    return hl_maco_mpsc_ready(&w->rt->events);
}

static void send_event(struct hl_maco_thread *w, uint32_t event)
{
    maco_runtime *rt = w->rt;
    struct hl_maco_thread *scheduler = scheduler_thread(rt);
    while (!hl_maco_mpsc_push(&rt->events, event)) {
        if (hl_maco_over(w))
            return;
        hl_maco_unpark(scheduler);
        hl_pause();
    }
    if (__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) > 0)
        hl_maco_unpark(scheduler);
}

static void hand_on(struct hl_maco_thread *w, uint32_t event)
{
    uint32_t fired = event;
    w->rt->state->next_event[event] = MACO_NONE;
    while ((event = hl_maco_launch(w, &fired)) != MACO_NONE)
        send_event(w, event);
}

/* Adds the held-back count to its event. Call it before the next trigger, and before this worker
 * may wait. */
static void scheduler_settle(struct hl_maco_thread *w, struct hl_maco_held *h)
{
    if (h->n > 0 && hl_maco_event_add(w->rt->state, h->event, h->n))
        hand_on(w, h->event);
    h->n = 0;
}

/* false: the run is over. */
static bool run_batch(struct hl_maco_thread *w, uint64_t tail, uint64_t head)
{
    struct hl_maco_state *s = w->rt->state;
    struct hl_maco_held held = {.event = MACO_NONE};
    uint64_t cost = 0;
    for (uint64_t k = tail; k != head; k++) {
        uint32_t i = w->queue.slots[k & w->queue.mask];
        const struct hl_maco_hot *hot = &s->hot[i];
        uint32_t trigger = hot->trigger, ns = s->view.tasks[i].cost_ns;
        if (trigger != held.event)
            scheduler_settle(w, &held);
        if (!hl_maco_execute(w, hot, i))
            return false;
        held = (struct hl_maco_held){.event = trigger, .n = held.n + 1};
        cost += ns > 0 ? ns : 1;
    }
    __atomic_store_n(&w->finished, w->finished + cost, __ATOMIC_RELAXED);
    /* Makes room for the scheduler, which may be parking: it checks the tails after it has set
     * `parked`. */
    __atomic_store_n(&w->queue.tail, head, __ATOMIC_SEQ_CST);
    scheduler_settle(w, &held);
    return true;
}

static void scheduler_work(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    struct hl_maco_thread *scheduler = scheduler_thread(rt);
    uint64_t from = 0;
    if (rt->tracing)
        w->tick = hl_tick_acquire();
    for (uint32_t k = 0; !hl_maco_over(w);) {
        uint64_t tail = w->queue.tail, head = hl_maco_spsc_batch(&w->queue);
        if (head == tail) {
            if (k == 0) {
                from = rt->tracing ? hl_tick() : 0;
                __atomic_store_n(&w->task, MACO_NONE, __ATOMIC_RELAXED);
            }
            if (hl_maco_relax(rt->spins, k++))
                continue;
            hl_maco_park(w, queue_filled);
            return;
        }
        if (k > 0 && rt->tracing)
            hl_maco_record(w, MACO_NONE, HL_MACO_WAIT, from, hl_tick_acquire());
        k = 0;
        if (!run_batch(w, tail, head))
            break;
        /* the scheduler may wait for room */
        if (__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) > 0)
            hl_maco_unpark(scheduler);
    }
    hl_maco_leave(w);
}

/* ---- the scheduler ---- */

static uint64_t load_of(const struct hl_maco_thread *w)
{
    return w->spent - __atomic_load_n(&w->finished, __ATOMIC_RELAXED);
}

/* Chooses the worker for a task with this affinity; NULL: all queues are full. */
static struct hl_maco_thread *choose_worker(maco_runtime *rt, uint32_t affinity)
{
    struct hl_maco_thread *best = NULL;
    uint64_t least = UINT64_MAX;
    if (affinity != MACO_NONE)
        return hl_maco_spsc_room(&rt->threads[affinity].queue) ? &rt->threads[affinity] : NULL;
    for (uint32_t k = 0; k < rt->workers; k++) {
        struct hl_maco_thread *w = &rt->threads[(rt->turn + k) % rt->workers];
        if (!hl_maco_spsc_room(&w->queue))
            continue;
        uint64_t load = rt->balance == MACO_LEAST_LOADED ? load_of(w) : 0;
        if (load < least) {
            least = load;
            best = w;
        }
        if (rt->balance != MACO_LEAST_LOADED)
            break;
    }
    if (best != NULL && ++rt->turn == rt->workers)
        rt->turn = 0;
    return best;
}

static int publish_queues(maco_runtime *rt)
{
    int any = 0;
    for (uint32_t i = 0; i < rt->workers; i++)
        if (hl_maco_spsc_publish(&rt->threads[i].queue)) {
            any = 1;
            if (__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) > 0)
                hl_maco_unpark(&rt->threads[i]);
        }
    return any;
}

/* Hands out tasks of the event at the head of the list. true: all of them. */
static bool hand_out(maco_runtime *rt, maco_event *e)
{
    const struct hl_maco_state *s = rt->state;
    uint64_t width = e->last - e->first, begin = width * (s->iteration - 1);
    uint64_t from = e->cursor > begin ? e->cursor : begin; /* as in policy_direct.c */
    uint32_t i = e->first + (uint32_t)(from - begin), n = 0;
    for (; i < e->last && n < BATCH; i++) {
        const maco_task *t = &s->view.tasks[i];
        uint32_t affinity = s->hot[i].affinity;
        if (hl_maco_is_comm(t->type)) /* its proxy finds it by its event */
            continue;
        struct hl_maco_thread *w = choose_worker(rt, affinity);
        if (w == NULL)
            break;
        hl_maco_spsc_stage(&w->queue, i);
        w->spent += t->cost_ns > 0 ? t->cost_ns : 1;
        n++;
    }
    __atomic_store_n(&e->cursor, begin + (i - e->first), __ATOMIC_RELAXED);
    publish_queues(rt);
    return i == e->last;
}

/* The highest priority of the event's tasks, which is that of the first: they are sorted. */
static int32_t priority_of(const struct hl_maco_state *s, uint32_t event)
{
    return s->view.priority[s->events[event].first];
}

/* Inserts events in the order of firing, but before those with a lower priority. */
static void hear_events(maco_runtime *rt)
{
    const struct hl_maco_state *s = rt->state;
    uint32_t event, *next = s->next_event;
    while (hl_maco_mpsc_pop(&rt->events, &event)) {
        uint32_t *at = &rt->pending;
        if (s->has_priority)
            while (*at != MACO_NONE && priority_of(s, *at) >= priority_of(s, event))
                at = &next[*at];
        else if (*at != MACO_NONE)
            at = &next[rt->pending_last];
        next[event] = *at;
        *at = event;
        if (next[event] == MACO_NONE)
            rt->pending_last = event;
    }
}

/* Called after `parked` is set: true if an event was sent, or there is room for the one that
 * waits. */
static bool may_go_on(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    if (has_event(w))
        return true;
    for (uint32_t i = 0; rt->pending != MACO_NONE && i < rt->workers; i++)
        if (hl_maco_spsc_room(&rt->threads[i].queue))
            return true;
    return false;
}

void hl_maco_schedule(struct hl_maco_thread *w)
{
    maco_runtime *rt = w->rt;
    struct hl_maco_state *s = rt->state;
    uint32_t k = 0;
    while (!hl_maco_over(w)) {
        hear_events(rt);
        if (rt->pending != MACO_NONE) {
            uint32_t event = rt->pending;
            maco_event *e = &s->events[event];
            uint64_t before = e->cursor, from = rt->tracing ? hl_tick() : 0;
            if (hand_out(rt, e))
                rt->pending = s->next_event[event];
            if (rt->tracing && e->cursor != before)
                hl_maco_record(w, e->first, HL_MACO_SCHED, from, hl_tick());
            if (e->cursor != before) {
                k = 0;
                continue;
            }
        }
        if (hl_maco_relax(rt->spins, k++))
            continue;
        hl_maco_park(w, may_go_on);
        return;
    }
    hl_maco_leave(w);
}

static void scheduler_start(maco_runtime *rt)
{
    for (uint32_t i = 0; i < rt->workers; i++) {
        struct hl_maco_thread *w = &rt->threads[i];
        hl_maco_spsc_reset(&w->queue);
        w->spent = w->finished;
    }
    hl_maco_mpsc_reset(&rt->events);
    rt->pending = MACO_NONE;
    rt->turn = 0;
    if (!hl_maco_mpsc_push(&rt->events, rt->state->view.n_events))
        __builtin_unreachable(); /* can't fail: the queue was just emptied */
}

static void scheduler_offer(struct hl_maco_thread *w, uint32_t event)
{
    struct hl_maco_held one = {.event = event, .n = 1};
    scheduler_settle(w, &one);
}

const struct hl_maco_policy_ops hl_maco_scheduler_policy = {
    .start = scheduler_start, .work = scheduler_work, .offer = scheduler_offer};
