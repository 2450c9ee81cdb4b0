/* mem/reshard_tensor.h - writes a tensor of a different layout by the operations of a plan.
 *
 * The tensor is written block by block: first the parts of all operations that fall into the block,
 * then its checksums. So a block is still in the cache when it is summed.
 *
 * Owns:    nothing.
 * Threads: any; one tensor at a time per hl_shard_sums.
 * Errors:  those of `source` and `next`; an error ends the work.
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
    /* called before each block, with its number of bytes */
    hl_status (*next)(void *arg, uint64_t bytes);
    void *arg;
};

/* Writes tensor number `tensor` of the plan, which is `t`, at sums->at. */
hl_status hl_reshard_write_tensor(const struct hl_reshard_writer *w, const struct hl_tensor *t,
                                  size_t tensor, struct hl_shard_sums *sums) HL_CHECK;

#endif
