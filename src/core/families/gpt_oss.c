/* gpt_oss: all experts of a layer in one tensor, stored [in, out] with alternating gate and up;
 * biases everywhere, and one attention sink per head. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", "64"},
    HL_SYMBOL_TIED("0"),
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"moe_ffn", HL_SYMBOL_VALUE, NULL, "ffn"},
    {"experts", HL_SYMBOL_SIZE, "num_local_experts", NULL},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "1"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

static const struct hl_family_divided divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_PROJ,
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "self_attention.core_attention.softmax_offset", NULL,
     {"self_attn.sinks"}, "heads", NULL, NULL},
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", NULL),
    HL_TENSORS_ROUTER("mlp.router.weight", NULL),
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "mlp.router.bias", NULL, {"mlp.router.bias"}, "experts",
     NULL, NULL},
    {HL_PLACE_EXPERT, HL_SPLIT_PAIRS,
     HL_FORM_STACKED | HL_FORM_TRANSPOSED | HL_FORM_INTERLEAVED,
     HL_EXPERT_NAME("linear_fc1", "weight"), {"mlp.experts.gate_up_proj"}, "ffn", "hidden", NULL},
    {HL_PLACE_EXPERT, HL_SPLIT_PAIRS, HL_FORM_STACKED | HL_FORM_INTERLEAVED,
     HL_EXPERT_NAME("linear_fc1", "bias"), {"mlp.experts.gate_up_proj_bias"}, "ffn", NULL, NULL},
    {HL_PLACE_EXPERT, HL_SPLIT_COLUMNS, HL_FORM_STACKED | HL_FORM_TRANSPOSED,
     HL_EXPERT_NAME("linear_fc2", "weight"), {"mlp.experts.down_proj"}, "hidden", "ffn", NULL},
    {HL_PLACE_EXPERT, HL_SPLIT_WHOLE, HL_FORM_STACKED, HL_EXPERT_NAME("linear_fc2", "bias"),
     {"mlp.experts.down_proj_bias"}, "hidden", NULL, NULL},
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_gpt_oss = {
    .name = "gpt_oss", .class_prefix = "GptOssFor", .symbols = symbols, .divided = divided,
    .tensors = tensors, HL_FAMILY_RMS(1e-5, 150000.0)};
/* clang-format on */
