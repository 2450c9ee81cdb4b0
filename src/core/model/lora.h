/* core/model/lora.h - splits a LoRA adapter (PEFT) like the base model that it was trained for.
 *
 * An adapter has two matrices for each module of the base that it changes: A of [r, in] and B of
 * [out, r]. The cut follows the module's weight: if its rows are cut, so are the rows of B; if its
 * columns are cut, so are the columns of A; the other matrix is the same on every rank. A bias of B
 * and the magnitudes of DoRA have one number for each row of B. Complete tensors in the adapter
 * (modules_to_save, biases) are cut like the base's own. The adapter's table rows are derived from
 * those of the base's family, so parts, stages and names are those of the base. docs/families.md
 * lists the names.
 *
 * Owns:    hl_lora_config owns its JSON (hl_lora_config_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names a module that the base lacks, or a matrix that does not fit it or lacks
 *          its counterpart; HL_EUNSUPPORTED names a kind of adapter that can't be cut.
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
    const char *base; /* base_model_name_or_path; "" = absent */
};

/* file: name of the text, for errors. */
hl_status hl_lora_config_parse(const char *text, size_t len, const char *file,
                               struct hl_lora_config *out) HL_CHECK;
void hl_lora_config_fini(struct hl_lora_config *c);

/* base: config of the base's checkpoint. sources: tensors of the adapter. */
hl_status hl_lora_plan(const struct hl_hf_config *base, const struct hl_tensor *sources,
                       size_t source_count, const struct hl_partition_options *options,
                       struct hl_partition_plan *out) HL_CHECK;

#endif
