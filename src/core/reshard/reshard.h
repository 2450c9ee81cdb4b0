/* core/reshard/reshard.h - plans the conversion of a model from any layout to any other: which
 * bytes of which shards make up the target's shards.
 *
 * A layout is a partition plan: for every tensor of every shard it says which boxes of the logical
 * (Hugging Face) tensors it consists of. Two plans over the same logical tensors are intersected.
 *
 * It guarantees that
 * - the operations of a tensor write each of its bytes exactly once, and read only inside tensors
 *   of the source; applied to the shards that plan A makes of any logical tensors, they give the
 *   bytes that plan B makes of them;
 * - data that several shards hold is read from one with the same tp if there is one; otherwise the
 *   readers are spread over the holders;
 * - a tensor whose boxes equal those of a tensor of A, including padding, is a single copy of that
 *   tensor. A shard with exactly the tensors of one shard of A, in the same order, is an alias of
 *   it. So if only pp changes, every layer shard is an alias, and a head that becomes tied to the
 *   embedding is a copy of the embedding's tensor;
 * - for all other tensors, vocabulary padding is created again by B's rule, from the last real row:
 *   values trained in padding rows are not carried over to a different padding.
 *
 * Owns:    the plan owns everything reachable from it (hl_reshard_fini).
 * Threads: any; a plan is immutable.
 * Errors:  HL_EINVAL names the logical tensor and the range that A lacks, or an operation that
 *          doesn't fit its tensor.
 * Units:   bytes; tensors and shards by their index in A's or B's plan.
 * Limits:  2^26 boxes and operations. Time: n log n in the number of boxes for tensors that are cut
 *          along one dimension.
 */
#ifndef HL_CORE_RESHARD_RESHARD_H
#define HL_CORE_RESHARD_RESHARD_H

#include "core/model/partition.h"

#define HL_RESHARD_NONE UINT32_MAX

enum hl_reshard_kind {
    /* `rows` runs of `run` bytes, `src_stride` and `dst_stride` apart; src_stride 0 = the same run
     * again (padding). */
    HL_RESHARD_COPY,
    /* `rows` x `cols` elements: element (i, j) goes from src + j * src_stride + i * elem to
     * dst + i * dst_stride + j * elem. */
    HL_RESHARD_TRANSPOSE,
    /* `run` zero bytes; no source. */
    HL_RESHARD_ZERO,
};

struct hl_reshard_op {
    enum hl_reshard_kind kind;
    uint32_t shard;  /* of A */
    uint32_t tensor; /* of A; in that shard */
    uint32_t elem;   /* bytes per element */
    uint64_t src;    /* from the start of the source tensor */
    uint64_t dst;    /* from the start of the target tensor */
    uint64_t src_stride;
    uint64_t dst_stride;
    uint64_t rows;
    uint64_t cols; /* TRANSPOSE */
    uint64_t run;
};

/* Renaming in an alias: "model1.decoder.layers.2.X" of A is "model0.decoder.layers.5.X" of B. -1 =
 * the names have no such number. */
struct hl_reshard_names {
    int from_chunk, to_chunk;
    int from_layer, to_layer;
};

struct hl_reshard_shard {
    uint32_t alias; /* the shard of A that has the same data; HL_RESHARD_NONE = it must be made */
    struct hl_reshard_names names;
};

struct hl_reshard_plan {
    struct hl_reshard_shard *shards; /* one per shard of B */
    size_t shard_count;
    uint32_t *same; /* per tensor of B: the tensor of A with the same bytes, or HL_RESHARD_NONE */
    uint32_t *op_first; /* operations of tensor i: ops[op_first[i] .. op_first[i + 1]), by dst */
    size_t tensor_count;
    struct hl_reshard_op *ops; /* including those of aliases */
    size_t op_count;
    uint64_t copy_bytes; /* data of the shards that must be made */
};

/* Both plans must be made from the same `logical`. */
hl_status hl_reshard_plan(const struct hl_tensor *logical, size_t logical_count,
                          const struct hl_partition_plan *a, const struct hl_partition_plan *b,
                          struct hl_reshard_plan *out) HL_CHECK;
void hl_reshard_fini(struct hl_reshard_plan *plan);

/* Pairs of the plan's tensors that must have the same bytes: norms on every tensor rank, a tied
 * head on the last stage. a < b, and a is the first of all replicas; free() *out. */
hl_status hl_reshard_replicas(const struct hl_partition_plan *plan, struct hl_partition_equal **out,
                              size_t *count) HL_CHECK;

/* Number of bytes that an operation writes. */
static inline uint64_t hl_reshard_bytes(const struct hl_reshard_op *op)
{
    return op->kind == HL_RESHARD_TRANSPOSE ? op->rows * op->cols * op->elem
           : op->kind == HL_RESHARD_ZERO    ? op->run
                                            : op->rows * op->run;
}

#endif
