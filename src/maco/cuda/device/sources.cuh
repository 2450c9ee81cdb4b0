/* maco/cuda/device/sources.cuh - finds a worker's next task, in a separate way for each policy.
 *
 * take() returns the next task, and foresee() the one after it if that is certain, so that its
 * descriptor can be fetched meanwhile. done() completes a task. Thread 0 only.
 */
#ifndef HL_MACO_CUDA_DEVICE_SOURCES_CUH
#define HL_MACO_CUDA_DEVICE_SOURCES_CUH

#include "maco/cuda/device/protocol.cuh"

namespace gpu
{

struct hl_source {
    uint32_t worker;
    uint32_t chunk, chunk_end;       /* direct: this worker's chunk; static: its list */
    uint32_t next;                   /* direct: launched by the last task; MACO_NONE */
    uint32_t at;                     /* direct: entry of the ready queue */
    uint32_t affine, affine_end;     /* direct: remaining slots of its own tasks */
    uint32_t position;               /* scheduler: in its ring, over all runs */
    uint32_t pending_event, pending; /* direct: triggers that have not been added yet */
    uint64_t waits_since;            /* 0 without a trace */
    uint32_t taken;                  /* number of tasks taken; the clock is checked now and then */
    hl_patience patience;
};

HL_DEV hl_source source_open(const hl_gpu_run *r, uint32_t worker)
{
    hl_source s;
    s.worker = worker;
    s.chunk = s.chunk_end = s.at = s.position = 0;
    s.next = s.pending_event = MACO_NONE;
    s.pending = s.affine = s.affine_end = 0;
    s.waits_since = 0;
    s.taken = 0;
    s.patience = patience(r);
    if (r->policy == MACO_STATIC) {
        s.chunk = r->first_of_list[worker];
        s.chunk_end = r->first_of_list[worker + 1];
    } else if (r->policy == MACO_SCHEDULER) {
        s.position = (uint32_t)load_relaxed(&r->taken[worker].value);
    } else {
        if (r->first_of_affine != nullptr) {
            s.affine = r->first_of_affine[worker];
            s.affine_end = r->first_of_affine[worker + 1];
        }
        if (worker == 0)
            open_queue(r);
    }
    return s;
}

/* ---- direct: the CTA that completes an event launches what follows ---- */

/* Skips tasks of the chunk that have an affinity. */
HL_DEV void skip_affine(const hl_gpu_run *r, hl_source *s)
{
    if (r->first_of_affine == nullptr)
        return;
    while (s->chunk < s->chunk_end && affinity_of(r, s->chunk, MACO_NONE) != MACO_NONE)
        s->chunk++;
}

/* The next of the worker's own tasks that may start; MACO_NONE. */
HL_DEV uint32_t next_affine(const hl_gpu_run *r, hl_source *s)
{
    if (s->affine == s->affine_end)
        return MACO_NONE;
    uint64_t slot = load_acquire(&r->affine[s->affine]);
    if (slot >> 32 != r->iteration)
        return MACO_NONE;
    s->affine++;
    return (uint32_t)slot;
}

/* Takes a share of the entry; shares become smaller towards its end. 0 = it is used up. */
HL_DEV int take_chunk(const hl_gpu_run *r, uint32_t item, hl_source *s)
{
    uint64_t *cursor = line(r, HL_LINE_ROOTS);
    uint64_t last = r->n_roots;
    if (item != HL_ITEM_ROOTS) {
        cursor = &r->events[item].cursor;
        last = r->events[item].last;
    }
    uint64_t from = load_relaxed(cursor);
    if (from >= last)
        return 0;
    uint64_t n = (last - from) / (4 * r->workers);
    if (n == 0)
        n = 1;
    from = add_relaxed(cursor, n);
    if (from >= last)
        return 0;
    s->chunk = (uint32_t)from;
    s->chunk_end = (uint32_t)(from + n < last ? from + n : last);
    skip_affine(r, s);
    return 1;
}

HL_DEV uint32_t next_of_chunk(const hl_gpu_run *r, hl_source *s)
{
    uint32_t task = s->chunk++;
    skip_affine(r, s);
    return task;
}

HL_DEV void next_entry(const hl_gpu_run *r, hl_source *s)
{
    uint64_t hint = load_relaxed(line(r, HL_LINE_HINT));
    s->at++;
    if (hint >> 32 == r->iteration && (uint32_t)hint >= s->at)
        s->at = (uint32_t)hint;
    else
        max_relaxed(line(r, HL_LINE_HINT), sealed(r, s->at));
}

HL_DEV uint32_t take_direct(const hl_gpu_run *r, hl_source *s)
{
    if (s->next != MACO_NONE) {
        uint32_t next = s->next;
        s->next = MACO_NONE;
        return next;
    }
    if (s->chunk < s->chunk_end)
        return next_of_chunk(r, s);
    if (r->spans != nullptr)
        s->waits_since = timer_ns();
    for (;;) {
        uint32_t own = next_affine(r, s);
        if (own != MACO_NONE)
            return own;
        uint64_t slot = load_acquire(&r->ready[s->at]);
        if (slot >> 32 == r->iteration) {
            if ((uint32_t)slot == HL_ITEM_END)
                return HL_EXIT;
            if (!take_chunk(r, (uint32_t)slot, s))
                next_entry(r, s);
            else if (s->chunk < s->chunk_end)
                return next_of_chunk(r, s);
        }
        if (run_is_over(r, &s->patience)) {
            tell(r, HL_GPU_IDLE, MACO_NONE, MACO_NONE, 0, 0);
            return HL_EXIT;
        }
    }
}

/* after: the task of the same chunk that runs next, or NULL. */
HL_DEV void done_direct(const hl_gpu_run *r, hl_source *s, const maco_task *task,
                        const maco_task *after)
{
    uint32_t event = task->trigger_event;
    if (after == nullptr && s->pending == 0 && HL_TASK_NEXT(task) != MACO_NONE) {
        /* Only this task triggers the event, only this CTA runs what follows, and no other one
         * reads its count. */
        count_relaxed(&r->events[event].count, 1);
        s->next = HL_TASK_NEXT(task);
        return;
    }
    s->pending++;
    if (after != nullptr && after->trigger_event == event)
        return; /* one addition for the whole chunk */
    complete(r, event, s->pending, after == nullptr ? &s->next : nullptr);
    s->pending = 0;
}

/* ---- static: its own list, waiting for events ---- */

HL_DEV uint32_t take_static(const hl_gpu_run *r, hl_source *s)
{
    if (s->chunk == s->chunk_end)
        return HL_EXIT;
    return r->list[s->chunk++];
}

/* Waits for the event. 1: it has fired. 0: the run is over. */
HL_DEV int await_event(const hl_gpu_run *r, hl_source *s, uint32_t task, uint32_t event)
{
    const maco_event *e = &r->events[event];
    uint64_t need = (uint64_t)e->needed * r->iteration;
    if (load_acquire(&e->count) >= need)
        return 1;
    if (r->spans != nullptr)
        s->waits_since = timer_ns();
    while (load_acquire(&e->count) < need) {
        if (run_is_over(r, &s->patience)) {
            tell(r, HL_GPU_EVENT, task, event, load_relaxed(&e->count), need);
            return 0;
        }
    }
    return 1;
}

/* ---- scheduler: its own ring ---- */

HL_DEV uint64_t *ring_slot(const hl_gpu_run *r, uint32_t worker, uint32_t position)
{
    return &r->rings[(uint64_t)worker * r->ring_slots + (position & (r->ring_slots - 1))];
}

HL_DEV uint32_t take_ring(const hl_gpu_run *r, hl_source *s)
{
    uint64_t *slot = ring_slot(r, s->worker, s->position);
    uint64_t v = load_acquire(slot);
    if ((uint32_t)(v >> 32) != s->position + 1 && r->spans != nullptr)
        s->waits_since = timer_ns();
    while ((uint32_t)(v >> 32) != s->position + 1) {
        if (run_is_over(r, &s->patience)) {
            tell(r, HL_GPU_IDLE, MACO_NONE, MACO_NONE, 0, 0);
            return HL_EXIT;
        }
        v = load_acquire(slot);
    }
    s->position++;
    if ((uint32_t)v == HL_EXIT) /* published like a task; the next run begins after it */
        store_release(&r->taken[s->worker].value, s->position);
    return (uint32_t)v;
}

HL_DEV uint32_t foresee_ring(const hl_gpu_run *r, const hl_source *s)
{
    uint64_t v = load_relaxed(ring_slot(r, s->worker, s->position));
    if ((uint32_t)(v >> 32) != s->position + 1 || (uint32_t)v >= r->n_tasks)
        return MACO_NONE;
    return (uint32_t)v; /* descriptors don't change: no need to acquire */
}

/* ---- all of them ---- */

HL_DEV uint32_t take(const hl_gpu_run *r, hl_source *s)
{
    s->waits_since = 0;
    /* A worker that never waits must also notice the end of the run. */
    if (++s->taken % 64 == 0 && run_is_over(r, &s->patience)) {
        tell(r, HL_GPU_IDLE, MACO_NONE, MACO_NONE, 0, 0);
        return HL_EXIT;
    }
    if (r->policy == MACO_STATIC)
        return take_static(r, s);
    return r->policy == MACO_SCHEDULER ? take_ring(r, s) : take_direct(r, s);
}

/* The task after the one that was taken, if it is known already; MACO_NONE. */
HL_DEV uint32_t foresee(const hl_gpu_run *r, const hl_source *s)
{
    if (r->policy == MACO_SCHEDULER)
        return foresee_ring(r, s);
    if (s->chunk == s->chunk_end)
        return MACO_NONE;
    return r->policy == MACO_STATIC ? r->list[s->chunk] : s->chunk;
}

/* after: the task that foresee returned, if its descriptor has arrived. */
HL_DEV void done(const hl_gpu_run *r, hl_source *s, const maco_task *task, const maco_task *after)
{
    if (r->policy == MACO_DIRECT) {
        done_direct(r, s, task, s->chunk < s->chunk_end ? after : nullptr);
        return;
    }
    complete(r, task->trigger_event, 1, nullptr);
    if (r->policy == MACO_SCHEDULER)
        store_release(&r->taken[s->worker].value, s->position);
}

} // namespace gpu

#endif
