/* Two layouts cover the supported families: llama's (RMS norms, rotary positions, separate q, k, v
 * and a gated MLP) and GPT-2's. A field is read by a table of names, so that every error can name
 * it. */
#include "core/hf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_LIMIT   ((int64_t)INT32_MAX)
#define LAYERS_LIMIT 100000

struct reader {
    const json_t *root;
    const char *file;
};

/* A positive integer below 2^31; absent or null gives `absent`, which 0 makes an error. */
HL_CHECK static hl_status read_size(const struct reader *r, const char *field, uint64_t absent,
                                    uint64_t *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v == NULL || json_is_null(v)) {
        if (absent == 0)
            return hl_fail(HL_EINVAL, "%s: field '%s' is missing", r->file, field);
        *out = absent;
        return HL_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > SIZE_LIMIT)
        return hl_fail(HL_EINVAL, "%s: field '%s' is not an integer of 1..2147483647", r->file,
                       field);
    *out = (uint64_t)json_integer_value(v);
    return HL_OK;
}

HL_CHECK static hl_status read_bool(const struct reader *r, const char *field, int absent, int *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v != NULL && !json_is_null(v) && !json_is_boolean(v))
        return hl_fail(HL_EINVAL, "%s: field '%s' is neither true nor false", r->file, field);
    *out = json_is_boolean(v) ? json_is_true(v) : absent;
    return HL_OK;
}

HL_CHECK static hl_status read_real(const struct reader *r, const char *field, double absent,
                                    double *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v != NULL && !json_is_null(v) && !json_is_number(v))
        return hl_fail(HL_EINVAL, "%s: field '%s' is not a number", r->file, field);
    *out = json_is_number(v) ? json_number_value(v) : absent;
    return HL_OK;
}

static uint64_t even_head_dim(const struct hl_hf_config *c)
{
    return c->hidden % c->heads == 0 ? c->hidden / c->heads : 0;
}

HL_CHECK static hl_status check_heads(const struct reader *r, const struct hl_hf_config *c,
                                      const char *hidden, const char *heads)
{
    if (c->head_dim == 0)
        return hl_fail(HL_EINVAL,
                       "%s: field '%s' %" PRIu64 " is not a multiple of '%s' %" PRIu64
                       " and no head_dim is given",
                       r->file, hidden, c->hidden, heads, c->heads);
    if (c->heads % c->kv_heads != 0)
        return hl_fail(HL_EINVAL,
                       "%s: '%s' %" PRIu64 " is not a multiple of 'num_key_value_heads' %" PRIu64,
                       r->file, heads, c->heads, c->kv_heads);
    if (c->layers > LAYERS_LIMIT)
        return hl_fail(HL_EINVAL, "%s: %" PRIu64 " layers, at most %d", r->file, c->layers,
                       LAYERS_LIMIT);
    return HL_OK;
}

HL_CHECK static hl_status read_llama(const struct reader *r, struct hl_hf_config *c)
{
    int qwen2 = strcmp(c->architecture, "qwen2") == 0;
    int bias;
    c->layout = HL_LAYOUT_LLAMA;
    HL_TRY(read_size(r, "num_hidden_layers", 0, &c->layers));
    HL_TRY(read_size(r, "hidden_size", 0, &c->hidden));
    HL_TRY(read_size(r, "num_attention_heads", 0, &c->heads));
    HL_TRY(read_size(r, "num_key_value_heads", c->heads, &c->kv_heads));
    HL_TRY(read_size(r, "intermediate_size", 0, &c->ffn));
    HL_TRY(read_size(r, "vocab_size", 0, &c->vocab));
    HL_TRY(read_size(r, "max_position_embeddings", 2048, &c->max_positions));
    const json_t *dim = json_object_get(r->root, "head_dim");
    c->head_dim = even_head_dim(c);
    if (dim != NULL && !json_is_null(dim))
        HL_TRY(read_size(r, "head_dim", 0, &c->head_dim));
    HL_TRY(read_bool(r, "tie_word_embeddings", 0, &c->tied));
    HL_TRY(read_bool(r, "attention_bias", 0, &bias));
    HL_TRY(read_bool(r, "mlp_bias", 0, &c->mlp_bias));
    HL_TRY(read_real(r, "rms_norm_eps", 1e-6, &c->norm_eps));
    /* Newer files keep it in an object of its own. */
    const struct reader rope = {.root = json_object_get(r->root, "rope_parameters"),
                                .file = r->file};
    HL_TRY(read_real(&rope, "rope_theta", 10000.0, &c->rope_theta));
    HL_TRY(read_real(r, "rope_theta", c->rope_theta, &c->rope_theta));
    c->qkv_bias = qwen2 || bias;
    c->proj_bias = !qwen2 && bias;
    return check_heads(r, c, "hidden_size", "num_attention_heads");
}

