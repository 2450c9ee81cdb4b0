/* qwen2_moe and qwen3_moe: every decoder_sparse_step-th layer has experts unless mlp_only_layers
 * names it; qwen2_moe has a gated shared expert, qwen3_moe norms of query and key. */
#include "core/families/tables.h"

/* clang-format off */
#define SYMBOLS                                                                     \
    HL_SYMBOLS_SIZES,                                                               \
    HL_SYMBOL_HEAD_DIM,                                                             \
    HL_SYMBOL_TIED("0"),                                                            \
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},                             \
    {"moe_ffn", HL_SYMBOL_SIZE, "moe_intermediate_size", NULL},                     \
    {"step", HL_SYMBOL_SIZE, "decoder_sparse_step", "1"},                           \
    {"dense_layer", HL_SYMBOL_LAYERS, "mlp_only_layers", "0"},                      \
    {"moe", HL_SYMBOL_VALUE, NULL, "!dense_layer && (layer + 1) % step == 0"}

static const struct hl_family_symbol qwen2_symbols[] = {
    SYMBOLS,
    {"experts", HL_SYMBOL_SIZE, "num_experts", NULL},
    {"shared_ffn", HL_SYMBOL_SIZE, "shared_expert_intermediate_size", NULL},
    {"qkv_bias", HL_SYMBOL_BOOL, "qkv_bias", "1"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "0"},
    HL_SYMBOLS_END,
};

static const struct hl_family_symbol qwen3_symbols[] = {
    SYMBOLS,
    {"experts", HL_SYMBOL_SIZE, "num_experts", NULL},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

static const struct hl_family_divided qwen2_divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"},
    {HL_BY_TP, "shared_ffn", "columns of the shared expert"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

static const struct hl_family_divided qwen3_divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"}, HL_DIVIDED_EXPERTS,
    HL_DIVIDED_END};

#define MLP                                                                         \
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", "!moe"),                 \
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", "moe"),                  \
    HL_TENSORS_GATED("mlp", "mlp", "ffn", "!moe"),                                  \
    HL_TENSORS_ROUTER("mlp.gate.weight", "moe"),                                    \
    HL_TENSORS_EXPERTS("mlp.experts.*.", "gate_proj", "up_proj", "down_proj", "moe")

static const struct hl_family_tensor qwen2_tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_PROJ,
    MLP,
    HL_TENSORS_GATED("mlp.shared_expert", "mlp.shared_experts", "shared_ffn", "moe"),
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "mlp.shared_experts.gate_weight", NULL,
     {"mlp.shared_expert_gate.weight"}, "1", "hidden", "moe"},
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

static const struct hl_family_tensor qwen3_tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_QK_NORM(NULL),
    HL_TENSORS_PROJ,
    MLP,
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_qwen2_moe = {
    .name = "qwen2_moe", .class_prefix = "Qwen2MoeFor", .symbols = qwen2_symbols,
    .divided = qwen2_divided, .tensors = qwen2_tensors, HL_FAMILY_RMS(1e-6, 10000.0)};

const struct hl_family hl_family_qwen3_moe = {
    .name = "qwen3_moe", .class_prefix = "Qwen3MoeFor", .symbols = qwen3_symbols,
    .divided = qwen3_divided, .tensors = qwen3_tensors, HL_FAMILY_RMS(1e-6, 10000.0)};
/* clang-format on */
