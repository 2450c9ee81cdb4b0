/* core/torch/megatron_optimizer.h - maps the optimizer state in a Megatron rank's file
 * (--ckpt-format torch) to its parameters.
 *
 * The optimizer numbers its parameters: group by group, in each group in the order of the model's
 * modules, which is that of the state dict. A group's is_expert_parallel says whether it contains
 * experts; the other groups are with or without weight decay, that is, matrices and vectors. So
 * every parameter takes the next number of the one group that fits its kind and shape; if several
 * groups fit, the file is refused.
 *
 * Owns:    nothing; the result is in the arena, values belong to the pickle.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names a parameter or number without a match, HL_EUNSUPPORTED state saved by a
 *          distributed optimizer; HL_ENOENT: there is no optimizer.
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
    const struct hl_pickle_value *step; /* a tensor; NULL: in the groups, or absent */
};

/* params: the file's tensors, in the order of its state dicts, under Megatron's names. Those that
 * are not trained (buffers) have no state. */
hl_status hl_megatron_optimizer_read(const struct hl_pickle_value *root,
                                     const struct hl_tensor *params, size_t param_count,
                                     struct hl_arena *arena,
                                     struct hl_megatron_optimizer *out) HL_CHECK;

#endif
