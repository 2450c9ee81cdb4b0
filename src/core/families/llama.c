/* llama 2 and 3, mistral, qwen2: RMS norms, rotary positions, separate q, k, v, a gated MLP. */
#include "core/families/tables.h"

const struct hl_family_prefix hl_family_prefixes[] = {{"model.", ""}, {"", ""}, {NULL, NULL}};

const struct hl_family_divided hl_family_divided_dense[] = {
    {HL_BY_TP, "heads", "attention heads"}, {HL_BY_TP, "ffn", "MLP columns"}, {0, NULL, NULL}};

const char *const hl_family_buffers_rotary[] = {"rotary_emb.inv_freq", NULL};

/* clang-format off */
#define SYMBOLS(qkv_bias, proj_bias)                                    \
    HL_SYMBOLS_SIZES,                                                   \
    HL_SYMBOL_HEAD_DIM,                                                 \
    HL_SYMBOL_TIED("0"),                                                \
    {"ffn", HL_SYMBOL_SIZE, "intermediate_size", NULL},                 \
    {"bias", HL_SYMBOL_BOOL, "attention_bias", "0"},                    \
    {"mlp_bias", HL_SYMBOL_BOOL, "mlp_bias", "0"},                      \
    {"qkv_bias", HL_SYMBOL_VALUE, NULL, qkv_bias},                      \
    {"proj_bias", HL_SYMBOL_VALUE, NULL, proj_bias},                    \
    {NULL, HL_SYMBOL_SIZE, NULL, NULL}

static const struct hl_family_symbol symbols[] = {SYMBOLS("bias", "bias")};
static const struct hl_family_symbol qwen2_symbols[] = {SYMBOLS("1", "0")};

static const struct hl_family_tensor tensors[] = {
    HL_TENSORS_EMBEDDING("embed_tokens.weight"),
    HL_TENSORS_INPUT_NORM("input_layernorm.weight"),
    HL_TENSORS_QKV,
    HL_TENSORS_PROJ,
    HL_TENSORS_MLP_NORM("post_attention_layernorm.weight", NULL),
    {HL_PLACE_LAYER, HL_SPLIT_PAIRS, 0, "mlp.linear_fc1.weight", NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, "ffn", "hidden", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_PAIRS, 0, "mlp.linear_fc1.bias", NULL,
     {"mlp.gate_proj.bias", "mlp.up_proj.bias"}, "ffn", NULL, "mlp_bias"},
    {HL_PLACE_LAYER, HL_SPLIT_COLUMNS, 0, "mlp.linear_fc2.weight", NULL,
     {"mlp.down_proj.weight"}, "hidden", "ffn", NULL},
    {HL_PLACE_LAYER, HL_SPLIT_WHOLE, 0, "mlp.linear_fc2.bias", NULL,
     {"mlp.down_proj.bias"}, "hidden", NULL, "mlp_bias"},
    HL_TENSORS_FINAL_NORM("norm.weight"),
    HL_TENSORS_HEAD("/lm_head.weight"),
    HL_TENSORS_END,
};

#define LLAMA(type, class, symbols_)                                                         \
    {.name = type, .class_prefix = class, .symbols = symbols_,                               \
     .divided = hl_family_divided_dense, .tensors = tensors, .prefixes = hl_family_prefixes, \
     .layers = "layers.", .norm_eps = "rms_norm_eps", .norm_eps_absent = 1e-6,               \
     .rope_theta_absent = 10000.0, .buffers = hl_family_buffers_rotary}

const struct hl_family hl_family_llama = LLAMA("llama", "Llama", symbols);
const struct hl_family hl_family_mistral = LLAMA("mistral", "Mistral", symbols);
const struct hl_family hl_family_qwen2 = LLAMA("qwen2", "Qwen2For", qwen2_symbols);
/* clang-format on */