HL_CHECK static hl_status read_gpt2(const struct reader *r, struct hl_hf_config *c)
{
    c->layout = HL_LAYOUT_GPT2;
    HL_TRY(read_size(r, "n_layer", 0, &c->layers));
    HL_TRY(read_size(r, "n_embd", 0, &c->hidden));
    HL_TRY(read_size(r, "n_head", 0, &c->heads));
    HL_TRY(read_size(r, "n_inner", 4 * c->hidden, &c->ffn));
    HL_TRY(read_size(r, "vocab_size", 0, &c->vocab));
    HL_TRY(read_size(r, "n_positions", 1024, &c->max_positions));
    HL_TRY(read_bool(r, "tie_word_embeddings", 1, &c->tied));
    HL_TRY(read_real(r, "layer_norm_epsilon", 1e-5, &c->norm_eps));
    c->kv_heads = c->heads;
    c->head_dim = even_head_dim(c);
    c->qkv_bias = c->proj_bias = c->mlp_bias = 1;
    return check_heads(r, c, "n_embd", "n_head");
}

/* model_type, or by the class name of older files. */
HL_CHECK static hl_status read_architecture(const struct reader *r, struct hl_hf_config *c)
{
    static const struct {
        const char *type;
        const char *class_prefix;
    } known[] = {
        {"llama", "Llama"}, {"mistral", "Mistral"}, {"qwen2", "Qwen2For"}, {"gpt2", "GPT2"}};

    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    const char *name =
        json_string_value(json_array_get(json_object_get(r->root, "architectures"), 0));
    for (size_t i = 0; i < HL_ARRAY_LEN(known); i++) {
        const char *prefix = known[i].class_prefix;
        if (type != NULL ? strcmp(type, known[i].type) == 0
                         : name != NULL && strncmp(name, prefix, strlen(prefix)) == 0) {
            c->architecture = known[i].type;
            return HL_OK;
        }
    }
    if (type == NULL && name == NULL)
        return hl_fail(HL_EINVAL, "%s: field 'model_type' is missing", r->file);
    return hl_fail(HL_EUNSUPPORTED,
                   "%s: architecture '%.60s' is not supported: use llama, mistral, qwen2 or gpt2",
                   r->file, type != NULL ? type : name);
}

HL_CHECK static hl_status read_config(const struct reader *r, struct hl_hf_config *c)
{
    if (!json_is_object(r->root))
        return hl_fail(HL_EINVAL, "%s: not a JSON object", r->file);
    HL_TRY(read_architecture(r, c));
    const json_t *quant = json_object_get(r->root, "quantization_config");
    if (quant != NULL && !json_is_null(quant))
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: field 'quantization_config': quantized checkpoints can't be sliced, "
                       "convert it to bf16 first",
                       r->file);
    return strcmp(c->architecture, "gpt2") == 0 ? read_gpt2(r, c) : read_llama(r, c);
}

hl_status hl_hf_config_parse(const char *text, size_t len, const char *file,
                             struct hl_hf_config *out)
{
    if (len > HL_HF_CONFIG_MAX)
        return hl_fail(HL_EINVAL, "%s: %zu bytes, at most %zu", file, len, HL_HF_CONFIG_MAX);
    json_error_t error;
    struct hl_hf_config c = {.hf = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error)};
    if (c.hf == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s", file, error.line, error.column, error.text);
    hl_status st = read_config(&(struct reader){.root = c.hf, .file = file}, &c);
    if (st != HL_OK) {
        hl_hf_config_fini(&c);
        return st;
    }
    *out = c;
    return HL_OK;
}

void hl_hf_config_fini(struct hl_hf_config *c)
{
    json_decref(c->hf);
    *c = (struct hl_hf_config){0};
}
