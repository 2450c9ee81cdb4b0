/* core/model/partition.h - Megatron-core's tensor and pipeline split of a Hugging Face model, as
 * pure data.
 *
 * The plan says which shards there are, which tensors each contains, and for every tensor which
 * bytes of which source tensor go where. Planning does not read the model's data.
 *
 * Owns:    the plan owns everything reachable from it (hl_partition_fini).
 * Threads: any; a plan is immutable.
 * Errors:  HL_EINVAL names the option, the config field or the tensor, with the arithmetic;
 *          HL_ENOENT names a missing tensor.
 * Units:   bytes; layers count from 0.
 * Limits:  tp, pp, ep and etp up to 4096; vocabulary divisor up to 65536; 2^24 tensors and copy
 *          operations.
 */
#ifndef HL_CORE_MODEL_PARTITION_H
#define HL_CORE_MODEL_PARTITION_H

#include <stdbool.h>

#include "core/model/hf.h"
#include "core/model/naming.h"
#include "core/safetensors/safetensors.h"

#define HL_VOCAB_DIVISOR_DEFAULT 128
#define HL_PARTITION_PART_MAX    32

struct hl_partition_options {
    int tp;
    int pp;
    int vocab_divisor; /* 0 = 128 */
    enum hl_api_vocab_padding pad;
    enum hl_api_layer_naming naming;
    int first_stage_layers; /* 0 = even */
    int last_stage_layers;  /* 0 = even */
    int virtual_stages;     /* chunks per stage; 0 or 1 = none */
    int ep;                 /* ranks over which a layer's experts are distributed; 0 = 1 */
    int etp;                /* ranks over which each expert is split; 0 = tp */
};

enum hl_copy_kind {
    /* `rows` runs of `run` bytes, source starts `stride` bytes apart (0: the same run again). */
    HL_COPY_RUNS,
    /* `rows` x `cols` elements: row i, column j comes from src + j * stride + i * step. */
    HL_COPY_TRANSPOSE,
    /* `run` zero bytes. */
    HL_COPY_ZERO,
};

/* Destinations are dense and in order: the operations of a tensor fill it from the first byte to
 * the last without gaps. */
struct hl_copy_op {
    enum hl_copy_kind kind;
    uint32_t source; /* index into the sources given to hl_partition_plan */
    uint32_t elem;   /* bytes per element */
    uint64_t src;    /* byte offset in the source tensor */
    uint64_t dst;    /* byte offset in the destination tensor */
    uint64_t rows;
    uint64_t cols; /* TRANSPOSE */
    uint64_t run;
    uint64_t stride;
    uint64_t step; /* TRANSPOSE: elem, or more if the rows are interleaved with others */
};

/* Number of bytes that an operation writes. */
static inline uint64_t hl_copy_bytes(const struct hl_copy_op *op)
{
    return op->kind == HL_COPY_TRANSPOSE ? op->rows * op->cols * op->elem
           : op->kind == HL_COPY_ZERO    ? op->run
                                         : op->rows * op->run;
}

/* A layer's experts are separate shards, the only ones that depend on ep and etp. */
struct hl_partition_shard {
    int pp;
    int tp; /* for experts: the rank within etp */
    int ep; /* only for experts, otherwise 0 */
    /* "embedding", "vision", "layer-0003", "experts-0003" (global numbers), "head", "mtp-0000" */
    char part[HL_PARTITION_PART_MAX];
    uint32_t tensor_first;
    uint32_t tensor_count;
    uint64_t data_size;
};

/* Two sources that must hold the same bytes, as in a tied model that stores its head
 * nevertheless. */
struct hl_partition_equal {
    uint32_t a;
    uint32_t b;
};

struct hl_partition_plan {
    /* Sorted by pp, tp, then embedding, vision, layers, head, mtp; a stage's experts follow its
     * other shards, sorted by ep, tp. */
    struct hl_partition_shard *shards;
    size_t shard_count;
    struct hl_tensor *tensors; /* Megatron-core names; offset from the start of the shard's data */
    size_t tensor_count;
    uint32_t *op_first; /* operations of tensor i: ops[op_first[i] .. op_first[i + 1]) */
    struct hl_copy_op *ops;
    size_t op_count;
    struct hl_partition_equal *equal;
    size_t equal_count;
    uint64_t padded_vocab;
    uint64_t parameters; /* in the source; a tied head counts once */
    uint64_t data_bytes; /* of all shards */
    enum hl_dtype dtype; /* of the word embedding */
    bool repeated;       /* a tensor repeats scales of fused matrices */
    json_t *logical;     /* if there are scales or a vision part: all tensors that were read */
    json_t *copies;      /* otherwise: names of the sources that repeat another one */
    const char *prefix;  /* prefix of the sources' names; NULL = the family's usual one */
    char *names;         /* storage of all names */
};

/* sources: the tensors of all files together; only name, dtype, rank and shape are used. */
hl_status hl_partition_plan(const struct hl_hf_config *config, const struct hl_tensor *sources,
                            size_t source_count, const struct hl_partition_options *options,
                            struct hl_partition_plan *out) HL_CHECK;
/* Plans any model without splitting it: tensors keep their names, pp and tp are 0. Tensors that
 * belong to layer N by their name ("layers.N.", "h.N.", ...) form the part "layer-000N"; the rest
 * go to parts "model-0000" and so on, of at most part_bytes bytes unless a single tensor is
 * larger. */
hl_status hl_partition_unsliced(const struct hl_tensor *sources, size_t source_count,
                                uint64_t part_bytes, struct hl_partition_plan *out) HL_CHECK;
/* The layer to which a tensor of such a model belongs by its name; false = none. */
bool hl_partition_layer_of(const char *name, uint64_t *layer);
/* The same for a model that is already stored like that: source i is in the part parts[i], and
 * sources of the same part are adjacent. */
hl_status hl_partition_as_stored(const struct hl_tensor *sources, const char *const *parts,
                                 size_t source_count, struct hl_partition_plan *out) HL_CHECK;
void hl_partition_fini(struct hl_partition_plan *plan);

/* The vocabulary size rounded up to a multiple of divisor * tp (divisor 0 = 128). */
uint64_t hl_partition_padded_vocab(uint64_t vocab, uint64_t divisor, uint64_t tp);
/* hl_partition_stage: layers [*first, *first + *count) are chunk `chunk` of stage `pp`. The options
 * must be valid for `layers`, which hl_partition_check_layers checks. */
hl_status hl_partition_check_layers(const struct hl_partition_options *o, uint64_t layers) HL_CHECK;
void hl_partition_stage(const struct hl_partition_options *o, uint64_t layers, int pp, int chunk,
                        uint64_t *first, uint64_t *count);

/* The text that describes an imported model (core/model/model_config.h); free() it. */
hl_status hl_partition_config(const struct hl_hf_config *config,
                              const struct hl_partition_options *options,
                              const struct hl_partition_plan *plan, char **out) HL_CHECK;
/* The same for an unsliced model. why: why it is unsliced. hf: the file config.json, NULL =
 * none. */
hl_status hl_partition_unsliced_config(const json_t *hf, const char *why,
                                       const struct hl_partition_plan *plan, char **out) HL_CHECK;

#endif
