/* hw/slurm.h - the part of a machine that belongs to a Slurm allocation, for an Agent that srun
 * starts.
 *
 * CPUs are those that Slurm has bound the process to. A binding is required unless the job has the
 * whole machine, because otherwise the Agent would assign CPUs of other jobs. GPUs are those of the
 * job's GRES, matched by the number of their device file as the driver reports it. Memory is the
 * job's, divided in proportion to the slots' CPUs.
 *
 * Owns:    nothing.
 * Threads: one at a time; reads the environment.
 * Errors:  HL_EINVAL says what Slurm did not provide or do, and what to set in slurm.conf.
 * Units:   bytes; Slurm's are MiB.
 * Limits:  256 GPUs.
 */
#ifndef HL_HW_SLURM_H
#define HL_HW_SLURM_H

#include <stdbool.h>
#include <stddef.h>

#include "core/planner/topo.h"

/* True inside a step of a Slurm job, on one of its nodes. */
bool hl_slurm_inside(void);
/* This Agent's name in the allocation: the node's name in Slurm, plus ".N" for the N-th of several
 * tasks on it. */
void hl_slurm_node_name(char *out, size_t size);
/* Reduces `io`, which is this process's share of the machine by affinity, to what the job has.
 * gpus: "/proc/driver/nvidia/gpus". */
hl_status hl_slurm_keep(const char *gpus, struct hl_topo *io) HL_CHECK;

#endif
