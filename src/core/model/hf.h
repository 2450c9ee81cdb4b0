/* core/model/hf.h - reads a model's sizes from a Hugging Face config.json.
 *
 * Owns:    hl_hf_config owns the parsed JSON (hl_hf_config_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL with file and field; HL_EUNSUPPORTED for an unknown architecture.
 * Units:   counts of elements.
 * Limits:  sizes below 2^31, 100,000 layers; config.json up to 16 MiB.
 */
#ifndef HL_CORE_MODEL_HF_H
#define HL_CORE_MODEL_HF_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "core/families/family.h"

#define HL_HF_CONFIG_MAX ((size_t)16 << 20)

enum hl_hf_layout {
    HL_LAYOUT_LLAMA, /* llama, mistral, qwen2: RMS norms, rotary, gate/up/down */
    HL_LAYOUT_GPT2,  /* layer norms, learned positions, Conv1D weights [in, out] */
    HL_LAYOUT_OTHER, /* any other family: only its table describes it */
};

struct hl_hf_config {
    enum hl_hf_layout layout;
    const struct hl_family *family;
    int64_t values[HL_FAMILY_SYMBOLS_MAX]; /* values of the family's symbols that have a field */
    const json_t *fields;                  /* the object in `hf` that contains the fields */
    const char *architecture;              /* the family's name */
    uint64_t layers;
    uint64_t hidden;
    uint64_t heads;
    uint64_t kv_heads; /* query groups */
    uint64_t head_dim;
    uint64_t ffn;
    uint64_t vocab;
    uint64_t max_positions;
    bool tied;
    bool qkv_bias;
    bool proj_bias; /* attention output */
    bool mlp_bias;
    double norm_eps;
    double rope_theta; /* 0 without rotary embedding */
    uint64_t block[2]; /* rows and columns that share a scale; 0 = quantization_config has none */
    json_t *hf;        /* the file */
};

/* Python's json also writes Infinity, -Infinity and NaN, as in Mamba's time_step_limit. Here they
 * are strings that begin with this. */
#define HL_HF_BEYOND_JSON "python:"
/* NULL: neither JSON nor such a text; `error` says where. */
json_t *hl_hf_json(const char *text, size_t len, json_error_t *error);
/* Turns such strings of a JSON text back into what Python writes, in place. */
void hl_hf_json_unquote(char *text);

/* The model's names: model_type, and the class in architectures; NULL = absent. */
hl_status hl_hf_names(const json_t *hf, const char *file, const char **type,
                      const char **class) HL_CHECK;
/* file: name of the text, for errors. */
hl_status hl_hf_config_parse(const char *text, size_t len, const char *file,
                             struct hl_hf_config *out) HL_CHECK;
/* The same for parsed JSON, to which it keeps a reference. */
hl_status hl_hf_config_read(const json_t *hf, const char *file, struct hl_hf_config *out) HL_CHECK;
void hl_hf_config_fini(struct hl_hf_config *c);

/* Fields that only training needs. An absent field gets the default of the model's class. */
struct hl_hf_training {
    const char *activation; /* hidden_act; borrowed, as are the other texts */
    double attention_dropout;
    double hidden_dropout;
    int64_t window; /* sliding_window, if it is used; 0 = none */

    struct {
        const char *type; /* "default": none */
        double factor;
        double low_freq_factor;
        double high_freq_factor;
        double original_positions;
    } rope;
};

/* file: name of the config, for errors. */
hl_status hl_hf_training_read(const struct hl_hf_config *c, const char *file,
                              struct hl_hf_training *out) HL_CHECK;

/* Reads the block size of a model's quantization_config into `block`, which is unchanged if there
 * is none. HL_EUNSUPPORTED names a method whose tensor format is unknown. */
hl_status hl_hf_quantization(const json_t *config, const char *file, uint64_t block[2]) HL_CHECK;

/* The scope for evaluating expressions of the family's table. */
static inline struct hl_family_scope hl_hf_scope(const struct hl_hf_config *c, uint64_t layer)
{
    return (struct hl_family_scope){
        .family = c->family, .config = c->fields, .values = c->values, .layer = (int64_t)layer};
}

#endif
