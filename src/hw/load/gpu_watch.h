/* hw/load/gpu_watch.h - checks that a node still has the GPUs that it had at the start.
 *
 * A GPU is identified by its PCI address; its UUID identifies the board.
 *
 * Owns:    the result of the first reading.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_HW_LOAD_GPU_WATCH_H
#define HL_HW_LOAD_GPU_WATCH_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

/* Zero-initialise. */
struct hl_gpu_watch {
    struct hl_arena arena;
    struct hl_api_gpu_load_list first;
    bool known;
};

/* Appends a sentence for each GPU that vanished or has another UUID than at the first call, and for
 * each UUID that two GPUs have. */
hl_status hl_gpu_watch_check(struct hl_gpu_watch *w, const struct hl_api_gpu_load_list *now,
                             struct hl_arena *arena, struct hl_api_text_list *troubles) HL_CHECK;
void hl_gpu_watch_fini(struct hl_gpu_watch *w);

#endif
