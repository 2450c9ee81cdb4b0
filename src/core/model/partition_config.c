/* The document that an import writes about its model: sizes under the same names for all families,
 * and how the model was cut. */
#include <string.h>

#include "core/model/model_config.h"
#include "core/model/partition.h"

hl_status hl_partition_config(const struct hl_hf_config *c, const struct hl_partition_options *o,
                              const struct hl_partition_plan *plan, char **out)
{
    bool experts = hl_family_symbol_index(c->family, "experts", strlen("experts")) >= 0;
    const struct hl_model_config config = {
        .own = {.architecture = c->architecture,
                .dtype = hl_dtype_name(plan->dtype),
                .parameters = plan->parameters,
                .hf_prefix = plan->prefix},
        .split = {.tp = o->tp,
                  .pp = o->pp,
                  .virtual_stages = o->virtual_stages,
                  .first_stage_layers = o->first_stage_layers,
                  .last_stage_layers = o->last_stage_layers,
                  .ep = !experts    ? 0
                        : o->ep > 0 ? o->ep
                                    : 1,
                  .etp = !experts     ? 0
                         : o->etp > 0 ? o->etp
                                      : o->tp},
        .sizes = {.layers = c->layers,
                  .hidden = c->hidden,
                  .heads = c->heads,
                  .kv_heads = c->kv_heads,
                  .head_dim = c->head_dim,
                  .ffn = c->ffn,
                  .vocab = c->vocab,
                  .padded_vocab = plan->padded_vocab,
                  .max_positions = c->max_positions,
                  .tied = c->tied,
                  .norm_eps = c->norm_eps,
                  .rope_theta = c->rope_theta,
                  .naming = o->naming,
                  .pad = o->pad,
                  .vocab_divisor =
                      o->vocab_divisor > 0 ? o->vocab_divisor : HL_VOCAB_DIVISOR_DEFAULT},
        .tensors = plan->logical,
        .copies = json_array_size(plan->copies) > 0 ? plan->copies : NULL,
        .hf = c->hf,
    };
    return hl_model_config_write(&config, out);
}

hl_status hl_partition_unsliced_config(const json_t *hf, const char *why,
                                       const struct hl_partition_plan *plan, char **out)
{
    const char *type = NULL, *class = NULL;
    if (hf != NULL)
        HL_TRY(hl_hf_names(hf, "config.json", &type, &class));
    const struct hl_model_config config = {
        .own = {.architecture = type != NULL ? type : "unknown",
                .dtype = hl_dtype_name(plan->dtype),
                .parameters = plan->parameters,
                .unsliced = true,
                .unsliced_because = why},
        .split = {.tp = 1, .pp = 1},
        .hf = hf,
    };
    return hl_model_config_write(&config, out);
}
