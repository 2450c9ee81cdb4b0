/* Communication of a run. It is enqueued in the streams of its groups after the kernel's launch:
 * wait for the count of the task's event, communicate, write how many tasks of the group are done.
 * The kernel's proxy turns that number into triggers. Nothing here blocks, except giving up, where
 * NCCL can cause a delay. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "maco/cuda/host/context.h"
#include "maco/graph/graph.h"

#define ABORT_NS ((uint64_t)5 * HL_NS_PER_S)
#define DRAIN_NS ((uint64_t)5 * HL_NS_PER_S)
#define NAP_NS   20000

#define NCCL_TRY(c, call, name, args)                                                              \
    do {                                                                                           \
        nccl_result nccl_try_ = (c)->nccl.call args;                                               \
        if (nccl_try_ != HL_ncclSuccess)                                                           \
            return hl_nccl_fail(&(c)->nccl, #call, (name), nccl_try_);                             \
    } while (0)

static const void *task_input(const maco_task *t)
{
    return (const void *)(uintptr_t)t->inputs[0];
}

static void *task_output(const maco_task *t)
{
    return (void *)(uintptr_t)t->outputs[0];
}

static hl_status nccl_exchange_all(maco_cuda *c, const maco_task *t, const char *name, int ranks,
                                   struct ncclComm *comm, struct CUstream_st *s)
{
    size_t count = hl_maco_count(t);
    size_t step = count * hl_maco_dtype_size(hl_maco_dtype(t));
    nccl_type type = hl_nccl_type(hl_maco_dtype(t));
    for (int r = 0; r < ranks; r++) {
        const char *from = (const char *)task_input(t) + (size_t)r * step;
        char *to = (char *)task_output(t) + (size_t)r * step;
        NCCL_TRY(c, ncclSend, name, (from, count, type, r, comm, s));
        NCCL_TRY(c, ncclRecv, name, (to, count, type, r, comm, s));
    }
    return HL_OK;
}

/* Sends each rank its part and receives this rank's parts, in one NCCL group. The group is ended in
 * any case; otherwise every later NCCL call of this thread, for any caller, would become part of
 * it. */
static hl_status all_to_all(maco_cuda *c, const maco_task *t, const char *name,
                            struct ncclComm *comm, struct CUstream_st *s)
{
    int ranks = 0;
    NCCL_TRY(c, ncclCommCount, name, (comm, &ranks));
    NCCL_TRY(c, ncclGroupStart, name, ());
    hl_status st = nccl_exchange_all(c, t, name, ranks, comm, s);
    nccl_result ended = c->nccl.ncclGroupEnd();
    if (st == HL_OK && ended != HL_ncclSuccess)
        st = hl_nccl_fail(&c->nccl, "ncclGroupEnd", name, ended);
    return st;
}

static hl_status by_nccl(maco_cuda *c, const maco_task *t, const char *name, struct ncclComm *comm,
                         struct CUstream_st *s)
{
    size_t n = hl_maco_count(t);
    nccl_type type = hl_nccl_type(hl_maco_dtype(t));
    nccl_op op = hl_nccl_op(t->dims[2]);
    int peer = t->dims[3];
    switch (t->type) {
    case MACO_TASK_ALLREDUCE:
        NCCL_TRY(c, ncclAllReduce, name, (task_input(t), task_output(t), n, type, op, comm, s));
        return HL_OK;
    case MACO_TASK_REDUCE_SCATTER:
        NCCL_TRY(c, ncclReduceScatter, name, (task_input(t), task_output(t), n, type, op, comm, s));
        return HL_OK;
    case MACO_TASK_ALLGATHER:
        NCCL_TRY(c, ncclAllGather, name, (task_input(t), task_output(t), n, type, comm, s));
        return HL_OK;
    case MACO_TASK_BROADCAST:
        NCCL_TRY(c, ncclBroadcast, name, (task_input(t), task_output(t), n, type, peer, comm, s));
        return HL_OK;
    case MACO_TASK_SEND:
        NCCL_TRY(c, ncclSend, name, (task_input(t), n, type, peer, comm, s));
        return HL_OK;
    case MACO_TASK_RECV:
        NCCL_TRY(c, ncclRecv, name, (task_output(t), n, type, peer, comm, s));
        return HL_OK;
    default:
        return all_to_all(c, t, name, comm, s);
    }
}

