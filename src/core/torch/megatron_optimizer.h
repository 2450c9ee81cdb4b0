/* core/torch/megatron_optimizer.h - which optimizer state of a Megatron rank's file (--ckpt-format
 * torch) is of which parameter.
 *
 * The optimizer numbers its parameters: group by group, in each group in the order of the model's
 * modules, which is that of the state dict. A group says by is_expert_parallel whether it is of
 * experts; others are with or without weight decay, which are matrices and vectors. So every
 * parameter takes the next number of the one group that it fits by kind and shape; where more than
 * one would do, the file is refused.
 *
 * Owns:    nothing; the result is the arena's, values are the pickle's.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the parameter or the number that fits none, HL_EUNSUPPORTED what a
 *          distributed optimizer saved; HL_ENOENT: there is no optimizer.
 * Units:   elements.
 * Limits:  64 groups, 2^20 numbers.
 */
#ifndef HL_CORE_TORCH_MEGATRON_OPTIMIZER_H
#define HL_CORE_TORCH_MEGATRON_OPTIMIZER_H

#include "base/arena.h"
#include "core/safetensors/safetensors.h"
#include "core/torch/value.h"

/* A tensor of state. */
struct hl_megatron_state {
    uint32_t param;   /* index into the parameters given */
    const char *kind; /* Megatron's: "exp_avg", "fp32_param" */
    const struct hl_pickle_value *tensor;
};

struct hl_megatron_optimizer {
    struct hl_megatron_state *states;
    size_t count;
    const struct hl_pickle_value *step; /* a tensor; NULL where groups say it, or nothing does */
};

/* `params`: those of the file, in the order of its state dicts, by Megatron's names; what is not
 * trained (buffers) among them has no state. */
hl_status hl_megatron_optimizer_read(const struct hl_pickle_value *root,
                                     const struct hl_tensor *params, size_t param_count,
                                     struct hl_arena *arena,
                                     struct hl_megatron_optimizer *out) HL_CHECK;

#endif
