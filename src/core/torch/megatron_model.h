/* core/torch/megatron_model.h - derives the model and the split from the args of a Megatron
 * checkpoint.
 *
 * Megatron does not record a model's family; it is recognised by features that only that family
 * has. Args that match no family are refused; then the model's config.json is needed.
 *
 * Owns:    nothing; strings belong to the caller.
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

/* Reads how the ranks' files are cut, under local names. vocab_divisor, pad and naming stay
 * unchanged. */
hl_status hl_megatron_split(const struct hl_pickle_value *root,
                            struct hl_partition_options *out) HL_CHECK;
/* Finds the divisor that pads `vocab` to `padded` rows for `tp` ranks. */
hl_status hl_megatron_divisor(uint64_t vocab, uint64_t padded, uint64_t tp, int *out) HL_CHECK;
/* Makes the config.json of the model; free() *out. */
hl_status hl_megatron_config(const struct hl_pickle_value *root, char **out) HL_CHECK;
/* Checks that a config.json found beside the checkpoint describes its model. */
hl_status hl_megatron_check_config(const struct hl_pickle_value *root,
                                   const struct hl_hf_config *config) HL_CHECK;

#endif
