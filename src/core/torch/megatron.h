/* core/torch/megatron.h - Megatron's checkpoints of --ckpt-format torch: one file per rank.
 *
 * DIR/latest_checkpointed_iteration.txt names the newest iteration or "release". In
 * DIR/iter_0000010 or DIR/release, each rank has mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt. Which
 * numbers a folder's name contains depends on the sizes in the file's args. In the file, layers are
 * numbered from 0 in each stage.
 *
 * Owns:    nothing; texts of hl_megatron_sizes borrow from the pickle.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the argument or the file name that is wrong and what is expected.
 * Units:   none.
 * Limits:  sizes up to 2^20, 1024 chunks of a virtual pipeline.
 */
#ifndef HL_CORE_TORCH_MEGATRON_H
#define HL_CORE_TORCH_MEGATRON_H

#include "core/torch/tensors.h"

#define HL_MEGATRON_TRACKER "latest_checkpointed_iteration.txt"
#define HL_MEGATRON_FILE    "model_optim_rng.pt"

/* Writes the folder that the tracker file's text names, "release" or "iter_0000010", into buf. */
hl_status hl_megatron_folder(const char *tracker, size_t len, char *buf, size_t cap) HL_CHECK;

/* The argparse.Namespace in the file's complete tree. */
hl_status hl_megatron_args(const struct hl_pickle_value *root,
                           const struct hl_pickle_value **out) HL_CHECK;
/* An integer in args; None and missing arguments give `absent`. */
hl_status hl_megatron_arg_size(const struct hl_pickle_value *args, const char *name,
                               uint64_t absent, uint64_t *out) HL_CHECK;
/* Whether the argument is exactly True. */
bool hl_megatron_arg_flag(const struct hl_pickle_value *args, const char *name);

/* What args says about the model and its layout. */
struct hl_megatron_sizes {
    uint64_t tp, pp, ep;
    uint64_t layers, hidden, ffn, heads, kv_heads, positions;
    uint64_t padded_vocab; /* 0: unknown */
    uint64_t experts;      /* 0: none */
    bool untied;           /* the output layer has a weight of its own */
    bool gated;            /* swiglu: linear_fc1 holds gate and up */
};

/* Reads the sizes from the file's complete tree. */
hl_status hl_megatron_sizes_read(const struct hl_pickle_value *root,
                                 struct hl_megatron_sizes *out) HL_CHECK;

struct hl_megatron_place {
    uint64_t tp, pp, ep;
};

/* Parses "mp_rank_01_003" under these sizes. */
hl_status hl_megatron_place(const char *folder, const struct hl_megatron_sizes *sizes,
                            struct hl_megatron_place *out) HL_CHECK;
/* The reverse: writes the name of a rank's folder into buf. */
const char *hl_megatron_rank_folder(const struct hl_megatron_sizes *sizes,
                                    const struct hl_megatron_place *place, char *buf, size_t cap);

/* Writes Megatron's current name of a tensor into out. The layer inside a multi-token prediction
 * layer used to be called "transformer_layer", and still is in torch_dist. */
hl_status hl_megatron_tensor_name(const char *name, char *out, size_t cap) HL_CHECK;
/* The model's tensors in a file's complete tree, under their current names. Those of chunk N of a
 * virtual pipeline are "modelN.NAME". It also calls hl_torch_tensors_finish. */
hl_status hl_megatron_tensors(const struct hl_pickle_value *root,
                              struct hl_torch_tensors *out) HL_CHECK;

#endif
