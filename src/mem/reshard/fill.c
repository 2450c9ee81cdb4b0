/* Fills one target shard. */
#include <string.h>

#include "mem/reshard/reshard_private.h"
#include "mem/reshard_tensor.h"

static hl_status open_verified(void *arg, const struct hl_reshard_op *op, uint64_t first,
                               uint64_t end, const uint8_t **out)
{
    struct hl_resharding *r = arg;
    uint64_t at = r->tensor_at[op->tensor];
    HL_TRY(hl_resharding_verify(r, op->shard, at + first, end - first));
    *out = (const uint8_t *)r->run->sources[op->shard].bytes + at;
    return HL_OK;
}

/* Called by all workers. The reported sum covers all of them; reports can arrive out of order. */
static void report_progress(struct hl_resharding *r, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add_explicit(&r->done_bytes, bytes, memory_order_relaxed) + bytes;
    if (r->run->progress != NULL)
        r->run->progress(r->run->progress_arg, done, r->total_bytes);
}

/* Called before each block, which bounds how long this worker runs after a cancel or another
 * worker's failure. */
static hl_status begin_block(void *arg, uint64_t bytes)
{
    struct hl_resharding *r = arg;
    const atomic_bool *cancel = r->run->cancel;
    if ((cancel != NULL && atomic_load_explicit(cancel, memory_order_acquire)) ||
        atomic_load_explicit(&r->failed, memory_order_acquire) != 0)
        return hl_fail(HL_ECANCELED, "the resharding was cancelled");
    report_progress(r, bytes);
    return HL_OK;
}

hl_status hl_resharding_fill(struct hl_resharding *r, size_t shard, struct hl_shard_sums *sums,
                             uint32_t *crc)
{
    const struct hl_partition_shard *s = &r->run->b->shards[shard];
    const struct hl_safetensors_image *header = &r->headers[shard];
    const struct hl_reshard_writer writer = {
        .plan = r->run->plan, .source = open_verified, .next = begin_block, .arg = r};
    memcpy(sums->dst, header->bytes, header->size);
    for (uint32_t k = 0; k < s->tensor_count; k++) {
        uint32_t tensor = s->tensor_first + k;
        HL_TRY(hl_reshard_write_tensor(&writer, &r->run->b->tensors[tensor], tensor, sums));
        hl_safetensors_patch_crc(header, sums->dst, k, hl_shard_sums_tensor(sums));
    }
    *crc = hl_shard_sums_finish(sums, header->size);
    report_progress(r, header->size);
    return HL_OK;
}
