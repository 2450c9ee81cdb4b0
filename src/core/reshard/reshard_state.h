/* core/reshard/reshard_state.h - converts optimizer state between layouts, along with the
 * parameters that it belongs to.
 *
 * The name of a state tensor is a prefix plus the name of a parameter of the same part ("exp_avg."
 * and "decoder.layers.0.mlp.linear_fc1.weight"). It has the parameter's shape and any dtype, or is
 * a piece of such a tensor (core/reshard/piece.h). So it consists of the same boxes as the
 * parameter (a piece, of its part of them), in logical tensors named by the prefix plus the
 * parameter's logical tensor. The result is two plans over those: hl_reshard_plan,
 * hl_coverage_check and hl_reshard_run work on them as on those of the parameters. The target has
 * no pieces.
 *
 * The target's parts keep the source's order of tensors, so that a change of pp alone yields
 * aliases; a head that becomes tied takes the embedding's state.
 *
 * Owns:    the result owns its plans and names (hl_reshard_state_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names a tensor that belongs to no parameter, has another shape, or whose dtype
 *          differs from that of the same state elsewhere.
 * Units:   bytes.
 * Limits:  64 prefixes.
 */
#ifndef HL_CORE_RESHARD_RESHARD_STATE_H
#define HL_CORE_RESHARD_RESHARD_STATE_H

#include "core/model/partition.h"

/* The state of one part of the source, or one share of it; everything is borrowed. If there are
 * several shares, each has different tensors or pieces. */
struct hl_reshard_state_part {
    int pp;
    int tp;
    int ep;
    const char *of;   /* the parameters' part: "layer-0003" */
    const char *part; /* its own name: "optim-dp1of2-layer-0003"; NULL = "optim-layer-0003" */
    const struct hl_tensor *tensors;
    size_t count;
};

struct hl_reshard_state {
    struct hl_tensor *logical;
    size_t logical_count;
    struct hl_partition_plan a; /* one shard per given part */
    struct hl_partition_plan b; /* one shard per part that has state */
    char *names;                /* names of the logical tensors */
};

/* a and b are the plans of the parameters, made from `logical`. */
hl_status hl_reshard_state(const struct hl_tensor *logical, const struct hl_partition_plan *a,
                           const struct hl_partition_plan *b,
                           const struct hl_reshard_state_part *parts, size_t part_count,
                           struct hl_reshard_state *out) HL_CHECK;
void hl_reshard_state_fini(struct hl_reshard_state *state);

#endif