/* A group of one rank receives what it sends. */
static hl_status by_copy(maco_cuda *c, const maco_task *t, const char *name, struct CUstream_st *s)
{
    size_t bytes = hl_maco_count(t) * hl_maco_dtype_size(hl_maco_dtype(t));
    if (t->type == MACO_TASK_SEND || t->type == MACO_TASK_RECV)
        return hl_fail(HL_EINVAL, "task %s: its group has one rank, so it has no peer", name);
    if (bytes > 0 && t->inputs[0] != t->outputs[0])
        CUDA_TRY(&c->cu, cuMemcpyAsync, (t->outputs[0], t->inputs[0], bytes, s));
    return HL_OK;
}

/* Runs on a thread of the driver. The error text is copied, because it belongs to this thread. */
static void call_custom(void *arg)
{
    const struct hl_cuda_call *k = arg;
    maco_cuda *c = k->cuda;
    if (__atomic_load_n(&c->host->outcome, __ATOMIC_ACQUIRE) != HL_GPU_OK || c->call_status != 0)
        return;
    int st = k->function(k->arg, &c->view.tasks[k->task]);
    if (st == 0)
        return;
    snprintf(c->call_why, sizeof(c->call_why), "task %s: its function failed: %.160s",
             hl_maco_plan_name(c->plan, k->task), hl_error_text());
    __atomic_store_n(&c->call_status, st, __ATOMIC_RELEASE);
    maco_cuda_cancel(c);
}

static hl_status put_task(maco_cuda *c, uint32_t i, struct CUstream_st *s)
{
    uint32_t task = c->view.comm[i];
    const maco_task *t = &c->view.tasks[task];
    const char *name = hl_maco_plan_name(c->plan, task);
    if (t->type == MACO_TASK_CUSTOM_COMM) {
        CUDA_TRY(&c->cu, cuLaunchHostFunc, (s, call_custom, &c->calls[i]));
        return HL_OK;
    }
    if (c->dead[t->group])
        return hl_fail(HL_ESTALE,
                       "task %s: the communicator of group %u was aborted when a run failed: open "
                       "the runtime with a new one",
                       name, t->group);
    if (c->comms[t->group] == NULL)
        return by_copy(c, t, name, s);
    return by_nccl(c, t, name, c->comms[t->group], s);
}

static cu_ptr count_of(const struct hl_gpu_run *r, uint32_t event)
{
    return (cu_ptr)(uintptr_t)r->events + event * sizeof(maco_event);
}

static uint64_t needed_count(const maco_cuda *c, uint32_t event)
{
    return c->view.events[event].needed * c->iteration;
}

/* The number of the group's tasks per run, in the group's stream. */
static uint32_t tasks_of(const maco_cuda *c, uint32_t group)
{
    const unsigned char *image = c->tables.image;
    const uint32_t *first = (const uint32_t *)(const void *)(image + c->tables.first_of_comm);
    return first[group + 1] - first[group];
}

