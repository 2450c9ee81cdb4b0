/* glm4_moe (GLM-4.5): deepseek_v3 with ordinary attention. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    HL_SYMBOL_HEAD_DIM,
    HL_SYMBOL_TIED("0"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"moe_ffn", HL_SYMBOL_SIZE, "moe_intermediate_size", NULL},
    {"experts", HL_SYMBOL_SIZE, "n_routed_experts", NULL},
    {"shared", HL_SYMBOL_COUNT, "n_shared_experts", "1"},
    {"shared_ffn", HL_SYMBOL_VALUE, NULL, "shared * moe_ffn"},
    {"first_dense", HL_SYMBOL_COUNT, "first_k_dense_replace", "1"},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "0"},
    {"qk_norm", HL_SYMBOL_BOOL, "use_qk_norm", "0"},
    {"mtp_layers", HL_SYMBOL_COUNT, "num_nextn_predict_layers", "0"},
    {"moe", HL_SYMBOL_VALUE, NULL, "layer >= first_dense"},
    HL_SYMBOLS_END,
};

static const struct hl_family_divided divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"},
    {HL_BY_TP, "shared_ffn", "columns of the shared experts"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_QK_NORM("qk_norm"),
    HL_TENSORS_PROJ,
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", "!moe"),
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", "moe"),
    HL_TENSORS_GATED("mlp", "mlp", "ffn", "!moe"),
    HL_TENSORS_ROUTER("mlp.gate.weight", "moe"),
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "mlp.router.expert_bias", NULL,
     {"mlp.gate.e_score_correction_bias"}, "experts", NULL, "moe"},
    HL_TENSORS_EXPERTS("mlp.experts.*.", "gate_proj", "up_proj", "down_proj", "moe"),
    HL_TENSORS_GATED("mlp.shared_experts", "mlp.shared_experts", "shared_ffn",
                     "moe && shared > 0"),
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_MTP,
    HL_TENSORS_END,
};

const struct hl_family hl_family_glm4_moe = {
    .name = "glm4_moe", .class_prefix = "Glm4MoeFor", .symbols = symbols, .divided = divided,
    .tensors = tensors, HL_FAMILY_RMS(1e-5, 10000.0)};
/* clang-format on */
