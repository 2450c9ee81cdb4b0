/* hw/slurm.h - the part of a machine that a Slurm allocation has, for an Agent that srun starts.
 *
 * CPUs are those that Slurm has bound the process to; a binding is required where the job has not
 * the whole machine, for without one the Agent would give out CPUs of others. GPUs are those of the
 * job's GRES, by the number of their device file, as the driver tells it. Memory is what the job
 * was given, by the slots' CPUs.
 *
 * Owns:    nothing.
 * Threads: one at a time; reads the environment.
 * Errors:  HL_EINVAL says what Slurm has not said or done, and what to set in slurm.conf.
 * Units:   bytes; Slurm's are MiB.
 * Limits:  256 GPUs.
 */
#ifndef HL_HW_SLURM_H
#define HL_HW_SLURM_H

#include <stdbool.h>
#include <stddef.h>

#include "core/planner/topo.h"

/* True in a step of a Slurm job, on one of its nodes. */
bool hl_slurm_inside(void);
/* Of this Agent in the allocation: the node's name in Slurm, and ".N" for the N-th task of several
 * on it. */
void hl_slurm_node_name(char *out, size_t size);
/* Leave in `io`, which is this process's share of the machine by its affinity, what the job has.
 * gpus: "/proc/driver/nvidia/gpus". */
hl_status hl_slurm_keep(const char *gpus, struct hl_topo *io) HL_CHECK;

#endif
