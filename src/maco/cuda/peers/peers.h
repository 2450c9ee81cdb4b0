/* maco/cuda/peers/peers.h - memory that all ranks of a group can reach, for collectives inside the
 * kernel.
 *
 * Owns:    a runtime owns the memory of its groups, from open to close.
 * Threads: as maco/cuda/host/context.h.
 * Errors:  those of the source that a group uses, or HL_EINVAL, HL_ECONFLICT as helios/maco.h says.
 * Units:   bytes.
 * Limits:  HL_GPU_GROUPS groups of HL_GPU_RANKS ranks.
 */
#ifndef HL_MACO_CUDA_PEERS_PEERS_H
#define HL_MACO_CUDA_PEERS_PEERS_H

#include "maco/cuda/host/context.h"

/* Allocates the memory of each group that communicates inside the kernel, and maps it on all its
 * ranks; collective. */
hl_status hl_cuda_peers_open(maco_cuda *c) HL_CHECK;
/* Call before closing; collective, so that no rank frees what another may still read. */
void hl_cuda_peers_part(maco_cuda *c);
void hl_cuda_peers_close(maco_cuda *c);
/* Notes, for the groups inside the kernel that the loaded plan uses, that the ranks' counts of each
 * other no longer agree. */
void hl_cuda_peers_abandon(maco_cuda *c);
/* Fails if a failed run has left the plan's ranks in that state. */
hl_status hl_cuda_peers_check(const maco_cuda *c) HL_CHECK;

#endif
