/* Memory that all ranks of a group can access, for collectives inside the kernel. It comes from the
 * first source that serves all ranks. NCCL's windows are tried first: NCCL knows which GPUs can
 * access each other, also in one process and between hosts of one NVLink domain. CUDA's own handles
 * only need the driver. NVSHMEM has a heap of its own and waits without deadlines. If no source
 * serves, or the group has more ranks than the kernel supports, a group with a communicator uses
 * streams. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "helios/hybridps.h"
#include "maco/cuda/peers/peers.h"
#include "maco/cuda/peers/source.h"
#include "os/process.h"

static hl_status take_stream(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine)
{
    (void)bytes;
    (void)mine;
    if (c->dead[g])
        return hl_fail(HL_EUNAVAIL, "its communicator was aborted");
    return c->comms[g] != NULL ? HL_OK : hl_fail(HL_EUNAVAIL, "it has no communicator");
}

static void drop_nothing(maco_cuda *c, uint32_t g)
{
    (void)c;
    (void)g;
}

static const struct hl_peer_source by_streams = {"by streams", take_stream, NULL, drop_nothing};

static const struct hl_peer_source *const sources[] = {&hl_peer_window, &hl_peer_ipc,
                                                       &hl_peer_nvshmem, &by_streams};

/* ---- messages between the ranks ---- */

/* The result of a step on one rank. */
struct verdict {
    int32_t status;
    char why[156];
};

static hl_status allgather_offers(maco_cuda *c, uint32_t g, const void *mine, void *all,
                                  size_t bytes)
{
    return (hl_status)hybridps_group_allgather(
        c->groups[g], "memory for communication inside the kernel", mine, all, bytes);
}

/* Allocates room for the messages of all ranks of a group; NULL, with an error, on failure. */
static void *room_for(int world, size_t each)
{
    void *all = calloc((size_t)world, each);
    if (all == NULL)
        (void)hl_fail(HL_ENOMEM, "out of memory gathering the answers of %d ranks", world);
    return all;
}

/* All ranks learn which rank refused first and why. lost: the ranks could not exchange this. */
static hl_status share_verdict(maco_cuda *c, uint32_t g, hl_status st, bool *lost)
{
    struct verdict mine = {.status = st};
    int world = hybridps_group_world(c->groups[g]);
    if (st != HL_OK)
        snprintf(mine.why, sizeof(mine.why), "%s", hl_error_text());
    *lost = true;
    HL_AUTO(hl_freep) struct verdict *all = room_for(world, sizeof(*all));
    if (all == NULL)
        return HL_ENOMEM;
    HL_TRY(allgather_offers(c, g, &mine, all, sizeof(mine)));
    *lost = false;
    for (int k = 0; k < world; k++) {
        all[k].why[sizeof(all[k].why) - 1] = '\0';
        if (all[k].status != HL_OK)
            return hl_fail((hl_status)all[k].status, "rank %d: %s", k, all[k].why);
    }
    return HL_OK;
}

static hl_status same_ctas(maco_cuda *c, uint32_t g)
{
    uint32_t mine = c->options.peer_ctas;
    int world = hybridps_group_world(c->groups[g]);
    HL_AUTO(hl_freep) uint32_t *all = room_for(world, sizeof(*all));
    if (all == NULL)
        return HL_ENOMEM;
    HL_TRY(allgather_offers(c, g, &mine, all, sizeof(mine)));
    for (int k = 0; k < world; k++)
        if (all[k] != mine)
            return hl_fail(HL_ECONFLICT, "group %u: %u CTAs here and %u on rank %d (peer_ctas)", g,
                           mine, all[k], k);
    return HL_OK;
}

/* ---- one source ---- */

/* A number of this process that is unique across PID namespaces. */
static uint64_t process_number(void)
{
    return hl_pid_namespace() << 32 | (uint32_t)getpid();
}

/* Sets the words to zero; the first buffer names the owner of this memory, until a run overwrites
 * it. */
