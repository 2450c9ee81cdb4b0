/* gpt_neox: layer norms, biases everywhere; q, k and v of a head are together, as in
 * Megatron-core. */
#include "core/families/tables.h"

/* clang-format off */
static const struct hl_family_prefix prefixes[] = {{"gpt_neox.", ""}, {"", ""}, {NULL, NULL}};

static const char *const buffers[] = {"rotary_emb.inv_freq", ".attention.bias",
                                      ".attention.masked_bias", NULL};

static const struct hl_family_symbol symbols[] = {
    {"layers", HL_SYMBOL_SIZE, "num_hidden_layers", NULL},
    {"hidden", HL_SYMBOL_SIZE, "hidden_size", NULL},
    {"heads", HL_SYMBOL_SIZE, "num_attention_heads", NULL},
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},
    {"vocab", HL_SYMBOL_SIZE, "vocab_size", NULL},
    {"max_positions", HL_SYMBOL_SIZE, "max_position_embeddings", "2048"},
    HL_SYMBOL_TIED("0"),
    {"bias", HL_SYMBOL_BOOL, "attention_bias", "1"},
    {"kv_heads", HL_SYMBOL_VALUE, NULL, "heads"},
    {"head_dim", HL_SYMBOL_VALUE, NULL, "(hidden % heads == 0) * (hidden / heads)"},
    {"qkv_bias", HL_SYMBOL_VALUE, NULL, "bias"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "bias"},
    {"mlp_bias", HL_SYMBOL_VALUE, NULL, "1"},
    HL_SYMBOLS_END,
};

#define WHOLE(place, name, te, hf, when) \
    {place, HL_SPLIT_WHOLE, 0, name, te, {hf}, "hidden", NULL, when}

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_in.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    WHOLE(HL_PLACE_LAYER, "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias",
          "input_layernorm.bias", NULL),
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "self_attention.linear_qkv.weight", NULL,
     {"attention.query_key_value.weight"}, "3 * hidden", "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "self_attention.linear_qkv.bias", NULL,
     {"attention.query_key_value.bias"}, "3 * hidden", NULL, "bias"},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, "self_attention.linear_proj.weight", NULL,
     {"attention.dense.weight"}, "hidden", "hidden", NULL},
    WHOLE(HL_PLACE_LAYER, "self_attention.linear_proj.bias", NULL, "attention.dense.bias", "bias"),
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", NULL),
    WHOLE(HL_PLACE_LAYER, "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias",
          "post_attention_layernorm.bias", NULL),
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "mlp.linear_fc1.weight", NULL,
     {"mlp.dense_h_to_4h.weight"}, "ffn", "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "mlp.linear_fc1.bias", NULL,
     {"mlp.dense_h_to_4h.bias"}, "ffn", NULL, NULL},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, "mlp.linear_fc2.weight", NULL,
     {"mlp.dense_4h_to_h.weight"}, "hidden", "ffn", NULL},
    WHOLE(HL_PLACE_LAYER, "mlp.linear_fc2.bias", NULL, "mlp.dense_4h_to_h.bias", NULL),
    HL_TENSORS_FINAL_NORM("final_layer_norm.weight"),
    WHOLE(HL_PLACE_HEAD, "decoder.final_layernorm.bias", NULL, "final_layer_norm.bias", NULL),
    HL_TENSORS_HEAD("/embed_out.weight"),
    HL_TENSORS_END,
};

const struct hl_family hl_family_gpt_neox = {
    .name = "gpt_neox", .class_prefix = "GPTNeoXFor", .symbols = symbols,
    .divided = hl_family_divided_dense, .tensors = tensors, .prefixes = prefixes,
    .layers = "layers.", .norm_eps = "layer_norm_eps", .norm_eps_absent = 1e-5,
    .rope_theta_absent = 10000.0, .buffers = buffers};
/* clang-format on */
