/* GPT-2: layer norms, learned positions, Conv1D weights stored [in, out], one tensor for q, k, v.
 */
#include "core/families/tables.h"

static const struct hl_family_prefix prefixes[] = {{"transformer.", ""}, {"", ""}, {NULL, NULL}};

static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL};

/* clang-format off */
static const struct hl_family_symbol symbols[] = {
    {"layers", HL_SYMBOL_SIZE, "n_layer", NULL},
    {"hidden", HL_SYMBOL_SIZE, "n_embd", NULL},
    {"heads", HL_SYMBOL_SIZE, "n_head", NULL},
    {"ffn", HL_SYMBOL_SIZE, "n_inner", "4 * hidden"},
    {"vocab", HL_SYMBOL_SIZE, "vocab_size", NULL},
    {"max_positions", HL_SYMBOL_SIZE, "n_positions", "1024"},
    HL_SYMBOL_TIED("1"),
    {"kv_heads", HL_SYMBOL_VALUE, NULL, "heads"},
    {"head_dim", HL_SYMBOL_VALUE, NULL, "(hidden % heads == 0) * (hidden / heads)"},
    {"qkv_bias", HL_SYMBOL_VALUE, NULL, "1"},
    {"proj_bias", HL_SYMBOL_VALUE, NULL, "1"},
    {"mlp_bias", HL_SYMBOL_VALUE, NULL, "1"},
    {NULL, HL_SYMBOL_SIZE, NULL, NULL},
};

#define WHOLE(place, name, te, hf) \
    {place, HL_SPLIT_WHOLE, 0, name, te, {hf}, "hidden", NULL, NULL}

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("wte.weight"),
    {HL_PLACE_EMBEDDING, HL_SPLIT_WHOLE, 0, "embedding.position_embeddings.weight", NULL,
     {"wpe.weight"}, "max_positions", "hidden", NULL},
    HL_TENSORS_INPUT_NORM("ln_1.weight"),
    WHOLE(HL_PLACE_LAYER, "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias",
          "ln_1.bias"),
    {HL_PLACE_LAYER, HL_SPLIT_QKV, HL_FORM_TRANSPOSED, "self_attention.linear_qkv.weight", NULL,
     {"attn.c_attn.weight"}, NULL, "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_QKV, 0, "self_attention.linear_qkv.bias", NULL,
     {"attn.c_attn.bias"}, NULL, NULL, NULL},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, HL_FORM_TRANSPOSED, "self_attention.linear_proj.weight",
     NULL, {"attn.c_proj.weight"}, "hidden", "hidden", NULL},
    WHOLE(HL_PLACE_LAYER, "self_attention.linear_proj.bias", NULL, "attn.c_proj.bias"),
    HL_TENSORS_MLP_NORM("ln_2.weight", NULL),
    WHOLE(HL_PLACE_LAYER, "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias", "ln_2.bias"),
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, HL_FORM_TRANSPOSED, "mlp.linear_fc1.weight", NULL,
     {"mlp.c_fc.weight"}, "ffn", "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_ROWS, 0, "mlp.linear_fc1.bias", NULL, {"mlp.c_fc.bias"}, "ffn", NULL,
     NULL},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, HL_FORM_TRANSPOSED, "mlp.linear_fc2.weight", NULL,
     {"mlp.c_proj.weight"}, "hidden", "ffn", NULL},
    WHOLE(HL_PLACE_LAYER, "mlp.linear_fc2.bias", NULL, "mlp.c_proj.bias"),
    HL_TENSORS_FINAL_NORM("ln_f.weight"),
    WHOLE(HL_PLACE_HEAD, "decoder.final_layernorm.bias", NULL, "ln_f.bias"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};
/* clang-format on */

const struct hl_family hl_family_gpt2 = {
    .name = "gpt2",
    .class_prefix = "GPT2",
    .symbols = symbols,
    .divided = hl_family_divided_dense,
    .tensors = tensors,
    .prefixes = prefixes,
    .layers = "h.",
    .norm_eps = "layer_norm_epsilon",
    .norm_eps_absent = 1e-5,
    .buffers = buffers,
};
