/* core/families/tables.h - the tables of all families, and the lines that many of them share.
 *
 * Owns:    nothing; tables are constant.
 * Threads: any; pure.
 * Errors:  none.
 * Units:   elements.
 * Limits:  none.
 */
#ifndef HL_CORE_FAMILIES_TABLES_H
#define HL_CORE_FAMILIES_TABLES_H

#include "core/families/family.h"

extern const struct hl_family hl_family_llama;
extern const struct hl_family hl_family_mistral;
extern const struct hl_family hl_family_qwen2;
extern const struct hl_family hl_family_qwen3;
extern const struct hl_family hl_family_qwen2_moe;
extern const struct hl_family hl_family_qwen3_moe;
extern const struct hl_family hl_family_mixtral;
extern const struct hl_family hl_family_phi3;
extern const struct hl_family hl_family_gemma2;
extern const struct hl_family hl_family_gemma3;
extern const struct hl_family hl_family_gpt2;
extern const struct hl_family hl_family_gpt_neox;
extern const struct hl_family hl_family_deepseek_v2;
extern const struct hl_family hl_family_deepseek_v3;
extern const struct hl_family hl_family_glm4_moe;
extern const struct hl_family hl_family_gpt_oss;
extern const struct hl_family hl_family_llama4;

extern const struct hl_family_prefix hl_family_prefixes[]; /* "model." */
extern const struct hl_family_divided hl_family_divided_dense[];
extern const char *const hl_family_buffers_rotary[];

/* clang-format off */
#define HL_SYMBOLS_SIZES                                                                     \
    {"layers", HL_SYMBOL_SIZE, "num_hidden_layers", NULL},                                   \
    {"hidden", HL_SYMBOL_SIZE, "hidden_size", NULL},                                         \
    {"heads", HL_SYMBOL_SIZE, "num_attention_heads", NULL},                                  \
    {"kv_heads", HL_SYMBOL_SIZE, "num_key_value_heads", "heads"},                            \
    {"vocab", HL_SYMBOL_SIZE, "vocab_size", NULL},                                           \
    {"max_positions", HL_SYMBOL_SIZE, "max_position_embeddings", "2048"}
/* 0 = `hidden` is not divisible by the heads, which is rejected when the config is read. */
#define HL_SYMBOL_HEAD_DIM                                                                   \
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", "(hidden % heads == 0) * (hidden / heads)"}
#define HL_SYMBOL_TIED(absent) {"tied", HL_SYMBOL_BOOL, "tie_word_embeddings", absent}

#define HL_TENSORS_EMBEDDING(hf)                                                             \
    {HL_PLACE_EMBEDDING, HL_SPLIT_VOCABULARY, 0, "embedding.word_embeddings.weight", NULL,   \
     {hf}, "vocab", "hidden", NULL}
#define HL_TENSORS_HEAD(hf)                                                                  \
    {HL_PLACE_HEAD, HL_SPLIT_VOCABULARY, 0, "output_layer.weight", NULL, {hf}, "vocab",      \
     "hidden", NULL}
#define HL_TENSORS_FINAL_NORM(hf)                                                            \
    {HL_PLACE_HEAD, HL_SPLIT_WHOLE, 0, "decoder.final_layernorm.weight", NULL, {hf},         \
     "hidden", NULL, NULL}
#define HL_TENSORS_INPUT_NORM(hf)                                                            \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "input_layernorm.weight",                            \
     "self_attention.linear_qkv.layer_norm_weight", {hf}, "hidden", NULL, NULL}
/* The norm before a dense MLP; with experts it has its own name in both namings. */
#define HL_TENSORS_MLP_NORM(hf, when)                                                        \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "pre_mlp_layernorm.weight",                          \
     "mlp.linear_fc1.layer_norm_weight", {hf}, "hidden", NULL, when}
#define HL_TENSORS_MOE_NORM(hf, when)                                                        \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "pre_mlp_layernorm.weight", NULL, {hf}, "hidden",    \
     NULL, when}
#define HL_TENSORS_QKV                                                                       \
    {HL_PLACE_LAYER, HL_SPLIT_QKV, 0, "self_attention.linear_qkv.weight", NULL,              \
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},      \
     NULL, "hidden", NULL},                                                                  \
    {HL_PLACE_LAYER, HL_SPLIT_QKV, 0, "self_attention.linear_qkv.bias", NULL,                \
     {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},            \
     NULL, NULL, "qkv_bias"}
