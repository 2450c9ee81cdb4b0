/* core/torch/megatron_model.h - the model and the split that the args of a Megatron checkpoint
 * describe.
 *
 * Megatron has no word for a family; which one it is follows from what only that family has. Args
 * that fit none are refused: the model's config.json says it then.
 *
 * Owns:    nothing; texts are the caller's.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the argument that is wrong, HL_EUNSUPPORTED what Helios can't express;
 *          HL_ENOMEM.
 * Units:   elements.
 * Limits:  those of core/torch/megatron.h.
 */
#ifndef HL_CORE_TORCH_MEGATRON_MODEL_H
#define HL_CORE_TORCH_MEGATRON_MODEL_H

#include "core/model/hf.h"
#include "core/model/partition.h"
#include "core/torch/value.h"

/* How the ranks' files are cut; local names. vocab_divisor, pad and naming are left alone. */
hl_status hl_megatron_split(const struct hl_pickle_value *root,
                            struct hl_partition_options *out) HL_CHECK;
/* The divisor that pads `vocab` to `padded` rows for `tp` ranks. */
hl_status hl_megatron_divisor(uint64_t vocab, uint64_t padded, uint64_t tp, int *out) HL_CHECK;
/* The config.json of the model; free() *out. */
hl_status hl_megatron_config(const struct hl_pickle_value *root, char **out) HL_CHECK;
/* A config.json that was found beside the checkpoint is that of its model. */
hl_status hl_megatron_check_config(const struct hl_pickle_value *root,
                                   const struct hl_hf_config *config) HL_CHECK;

#endif
