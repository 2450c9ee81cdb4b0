/* maco/cuda/peers/source.h - sources of memory that all ranks of a group can reach, for collectives
 * inside the kernel. peers.c tries the sources in the same order on all ranks. After each step the
 * ranks tell each other whether it succeeded; together they continue, or free what they took and
 * try the next source. A source that this build or machine lacks fails in its first step, so the
 * list is the same everywhere.
 *
 * Owns:    what a source takes lies in c->memories[group] until drop.
 * Threads: the runtime's.
 * Errors:  each source's own, with a text that omits the group: the caller adds it.
 * Units:   bytes.
 * Limits:  HL_GPU_RANKS ranks; larger groups use streams.
 */
#ifndef HL_MACO_CUDA_PEERS_SOURCE_H
#define HL_MACO_CUDA_PEERS_SOURCE_H

#include "maco/cuda/host/context.h"

#define HL_PEER_HANDLE 128 /* bytes in which a source may describe a piece */

/* What a rank tells the others about its piece. */
struct hl_peer_offer {
    uint64_t process, address;
    int32_t device, rank; /* rank: the source's own number for this rank */
    unsigned char handle[HL_PEER_HANDLE];
};

struct hl_peer_source {
    const char *name; /* "over ...", for the report */
    /* Allocates this rank's piece into memories[g].own, and says what the others must know. Does
     * not block. */
    hl_status (*take)(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine);
    /* Collective: sets at[k] for each rank k but this one. NULL: no shared memory; the group uses
     * streams. */
    hl_status (*reach)(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all, uint64_t *at);
    /* Frees what the two left, even after a failure; no rank uses it any more. */
    void (*drop)(maco_cuda *c, uint32_t g);
};

extern const struct hl_peer_source hl_peer_window;  /* window.c */
extern const struct hl_peer_source hl_peer_ipc;     /* ipc.c */
extern const struct hl_peer_source hl_peer_nvshmem; /* nvshmem.c */

#endif
