/* core/parts/rule.h - determines from a tensor's name the part in which a rank saves it.
 *
 * Names are those of Megatron-core, local to a stage: layers and chunks of virtual stages count
 * from 0 in each. Prefixes ("exp_avg.model1.decoder.layers.0.") don't matter. A model without a
 * family's table keeps its own names; there layers have the model's numbers.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL for a layer or a stage that is not in the split, with those that are; errors
 *          of core/model/model_config.h and core/model/hf.h.
 * Units:   layers, stages and chunks count from 0.
 * Limits:  those of core/model/partition.h.
 */
#ifndef HL_CORE_PARTS_RULE_H
#define HL_CORE_PARTS_RULE_H

#include <stdbool.h>

#include "core/model/partition.h"

struct hl_part_rule {
    /* only pp, virtual stages, first and last layers matter */
    struct hl_partition_options options;
    uint64_t layers;
    bool own_names; /* no family's table: the other fields don't matter */
};

/* Reads the rule from a model's config, or from a Hugging Face config, which has no split: one
 * stage. Sizes that `split` states take precedence; NULL = none. */
hl_status hl_part_rule_read(const char *config, const struct hl_api_split *split,
                            struct hl_part_rule *out) HL_CHECK;
/* "embedding", "vision", "layer-0003", "experts-0003", "mtp-0000" or "head"; the experts of MTP
 * layer 0 have the number after the last layer's. With own names: "layer-0003" or "model-0000". */
hl_status hl_part_of_tensor(const struct hl_part_rule *rule, int pp, const char *name,
                            char part[HL_PARTITION_PART_MAX]) HL_CHECK;

#endif
