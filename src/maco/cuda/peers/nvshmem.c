/* Peers' memory through NVSHMEM, with libhelios_nvshmem (nvshmem/plugin.cpp), which is loaded on
 * demand: HELIOS_NVSHMEM names the plug-in, otherwise it is searched for like any library. The
 * group's ranks are NVSHMEM's PEs; the offers carry its id to them. NVSHMEM has one world per
 * process and can be started only once, so it serves one group, once. Its waits have no deadline
 * and can't be ended: a call that does not return keeps its thread and the memory. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "helios/hybridps.h"
#include "maco/cuda/host/context.h"
#include "maco/cuda/nvshmem/plugin.h"
#include "maco/cuda/peers/source.h"

#define PLUGIN_NAME "libhelios_nvshmem.so"
#define WAIT_NS     ((uint64_t)20 * HL_NS_PER_S) /* at most, and no more than a run's deadline */

_Static_assert(HL_NVSHMEM_ID <= HL_PEER_HANDLE, "NVSHMEM's id is too large for an offer");

static struct {
    pthread_mutex_t lock;
    int taken;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static hl_status load_plugin(const struct hl_nvshmem **out)
{
    const char *name = getenv("HELIOS_NVSHMEM");
    name = name != NULL && name[0] != '\0' ? name : PLUGIN_NAME;
    const struct hl_nvshmem *(*plugin)(void);
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL)
        return hl_fail(HL_EUNAVAIL, "no NVSHMEM: %s", dlerror());
    void *symbol = dlsym(so, HL_NVSHMEM_PLUGIN);
    if (symbol == NULL)
        return hl_fail(HL_EUNAVAIL, "%s does not belong to this libhelios", name);
    memcpy(&plugin, &symbol, sizeof(symbol));
    *out = plugin();
    return HL_OK;
}

static hl_status claim_process(const struct hl_nvshmem *n)
{
    pthread_mutex_lock(&process.lock);
    int was = process.taken || n->is_on();
    process.taken = 1;
    pthread_mutex_unlock(&process.lock);
    return was ? hl_fail(HL_EUNSUPPORTED, "NVSHMEM serves only one group per process, once")
               : HL_OK;
}

static void release_process(void)
{
    pthread_mutex_lock(&process.lock);
    process.taken = 0;
    pthread_mutex_unlock(&process.lock);
}

static hl_status nvshmem_take(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine)
{
    const struct hl_nvshmem *n = NULL;
    HL_TRY(load_plugin(&n));
    HL_TRY(claim_process(n));
    c->memories[g].nvshmem = n;
    c->memories[g].bytes = bytes;
    if (hybridps_group_rank(c->groups[g]) == 0 && n->make_id(mine->handle) != 0)
        return hl_fail(HL_EIO, "NVSHMEM could not create an id");
    return HL_OK;
}

/* ---- with all ranks ---- */

struct world {
    struct hl_cuda_job job;
    const struct hl_nvshmem *n;
    unsigned char id[HL_NVSHMEM_ID];
    int rank, ranks, failed;
    size_t bytes;
    void *memory;
    uint64_t at[HL_GPU_RANKS];
};

static void enter_world(struct hl_cuda_job *job)
{
    struct world *w = (struct world *)job;
    w->failed = w->n->init(w->id, w->rank, w->ranks);
    if (w->failed != 0)
        return;
    w->memory = w->n->take(w->bytes);
    for (int k = 0; k < w->ranks && w->memory != NULL; k++)
        w->at[k] = (uintptr_t)w->n->at(w->memory, k);
}

static void leave_world(struct hl_cuda_job *job)
{
    struct world *w = (struct world *)job;
    if (w->memory != NULL)
        w->n->give(w->memory);
    w->n->end();
}

static hl_status wait_for(maco_cuda *c, struct world *w, const char *what)
{
    uint64_t ns = c->options.timeout_ns < WAIT_NS ? c->options.timeout_ns : WAIT_NS;
    return hl_cuda_job_wait(&w->job, ns, what);
}

/* Settles a world that this rank has entered; nvshmem_drop leaves it. */
static hl_status settle_world(maco_cuda *c, uint32_t g, const struct world *w, uint64_t *at)
{
    if (w->failed != 0)
        return hl_fail(HL_EIO, "NVSHMEM could not be initialized (%d)", w->failed);
    c->memories[g].entered = 1;
    c->memories[g].own = (uintptr_t)w->memory;
    if (w->memory == NULL)
        return hl_fail(
            HL_ENOMEM,
            "NVSHMEM's symmetric heap has no room for %zu bytes (NVSHMEM_SYMMETRIC_SIZE)",
            w->bytes);
    for (int k = 0; k < w->ranks; k++) {
        at[k] = w->at[k];
        if (at[k] == 0)
            return hl_fail(HL_EUNSUPPORTED, "this GPU does not reach the memory of rank %d", k);
    }
    return HL_OK;
}

static hl_status nvshmem_reach(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all,
                               uint64_t *at)
{
    struct world *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating NVSHMEM");
    w->n = c->memories[g].nvshmem;
    w->rank = hybridps_group_rank(c->groups[g]);
    w->ranks = hybridps_group_world(c->groups[g]);
    w->bytes = c->memories[g].bytes;
    memcpy(w->id, all[0].handle, sizeof(w->id));
    HL_TRY(hl_cuda_job_start(c, &w->job, enter_world));
    c->memories[g].begun = 1;
    hl_status st = wait_for(c, w, "initialization of NVSHMEM");
    if (st == HL_OK)
        st = settle_world(c, g, w, at);
    hl_cuda_job_drop(&w->job);
    return st;
}

/* Collective if the world was entered: all ranks drop it, or none of them has it. */
static void nvshmem_drop(maco_cuda *c, uint32_t g)
{
    struct hl_cuda_peers *m = &c->memories[g];
    struct world *w = m->entered ? calloc(1, sizeof(*w)) : NULL;
    if (m->nvshmem != NULL && !m->begun)
        release_process();
    if (w == NULL)
        return;
    w->n = m->nvshmem;
    w->memory = (void *)(uintptr_t)m->own;
    if (hl_cuda_job_start(c, &w->job, leave_world) != HL_OK)
        return;
    (void)wait_for(c, w, "finalization of NVSHMEM");
    hl_cuda_job_drop(&w->job);
}

const struct hl_peer_source hl_peer_nvshmem = {"over NVSHMEM", nvshmem_take, nvshmem_reach,
                                               nvshmem_drop};
