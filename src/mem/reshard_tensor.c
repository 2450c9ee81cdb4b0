/* The operations of a tensor are sorted by start; the first one that is not finished is remembered
 * from block to block. */
#include "mem/reshard_tensor.h"

/* A MiB of the source and this much of the target fit into the second-level cache together. */
#define BLOCK ((uint64_t)256 << 10)

/* A block ends at a MiB border of the shard if an element ends there. */
static uint64_t block_len(const struct hl_shard_sums *sums, uint64_t rest, uint32_t elem)
{
    uint64_t room = BLOCK - sums->at % BLOCK;
    room -= room % elem;
    room = room > 0 ? room : elem;
    return rest < room ? rest : room;
}

hl_status hl_reshard_write_tensor(const struct hl_reshard_writer *w, const struct hl_tensor *t,
                                  size_t tensor, struct hl_shard_sums *sums)
{
    const struct hl_reshard_op *op = &w->plan->ops[w->plan->op_first[tensor]];
    const struct hl_reshard_op *ops_end = &w->plan->ops[w->plan->op_first[tensor + 1]];
    uint64_t n;
    for (uint64_t at = 0; at < t->size; at += n) {
        n = block_len(sums, t->size - at, hl_dtype_size(t->dtype));
        const struct hl_reshard_window block = {.dst = sums->dst + sums->at,
                                                .begin = at,
                                                .end = at + n,
                                                .source = w->source,
                                                .arg = w->arg};
        HL_TRY(w->next(w->arg, n));
        while (op < ops_end && hl_reshard_op_end(op) <= at)
            op++;
        HL_TRY(hl_reshard_fill(&block, op, (size_t)(ops_end - op)));
        hl_shard_sums_add(sums, n);
    }
    return HL_OK;
}
