/* maco/cuda/device/proxy.cuh - the CTA that completes communication, with one thread.
 *
 * A group's stream waits for the event of each of its tasks, communicates, and writes the number of
 * completed tasks into the group's word (over all runs, so it is never reset). The proxy turns that
 * number into triggers, in the group's order.
 */
#ifndef HL_MACO_CUDA_DEVICE_PROXY_CUH
#define HL_MACO_CUDA_DEVICE_PROXY_CUH

#include "maco/cuda/device/protocol.cuh"

namespace gpu
{

struct hl_proxy_shared {
    uint32_t at[HL_GPU_GROUPS];
    uint64_t since[HL_GPU_GROUPS]; /* when the event of its next task fired; 0 = not yet */
};

HL_DEV void see_start(const hl_gpu_run *r, hl_proxy_shared &sh, uint32_t group)
{
    uint32_t event = r->tasks[r->comm[sh.at[group]]].dependent_event;
    if (r->spans == nullptr || sh.since[group] != 0)
        return;
    if (event == MACO_NONE || load_acquire_sys(&r->events[event].count) >=
                                  (uint64_t)r->events[event].needed * r->iteration)
        sh.since[group] = timer_ns();
}

/* Completes the tasks that the group's stream has done; returns how many are left. */
HL_DEV uint32_t attend(const hl_gpu_run *r, hl_proxy_shared &sh, uint32_t group)
{
    uint32_t first = r->first_of_comm[group], end = r->first_of_comm[group + 1];
    if (sh.at[group] == end)
        return 0;
    see_start(r, sh, group);
    uint64_t before = (uint64_t)(end - first) * (r->iteration - 1);
    uint64_t is_done = load_acquire_sys(&r->comm_done[group].value) - before;
    while (sh.at[group] < end && sh.at[group] - first < is_done) {
        uint32_t task = r->comm[sh.at[group]];
        if (r->spans != nullptr) {
            see_start(r, sh, group);
            note_done(r, task, 0, sh.since[group], group);
        }
        complete(r, r->tasks[task].trigger_event, 1, nullptr);
        sh.since[group] = 0;
        sh.at[group]++;
    }
    return end - sh.at[group];
}

HL_DEV void tell_comm(const hl_gpu_run *r, const hl_proxy_shared &sh)
{
    for (uint32_t g = 0; g < r->groups; g++) {
        uint32_t first = r->first_of_comm[g], end = r->first_of_comm[g + 1];
        if (sh.at[g] == end)
            continue;
        uint32_t task = r->comm[sh.at[g]];
        tell(r, HL_GPU_COMM, task, r->tasks[task].dependent_event, sh.at[g] - first, end - first);
        return;
    }
}

HL_DEV void proxy_run(const hl_gpu_run *r, hl_proxy_shared &sh)
{
    hl_patience p = patience(r);
    uint32_t left = 1;
    if (thread_id() != 0)
        return;
    for (uint32_t g = 0; g < r->groups; g++) {
        sh.at[g] = r->first_of_comm[g];
        sh.since[g] = 0;
    }
    while (left > 0) {
        left = 0;
        /* completed tasks must be published after the queue was opened */
        if (r->policy == MACO_STATIC || load_acquire(&r->ready[0]) >> 32 == r->iteration)
            for (uint32_t g = 0; g < r->groups; g++)
                left += attend(r, sh, g);
        else
            left = 1;
        if (left > 0 && run_is_over(r, &p)) {
            tell_comm(r, sh);
            return;
        }
    }
}

} // namespace gpu

#endif
