/* core/model/model_config.h - what the catalogue knows of a model: the text that is called
 * `config`.
 *
 * Helios' own members are structs of the schema (ModelConfig, ModelSizes). Documents of others,
 * Hugging Face's config.json, ModelOpt's hf_quant_config.json and PEFT's adapter_config.json, are
 * kept in it as they were.
 *
 * Owns:    hl_model_config owns all that was read (hl_model_config_fini); texts are the caller's.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the member that has another type, or a word that its enum has not;
 *          HL_EUNSUPPORTED for a config that does not say how its model was split.
 * Units:   layers, stages and ranks count from 0.
 * Limits:  those of core/model/partition.h. Members that are not known are kept.
 */
#ifndef HL_CORE_MODEL_MODEL_CONFIG_H
#define HL_CORE_MODEL_MODEL_CONFIG_H

#include <jansson.h>

#include "api/types.h"
#include "core/model/hf.h"
#include "core/model/split.h"

#define HL_QUANTIZATION_CONFIG "hf_quant_config.json"

struct hl_model_config {
    struct hl_api_model_config own;  /* without the sizes of the split */
    struct hl_api_split split;       /* those, and what the stages say */
    struct hl_api_model_sizes sizes; /* layers 0: it has none */
    const json_t *tensors;           /* NULL = none were listed */
    const json_t *copies;            /* names of tensors that repeat another one; NULL = none */
    const json_t *hf;                /* config.json; NULL = none */
    const json_t *quantization;      /* hf_quant_config.json; NULL = none */
    const json_t *peft;              /* adapter_config.json; NULL = no adapter */
    json_t *doc;                     /* all of it, where it was read */
    struct hl_arena arena;
};

hl_status hl_model_config_read(const char *text, struct hl_model_config *out) HL_CHECK;
void hl_model_config_fini(struct hl_model_config *c);
/* The sizes and stages are those of `split`. free(). */
hl_status hl_model_config_write(const struct hl_model_config *c, char **out) HL_CHECK;
/* HL_ENOENT: it has no Hugging Face config. */
hl_status hl_model_config_hf(const struct hl_model_config *c, struct hl_hf_config *out) HL_CHECK;
/* How the tensors of its ranks are made. */
struct hl_partition_options hl_model_config_options(const struct hl_model_config *c);

struct hl_model_shape {
    struct hl_api_split split; /* that the model was imported with */
    uint64_t layers;
    bool tied;
    bool as_saved; /* nothing says how its tensors are cut: only its own split can be read */
    bool unsliced; /* stored whole, at TP1 x PP1; every rank of any split reads all of it */
};

/* Models that are unsliced or as_saved have no layers. */
hl_status hl_model_shape_of(const struct hl_model_config *c, struct hl_model_shape *out) HL_CHECK;
/* The same of a text. */
hl_status hl_model_shape_read(const char *config, struct hl_model_shape *out) HL_CHECK;

/* The config of a model as that of one that was imported under this split: its sizes and stages.
 * free(). */
hl_status hl_split_config(const char *config, const struct hl_api_split *split, uint64_t layers,
                          char **out) HL_CHECK;

#endif
