/* A plan on the device: one allocation with all its tables, and a page of host memory that both
 * host and device access. */
#include <stdlib.h>
#include <string.h>

#include "maco/cuda/host/context.h"

void hl_cuda_unload(maco_cuda *c)
{
    if (c->memory != 0)
        (void)c->cu.cuMemFree_v2(c->memory);
    if (c->host != NULL)
        (void)c->cu.cuMemFreeHost(c->host);
    hl_cuda_tables_free(&c->tables);
    free(c->calls);
    c->calls = NULL;
    c->memory = c->host_on_device = 0;
    c->host = NULL;
    c->plan = NULL;
    c->ctas = 0;
    c->info.workers = 0;
}

hl_status hl_cuda_reset(maco_cuda *c)
{
    HL_TRY(hl_cuda_upload(c, c->memory, c->tables.image, c->tables.size));
    c->iteration = 0;
    c->clean = 1;
    return HL_OK;
}

/* CTAs besides the workers: the scheduler, the proxy of streams, and those of groups in the
 * kernel. */
static int helpers_of(const maco_cuda *c, const maco_plan_view *v)
{
    int streams = 0;
    for (uint32_t i = 0; i < v->n_comm; i++)
        streams |= !hl_cuda_is_inside(c, v->tasks[v->comm[i]].group);
    return (v->policy == MACO_SCHEDULER) + streams + (int)(c->n_peers * c->options.peer_ctas);
}

static hl_status choose_workers(const maco_cuda *c, const maco_plan_view *v, int helpers,
                                uint32_t *workers)
{
    int each = c->info.limit / c->info.multiprocessors;
    int free_sms = c->info.multiprocessors - c->options.reserved;
    int room = free_sms * each - helpers;
    int n = v->policy == MACO_STATIC ? (int)v->n_lists : c->options.workers;
    if (n == 0)
        n = free_sms < room ? free_sms : room;
    if (n > room || n < 1)
        return hl_fail(HL_ENOSPC,
                       "NotCoResident: %d workers and %d CTAs for scheduler and communication are "
                       "more than %s holds at once (%d multiprocessors less %d reserved, %d CTAs "
                       "each): request at most %d workers",
                       n, helpers, c->info.name, c->info.multiprocessors, c->options.reserved, each,
                       room < 0 ? 0 : room);
    *workers = (uint32_t)n;
    return HL_OK;
}

static hl_status make_calls(maco_cuda *c)
{
    const maco_plan_view *v = &c->view;
    c->calls = calloc((size_t)v->n_comm + 1, sizeof(*c->calls));
    if (c->calls == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the functions of %u tasks", v->n_comm);
    for (uint32_t i = 0; i < v->n_comm; i++) {
        const maco_task *t = &v->tasks[v->comm[i]];
        c->calls[i] = (struct hl_cuda_call){.cuda = c, .task = v->comm[i]};
        if (t->type == MACO_TASK_CUSTOM_COMM)
            HL_TRY(
                hl_maco_plan_function(c->plan, t->user, &c->calls[i].function, &c->calls[i].arg));
    }
    return HL_OK;
}

static hl_status load_inside(maco_cuda *c, const maco_plan *p)
{
    void *host;
    struct hl_cuda_shape shape = {.ring = c->options.ring,
                                  .groups = c->options.n_comms,
                                  .trace = c->options.trace,
                                  .peers = c->peers,
                                  .n_peers = c->n_peers,
                                  .peer_ctas = c->options.peer_ctas};
    hl_cuda_unload(c);
    c->plan = p;
    c->view = *maco_plan_read(p);
    int helpers = helpers_of(c, &c->view);
    HL_TRY(choose_workers(c, &c->view, helpers, &shape.workers));
    HL_TRY(hl_cuda_tables_make(p, &shape, &c->tables));
    HL_TRY(make_calls(c));
    c->ctas = shape.workers + (uint32_t)helpers;
    c->agreed = 0;
    size_t bytes = sizeof(*c->host) + c->ctas * sizeof(c->host->state[0]);
    CUDA_TRY(&c->cu, cuMemHostAlloc, (&host, bytes, HL_CU_MEMHOSTALLOC_DEVICEMAP));
    c->host = host;
    memset(host, 0, bytes);
    CUDA_TRY(&c->cu, cuMemHostGetDevicePointer_v2, (&c->host_on_device, host, 0));
    CUDA_TRY(&c->cu, cuMemAlloc_v2, (&c->memory, c->tables.size));
    HL_TRY(hl_cuda_reset(c));
    c->info.workers = (int)shape.workers;
    return HL_OK;
}

int maco_cuda_load(maco_cuda *c, const maco_plan *p)
{
    if (c == NULL || p == NULL)
        return hl_fail(HL_EINVAL, "a runtime and a plan are needed");
    if (c->running)
        return hl_fail(HL_EBUSY, "a run is in progress: wait for it (maco_cuda_wait)");
    HL_TRY(hl_cuda_enter(c));
    hl_status st = load_inside(c, p);
    if (st != HL_OK)
        hl_cuda_unload(c);
    hl_cuda_leave(c);
    return st;
}
