/* maco/kernels/bodies.h - what compute and memory tasks do on a CPU.
 *
 * All arithmetic is float32 whatever the task's type is; results are rounded to it once. Each
 * element of every body but MATMUL and LINEAR depends on its row alone, so chunks of rows give the
 * bits of the whole. Those two give them with MACO_FLAG_DETERMINISTIC; without it they are BLAS's.
 *
 * Owns:    a scratch its memory, which grows to what the largest task wanted.
 * Threads: any; a scratch belongs to one worker. No locks in a body.
 * Errors:  HL_EINVAL a type that is no body's; HL_EUNSUPPORTED a dtype it has no arithmetic for;
 *          HL_ENOMEM. Dims and addresses are those that maco_graph_add found right.
 * Units:   as helios/maco.h says of each task.
 * Limits:  none of its own.
 */
#ifndef HL_MACO_KERNELS_BODIES_H
#define HL_MACO_KERNELS_BODIES_H

#include <stddef.h>

#include "base/status.h"
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

#endif
