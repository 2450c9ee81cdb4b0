/* core/model/lora.h - a LoRA adapter (PEFT) beside the model that it was trained for.
 *
 * An adapter has two matrices for each module of the base that it changes: A of [r, in] and B of
 * [out, r]. Both are cut as the module's weight is: where its rows are cut, those of B; where its
 * columns are, those of A; the other one is the same on every rank. A bias of B and the magnitudes
 * of DoRA have a number for each row of B. What the adapter has whole (modules_to_save, biases) is
 * cut as the base's own. The adapter's rows of a table are made from those of the base's family, so
 * parts, stages and names are those of the base.
 * docs/families.md lists the names.
 *
 * Owns:    hl_lora_config owns its JSON (hl_lora_config_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the module that the base lacks, and the matrix that does not fit it or
 *          has no other half; HL_EUNSUPPORTED names a kind of adapter that has no known cut.
 * Units:   elements.
 * Limits:  those of core/model/partition.h.
 */
#ifndef HL_CORE_MODEL_LORA_H
#define HL_CORE_MODEL_LORA_H

#include "core/model/partition.h"

#define HL_LORA_CONFIG "adapter_config.json"
#define HL_LORA_FILE   "adapter_model.safetensors"

struct hl_lora_config {
    json_t *peft;     /* adapter_config.json */
    const char *base; /* base_model_name_or_path; "" without */
};

/* `file` names the text in errors. */
hl_status hl_lora_config_parse(const char *text, size_t len, const char *file,
                               struct hl_lora_config *out) HL_CHECK;
void hl_lora_config_fini(struct hl_lora_config *c);

/* `base` is the config of the base's checkpoint, `sources` are the tensors of the adapter. */
hl_status hl_lora_plan(const struct hl_hf_config *base, const struct hl_tensor *sources,
                       size_t source_count, const struct hl_partition_options *options,
                       struct hl_partition_plan *out) HL_CHECK;

#endif
