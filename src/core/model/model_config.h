/* core/model/model_config.h - the text called `config`: what the catalogue knows about a model.
 *
 * Helios' own members are structs of the schema (ModelConfig, ModelSizes). Foreign documents are
 * embedded unchanged: Hugging Face's config.json, ModelOpt's hf_quant_config.json and PEFT's
 * adapter_config.json.
 *
 * Owns:    hl_model_config owns everything that was read (hl_model_config_fini); texts belong to
 *          the caller.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names a member of the wrong type, or a word that is not in its enum;
 *          HL_EUNSUPPORTED for a config that does not say how its model was split.
 * Units:   layers, stages and ranks count from 0.
 * Limits:  those of core/model/partition.h. Unknown members are kept.
 */
#ifndef HL_CORE_MODEL_MODEL_CONFIG_H
#define HL_CORE_MODEL_MODEL_CONFIG_H

#include <jansson.h>

#include "api/types.h"
#include "core/model/hf.h"
#include "core/model/split.h"

#define HL_QUANTIZATION_CONFIG "hf_quant_config.json"

struct hl_model_config {
    struct hl_api_model_config own;  /* except the sizes of the split */
    struct hl_api_split split;       /* those sizes, and the ones given by the stages */
    struct hl_api_model_sizes sizes; /* layers 0: absent */
    const json_t *tensors;           /* NULL = none were listed */
    const json_t *copies;            /* names of tensors that repeat another one; NULL = none */
    const json_t *hf;                /* config.json; NULL = none */
    const json_t *quantization;      /* hf_quant_config.json; NULL = none */
    const json_t *peft;              /* adapter_config.json; NULL = no adapter */
    json_t *doc;                     /* the whole document, if it was read */
    struct hl_arena arena;
};

hl_status hl_model_config_read(const char *text, struct hl_model_config *out) HL_CHECK;
void hl_model_config_fini(struct hl_model_config *c);
/* Writes the config with the sizes and stages of c->split. free(). */
hl_status hl_model_config_write(const struct hl_model_config *c, char **out) HL_CHECK;
/* HL_ENOENT: there is no Hugging Face config. */
hl_status hl_model_config_hf(const struct hl_model_config *c, struct hl_hf_config *out) HL_CHECK;
/* The options with which the tensors of its ranks were made. */
struct hl_partition_options hl_model_config_options(const struct hl_model_config *c);

struct hl_model_shape {
    struct hl_api_split split; /* with which the model was imported */
    uint64_t layers;
    bool tied;
    bool as_saved; /* how its tensors are cut is unknown, so only its own split can be read */
    bool unsliced; /* stored unsplit, at TP1 x PP1; every rank of any split reads all of it */
};

/* Models that are unsliced or as_saved have no layers. */
hl_status hl_model_shape_of(const struct hl_model_config *c, struct hl_model_shape *out) HL_CHECK;
/* The same for a text. */
hl_status hl_model_shape_read(const char *config, struct hl_model_shape *out) HL_CHECK;

/* Rewrites a model's config with the sizes and stages of this split, as if it had been imported
 * with it. free(). */
hl_status hl_split_config(const char *config, const struct hl_api_split *split, uint64_t layers,
                          char **out) HL_CHECK;

#endif
