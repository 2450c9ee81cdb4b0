/* mem/reshard_tensor.h - a tensor of another layout, written by the operations of a plan.
 *
 * The tensor is written block by block: the parts of all operations that fall into a block, then
 * its checksums. So a block is still in the cache when it is summed.
 *
 * Owns:    nothing.
 * Threads: any; one tensor at a time per hl_shard_sums.
 * Errors:  those of `source` and `next`, which end the work.
 * Units:   bytes.
 * Limits:  those of core/reshard/reshard.h.
 */
#ifndef HL_MEM_RESHARD_TENSOR_H
#define HL_MEM_RESHARD_TENSOR_H

#include "mem/reshard_window.h"
#include "mem/shard_sums.h"

struct hl_reshard_writer {
    const struct hl_reshard_plan *plan;
    hl_reshard_source_fn source;
    hl_status (*next)(void *arg, uint64_t bytes); /* a block of that many bytes comes next */
    void *arg;
};

/* Tensor number `tensor` of the plan, which is `t`, at sums->at. */
hl_status hl_reshard_write_tensor(const struct hl_reshard_writer *w, const struct hl_tensor *t,
                                  size_t tensor, struct hl_shard_sums *sums) HL_CHECK;

#endif