#define HL_TENSORS_PROJ                                                                      \
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, "self_attention.linear_proj.weight", NULL,         \
     {"self_attn.o_proj.weight"}, "hidden", "heads * head_dim", NULL},                       \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "self_attention.linear_proj.bias", NULL,             \
     {"self_attn.o_proj.bias"}, "hidden", NULL, "proj_bias"}
#define HL_TENSORS_GATED(hf, name, ffn, when)                                                \
    {HL_PLACE_LAYER, HL_SPLIT_PAIRS, 0, name ".linear_fc1.weight", NULL,                     \
     {hf ".gate_proj.weight", hf ".up_proj.weight"}, ffn, "hidden", when},                   \
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, name ".linear_fc2.weight", NULL,                   \
     {hf ".down_proj.weight"}, "hidden", ffn, when}
/* Norms of each head's query and key. */
#define HL_TENSORS_QK_NORM(when)                                                             \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "self_attention.q_layernorm.weight", NULL,           \
     {"self_attn.q_norm.weight"}, "head_dim", NULL, when},                                   \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "self_attention.k_layernorm.weight", NULL,           \
     {"self_attn.k_norm.weight"}, "head_dim", NULL, when}
#define HL_TENSORS_ROUTER(hf, when)                                                          \
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "mlp.router.weight", NULL, {hf}, "experts",          \
     "hidden", when}
#define HL_EXPERT_NAME(part, kind)                                                           \
    "mlp.experts.local_experts.*." part "." kind, "mlp.experts." part "." kind "*"
/* One tensor per expert and matrix. */
#define HL_TENSORS_EXPERTS(hf, gate, up, down, when)                                         \
    {HL_PLACE_EXPERT, HL_SPLIT_PAIRS, 0, HL_EXPERT_NAME("linear_fc1", "weight"),             \
     {hf gate ".weight", hf up ".weight"}, "moe_ffn", "hidden", when},                       \
    {HL_PLACE_EXPERT, HL_SPLIT_COLUMNS, 0, HL_EXPERT_NAME("linear_fc2", "weight"),           \
     {hf down ".weight"}, "hidden", "moe_ffn", when}
/* Extra tensors of a multi-token prediction layer; its embedding and head are the model's. */
#define HL_TENSORS_MTP                                                                       \
    {HL_PLACE_MTP, HL_SPLIT_WHOLE, 0, "enorm.weight", NULL, {"enorm.weight"}, "hidden",      \
     NULL, NULL},                                                                            \
    {HL_PLACE_MTP, HL_SPLIT_WHOLE, 0, "hnorm.weight", NULL, {"hnorm.weight"}, "hidden",      \
     NULL, NULL},                                                                            \
    {HL_PLACE_MTP, HL_SPLIT_ROWS, 0, "eh_proj.weight", NULL, {"eh_proj.weight"}, "hidden",   \
     "2 * hidden", NULL},                                                                    \
    {HL_PLACE_MTP, HL_SPLIT_WHOLE, 0, "final_layernorm.weight", NULL,                        \
     {"shared_head.norm.weight"}, "hidden", NULL, NULL},                                     \
    {HL_PLACE_MTP_COPY, HL_SPLIT_WHOLE, 0, "embedding", NULL,                                \
     {"embed_tokens.weight", "embed_tokens.weight"}, "vocab", "hidden", NULL},               \
    {HL_PLACE_MTP_COPY, HL_SPLIT_WHOLE, 0, "head", NULL,                                     \
     {"shared_head.head.weight", "/lm_head.weight"}, "vocab", "hidden", NULL}
#define HL_DIVIDED_EXPERTS                                                                   \
    {HL_BY_EP, "experts", "experts"}, {HL_BY_ETP, "moe_ffn", "columns of an expert"}
#define HL_FAMILY_RMS(eps, theta)                                                            \
    .prefixes = hl_family_prefixes, .layers = "layers.", .norm_eps = "rms_norm_eps",         \
    .norm_eps_absent = eps, .rope_theta_absent = theta, .buffers = hl_family_buffers_rotary
#define HL_SYMBOLS_END {NULL, HL_SYMBOL_SIZE, NULL, NULL}
#define HL_DIVIDED_END {HL_BY_TP, NULL, NULL}
#define HL_TENSORS_END {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, NULL, NULL, {NULL}, NULL, NULL, NULL}
/* clang-format on */

#endif
