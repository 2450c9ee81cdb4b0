/* maco/cuda/device/scheduler.cuh - the CTA that distributes tasks to workers, with one warp.
 *
 * Fired events arrive through the ready queue; the tasks that they launch go to the workers' rings.
 * A slot of a ring carries its position over all runs, so its own store publishes it, and a ring
 * needs neither a head nor a reset. If a ring is full, only the scheduler waits: a worker that
 * completes something never waits for the scheduler, so its ring drains.
 */
#ifndef HL_MACO_CUDA_DEVICE_SCHEDULER_CUH
#define HL_MACO_CUDA_DEVICE_SCHEDULER_CUH

#include "maco/cuda/device/sources.cuh"

namespace gpu
{

#define HL_GPU_WORKERS 4096u

struct hl_scheduler_shared {
    uint32_t sent[HL_GPU_WORKERS]; /* position of the next task in each ring */
    uint32_t seen[HL_GPU_WORKERS]; /* how far the worker had come at the last check */
    uint32_t failed;
};

HL_DEV int push(const hl_gpu_run *r, hl_scheduler_shared &sh, hl_patience *p, uint32_t worker,
                uint32_t task)
{
    uint32_t at = shared_add(&sh.sent[worker], 1);
    const uint64_t *taken = &r->taken[worker].value;
    while (at - (uint32_t)load_acquire(taken) >= r->ring_slots) {
        if (run_is_over(r, p)) {
            tell(r, HL_GPU_FULL, task, MACO_NONE, worker, r->ring_slots);
            sh.failed = 1;
            return 0;
        }
    }
    store_release(ring_slot(r, worker, at), (uint64_t)(at + 1) << 32 | task);
    return 1;
}

HL_DEV uint32_t await_item(const hl_gpu_run *r, hl_patience *p, uint32_t at)
{
    uint64_t slot = load_acquire(&r->ready[at]);
    while (slot >> 32 != r->iteration) {
        if (run_is_over(r, p)) {
            tell(r, HL_GPU_IDLE, MACO_NONE, MACO_NONE, 0, 0);
            return HL_EXIT;
        }
        slot = load_acquire(&r->ready[at]);
    }
    return (uint32_t)slot;
}

/* Gives each lane a task, for the workers in turn. */
HL_DEV int deal_in_turn(const hl_gpu_run *r, hl_scheduler_shared &sh, hl_patience *p,
                        uint32_t *turn, uint32_t first, uint32_t last)
{
    uint32_t lane = thread_id();
    uint32_t step = r->workers < HL_LANES ? r->workers : HL_LANES;
    for (uint32_t at = first; at < last; at += step) {
        if (lane < step && at + lane < last)
            push(r, sh, p, affinity_of(r, at + lane, (*turn + lane) % r->workers), at + lane);
        uint32_t n = last - at < step ? last - at : step;
        *turn = (*turn + n) % r->workers;
        warp_sync();
        if (sh.failed)
            return 0;
        warp_sync();
    }
    return 1;
}

/* The worker with the fewest tasks according to `seen` and `sent`; the first one of equals. */
HL_DEV uint32_t least_loaded(const hl_gpu_run *r, const hl_scheduler_shared &sh)
{
    uint32_t best = MACO_NONE;
    for (uint32_t w = thread_id(); w < r->workers; w += HL_LANES) {
        uint32_t depth = sh.sent[w] - sh.seen[w];
        uint32_t key = (depth < 0xffffu ? depth : 0xffffu) << 16 | w;
        best = key < best ? key : best;
    }
    for (uint32_t mask = HL_LANES / 2; mask > 0; mask /= 2) {
        uint32_t other = across(best, mask);
        best = other < best ? other : best;
    }
    return best & 0xffffu;
}

HL_DEV int deal_to_least(const hl_gpu_run *r, hl_scheduler_shared &sh, hl_patience *p,
                         uint32_t first, uint32_t last)
{
    for (uint32_t task = first; task < last; task++) {
        if ((task - first) % 32 == 0) {
            for (uint32_t w = thread_id(); w < r->workers; w += HL_LANES)
                sh.seen[w] = (uint32_t)load_acquire(&r->taken[w].value);
            warp_sync();
        }
        uint32_t worker = affinity_of(r, task, least_loaded(r, sh));
        warp_sync();
        if (thread_id() == 0)
            push(r, sh, p, worker, task);
        warp_sync();
        if (sh.failed)
            return 0;
    }
    return 1;
}

HL_DEV int deal(const hl_gpu_run *r, hl_scheduler_shared &sh, hl_patience *p, uint32_t *turn,
                uint32_t item)
{
    uint32_t first = r->roots_work, last = r->n_roots;
    if (item != HL_ITEM_ROOTS) {
        first = HL_EVENT_WORK(&r->events[item]);
        last = r->events[item].last;
    }
    return r->balance == MACO_LEAST_LOADED ? deal_to_least(r, sh, p, first, last)
                                           : deal_in_turn(r, sh, p, turn, first, last);
}

HL_DEV void scheduler_run(const hl_gpu_run *r, hl_scheduler_shared &sh)
{
    uint32_t lane = thread_id(), turn = 0;
    hl_patience p = patience(r);
    if (lane >= HL_LANES)
        return;
    for (uint32_t w = lane; w < r->workers; w += HL_LANES)
        sh.sent[w] = sh.seen[w] = (uint32_t)load_relaxed(&r->taken[w].value);
    if (lane == 0) {
        sh.failed = 0;
        open_queue(r);
    }
    warp_sync();
    for (uint32_t at = 0;; at++) {
        uint32_t item = lane == 0 ? await_item(r, &p, at) : 0;
        item = from_lane(item, 0);
        if (item == HL_EXIT)
            return;
        if (item == HL_ITEM_END)
            break;
        if (!deal(r, sh, &p, &turn, item))
            return;
    }
    for (uint32_t w = lane; w < r->workers; w += HL_LANES)
        push(r, sh, &p, w, HL_EXIT);
}

} // namespace gpu

#endif
