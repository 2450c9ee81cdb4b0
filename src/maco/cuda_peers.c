/* Memory that all ranks of a group reach, for collectives inside the kernel: each rank has a piece
 * and maps the others' (CUDA's handles between processes; within one process addresses are enough).
 * Who they are is exchanged over the group. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "helios/hybridps.h"
#include "maco/cuda_private.h"
#include "os/process.h"

/* What a rank tells the others of its piece. */
struct offer {
    uint64_t process, address;
    uint32_t ctas, status;
    int32_t device;
    uint32_t unused;
    struct cu_ipc_handle handle;
};

static hl_status allgather(maco_cuda *c, uint32_t g, const void *mine, void *all, size_t bytes)
{
    return (hl_status)hybridps_group_allgather(c->groups[g],
                                               "memory for communication inside the "
                                               "kernel",
                                               mine, all, bytes);
}

/* This process, told from those of other namespaces. */
static uint64_t process_number(void)
{
    return hl_pid_namespace() << 32 | (uint32_t)getpid();
}

static hl_status make_own(maco_cuda *c, uint32_t g, struct offer *mine)
{
    struct hl_cuda_peers *m = &c->memories[g];
    size_t ranks = (size_t)hybridps_group_world(c->groups[g]);
    size_t words = HL_PEER_WORDS(c->options.peer_ctas, ranks);
    CUDA_TRY(&c->cu, cuMemAlloc_v2, (&m->own, HL_PEER_BYTES(c->options.peer_ctas, ranks)));
    void *zeros = calloc(1, words);
    if (zeros == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for a group inside the kernel");
    hl_status st = hl_cuda_upload(c, m->own, zeros, words);
    free(zeros);
    HL_TRY(st);
    mine->address = m->own;
    if (ranks > 1)
        CUDA_TRY(&c->cu, cuIpcGetMemHandle, (&mine->handle, m->own));
    return HL_OK;
}

static hl_status map_one(maco_cuda *c, uint32_t g, int rank, const struct offer *mine,
                         const struct offer *other, uint64_t *out)
{
    *out = other->address;
    if (other->process == mine->process && other->device != mine->device)
        return hl_fail(HL_EUNSUPPORTED,
                       "group %u: ranks of one process on devices %d and %d; inside the kernel "
                       "they need a process each",
                       g, mine->device, other->device);
    if (other->process == mine->process)
        return HL_OK;
    CUDA_TRY(&c->cu, cuIpcOpenMemHandle_v2,
             (&c->memories[g].mapped[rank], other->handle, HL_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    *out = c->memories[g].mapped[rank];
    return HL_OK;
}

static hl_status map_all(maco_cuda *c, uint32_t g, const struct offer *mine,
                         const struct offer *all, struct hl_gpu_peers *p)
{
    for (uint32_t k = 0; k < p->ranks; k++) {
        if (all[k].status != 0)
            return hl_fail(HL_EUNAVAIL, "group %u: rank %u has no memory for its others", g, k);
        if (all[k].ctas != mine->ctas)
            return hl_fail(HL_ECONFLICT, "group %u: %u CTAs here and %u on rank %u (peer_ctas)", g,
                           mine->ctas, all[k].ctas, k);
        p->memory[k] = mine->address;
        if (k != p->rank)
            HL_TRY(map_one(c, g, (int)k, mine, &all[k], &p->memory[k]));
    }
    return HL_OK;
}

/* The first status is this rank's; all learn whether one of them failed. */
static hl_status settle(maco_cuda *c, uint32_t g, hl_status st, uint32_t ranks)
{
    char why[HL_ERROR_TEXT_MAX];
    int32_t mine = st, all[HL_GPU_RANKS];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    hl_status told = allgather(c, g, &mine, all, sizeof(mine));
    if (st != HL_OK)
        return hl_fail(st, "%s", why);
    HL_TRY(told);
    for (uint32_t k = 0; k < ranks; k++)
        if (all[k] != HL_OK)
            return hl_fail(HL_EUNAVAIL, "group %u: rank %u could not map the others' memory", g, k);
    return HL_OK;
}

static hl_status open_group(maco_cuda *c, uint32_t g, struct hl_gpu_peers *p)
{
    struct offer mine = {
        .process = process_number(), .ctas = c->options.peer_ctas, .device = c->device};
    struct offer all[HL_GPU_RANKS];
    int world = hybridps_group_world(c->groups[g]);
    if (world > HL_GPU_RANKS)
        return hl_fail(HL_EUNSUPPORTED, "group %u has %d ranks; inside the kernel at most %d", g,
                       world, HL_GPU_RANKS);
    *p = (struct hl_gpu_peers){
        .group = g, .rank = (uint32_t)hybridps_group_rank(c->groups[g]), .ranks = (uint32_t)world};
    char why[HL_ERROR_TEXT_MAX];
    hl_status st = make_own(c, g, &mine);
    mine.status = st != HL_OK; /* the others are told before the error */
    snprintf(why, sizeof(why), "%s", hl_error_text());
    HL_TRY(allgather(c, g, &mine, all, sizeof(mine)));
    if (st != HL_OK)
        return hl_fail(st, "%s", why);
    return settle(c, g, map_all(c, g, &mine, all, p), p->ranks);
}

hl_status hl_cuda_peers_open(maco_cuda *c)
{
    if (c->options.peer_ctas == 0)
        return HL_OK;
    c->peers = calloc(HL_GPU_GROUPS, sizeof(*c->peers));
    if (c->peers == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for groups inside the kernel");
    for (uint32_t g = 0; g < c->options.n_comms; g++) {
        if (c->groups[g] == NULL)
            continue;
        HL_TRY(open_group(c, g, &c->peers[c->n_peers]));
        c->n_peers++;
    }
    return HL_OK;
}

/* Nobody gives back what another one may still read: all come here, or the group knows better. */
static void part(maco_cuda *c)
{
    char mine = 0, all[HL_GPU_RANKS];
    for (uint32_t i = 0; i < c->n_peers; i++)
        (void)allgather(c, c->peers[i].group, &mine, all, 1);
}

void hl_cuda_peers_close(maco_cuda *c)
{
    part(c);
    for (uint32_t g = 0; g < HL_GPU_GROUPS; g++) {
        struct hl_cuda_peers *m = &c->memories[g];
        for (uint32_t k = 0; k < HL_GPU_RANKS; k++)
            if (m->mapped[k] != 0)
                (void)c->cu.cuIpcCloseMemHandle(m->mapped[k]);
        if (m->own != 0)
            (void)c->cu.cuMemFree_v2(m->own);
        *m = (struct hl_cuda_peers){0};
    }
    free(c->peers);
    c->peers = NULL;
    c->n_peers = 0;
}

void hl_cuda_peers_abandon(maco_cuda *c)
{
    for (uint32_t i = 0; i < c->view.n_comm; i++) {
        uint32_t g = c->view.tasks[c->view.comm[i]].group;
        if (hl_cuda_peers_of(c, g) < c->n_peers)
            c->dead[g] = 1;
    }
}

hl_status hl_cuda_peers_check(const maco_cuda *c)
{
    for (uint32_t i = 0; i < c->view.n_comm; i++) {
        uint32_t task = c->view.comm[i], g = c->view.tasks[task].group;
        if (c->dead[g] && hl_cuda_peers_of(c, g) < c->n_peers)
            return hl_fail(HL_ESTALE,
                           "task %s: a run of group %u failed, and its ranks have lost count of "
                           "each other: open the runtime again on all of them",
                           hl_maco_plan_name(c->plan, task), g);
    }
    return HL_OK;
}
