/* maco/kernels/bodies.h - implementation of tasks on a CPU: compute, memory and collectives.
 *
 * All arithmetic is float32 whatever the task's type is; results are rounded to it once. Except in
 * MATMUL and LINEAR, each element depends on its row alone, so chunks of rows give the same bits as
 * the whole. MATMUL and LINEAR do so with MACO_FLAG_DETERMINISTIC; without it they use BLAS.
 *
 * Owns:    a scratch owns its memory, which grows to the need of the largest task.
 * Threads: any; a scratch belongs to one worker. No locks in a body. Collectives: the group's proxy
 *          alone, in the same order on all ranks.
 * Errors:  HL_EINVAL the type has no body; HL_EUNSUPPORTED no arithmetic for the dtype; HL_ENOMEM;
 *          for collectives those of the group's calls, which name the rank that was late, died or
 *          did something else. maco_graph_add has already checked dims and addresses.
 * Units:   as helios/maco.h says of each task.
 * Limits:  none of its own; those of the group, at whose deadline every wait ends.
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

/* Call around a run, from any thread; calls may nest. In between, BLAS uses only the calling
 * worker's thread; when the last run has ended it has as many threads as before. Bodies also work
 * without these calls. */
void hl_maco_bodies_begin(void);
void hl_maco_bodies_end(void);

/* LINEAR to SOFTMAX, ELEMENTWISE, MEMCPY, MEMSET; NOP does nothing. */
hl_status hl_maco_body(const maco_task *task, struct hl_maco_scratch *scratch) HL_CHECK;

/* ---- collectives: calls of the task's group ---- */

/* ALLREDUCE to BROADCAST. `name`: of the task, for messages of this and other ranks; may be
 * NULL. */
hl_status hl_maco_comm(const maco_task *task, const char *name, hybridps_group *group) HL_CHECK;
/* Checks that the number of ranks that the task's buffers are made for, and the rank that it names,
 * fit a group of `world` ranks. */
hl_status hl_maco_comm_fits(const maco_task *task, const char *name, int world) HL_CHECK;

#endif
