/* maco/kernels/comm.h - what collective tasks do: the calls of a group.
 *
 * Owns:    nothing.
 * Threads: the group's proxy alone; tasks of a group in the same order on all ranks.
 * Errors:  those of the group's calls, which name the rank that was late, died or did otherwise;
 *          HL_EINVAL a type that is no collective, other ranks than the group has.
 * Units:   elements; `count` as helios/maco.h says.
 * Limits:  those of the group. Every wait ends by its deadline.
 */
#ifndef HL_MACO_KERNELS_COMM_H
#define HL_MACO_KERNELS_COMM_H

#include "base/status.h"
#include "helios/hybridps.h"
#include "helios/maco.h"

/* ALLREDUCE to BROADCAST. `name` of the task, for messages of this and of other ranks; may be NULL.
 */
hl_status hl_maco_comm(const maco_task *task, const char *name, hybridps_group *group) HL_CHECK;
/* The ranks that its buffers are made for, and the one that it names, are those of a group of
 * `world`. */
hl_status hl_maco_comm_fits(const maco_task *task, const char *name, int world) HL_CHECK;

#endif
