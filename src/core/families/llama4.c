/* llama4 (text): every interleave_moe_layer_step-th layer has experts and a shared expert. The
 * experts are in one tensor stored [in, out] or, as written by compressed-tensors, one by one. Its
 * norms of query and key have no weights. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_prefix prefixes[] = {
    {"language_model.model.", "language_model."}, {"model.", ""}, {"", ""}, {NULL, NULL}};

static const struct hl_family_symbol symbols[] = {
    HL_SYMBOLS_SIZES,
    HL_SYMBOL_HEAD_DIM,
    HL_SYMBOL_TIED("0"),
    {"moe_ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size_mlp", NULL},
    {"experts", HL_SYMBOL_SIZE, "num_local_experts", NULL},
    {"step", HL_SYMBOL_SIZE, "interleave_moe_layer_step", "1"},
    {"moe", HL_SYMBOL_LAYERS, "moe_layers", "(layer + 1) % step == 0"},
    {"qkv_bias", HL_SYMBOL_BOOL, "attention_bias", "0"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "qkv_bias"},
    HL_SYMBOLS_END,
};

static const struct hl_family_divided divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"},
    {HL_BY_TP, "moe_ffn", "columns of the shared expert"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_PROJ,
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", "!moe"),
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", "moe"),
    HL_TENSORS_GATED("feed_forward", "mlp", "ffn", "!moe"),
    HL_TENSORS_ROUTER("feed_forward.router.weight", "moe"),
    {HL_PLACE_EXPERT, HL_SPLIT_PAIRS, HL_FORM_STACKED | HL_FORM_TRANSPOSED,
     HL_EXPERT_NAME("linear_fc1", "weight"), {"feed_forward.experts.gate_up_proj"}, "moe_ffn",
     "hidden", "moe"},
    {HL_PLACE_EXPERT, HL_SPLIT_COLUMNS, HL_FORM_STACKED | HL_FORM_TRANSPOSED,
     HL_EXPERT_NAME("linear_fc2", "weight"), {"feed_forward.experts.down_proj"}, "hidden",
     "moe_ffn", "moe"},
    {HL_PLACE_EXPERT, HL_SPLIT_PAIRS, HL_FORM_SEPARATE, HL_EXPERT_NAME("linear_fc1", "weight"),
     {"feed_forward.experts.*.gate_proj.weight", "feed_forward.experts.*.up_proj.weight"},
     "moe_ffn", "hidden", "moe"},
    {HL_PLACE_EXPERT, HL_SPLIT_COLUMNS, HL_FORM_SEPARATE, HL_EXPERT_NAME("linear_fc2", "weight"),
     {"feed_forward.experts.*.down_proj.weight"}, "hidden", "moe_ffn", "moe"},
    HL_TENSORS_GATED("feed_forward.shared_expert", "mlp.shared_experts", "moe_ffn", "moe"),
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_llama4 = {
    .name = "llama4", .types = {"llama4_text"}, .class_prefix = "Llama4For",
    .nested = "text_config", .symbols = symbols, .divided = divided, .tensors = tensors,
    .prefixes = prefixes, .layers = "layers.", .norm_eps = "rms_norm_eps",
    .norm_eps_absent = 1e-5, .rope_theta_absent = 500000.0, .buffers = hl_family_buffers_rotary};
/* clang-format on */
