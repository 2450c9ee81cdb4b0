/* maco/cuda/device/protocol.cuh - how a completed task makes others start.
 *
 * An event's count only grows. The event fires when the count reaches needed * iteration, and only
 * the thread whose addition does that launches what the event launches. Each event fires once per
 * run, so the ready queue has a slot for each and never wraps. To publish an item, a thread takes a
 * ticket, and releases the slot with the item and the run's number in it. A slot with the number of
 * an earlier run is empty. Joins have no worker: the CTA that fires their event triggers for them.
 *
 * All functions here are called by one thread of a CTA (or one lane of the proxy's warp).
 */
#ifndef HL_MACO_CUDA_DEVICE_PROTOCOL_CUH
#define HL_MACO_CUDA_DEVICE_PROTOCOL_CUH

#include "maco/cuda/device/abi.h"
#include "maco/cuda/device/atoms.cuh"

namespace gpu
{

/* The deadline, counted from the start of the CTA; all waits of a run share it. */
struct hl_patience {
    uint64_t until_ns;
    uint32_t polls;
};

HL_DEV uint64_t *line(const hl_gpu_run *r, hl_gpu_lines which)
{
    return &r->lines[which].value;
}

/* Ends the run for all CTAs; the first caller sets the reason. */
HL_DEV void end_run(const hl_gpu_run *r, hl_gpu_outcome why, uint32_t task)
{
    if (swap_if(line(r, HL_LINE_ABORT), 0, (uint64_t)why) != 0)
        return;
    r->host->task = task;
    store_release_sys(&r->host->outcome, (uint64_t)why);
}

HL_DEV hl_patience patience(const hl_gpu_run *r)
{
    hl_patience p;
    p.until_ns = timer_ns() + r->timeout_ns;
    p.polls = 0;
    return p;
}

/* Called in every turn of every wait. 1: leave, the run is over. */
HL_DEV int run_is_over(const hl_gpu_run *r, hl_patience *p)
{
    if (load_relaxed(line(r, HL_LINE_ABORT)) != 0)
        return 1;
    p->polls++;
    if (p->polls % 64 == 0 && timer_ns() > p->until_ns)
        end_run(r, HL_GPU_TIMEOUT, MACO_NONE);
    if (p->polls % 512 == 0 && load_acquire_sys(&r->host->cancel) != 0)
        end_run(r, HL_GPU_CANCELED, MACO_NONE);
    pause_ns(20);
    return 0;
}

HL_DEV void tell(const hl_gpu_run *r, hl_gpu_phase phase, uint32_t task, uint32_t event,
                 uint64_t have, uint64_t need)
{
    hl_gpu_state s;
    s.phase = phase;
    s.task = task;
    s.event = event;
    s.unused = 0;
    s.have = have;
    s.need = need;
    r->host->state[block_id()] = s;
}

/* ---- the ready queue ---- */

HL_DEV uint64_t sealed(const hl_gpu_run *r, uint32_t item)
{
    return r->iteration << 32 | item;
}

HL_DEV void publish(const hl_gpu_run *r, uint32_t item)
{
    uint64_t at = add_relaxed(line(r, HL_LINE_TAIL), 1);
    store_release(&r->ready[at], sealed(r, item));
}

/* ---- affinity, where the CTA that completes an event launches what follows ---- */

HL_DEV uint32_t affinity_of(const hl_gpu_run *r, uint32_t task, uint32_t otherwise)
{
    uint32_t affinity = HL_TASK_AFFINITY(&r->tasks[task]);
    return affinity < r->workers ? affinity : otherwise;
}

/* Puts tasks with an affinity into their worker's queue, which has a slot for each of them. A
 * ticket counts over all runs, and each run takes as many as there are slots. Returns the number of
 * other tasks, which are left in the range. */
HL_DEV uint32_t queue_affine(const hl_gpu_run *r, uint32_t first, uint32_t last)
{
    uint32_t others = 0;
    for (uint32_t task = first; task < last; task++) {
        uint32_t w = affinity_of(r, task, MACO_NONE);
        others += w == MACO_NONE;
        if (w == MACO_NONE)
            continue;
        uint64_t slots = r->first_of_affine[w + 1] - r->first_of_affine[w];
        uint64_t at = add_relaxed(&r->affine_queued[w].value, 1) - slots * (r->iteration - 1);
        store_release(&r->affine[r->first_of_affine[w] + at], sealed(r, task));
    }
    return others;
}

/* Publishes the first item; only one CTA opens the queue. A later publisher has acquired this slot,
 * or something that follows from it, so it sees the tail that is set here. */
HL_DEV void open_queue(const hl_gpu_run *r)
{
    store_relaxed(line(r, HL_LINE_TAIL), 1);
    store_relaxed(line(r, HL_LINE_ROOTS), r->roots_work);
    store_release(&r->ready[0], sealed(r, HL_ITEM_ROOTS));
    if (r->first_of_affine != nullptr)
        queue_affine(r, r->roots_work, r->n_roots);
}

/* ---- triggers ---- */

/* Adds `n` triggers to an event. 1: it has fired, and the caller launches. */
HL_DEV int trigger(const hl_gpu_run *r, uint32_t event, uint32_t n)
{
    maco_event *e = &r->events[event];
    uint64_t need = (uint64_t)e->needed * r->iteration;
    uint64_t have =
        e->reserved & HL_EVENT_WATCHED ? add_acq_rel_sys(&e->count, n) : add_acq_rel(&e->count, n);
    have += n;
    if (have > need)
        end_run(r, HL_GPU_OVERRUN, event);
    return have == need;
}

/* Launches what a fired event launches. A single task goes to *next, if `next` is given and
 * free. */
HL_DEV void launch(const hl_gpu_run *r, uint32_t event, uint32_t *next)
{
    maco_event *e = &r->events[event];
    uint32_t work = HL_EVENT_WORK(e);
    if (r->policy == MACO_STATIC || e->kind == MACO_EVENT_EMPTY)
        return;
    if (e->kind == MACO_EVENT_END) {
        publish(r, HL_ITEM_END);
    } else if (e->reserved & HL_EVENT_AFFINE && queue_affine(r, work, e->last) == 0) {
        return;
    } else if (next != nullptr && *next == MACO_NONE && e->last - work == 1) {
        *next = work;
    } else if (e->last > work) {
        store_relaxed(&e->cursor, work);
        publish(r, event);
    }
}

/* Triggers the event, and then those of the joins that this fires. */
HL_DEV void complete(const hl_gpu_run *r, uint32_t event, uint32_t n, uint32_t *next)
{
    uint32_t join[HL_GPU_JOINS], end[HL_GPU_JOINS];
    uint32_t depth = 0;
    if (!trigger(r, event, n))
        return;
    for (;;) {
        const maco_event *e = &r->events[event];
        launch(r, event, next);
        if (e->kind != MACO_EVENT_END && e->first < HL_EVENT_JOINS(e)) {
            join[depth] = e->first; /* the host has checked that they nest no deeper */
            end[depth] = HL_EVENT_JOINS(e);
            depth++;
        }
        for (;;) {
            if (depth == 0)
                return;
            if (join[depth - 1] == end[depth - 1]) {
                depth--;
                continue;
            }
            event = r->tasks[join[depth - 1]++].trigger_event;
            if (trigger(r, event, 1))
                break;
        }
    }
}

/* ---- traces ---- */

HL_DEV void note_done(const hl_gpu_run *r, uint32_t task, uint64_t wait, uint64_t start,
                      uint32_t worker)
{
    hl_gpu_span s;
    s.wait = wait;
    s.start = start;
    s.end = timer_ns();
    s.worker = worker;
    s.unused = 0;
    r->spans[task] = s;
    uint64_t ticket = add_relaxed(line(r, HL_LINE_TICKET), 1) - r->first_ticket;
    if (ticket < r->n_tasks)
        r->order[ticket] = task;
}

} // namespace gpu

#endif
