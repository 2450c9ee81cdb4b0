/* phi3: llama with one tensor for q, k, v and one for gate and up. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    HL_SYMBOL_HEAD_DIM,
    HL_SYMBOL_TIED("0"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "0"},
    HL_SYMBOLS_END,
};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    {HL_PLACE_LAYER, HL_SPLIT_QKV, 0, "self_attention.linear_qkv.weight", NULL,
     {"self_attn.qkv_proj.weight"}, NULL, "hidden", NULL},
    HL_TENSORS_PROJ,
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", NULL),
    {HL_PLACE_LAYER, HL_SPLIT_PAIRS, 0, "mlp.linear_fc1.weight", NULL,
     {"mlp.gate_up_proj.weight"}, "ffn", "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, "mlp.linear_fc2.weight", NULL,
     {"mlp.down_proj.weight"}, "hidden", "ffn", NULL},
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_phi3 = {
    .name = "phi3", .class_prefix = "Phi3For", .symbols = symbols,
    .divided = hl_family_divided_dense, .tensors = tensors, HL_FAMILY_RMS(1e-5, 10000.0)};
/* clang-format on */
