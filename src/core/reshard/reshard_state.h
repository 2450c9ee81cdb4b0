/* core/reshard/reshard_state.h - optimizer state as tensors that follow their parameters from
 * layout to layout.
 *
 * A tensor of state is named by a prefix and the name of a parameter of the same part ("exp_avg."
 * and "decoder.layers.0.mlp.linear_fc1.weight"), has its shape and any dtype, or is a piece of such
 * a tensor (core/reshard/piece.h). It is then made of the same boxes, or what a piece has of them,
 * of logical tensors named by the prefix and the parameter's logical tensor. The result is two
 * plans over those: hl_reshard_plan, hl_coverage_check and hl_reshard_run take them as they take
 * those of the parameters. The target has no pieces.
 *
 * The target's parts hold their tensors in the source's order, so that a change of pp alone makes
 * aliases; a head that it ties takes the state of the embedding.
 *
 * Owns:    the result owns its plans and names (hl_reshard_state_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the tensor that is no parameter's, has another shape, or whose dtype is
 *          not that of the same state elsewhere.
 * Units:   bytes.
 * Limits:  64 prefixes.
 */
#ifndef HL_CORE_RESHARD_RESHARD_STATE_H
#define HL_CORE_RESHARD_RESHARD_STATE_H

#include "core/model/partition.h"

/* The state of one part of the source, or a share of it; all is borrowed. Of several shares each
 * has other tensors or pieces. */
struct hl_reshard_state_part {
    int pp;
    int tp;
    int ep;
    const char *of;   /* the parameters' part: "layer-0003" */
    const char *part; /* its own: "optim-dp1of2-layer-0003"; NULL = "optim-layer-0003" */
    const struct hl_tensor *tensors;
    size_t count;
};

struct hl_reshard_state {
    struct hl_tensor *logical;
    size_t logical_count;
    struct hl_partition_plan a; /* one shard per part that was given */
    struct hl_partition_plan b; /* one shard per part that has state */
    char *names;                /* of the logical tensors */
};

/* a and b are the plans of the parameters, made from `logical`. */
hl_status hl_reshard_state(const struct hl_tensor *logical, const struct hl_partition_plan *a,
                           const struct hl_partition_plan *b,
                           const struct hl_reshard_state_part *parts, size_t part_count,
                           struct hl_reshard_state *out) HL_CHECK;
void hl_reshard_state_fini(struct hl_reshard_state *state);

#endif