static hl_status clear_memory(maco_cuda *c, uint32_t g, const struct hl_peer_offer *mine,
                              uint32_t ranks)
{
    size_t words = HL_PEER_WORDS(c->options.peer_ctas, ranks);
    void *zeros = calloc(1, words);
    if (zeros == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group inside the kernel");
    hl_status st = hl_cuda_upload(c, c->memories[g].own, zeros, words);
    free(zeros);
    HL_TRY(st);
    return hl_cuda_upload(c, c->memories[g].own + words, mine, sizeof(*mine));
}

/* Checks that the memory at each rank's address belongs to that rank. */
static hl_status prove_addresses(maco_cuda *c, const struct hl_peer_offer *all,
                                 const struct hl_gpu_peers *p)
{
    size_t words = HL_PEER_WORDS(c->options.peer_ctas, p->ranks);
    for (uint32_t k = 0; k < p->ranks; k++) {
        struct hl_peer_offer found;
        HL_TRY(hl_cuda_download(c, &found, p->memory[k] + words, sizeof(found)));
        if (memcmp(&found, &all[k], sizeof(found)) != 0)
            return hl_fail(HL_ECORRUPT, "the address for rank %u leads to other memory", k);
    }
    return HL_OK;
}

static hl_status reach_peers(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all,
                             struct hl_gpu_peers *p)
{
    HL_TRY(c->memories[g].source->reach(c, g, all, p->memory));
    p->memory[p->rank] = c->memories[g].own;
    return clear_memory(c, g, &all[p->rank], p->ranks);
}

static hl_status open_by(maco_cuda *c, uint32_t g, const struct hl_peer_source *source,
                         struct hl_gpu_peers *p, bool *lost)
{
    struct hl_peer_offer mine = {.process = process_number(), .device = c->device};
    struct hl_peer_offer all[HL_GPU_RANKS];
    size_t bytes = HL_PEER_BYTES(c->options.peer_ctas, p->ranks);
    c->memories[g].source = source;
    hl_status st = source->take(c, g, bytes, &mine);
    mine.address = c->memories[g].own;
    HL_TRY(share_verdict(c, g, st, lost));
    if (source->reach == NULL)
        return HL_OK;
    *lost = true;
    HL_TRY(allgather_offers(c, g, &mine, all, sizeof(mine)));
    HL_TRY(share_verdict(c, g, reach_peers(c, g, all, p), lost));
    return share_verdict(c, g, prove_addresses(c, all, p), lost);
}

static void drop_memory(maco_cuda *c, uint32_t g)
{
    struct hl_cuda_peers *m = &c->memories[g];
    if (m->source != NULL)
        m->source->drop(c, g);
    *m = (struct hl_cuda_peers){0};
}

/* ---- a group ---- */

static void tell_route(maco_cuda *c, uint32_t g, const char *refused)
{
    struct hl_cuda_peers *m = &c->memories[g];
    int streams = m->source == &by_streams;
    snprintf(m->route, sizeof(m->route), "%s%s%s", streams ? "" : "inside the kernel, ",
             m->source->name, refused);
    if (streams)
        hl_warn("group %u communicates %s", g, m->route);
    else
        hl_debug("group %u communicates %s", g, m->route);
}

/* Tries the sources together with all ranks; *p describes the group unless it uses streams. */
static hl_status open_group(maco_cuda *c, uint32_t g, struct hl_gpu_peers *p)
{
    char refused[560] = "";
    hl_status st = HL_OK;
    *p = (struct hl_gpu_peers){.group = g,
                               .rank = (uint32_t)hybridps_group_rank(c->groups[g]),
                               .ranks = (uint32_t)hybridps_group_world(c->groups[g])};
    HL_TRY(same_ctas(c, g));
    size_t i = 0;
    if (p->ranks > HL_GPU_RANKS) { /* all ranks know that */
        i = HL_ARRAY_LEN(sources) - 1;
        st = HL_EUNSUPPORTED;
        snprintf(refused, sizeof(refused), "; not inside the kernel: its %u ranks are more than %d",
                 p->ranks, HL_GPU_RANKS);
    }
    for (; i < HL_ARRAY_LEN(sources); i++) {
        bool lost;
        hl_status now = open_by(c, g, sources[i], p, &lost);
        if (now == HL_OK) {
            tell_route(c, g, refused);
            return HL_OK;
        }
        if (lost)
            return now;
        size_t used = strlen(refused);
        snprintf(refused + used, sizeof(refused) - used, "; not %s: %.150s", sources[i]->name,
                 hl_error_text());
        drop_memory(c, g);
        if (st == HL_OK || now != HL_EUNAVAIL) /* a failure says more than something missing */
            st = now;
    }
    return hl_fail(st, "group %u communicates neither inside the kernel nor by streams%s", g,
                   refused);
}

hl_status hl_cuda_peers_open(maco_cuda *c)
{
    if (c->options.peer_ctas == 0)
        return HL_OK;
    c->peers = calloc(HL_GPU_GROUPS, sizeof(*c->peers));
    if (c->peers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating groups inside the kernel");
    for (uint32_t g = 0; g < c->options.n_comms; g++) {
        if (c->groups[g] == NULL)
            continue;
        HL_TRY(open_group(c, g, &c->peers[c->n_peers]));
        c->n_peers += c->memories[g].source != &by_streams;
    }
    return HL_OK;
}

/* A barrier: all ranks come here, and if one fails the group reports it. */
void hl_cuda_peers_part(maco_cuda *c)
{
    char mine = 0, all[HL_GPU_RANKS];
    for (uint32_t i = 0; i < c->n_peers; i++)
        (void)allgather_offers(c, c->peers[i].group, &mine, all, 1);
}

void hl_cuda_peers_close(maco_cuda *c)
{
    for (uint32_t g = 0; g < HL_GPU_GROUPS; g++)
        drop_memory(c, g);
    free(c->peers);
    c->peers = NULL;
    c->n_peers = 0;
}

/* The loaded plan's first task in the i-th group inside the kernel, as loading sorted them;
 * MACO_NONE. */
static uint32_t first_task(const maco_cuda *c, uint32_t i)
{
    const unsigned char *image = c->tables.image;
    const uint32_t *first = (const uint32_t *)(const void *)(image + c->tables.first_of_peer_comm);
    const uint32_t *comm = (const uint32_t *)(const void *)(image + c->tables.peer_comm);
    return first[i + 1] > first[i] ? comm[first[i]] : MACO_NONE;
}

void hl_cuda_peers_abandon(maco_cuda *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        if (first_task(c, i) != MACO_NONE)
            c->memories[c->peers[i].group].apart = 1;
}

/* Called at each start, because the last run may have failed. */
hl_status hl_cuda_peers_check(const maco_cuda *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++) {
        uint32_t g = c->peers[i].group, task = first_task(c, i);
        if (c->memories[g].apart && task != MACO_NONE)
            return hl_fail(HL_ESTALE,
                           "task %s: a run of group %u failed, and its ranks have lost count of "
                           "each other: open the runtime again on all of them",
                           hl_maco_plan_name(c->plan, task), g);
    }
    return HL_OK;
}

const char *maco_cuda_route(const maco_cuda *c, uint32_t group)
{
    if (c == NULL || group >= c->options.n_comms)
        return NULL;
    if (c->memories[group].route[0] != '\0')
        return c->memories[group].route;
    return c->comms[group] != NULL ? "by streams" : "by copies in a stream";
}
