/* maco/kernels/bodies.h - what tasks do on a CPU: compute, memory and collectives.
 *
 * All arithmetic is float32 whatever the task's type is; results are rounded to it once. Each
 * element of every body but MATMUL and LINEAR depends on its row alone, so chunks of rows give the
 * bits of the whole. Those two give them with MACO_FLAG_DETERMINISTIC; without it they are BLAS's.
 *
 * Owns:    a scratch its memory, which grows to what the largest task wanted.
 * Threads: any; a scratch belongs to one worker. No locks in a body. Collectives: the group's proxy
 *          alone, in the same order on all ranks.
 * Errors:  HL_EINVAL a type that is not a body's; HL_EUNSUPPORTED a dtype it has no arithmetic for;
 *          HL_ENOMEM; of collectives those of the group's calls, which name the rank that was late,
 *          died or did otherwise. Dims and addresses are those that maco_graph_add found right.
 * Units:   as helios/maco.h says of each task.
 * Limits:  none of its own; those of the group, by whose deadline every wait ends.
 */
#ifndef HL_MACO_KERNELS_BODIES_H
#define HL_MACO_KERNELS_BODIES_H

#include <stddef.h>

#include "base/status.h"
#include "helios/hybridps.h"
#include "helios/maco.h"

/* All 0 at first. */
struct hl_maco_scratch {
    void *data;
    size_t bytes;
};

void hl_maco_scratch_free(struct hl_maco_scratch *s);

/* Around a run, from any thread and nested as one likes: BLAS has one thread meanwhile, that of the
 * worker, and as many as before when the last run has ended. A body works without it, too. */
void hl_maco_bodies_begin(void);
void hl_maco_bodies_end(void);

/* LINEAR to SOFTMAX, ELEMENTWISE, MEMCPY, MEMSET; NOP does nothing. */
hl_status hl_maco_body(const maco_task *task, struct hl_maco_scratch *scratch) HL_CHECK;

/* ---- collectives: calls of the task's group ---- */

/* ALLREDUCE to BROADCAST. `name` of the task, for messages of this and of other ranks; may be NULL.
 */
hl_status hl_maco_comm(const maco_task *task, const char *name, hybridps_group *group) HL_CHECK;
/* The ranks that its buffers are made for, and the one that it names, are those of a group of
 * `world`. */
hl_status hl_maco_comm_fits(const maco_task *task, const char *name, int world) HL_CHECK;

#endif
