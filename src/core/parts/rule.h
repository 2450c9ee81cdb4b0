/* core/parts/rule.h - the part that a rank saves a tensor in, by the tensor's name.
 *
 * Names are those of Megatron-core, local to a stage: layers and chunks of virtual stages count
 * from 0 in each. Whatever stands before ("exp_avg.model1.decoder.layers.0.") does not matter. A
 * model without a family's table keeps its own names: there the number of a layer is the model's.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL for a layer or a stage that the split has not, with what it has; what
 *          core/model/model_config.h and core/model/hf.h refuse.
 * Units:   layers, stages and chunks count from 0.
 * Limits:  those of core/model/partition.h.
 */
#ifndef HL_CORE_PARTS_RULE_H
#define HL_CORE_PARTS_RULE_H

#include <stdbool.h>

#include "core/model/partition.h"

struct hl_part_rule {
    struct hl_partition_options options; /* pp, virtual stages, first and last layers count */
    uint64_t layers;
    bool own_names; /* no family's table: nothing else counts */
};

/* Of a model's config, or of a Hugging Face config, which says nothing of a split: one stage. What
 * `split` says takes the place of that; NULL = nothing. */
hl_status hl_part_rule_read(const char *config, const struct hl_api_split *split,
                            struct hl_part_rule *out) HL_CHECK;
/* "embedding", "vision", "layer-0003", "experts-0003", "mtp-0000" or "head"; the experts of MTP
 * layer 0 have the number behind the last layer's. Of own names "layer-0003" or "model-0000". */
hl_status hl_part_of_tensor(const struct hl_part_rule *rule, int pp, const char *name,
                            char part[HL_PARTITION_PART_MAX]) HL_CHECK;

#endif
