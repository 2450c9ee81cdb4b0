/* gemma2 and gemma3 (text): norms before and after attention and MLP, a tied head; gemma3 has norms
 * of query and key. Megatron-core has no names for the norms that come after; these are
 * Megatron-Bridge's. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_prefix gemma3_prefixes[] = {
    {"model.", ""}, {"", ""}, {"language_model.model.", "language_model."},
    {"model.language_model.", ""}, {NULL, NULL}};

/* Values missing in config.json default to those of Hugging Face's classes. */
static const struct hl_family_symbol gemma2_symbols[] = {
    HL_SYMBOLS_SIZES,
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", "256"},
    HL_SYMBOL_TIED("1"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

static const struct hl_family_symbol gemma3_symbols[] = {
    {"layers", HL_SYMBOL_SIZE, "num_hidden_layers", "26"},
    {"hidden", HL_SYMBOL_SIZE, "hidden_size", "2304"},
    {"heads", HL_SYMBOL_SIZE, "num_attention_heads", "8"},
    {"kv_heads", HL_SYMBOL_SIZE, "num_key_value_heads", "4"},
    {"vocab", HL_SYMBOL_SIZE, "vocab_size", "262208"},
    {"max_positions", HL_SYMBOL_SIZE, "max_position_embeddings", "131072"},
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", "256"},
    HL_SYMBOL_TIED("1"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", "9216"},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

#define NORM(name, hf) {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, name, NULL, {hf}, "hidden", NULL, NULL}
#define ATTENTION                                                                     \
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),                                      \
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),                                  \
    HL_TENSORS_QKV,                                                                   \
    HL_TENSORS_PROJ,                                                                  \
    NORM("self_attention.linear_proj.post_layernorm.weight",                          \
         "post_attention_layernorm.weight"),                                          \
    HL_TENSORS_MLP_NORM("pre_feedforward_layernorm.weight", NULL),                    \
    HL_TENSORS_GATED("mlp", "mlp", "ffn", NULL),                                      \
    NORM("mlp.linear_fc2.post_layernorm.weight", "post_feedforward_layernorm.weight"), \
    HL_TENSORS_FINAL_NORM("norm.weight"),                                             \
    HL_TENSORS_HEAD("/lm_head.weight")

static const struct hl_family_tensor gemma2_tensors[] = {ATTENTION, HL_TENSORS_END};
static const struct hl_family_tensor gemma3_tensors[] = {ATTENTION, HL_TENSORS_QK_NORM(NULL),
                                                         HL_TENSORS_END};

const struct hl_family hl_family_gemma2 = {
    .name = "gemma2", .class_prefix = "Gemma2For", .symbols = gemma2_symbols,
    .divided = hl_family_divided_dense, .tensors = gemma2_tensors, HL_FAMILY_RMS(1e-6, 10000.0)};

const struct hl_family hl_family_gemma3 = {
    .name = "gemma3", .types = {"gemma3_text"}, .class_prefix = "Gemma3For",
    .nested = "text_config", .symbols = gemma3_symbols, .divided = hl_family_divided_dense,
    .tensors = gemma3_tensors, .prefixes = gemma3_prefixes, .layers = "layers.",
    .norm_eps = "rms_norm_eps", .norm_eps_absent = 1e-6, .rope_theta_absent = 1e6,
    .buffers = hl_family_buffers_rotary};
/* clang-format on */
