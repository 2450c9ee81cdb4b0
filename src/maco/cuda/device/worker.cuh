/* maco/cuda/device/worker.cuh - a CTA that runs tasks until it is told to end.
 *
 * Thread 0 decides, a barrier passes the decision to all threads, all threads run the body, a
 * barrier ends it, and thread 0 completes the task. So only thread 0 polls, and the whole block
 * takes every exit together. While a body runs, the next descriptor is fetched, if it is known
 * which one that is.
 */
#ifndef HL_MACO_CUDA_DEVICE_WORKER_CUH
#define HL_MACO_CUDA_DEVICE_WORKER_CUH

#include "maco/cuda/device/bodies.cuh"
#include "maco/cuda/device/sources.cuh"

namespace gpu
{

struct hl_worker_shared {
    alignas(128) maco_task task[2];
    uint32_t now, after, go, unused;
    hl_space space;
};

HL_DEV void fetch(const hl_gpu_run *r, uint32_t id, maco_task *to)
{
    for (uint32_t i = thread_id(); i < sizeof(maco_task) / 16; i += thread_count())
        copy_async((unsigned char *)to + 16 * i, (const unsigned char *)&r->tasks[id] + 16 * i, 16);
    copy_commit();
}

/* Static policy: waits for the dependencies of a task in the worker's list. */
HL_DEV int may_start(const hl_gpu_run *r, hl_source *s, hl_worker_shared &sh, uint32_t id,
                     const maco_task *task)
{
    if (thread_id() == 0)
        sh.go = task->dependent_event == MACO_NONE || await_event(r, s, id, task->dependent_event);
    block_sync();
    return (int)sh.go;
}

HL_DEV void worker_run(const hl_gpu_run *r, uint32_t worker, hl_worker_shared &sh)
{
    hl_source source = {};
    uint32_t held = MACO_NONE, buffer = 0;
    if (thread_id() == 0)
        source = source_open(r, worker);
    for (;;) {
        if (thread_id() == 0) {
            sh.now = take(r, &source);
            sh.after = sh.now == HL_EXIT ? MACO_NONE : foresee(r, &source);
        }
        block_sync();
        uint32_t now = sh.now, after = sh.after;
        if (now == HL_EXIT)
            return;
        maco_task *task = &sh.task[buffer];
        if (held != now) {
            fetch(r, now, task);
            copy_wait<0>();
            block_sync();
        }
        if (after == MACO_NONE && r->policy == MACO_DIRECT)
            after = HL_TASK_NEXT(task);
        if (after != MACO_NONE)
            fetch(r, after, &sh.task[buffer ^ 1]);
        if (r->policy == MACO_STATIC && !may_start(r, &source, sh, now, task)) {
            copy_wait<0>();
            return;
        }
        uint64_t start = r->spans != nullptr && thread_id() == 0 ? timer_ns() : 0;
        int known = run_body(task, sh.space);
        copy_wait<0>();
        block_sync();
        if (thread_id() == 0) {
            if (!known)
                end_run(r, HL_GPU_UNKNOWN, now);
            if (r->spans != nullptr)
                note_done(r, now, source.waits_since, start, worker);
            done(r, &source, task, after != MACO_NONE ? &sh.task[buffer ^ 1] : nullptr);
        }
        buffer ^= 1;
        held = after;
    }
}

} // namespace gpu

#endif
