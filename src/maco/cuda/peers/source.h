/* maco/cuda/peers/source.h - where memory comes from that all ranks of a group reach, for
 * collectives inside the kernel. peers.c goes through the sources in one order on all ranks; after
 * each step the ranks tell each other whether it went well, and go on together or free what
 * they took and try the next source together. A source that this build or machine lacks refuses in
 * its first step, so the list is the same everywhere.
 *
 * Owns:    what a source took lies in c->memories[group], until its drop.
 * Threads: the runtime's.
 * Errors:  each source's own, in words that need no group: the caller adds it.
 * Units:   bytes.
 * Limits:  HL_GPU_RANKS ranks; a larger group goes by streams.
 */
#ifndef HL_MACO_CUDA_PEERS_SOURCE_H
#define HL_MACO_CUDA_PEERS_SOURCE_H

#include "maco/cuda/host/context.h"

#define HL_PEER_HANDLE 128 /* bytes that a source may tell of a piece */

/* What a rank tells the others of its piece. */
struct hl_peer_offer {
    uint64_t process, address;
    int32_t device, rank; /* rank: the source's own number of it */
    unsigned char handle[HL_PEER_HANDLE];
};

struct hl_peer_source {
    const char *name; /* "over ...": for the report */
    /* This rank's piece, into memories[g].own, and what the others must know. Does not wait. */
    hl_status (*take)(maco_cuda *c, uint32_t g, size_t bytes, struct hl_peer_offer *mine);
    /* With all ranks: at[k] of each rank k but this one. NULL: no shared memory; by streams. */
    hl_status (*reach)(maco_cuda *c, uint32_t g, const struct hl_peer_offer *all, uint64_t *at);
    /* Frees what the two left, also after a failure; no rank uses it any more. */
    void (*drop)(maco_cuda *c, uint32_t g);
};

extern const struct hl_peer_source hl_peer_window;  /* window.c */
extern const struct hl_peer_source hl_peer_ipc;     /* ipc.c */
extern const struct hl_peer_source hl_peer_nvshmem; /* nvshmem.c */

#endif
