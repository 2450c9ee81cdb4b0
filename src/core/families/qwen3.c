/* qwen3: llama with norms of query and key, and with biases in attention if config.json says so. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", "128"},
    HL_SYMBOL_TIED("0"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_QK_NORM(NULL),
    HL_TENSORS_PROJ,
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", NULL),
    HL_TENSORS_GATED("mlp", "mlp", "ffn", NULL),
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_qwen3 = {
    .name = "qwen3", .class_prefix = "Qwen3For", .symbols = symbols,
    .divided = hl_family_divided_dense, .tensors = tensors, HL_FAMILY_RMS(1e-6, 10000.0)};
/* clang-format on */
