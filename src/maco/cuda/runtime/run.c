/* A run: the begun event, the kernel, communication on its own streams, the ended event. The plan's
 * events count across all runs, so a run needs no preparation except its number. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "maco/cuda/host/context.h"
#include "maco/cuda/peers/peers.h"
#include "maco/graph/graph.h"
#include "maco/trace/trace.h"

#define GRACE_NS ((uint64_t)10 * HL_NS_PER_S) /* the kernel ends itself long before */

static struct hl_gpu_run kernel_argument(maco_cuda *c)
{
    struct hl_gpu_run r = hl_cuda_tables_at(&c->tables, c->memory);
    r.host = (struct hl_gpu_host *)(uintptr_t)c->host_on_device;
    r.iteration = c->iteration;
    r.timeout_ns = c->options.timeout_ns;
    r.first_ticket = (c->iteration - 1) * c->tables.noted;
    return r;
}

static void clear_host(maco_cuda *c)
{
    __atomic_store_n(&c->host->cancel, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&c->host->outcome, HL_GPU_OK, __ATOMIC_SEQ_CST);
    memset(c->host->state, 0, c->ctas * sizeof(c->host->state[0]));
    c->call_status = HL_OK;
}

static hl_status launch_kernel(maco_cuda *c, struct CUstream_st *stream, struct hl_gpu_run *r)
{
    void *arguments[] = {r};
    cu_result result = c->cu.cuLaunchCooperativeKernel(c->kernel, c->ctas, 1, 1, HL_GPU_THREADS, 1,
                                                       1, 0, stream, arguments);
    if (result == HL_CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
        return hl_fail(HL_ENOSPC,
                       "NotCoResident: %u CTAs are more than %s has room for now: ask for fewer "
                       "workers",
                       c->ctas, c->info.name);
    if (result != HL_CUDA_SUCCESS)
        return cuda_fail(&c->cu, "cuLaunchCooperativeKernel", result);
    return HL_OK;
}

static hl_status start_inside(maco_cuda *c, struct CUstream_st *stream)
{
    if (!c->clean || c->iteration >= INT32_MAX)
        HL_TRY(hl_cuda_reset(c));
    clear_host(c);
    c->iteration++;
    c->clean = 0; /* until the run has ended well */
    struct hl_gpu_run r = kernel_argument(c);
    CUDA_TRY(&c->cu, cuEventRecord, (c->begun, stream));
    HL_TRY(launch_kernel(c, stream, &r));
    c->running = 1;
    CUDA_TRY(&c->cu, cuEventRecord, (c->ended, stream));
    return hl_cuda_comm_start(c, &r);
}

int maco_cuda_start(maco_cuda *c, void *stream)
{
    if (c == NULL || c->plan == NULL)
        return hl_fail(HL_EINVAL, "no runtime, or one without a plan (maco_cuda_load)");
    if (c->running)
        return hl_fail(HL_EBUSY, "a run is in progress: wait for it (maco_cuda_wait)");
    if (c->view.n_tasks == 0)
        return HL_OK;
    HL_TRY(hl_cuda_enter(c));
    hl_status st = hl_cuda_agree(c);
    if (st == HL_OK)
        st = hl_cuda_peers_check(c);
    if (st == HL_OK)
        st = start_inside(c, stream);
    hl_cuda_leave(c);
    if (st != HL_OK && c->running) {
        /* The kernel waits for communication that will not come, so the run is cancelled. */
        char why[HL_ERROR_TEXT_MAX];
        strncpy(why, hl_error_text(), sizeof(why) - 1);
        why[sizeof(why) - 1] = '\0';
        maco_cuda_cancel(c);
        (void)maco_cuda_wait(c);
        return hl_fail(st, "%s", why);
    }
    return st;
}

static hl_status wait_inside(maco_cuda *c)
{
    struct hl_gpu_run r = kernel_argument(c);
    HL_TRY(hl_cuda_await(c, c->begun, c->options.timeout_ns,
                         "the stream's earlier work, before the run"));
    HL_TRY(hl_cuda_await(c, c->ended, c->options.timeout_ns + GRACE_NS, "the persistent kernel"));
    c->running = 0;
    if (__atomic_load_n(&c->host->outcome, __ATOMIC_ACQUIRE) == HL_GPU_OK &&
        __atomic_load_n(&c->call_status, __ATOMIC_ACQUIRE) == HL_OK) {
        c->clean = 1;
        return HL_OK;
    }
    hl_status st = hl_cuda_report(c);
    hl_cuda_comm_abandon(c, &r);
    hl_cuda_peers_abandon(c);
    return st;
}

int maco_cuda_wait(maco_cuda *c)
{
    if (c == NULL)
        return hl_fail(HL_EINVAL, "the runtime is NULL");
    if (!c->running)
        return HL_OK;
    HL_TRY(hl_cuda_enter(c));
    hl_status st = wait_inside(c);
    hl_cuda_leave(c);
    return st;
}

int maco_cuda_run(maco_cuda *c, void *stream)
{
    HL_TRY(maco_cuda_start(c, stream));
    return maco_cuda_wait(c);
}

/* ---- recorded data ---- */

static hl_status check_recorded(const maco_cuda *c)
{
    if (!c->options.trace)
        return hl_fail(HL_EINVAL, "the runtime was opened without trace");
    if (c->plan == NULL || !c->clean || c->iteration == 0)
        return hl_fail(HL_EINVAL, "no run has ended successfully yet");
    return HL_OK;
}

static hl_status fetch_from_device(maco_cuda *c, size_t offset, void *to, size_t bytes)
{
    HL_TRY(hl_cuda_enter(c));
    hl_status st = hl_cuda_download(c, to, c->memory + offset, bytes);
    hl_cuda_leave(c);
    return st;
}

int maco_cuda_order(const maco_cuda *c, uint32_t *ids, uint32_t capacity, uint32_t *n)
{
    HL_TRY(check_recorded(c));
    uint32_t noted = c->tables.noted;
    uint32_t *tasks = malloc(((size_t)noted + 1) * sizeof(*tasks));
    if (tasks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the order of %u tasks", noted);
    /* The call changes nothing that its caller can see: the context is restored. */
    hl_status st = fetch_from_device((maco_cuda *)(uintptr_t)c, c->tables.order, tasks,
                                     noted * sizeof(*tasks));
    for (uint32_t i = 0; st == HL_OK && i < noted && i < capacity; i++)
        ids[i] = c->view.id[tasks[i]];
    if (st == HL_OK)
        *n = noted;
    free(tasks);
    return st;
}

static size_t to_records(const maco_plan_view *v, const struct hl_gpu_span *spans,
                         struct hl_maco_record *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const struct hl_gpu_span *s = &spans[i];
        int comm = hl_maco_is_comm(v->tasks[i].type);
        if (v->id[i] == MACO_NONE)
            continue;
        if (s->wait != 0 && s->wait <= s->start)
            out[n++] = (struct hl_maco_record){.start_ns = s->wait,
                                               .end_ns = s->start,
                                               .task = i,
                                               .worker = (uint16_t)s->worker,
                                               .kind = HL_MACO_WAIT};
        out[n++] = (struct hl_maco_record){.start_ns = s->start,
                                           .end_ns = s->end,
                                           .task = i,
                                           .worker = (uint16_t)s->worker,
                                           .kind = comm ? HL_MACO_COMM : HL_MACO_COMPUTE};
    }
    return n;
}

int maco_cuda_trace(const maco_cuda *c, maco_trace **out)
{
    HL_TRY(check_recorded(c));
    size_t n = c->view.n_tasks;
    struct hl_gpu_span *spans = malloc((n + 1) * sizeof(*spans));
    struct hl_maco_record *records = malloc((2 * n + 1) * sizeof(*records));
    hl_status st = HL_OK;
    if (spans == NULL || records == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the trace of %zu tasks", n);
    if (st == HL_OK)
        st = fetch_from_device((maco_cuda *)(uintptr_t)c, c->tables.spans, spans,
                               n * sizeof(*spans));
    if (st == HL_OK)
        st = hl_maco_trace_new(c->plan, records, to_records(&c->view, spans, records), out);
    free(spans);
    free(records);
    return st;
}
