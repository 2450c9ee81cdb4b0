/* maco/cuda/peers/peers.h - memory that all ranks of a group reach, for collectives inside the
 * kernel.
 *
 * Owns:    a runtime the memory of its groups, from open to close.
 * Threads: as maco/cuda/host/context.h.
 * Errors:  those of the source that a group uses, or HL_EINVAL, HL_ECONFLICT as helios/maco.h says.
 * Units:   bytes.
 * Limits:  HL_GPU_GROUPS groups of HL_GPU_RANKS ranks.
 */
#ifndef HL_MACO_CUDA_PEERS_PEERS_H
#define HL_MACO_CUDA_PEERS_PEERS_H

#include "maco/cuda/host/context.h"

/* Memory of each group inside the kernel, mapped on all its ranks; with all of them. */
hl_status hl_cuda_peers_open(maco_cuda *c) HL_CHECK;
/* Before closing: with all ranks, so that no rank frees what another one may still read. */
void hl_cuda_peers_part(maco_cuda *c);
void hl_cuda_peers_close(maco_cuda *c);
/* Ranks of groups inside the kernel that the loaded plan uses: they have lost count of each other.
 */
void hl_cuda_peers_abandon(maco_cuda *c);
/* Refused where a run that failed has left the plan's ranks apart. */
hl_status hl_cuda_peers_check(const maco_cuda *c) HL_CHECK;

#endif
