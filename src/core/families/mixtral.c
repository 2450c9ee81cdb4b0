/* mixtral: experts in every layer, no shared one. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    HL_SYMBOL_HEAD_DIM,
    HL_SYMBOL_TIED("0"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"moe_ffn", HL_SYMBOL_VALUE, NULL, "ffn"},
    {"experts", HL_SYMBOL_SIZE, "num_local_experts", "8"},
    {"qkv_bias", HL_SYMBOL_VALUE, NULL, "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "0"},
    HL_SYMBOLS_END,
};

static const struct hl_family_divided divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_PROJ,
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", NULL),
    HL_TENSORS_ROUTER("block_sparse_moe.gate.weight", NULL),
    HL_TENSORS_EXPERTS("block_sparse_moe.experts.*.", "w1", "w3", "w2", NULL),
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_mixtral = {
    .name = "mixtral", .class_prefix = "MixtralFor", .symbols = symbols, .divided = divided,
    .tensors = tensors, HL_FAMILY_RMS(1e-5, 1e6)};
/* clang-format on */