hl_status hl_cuda_comm_start(maco_cuda *c, const struct hl_gpu_run *run)
{
    uint64_t done[HL_GPU_GROUPS] = {0};
    for (uint32_t g = 0; c->view.n_comm > 0 && g < c->options.n_comms; g++) {
        uint32_t tasks = tasks_of(c, g);
        done[g] = (c->iteration - 1) * tasks;
        if (tasks > 0)
            CUDA_TRY(&c->cu, cuStreamWaitEvent, (c->streams[g], c->begun, 0));
    }
    for (uint32_t i = 0; i < c->view.n_comm; i++) {
        const maco_task *t = &c->view.tasks[c->view.comm[i]];
        struct CUstream_st *s = c->streams[t->group];
        if (hl_cuda_is_inside(c, t->group))
            continue;
        cu_ptr word = (cu_ptr)(uintptr_t)&run->comm_done[t->group];
        if (t->dependent_event != MACO_NONE)
            CUDA_TRY(&c->cu, cuStreamWaitValue64_v2,
                     (s, count_of(run, t->dependent_event), needed_count(c, t->dependent_event),
                      HL_CU_STREAM_WAIT_VALUE_GEQ));
        HL_TRY(put_task(c, i, s));
        CUDA_TRY(&c->cu, cuStreamWriteValue64_v2,
                 (s, word, ++done[t->group], HL_CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    return HL_OK;
}

/* ---- giving up ---- */

struct abort_call {
    struct hl_cuda_job job;
    struct hl_nccl nccl;
    struct ncclComm *comm;
    cu_ptr memory;
};

static void abort_comm(struct hl_cuda_job *job)
{
    struct abort_call *a = (struct abort_call *)job;
    (void)a->nccl.ncclCommAbort(a->comm);
    if (a->memory != 0)
        (void)job->cu.cuMemFree_v2(a->memory);
}

/* NULL, with a warning, if ncclCommAbort can't be called. */
static struct abort_call *begin_abort(maco_cuda *c, uint32_t g, cu_ptr memory)
{
    struct abort_call *a = calloc(1, sizeof(*a));
    hl_status st = HL_ENOMEM;
    c->dead[g] = 1;
    if (a != NULL) {
        a->nccl = c->nccl;
        a->comm = c->comms[g];
        a->memory = memory;
        st = hl_cuda_job_start(c, &a->job, abort_comm);
    }
    if (st != HL_OK)
        hl_warn("group %u: out of memory allocating ncclCommAbort: NCCL keeps its resources", g);
    return st == HL_OK ? a : NULL;
}

/* Whether the call has returned; several calls share one deadline. */
static bool end_abort(struct abort_call *a, uint32_t g, uint64_t until)
{
    uint64_t now = hl_now_ns();
    if (a == NULL)
        return false;
    hl_status st = hl_cuda_job_wait(&a->job, until > now ? until - now : 0, "ncclCommAbort");
    hl_cuda_job_drop(&a->job);
    if (st != HL_OK)
        hl_warn("group %u: ncclCommAbort did not return within %llu ms: NCCL keeps its resources",
                g, (unsigned long long)(ABORT_NS / HL_NS_PER_MS));
    return st == HL_OK;
}

int hl_cuda_comm_abort(maco_cuda *c, uint32_t g, cu_ptr memory)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    int back = end_abort(begin_abort(c, g, memory), g, hl_now_ns() + ABORT_NS);
    (void)hl_fail(HL_ECANCELED, "%s", why); /* restores the text; the caller has the status */
    return back;
}

/* Writes the counts that the group's stream waits for. */
static void let_go(maco_cuda *c, const struct hl_gpu_run *run, uint32_t g)
{
    for (uint32_t i = 0; i < c->view.n_comm; i++) {
        const maco_task *t = &c->view.tasks[c->view.comm[i]];
        if (t->group == g && t->dependent_event != MACO_NONE)
            (void)c->cu.cuStreamWriteValue64_v2(c->own, count_of(run, t->dependent_event),
                                                needed_count(c, t->dependent_event),
                                                HL_CU_STREAM_WRITE_VALUE_DEFAULT);
    }
}

/* false: the stream is still busy at `until`. */
static bool is_drained(maco_cuda *c, uint32_t g, uint64_t until)
{
    for (;;) {
        cu_result r = c->cu.cuStreamQuery(c->streams[g]);
        if (r != HL_CUDA_ERROR_NOT_READY)
            return r == HL_CUDA_SUCCESS;
        if (hl_now_ns() > until)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

/* Writes the counts that end the streams' waits; kernels of an aborted communicator end at once.
 * Errors in here are dropped, so that the error that is being reported stays. */
void hl_cuda_comm_abandon(maco_cuda *c, const struct hl_gpu_run *run)
{
    char why[HL_ERROR_TEXT_MAX];
    uint32_t groups = c->view.n_comm > 0 ? c->options.n_comms : 0;
    struct abort_call *aborts[HL_GPU_GROUPS] = {NULL};
    int waits[HL_GPU_GROUPS] = {0};
    snprintf(why, sizeof(why), "%s", hl_error_text());
    for (uint32_t g = 0; g < groups; g++) {
        waits[g] = c->cu.cuStreamQuery(c->streams[g]) == HL_CUDA_ERROR_NOT_READY;
        /* An inside group's windows are in use, and no NCCL kernel waits for its communicator. */
        if (waits[g] && c->comms[g] != NULL && !c->dead[g] && !hl_cuda_is_inside(c, g))
            aborts[g] = begin_abort(c, g, 0);
    }
    uint64_t until = hl_now_ns() + ABORT_NS;
    for (uint32_t g = 0; g < groups; g++)
        (void)end_abort(aborts[g], g, until);
    for (uint32_t g = 0; g < groups; g++)
        if (waits[g])
            let_go(c, run, g);
    until = hl_now_ns() + DRAIN_NS;
    for (uint32_t g = 0; g < groups; g++)
        if (waits[g] && !is_drained(c, g, until))
            c->dead[g] = 1;
    hl_error_clear();
    (void)hl_fail(HL_ECANCELED, "%s", why); /* restores the text; the caller has the status */
}
