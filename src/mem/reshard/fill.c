/* One target shard. Operations of a tensor are sorted by where they begin; the first that is not
 * past is remembered from block to block. */
#include <string.h>

#include "mem/reshard/reshard_private.h"
#include "mem/reshard_window.h"

/* A source MiB and this much of the target fit the second-level cache together. */
#define BLOCK ((uint64_t)256 << 10)

/* Verified before it is read. */
static hl_status read_source(void *arg, const struct hl_reshard_op *op, uint64_t first,
                             uint64_t end, const uint8_t **out)
{
    struct hl_resharding *r = arg;
    uint64_t at = r->tensor_at[op->tensor];
    HL_TRY(hl_resharding_verify(r, op->shard, at + first, end - first));
    *out = (const uint8_t *)r->run->sources[op->shard].bytes + at;
    return HL_OK;
}

HL_CHECK static hl_status check_stop(const struct hl_resharding *r)
{
    const atomic_int *cancel = r->run->cancel;
    if ((cancel != NULL && atomic_load_explicit(cancel, memory_order_acquire) != 0) ||
        atomic_load_explicit(&r->failed, memory_order_acquire) != 0)
        return hl_fail(HL_ECANCELED, "the resharding was cancelled");
    return HL_OK;
}

static void report_progress(struct hl_resharding *r, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add_explicit(&r->done_bytes, bytes, memory_order_relaxed) + bytes;
    if (r->run->progress != NULL)
        r->run->progress(r->run->progress_arg, done, r->total_bytes);
}

/* Blocks end with a MiB of the shard where elements do. */
static uint64_t block_len(const struct hl_shard_sums *sums, uint64_t rest, uint32_t elem)
{
    uint64_t room = BLOCK - sums->at % BLOCK;
    room -= room % elem;
    room = room > 0 ? room : elem;
    return rest < room ? rest : room;
}

HL_CHECK static hl_status fill_tensor(struct hl_resharding *r, uint32_t tensor,
                                      struct hl_shard_sums *sums)
{
    const struct hl_tensor *t = &r->run->b->tensors[tensor];
    const struct hl_reshard_plan *plan = r->run->plan;
    const struct hl_reshard_op *op = &plan->ops[plan->op_first[tensor]];
    const struct hl_reshard_op *ops_end = &plan->ops[plan->op_first[tensor + 1]];
    uint64_t n;
    for (uint64_t at = 0; at < t->size; at += n) {
        n = block_len(sums, t->size - at, hl_dtype_size(t->dtype));
        const struct hl_reshard_window w = {.dst = sums->dst + sums->at,
                                            .begin = at,
                                            .end = at + n,
                                            .source = read_source,
                                            .arg = r};
        HL_TRY(check_stop(r));
        while (op < ops_end && hl_reshard_op_end(op) <= at)
            op++;
        HL_TRY(hl_reshard_fill(&w, op, (size_t)(ops_end - op)));
        hl_shard_sums_add(sums, n);
        report_progress(r, n);
    }
    return HL_OK;
}

hl_status hl_resharding_fill(struct hl_resharding *r, size_t shard, struct hl_shard_sums *sums,
                             uint32_t *crc)
{
    const struct hl_partition_shard *s = &r->run->b->shards[shard];
    const struct hl_safetensors_image *header = &r->headers[shard];
    memcpy(sums->dst, header->bytes, header->size);
    for (uint32_t k = 0; k < s->tensor_count; k++) {
        HL_TRY(fill_tensor(r, s->tensor_first + k, sums));
        hl_safetensors_patch_crc(header, sums->dst, k, hl_shard_sums_tensor(sums));
    }
    *crc = hl_shard_sums_finish(sums, header->size);
    report_progress(r, header->size);
    return HL_OK;
}
