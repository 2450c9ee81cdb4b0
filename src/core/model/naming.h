/* core/model/naming.h - converts between Megatron-core's two naming schemes for norms and experts.
 *
 * The tensors are the same. `local` names a norm after the norm, `te` (Transformer Engine) after
 * the linear that the norm is fused with:
 *
 *     input_layernorm.weight     self_attention.linear_qkv.layer_norm_weight
 *     pre_mlp_layernorm.weight   mlp.linear_fc1.layer_norm_weight
 *
 * and likewise `bias`. The experts of a rank are numbered from 0 in both:
 *
 *     mlp.experts.local_experts.3.linear_fc1.weight   mlp.experts.linear_fc1.weight3
 *
 * In a layer with experts, pre_mlp_layernorm has that name in both schemes. In a layer with latent
 * attention, input_layernorm has the same name in both, and q_layernorm and kv_layernorm are fused.
 * Prefixes and suffixes (a chunk's "model1.", an optimizer's "exp_avg.") are kept. Each name shows
 * which scheme it belongs to; renaming it to its own scheme changes nothing.
 *
 * Owns:    nothing of its own; hl_naming_apply changes the header it is given.
 * Threads: any; pure.
 * Errors:  HL_EINVAL for an unknown naming, a name that becomes too long, or a tensor that exists
 *          under both namings; HL_ENOMEM.
 * Units:   none.
 * Limits:  names of HL_TENSOR_NAME_MAX bytes.
 */
#ifndef HL_CORE_MODEL_NAMING_H
#define HL_CORE_MODEL_NAMING_H

#include <stdbool.h>

#include "api/types.h"
#include "base/arena.h"
#include "core/safetensors/safetensors.h"

/* The metadata key of a file that says which naming its tensors have. */
#define HL_NAMING_KEY "helios.naming"

/* The value of Megatron's --transformer-impl for that naming. */
const char *hl_naming_transformer_impl(enum hl_api_layer_naming naming);

/* experts: the layer of this tensor has experts. */
hl_status hl_naming_rename(const char *name, enum hl_api_layer_naming to, bool experts, char *out,
                           size_t cap) HL_CHECK;
/* The same for all names of whole layers; from these follows which layers have experts. *out has
 * the names in the same order; it is in the arena. */
hl_status hl_naming_names(const char *const *names, size_t count, enum hl_api_layer_naming to,
                          struct hl_arena *arena, const char ***out) HL_CHECK;
/* Renames every tensor and checksum field of a header, and records the naming as HL_NAMING_KEY. A
 * layer has experts if the header contains its router or experts. Unchanged on failure. */
hl_status hl_naming_apply(struct hl_safetensors *st, enum hl_api_layer_naming to) HL_CHECK;

#endif
