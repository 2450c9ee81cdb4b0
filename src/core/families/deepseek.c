/* deepseek_v2 and deepseek_v3: latent attention; dense layers first, then layers with routed and
 * shared experts. v3 has a router bias and layers for multi-token prediction. With latent attention
 * the preceding norm stays unfused in both namings. */
#include "core/families/tables.h"

/* clang-format off */
#define SYMBOLS                                                                      \
    HL_SYMBOLS_SIZES,                                                                \
    HL_SYMBOL_TIED("0"),                                                             \
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},                              \
    {"moe_ffn", HL_SYMBOL_SIZE, "moe_intermediate_size", NULL},                      \
    {"experts", HL_SYMBOL_SIZE, "n_routed_experts", NULL},                           \
    {"shared", HL_SYMBOL_COUNT, "n_shared_experts", "0"},                            \
    {"shared_ffn", HL_SYMBOL_VALUE, NULL, "shared * moe_ffn"},                       \
    {"first_dense", HL_SYMBOL_COUNT, "first_k_dense_replace", "0"},                  \
    {"freq", HL_SYMBOL_SIZE, "moe_layer_freq", "1"},                                 \
    {"q_lora", HL_SYMBOL_COUNT, "q_lora_rank", "0"},                                 \
    {"kv_lora", HL_SYMBOL_SIZE, "kv_lora_rank", NULL},                               \
    {"nope", HL_SYMBOL_SIZE, "qk_nope_head_dim", NULL},                              \
    {"rope", HL_SYMBOL_SIZE, "qk_rope_head_dim", NULL},                              \
    {"v_dim", HL_SYMBOL_SIZE, "v_head_dim", NULL},                                   \
    {"head_dim", HL_SYMBOL_VALUE, NULL, "nope + rope"},                              \
    {"moe", HL_SYMBOL_VALUE, NULL,                                                   \
     "layer >= layers || layer >= first_dense && layer % freq == 0"}

static const struct hl_family_symbol v2_symbols[] = {SYMBOLS, HL_SYMBOLS_END};
static const struct hl_family_symbol v3_symbols[] = {
    SYMBOLS, {"mtp_layers", HL_SYMBOL_COUNT, "num_nextn_predict_layers", "0"}, HL_SYMBOLS_END};

static const struct hl_family_divided divided[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"},
    {HL_BY_TP, "shared_ffn", "columns of the shared experts"}, HL_DIVIDED_EXPERTS, HL_DIVIDED_END};

#define ROW(split, name, te, hf, rows, cols, when) \
    {HL_PLACE_LAYER, split, 0, name, te, {hf}, rows, cols, when}

#define TENSORS                                                                               \
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),                                              \
    ROW(HL_SPLIT_WHOLE, "input_layernorm.weight", NULL, "input_layernorm.weight", "hidden",   \
        NULL, NULL),                                                                          \
    ROW(HL_SPLIT_ROWS, "self_attention.linear_q_proj.weight", NULL, "self_attn.q_proj.weight", \
        "heads * head_dim", "hidden", "q_lora == 0"),                                         \
    ROW(HL_SPLIT_WHOLE, "self_attention.linear_q_down_proj.weight", NULL,                     \
        "self_attn.q_a_proj.weight", "q_lora", "hidden", "q_lora > 0"),                       \
    ROW(HL_SPLIT_WHOLE, "self_attention.q_layernorm.weight",                                  \
        "self_attention.linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight", \
        "q_lora", NULL, "q_lora > 0"),                                                        \
    ROW(HL_SPLIT_ROWS, "self_attention.linear_q_up_proj.weight", NULL,                        \
        "self_attn.q_b_proj.weight", "heads * head_dim", "q_lora", "q_lora > 0"),             \
    ROW(HL_SPLIT_WHOLE, "self_attention.linear_kv_down_proj.weight", NULL,                    \
        "self_attn.kv_a_proj_with_mqa.weight", "kv_lora + rope", "hidden", NULL),             \
    ROW(HL_SPLIT_WHOLE, "self_attention.kv_layernorm.weight",                                 \
        "self_attention.linear_kv_up_proj.layer_norm_weight",                                 \
        "self_attn.kv_a_layernorm.weight", "kv_lora", NULL, NULL),                            \
    ROW(HL_SPLIT_ROWS, "self_attention.linear_kv_up_proj.weight", NULL,                       \
        "self_attn.kv_b_proj.weight", "heads * (nope + v_dim)", "kv_lora", NULL),             \
    ROW(HL_SPLIT_COLUMNS, "self_attention.linear_proj.weight", NULL,                          \
        "self_attn.o_proj.weight", "hidden", "heads * v_dim", NULL),                          \
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", "!moe"),                           \
    HL_TENSORS_MOE_NORM("post_attention_layernorm.weight", "moe"),                            \
    HL_TENSORS_GATED("mlp", "mlp", "ffn", "!moe"),                                            \
    HL_TENSORS_ROUTER("mlp.gate.weight", "moe"),                                              \
    HL_TENSORS_EXPERTS("mlp.experts.*.", "gate_proj", "up_proj", "down_proj", "moe"),         \
    HL_TENSORS_GATED("mlp.shared_experts", "mlp.shared_experts", "shared_ffn",                \
                     "moe && shared > 0"),                                                    \
    HL_TENSORS_FINAL_NORM("norm.weight"),                                                     \
    HL_TENSORS_HEAD("/lm_head.weight")

static const struct hl_family_tensor v2_tensors[] = {TENSORS, HL_TENSORS_END};
static const struct hl_family_tensor v3_tensors[] = {
    TENSORS,
    ROW(HL_SPLIT_WHOLE, "mlp.router.expert_bias", NULL, "mlp.gate.e_score_correction_bias",
        "experts", NULL, "moe"),
    HL_TENSORS_MTP,
    HL_TENSORS_END,
};

const struct hl_family hl_family_deepseek_v2 = {
    .name = "deepseek_v2", .class_prefix = "DeepseekV2For", .symbols = v2_symbols,
    .divided = divided, .tensors = v2_tensors, .mla = true, HL_FAMILY_RMS(1e-6, 10000.0)};

const struct hl_family hl_family_deepseek_v3 = {
    .name = "deepseek_v3", .class_prefix = "DeepseekV3For", .symbols = v3_symbols,
    .divided = divided, .tensors = v3_tensors, .mla = true, HL_FAMILY_RMS(1e-6, 10000.0)};
/* clang-format on */
