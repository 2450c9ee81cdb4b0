/* Builds a config.json from Megatron's args. Flags such as qk_layernorm decide the family; args
 * that change what the model computes without changing its tensors are refused, because a derived
 * config can't express them. */
#include "core/torch/megatron_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/torch/megatron.h"

#define DIVISOR_MAX 65536
#define LAYERS_MAX  100000
#define GIVE_CONFIG "put the model's config.json beside " HL_MEGATRON_TRACKER

/* ---- the split ------------------------------------------------------------------------------- */

HL_CHECK static hl_status read_int(const struct hl_pickle_value *args, const char *name, int *out)
{
    uint64_t n;
    HL_TRY(hl_megatron_arg_size(args, name, 0, &n));
    *out = (int)n;
    return HL_OK;
}

static bool is_set(const struct hl_pickle_value *args, const char *name)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(args, name);
    return v != NULL && v->kind != HL_PICKLE_NONE &&
           !(v->kind == HL_PICKLE_BOOL && v->integer == 0);
}

hl_status hl_megatron_split(const struct hl_pickle_value *root, struct hl_partition_options *out)
{
    static const char *const unknown[] = {"account_for_embedding_in_pipeline_split",
                                          "account_for_loss_in_pipeline_split",
                                          "pipeline_model_parallel_layout"};
    const struct hl_pickle_value *args = NULL;
    struct hl_partition_options o = *out;
    HL_TRY(hl_megatron_args(root, &args));
    for (size_t i = 0; i < HL_ARRAY_LEN(unknown); i++)
        if (is_set(args, unknown[i]))
            return hl_fail(HL_EUNSUPPORTED,
                           "args.%s is set: Helios has no such split; save the checkpoint as "
                           "torch_dist, which does not depend on it",
                           unknown[i]);
    HL_TRY(read_int(args, "tensor_model_parallel_size", &o.tp));
    HL_TRY(read_int(args, "pipeline_model_parallel_size", &o.pp));
    HL_TRY(read_int(args, "expert_model_parallel_size", &o.ep));
    HL_TRY(read_int(args, "expert_tensor_parallel_size", &o.etp));
    HL_TRY(read_int(args, "virtual_pipeline_model_parallel_size", &o.virtual_stages));
    HL_TRY(read_int(args, "decoder_first_pipeline_num_layers", &o.first_stage_layers));
    HL_TRY(read_int(args, "decoder_last_pipeline_num_layers", &o.last_stage_layers));
    o.tp = o.tp > 0 ? o.tp : 1;
    o.pp = o.pp > 0 ? o.pp : 1;
    o.ep = o.ep > 0 ? o.ep : 1;
    if (!is_set(args, "num_experts"))
        o.ep = o.etp = 0;
    if (o.etp > 0 && o.tp % o.etp != 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "args.expert_tensor_parallel_size %d does not divide the tensor parallel "
                       "size %d, so the files do not say whose experts they hold; save the "
                       "checkpoint as torch_dist",
                       o.etp, o.tp);
    *out = o;
    return HL_OK;
}

hl_status hl_megatron_divisor(uint64_t vocab, uint64_t padded, uint64_t tp, int *out)
{
    for (uint64_t d = DIVISOR_MAX; d > 0; d--)
        if (padded % (d * tp) == 0 && hl_partition_padded_vocab(vocab, d, tp) == padded) {
            *out = (int)d;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL,
                   "the embedding has %" PRIu64
                   " rows, which is not a padded size of a vocabulary of %" PRIu64 " at TP %" PRIu64
                   ": " GIVE_CONFIG " with its true vocab_size",
                   padded, vocab, tp);
}

/* ---- the model ------------------------------------------------------------------------------- */

struct config_builder {
    const struct hl_pickle_value *args;
    struct hl_megatron_sizes sizes;
    json_t *doc;
    const char *bad; /* the first argument that should be a number but is not */
    bool failed;
};

static void set_field(struct config_builder *b, const char *field, json_t *value)
{
    b->failed |= json_object_set_new(b->doc, field, value) != 0;
}

static void put_size(struct config_builder *b, const char *field, uint64_t value)
{
    set_field(b, field, json_integer((json_int_t)value));
}

/* Copies a number from args to the config under another name. None is left out. */
static void put_arg(struct config_builder *b, const char *field, const char *name)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(b->args, name);
    if (v == NULL || v->kind == HL_PICKLE_NONE)
        return;
    if (v->kind == HL_PICKLE_INT)
        set_field(b, field, json_integer(v->integer));
    else if (v->kind == HL_PICKLE_FLOAT)
        set_field(b, field, json_real(v->real));
    else if (v->kind == HL_PICKLE_BOOL)
        set_field(b, field, json_boolean(v->integer != 0));
    else if (b->bad == NULL)
        b->bad = name;
}

/* The same, but None becomes `absent`, because Hugging Face's class has another default. */
static void put_arg_or(struct config_builder *b, const char *field, const char *name,
                       json_t *absent)
{
    set_field(b, field, absent);
    put_arg(b, field, name);
}

static bool text_is(const struct config_builder *b, const char *name, const char *text)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(b->args, name);
    return v != NULL && hl_pickle_text_is(v, text);
}

static bool has_flag(const struct config_builder *b, const char *name)
{
    return hl_megatron_arg_flag(b->args, name);
}

static void put_names(struct config_builder *b, const char *type, const char *class)
{
    set_field(b, "model_type", json_string(type));
    set_field(b, "architectures", json_pack("[s]", class));
}

static const char *dtype_name(const struct config_builder *b)
{
    return has_flag(b, "bf16") ? "bfloat16" : has_flag(b, "fp16") ? "float16" : "float32";
}

/* Writes the vocabulary's true size. If args lack it, the padded size is used, and the padding
 * counts as the last words. */
HL_CHECK static hl_status put_vocabulary(struct config_builder *b)
{
    uint64_t vocab;
    HL_TRY(hl_megatron_arg_size(b->args, "vocab_size", b->sizes.padded_vocab, &vocab));
    if (vocab == 0)
        return hl_fail(HL_EINVAL,
                       "args has neither vocab_size nor padded_vocab_size: " GIVE_CONFIG);
    put_size(b, "vocab_size", vocab);
    return HL_OK;
}

HL_CHECK static hl_status put_common(struct config_builder *b)
{
    put_size(b, "hidden_size", b->sizes.hidden);
    put_size(b, "intermediate_size", b->sizes.ffn);
    put_size(b, "num_hidden_layers", b->sizes.layers);
    put_size(b, "num_attention_heads", b->sizes.heads);
    put_size(b, "num_key_value_heads", b->sizes.kv_heads);
    put_size(b, "max_position_embeddings", b->sizes.positions);
    set_field(b, "tie_word_embeddings", json_boolean(!b->sizes.untied));
    set_field(b, "torch_dtype", json_string(dtype_name(b)));
    put_arg(b, "rope_theta", "rotary_base");
    if (has_flag(b, "use_rope_scaling")) {
        json_t *scaling = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                                    8.0, "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                    "original_max_position_embeddings", 8192);
        const struct hl_pickle_value *v = hl_pickle_attribute(b->args, "rope_scaling_factor");
        if (v != NULL && v->kind == HL_PICKLE_FLOAT)
            json_object_set_new(scaling, "factor", json_real(v->real));
        set_field(b, "rope_scaling", scaling);
    }
    return put_vocabulary(b);
}

HL_CHECK static hl_status put_gated(struct config_builder *b)
{
    put_arg(b, "rms_norm_eps", "norm_epsilon");
    set_field(b, "hidden_act", json_string("silu"));
    if (!has_flag(b, "multi_latent_attention"))
        put_arg(b, "head_dim", "kv_channels");
    return put_common(b);
}

/* Whether the layer has experts. args.moe_layer_freq is a list with 1 for each such layer, or a
 * number n: every n-th layer has them. */
HL_CHECK static hl_status layer_has_experts(const struct config_builder *b, uint64_t layer,
                                            bool *out)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(b->args, "moe_layer_freq");
    const struct hl_pickle_items *list = v != NULL ? hl_pickle_sequence(v) : NULL;
    uint64_t n = 1;
    if (list == NULL) {
        HL_TRY(hl_megatron_arg_size(b->args, "moe_layer_freq", 1, &n));
        *out = n > 0 && layer % n == 0;
        return HL_OK;
    }
    if (list->count != b->sizes.layers)
        return hl_fail(HL_EINVAL, "args.moe_layer_freq lists %u layers of %" PRIu64, list->count,
                       b->sizes.layers);
    HL_TRY(hl_pickle_size(list->at[layer], &n));
    *out = n != 0;
    return HL_OK;
}

/* Lists the layers without experts. *first: how many of them come before any layer with experts. */
HL_CHECK static hl_status dense_layers(const struct config_builder *b, json_t *list,
                                       uint64_t *first)
{
    bool experts = false;
    *first = 0;
    for (uint64_t i = 0; i < b->sizes.layers && i < LAYERS_MAX; i++) {
        HL_TRY(layer_has_experts(b, i, &experts));
        if (!experts && *first == i)
            *first = i + 1;
        if (!experts && json_array_append_new(list, json_integer((json_int_t)i)) != 0)
            return hl_fail(HL_ENOMEM, "list of dense layers");
    }
    return HL_OK;
}

HL_CHECK static hl_status refuse_model(const struct config_builder *b, const char *why)
{
    (void)b;
    return hl_fail(HL_EUNSUPPORTED,
                   "args describe a model with %s, which matches no family: " GIVE_CONFIG, why);
}

/* Writes YaRN's fields as models with latent attention have them. Values that older args lack get
 * Megatron's own defaults. */
static void put_yarn(struct config_builder *b)
{
    static const struct {
        const char *field, *name;
        double absent;
    } rows[] = {{"factor", "rotary_scaling_factor", 1},
                {"mscale", "mscale", 1},
                {"mscale_all_dim", "mscale_all_dim", 0},
                {"beta_fast", "beta_fast", 32},
                {"beta_slow", "beta_slow", 1},
                {"original_max_position_embeddings", "original_max_position_embeddings", 4096}};

    if (!text_is(b, "rope_type", "yarn"))
        return;
    json_t *whole = b->doc;
    b->doc = json_pack("{s:s, s:s}", "type", "yarn", "rope_type", "yarn");
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        put_arg_or(b, rows[i].field, rows[i].name,
                   rows[i].absent > 100 ? json_integer((json_int_t)rows[i].absent)
                                        : json_real(rows[i].absent));
    json_t *scaling = b->doc;
    b->doc = whole;
    set_field(b, "rope_scaling", scaling);
}

HL_CHECK static hl_status put_deepseek(struct config_builder *b, uint64_t moe_ffn, uint64_t shared,
                                       json_t *dense, uint64_t first)
{
    bool v3 = has_flag(b, "moe_router_enable_expert_bias");
    if (b->sizes.experts == 0)
        return refuse_model(b, "latent attention and no experts");
    if (json_array_size(dense) != first || shared % moe_ffn != 0)
        return refuse_model(b, "latent attention and a mix of layers that DeepSeek does not have");
    put_names(b, v3 ? "deepseek_v3" : "deepseek_v2",
              v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM");
    put_arg(b, "q_lora_rank", "q_lora_rank");
    put_arg(b, "kv_lora_rank", "kv_lora_rank");
    put_arg(b, "qk_nope_head_dim", "qk_head_dim");
    put_arg(b, "qk_rope_head_dim", "qk_pos_emb_head_dim");
    put_arg(b, "v_head_dim", "v_head_dim");
    put_size(b, "n_routed_experts", b->sizes.experts);
    put_size(b, "n_shared_experts", shared / moe_ffn);
    put_size(b, "moe_intermediate_size", moe_ffn);
    put_size(b, "first_k_dense_replace", first);
    put_arg(b, "num_experts_per_tok", "moe_router_topk");
    put_arg_or(b, "n_group", "moe_router_num_groups", json_integer(1));
    put_arg_or(b, "topk_group", "moe_router_group_topk", json_integer(1));
    put_arg_or(b, "routed_scaling_factor", "moe_router_topk_scaling_factor", json_real(1.0));
    set_field(b, "norm_topk_prob", json_boolean(v3 || !has_flag(b, "moe_router_pre_softmax")));
    put_yarn(b);
    set_field(
        b, "scoring_func",
        json_string(text_is(b, "moe_router_score_function", "sigmoid") ? "sigmoid" : "softmax"));
    HL_TRY(put_gated(b));
    put_size(b, "num_key_value_heads", b->sizes.heads);
    return HL_OK;
}

HL_CHECK static hl_status put_experts(struct config_builder *b, uint64_t moe_ffn, uint64_t shared,
                                      json_t *dense, uint64_t first)
{
    bool qk_norm = has_flag(b, "qk_layernorm"), bias = has_flag(b, "moe_router_enable_expert_bias");
    put_arg(b, "num_experts_per_tok", "moe_router_topk");
    if (shared == 0 && !qk_norm && !bias && !has_flag(b, "add_qkv_bias") &&
        json_array_size(dense) == 0) {
        put_names(b, "mixtral", "MixtralForCausalLM");
        put_size(b, "num_local_experts", b->sizes.experts);
        HL_TRY(put_gated(b));
        put_size(b, "intermediate_size", moe_ffn);
        return HL_OK;
    }
    put_size(b, "moe_intermediate_size", moe_ffn);
    if (bias && shared > 0 && shared % moe_ffn == 0 && json_array_size(dense) == first) {
        put_names(b, "glm4_moe", "Glm4MoeForCausalLM");
        put_size(b, "n_routed_experts", b->sizes.experts);
        put_size(b, "n_shared_experts", shared / moe_ffn);
        put_size(b, "first_k_dense_replace", first);
        set_field(b, "use_qk_norm", json_boolean(qk_norm));
        set_field(b, "attention_bias", json_boolean(has_flag(b, "add_qkv_bias")));
        put_arg(b, "partial_rotary_factor", "rotary_percent");
        put_arg(b, "routed_scaling_factor", "moe_router_topk_scaling_factor");
        return put_gated(b);
    }
    put_size(b, "num_experts", b->sizes.experts);
    set_field(b, "mlp_only_layers", json_incref(dense));
    set_field(b, "decoder_sparse_step", json_integer(1));
    set_field(b, "norm_topk_prob", json_boolean(!has_flag(b, "moe_router_pre_softmax")));
    if (qk_norm && shared == 0 && !bias) {
        put_names(b, "qwen3_moe", "Qwen3MoeForCausalLM");
        return put_gated(b);
    }
    if (!qk_norm && shared > 0 && has_flag(b, "moe_shared_expert_gate") && !bias) {
        put_names(b, "qwen2_moe", "Qwen2MoeForCausalLM");
        put_size(b, "shared_expert_intermediate_size", shared);
        set_field(b, "qkv_bias", json_boolean(has_flag(b, "add_qkv_bias")));
        return put_gated(b);
    }
    return refuse_model(b, "experts in its own form");
}

HL_CHECK static hl_status put_sparse(struct config_builder *b)
{
    uint64_t moe_ffn, shared, first = 0;
    HL_TRY(hl_megatron_arg_size(b->args, "moe_ffn_hidden_size", b->sizes.ffn, &moe_ffn));
    HL_TRY(hl_megatron_arg_size(b->args, "moe_shared_expert_intermediate_size", 0, &shared));
    json_t *dense = json_array();
    hl_status st = moe_ffn > 0 ? dense_layers(b, dense, &first)
                               : hl_fail(HL_EINVAL, "args.moe_ffn_hidden_size is 0");
    if (st == HL_OK)
        st = (has_flag(b, "multi_latent_attention") ? put_deepseek : put_experts)(
            b, moe_ffn, shared, dense, first);
    json_decref(dense);
    return st;
}

HL_CHECK static hl_status put_dense(struct config_builder *b)
{
    bool linear_bias = has_flag(b, "add_bias_linear"), qkv_bias = has_flag(b, "add_qkv_bias");
    if (has_flag(b, "qk_layernorm") && !linear_bias) {
        put_names(b, "qwen3", "Qwen3ForCausalLM");
        set_field(b, "attention_bias", json_boolean(qkv_bias));
    } else if (qkv_bias && !linear_bias) {
        put_names(b, "qwen2", "Qwen2ForCausalLM");
    } else {
        put_names(b, "llama", "LlamaForCausalLM");
        set_field(b, "attention_bias", json_boolean(linear_bias));
        set_field(b, "mlp_bias", json_boolean(linear_bias));
    }
    return put_gated(b);
}

HL_CHECK static hl_status put_gpt(struct config_builder *b)
{
    if (!has_flag(b, "add_bias_linear") || b->sizes.kv_heads != b->sizes.heads)
        return refuse_model(b, "layer norms and no biases, or grouped queries");
    if (!text_is(b, "position_embedding_type", "learned_absolute")) {
        put_names(b, "gpt_neox", "GPTNeoXForCausalLM");
        put_arg(b, "layer_norm_eps", "norm_epsilon");
        put_arg(b, "rotary_pct", "rotary_percent");
        put_arg(b, "rotary_emb_base", "rotary_base");
        set_field(b, "use_parallel_residual", json_false());
        return put_common(b);
    }
    if (b->sizes.untied)
        return refuse_model(b, "learned positions and a head of its own");
    put_names(b, "gpt2", "GPT2LMHeadModel");
    put_size(b, "n_embd", b->sizes.hidden);
    put_size(b, "n_inner", b->sizes.ffn);
    put_size(b, "n_layer", b->sizes.layers);
    put_size(b, "n_head", b->sizes.heads);
    put_size(b, "n_positions", b->sizes.positions);
    set_field(b, "torch_dtype", json_string(dtype_name(b)));
    put_arg(b, "layer_norm_epsilon", "norm_epsilon");
    return put_vocabulary(b);
}

/* ---- what a config made of args can't say ---------------------------------------------------- */

/* True for None, False and `usual`, which mean what every family does anyway. Any other value, and
 * anything that is not a number, is unusual. */
static bool is_usual(const struct hl_pickle_value *v, double usual)
{
    if (v == NULL || v->kind == HL_PICKLE_NONE)
        return true;
    if (v->kind == HL_PICKLE_FLOAT)
        return v->real == usual;
    return (v->kind == HL_PICKLE_BOOL || v->kind == HL_PICKLE_INT) &&
           ((double)v->integer == usual || (v->kind == HL_PICKLE_BOOL && v->integer == 0));
}

struct usual_arg {
    const char *name;
    double usual;
    const char *what;
};

HL_CHECK static hl_status check_usual(const struct config_builder *b, const struct usual_arg *list,
                                      size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!is_usual(hl_pickle_attribute(b->args, list[i].name), list[i].usual))
            return hl_fail(
                HL_EUNSUPPORTED,
                "args.%s is set, %s, which a config derived from args can't express: " GIVE_CONFIG,
                list[i].name, list[i].what);
    return HL_OK;
}

/* These arguments leave the tensors unchanged but change what the model computes. */
HL_CHECK static hl_status check_computation(const struct config_builder *b)
{
    static const struct usual_arg all[] = {
        {"apply_layernorm_1p", 0, "norm weights are stored minus 1"},
        {"rotary_interleaved", 0, "rotary embedding pairs neighbours"},
        {"rotary_seq_len_interpolation_factor", 1, "positions are interpolated"},
        {"no_rope_freq", 0, "some layers have no rotary embedding"},
        {"window_size", 0, "attention has a window"},
        {"qk_l2_norm", 0, "queries and keys are normed without weights"},
        {"squared_relu", 0, "the activation is squared ReLU"},
        {"quick_geglu", 0, "the activation is quick GeGLU"},
        {"activation_func_clamp_value", 0, "activations are clamped"},
        {"glu_linear_offset", 0, "activations have an offset"},
        {"moe_apply_probs_on_input", 0, "experts' inputs are scaled"},
        {"use_mup", 0, "outputs are scaled by muP"},
    };
    static const struct usual_arg whole_heads[] = {
        {"rotary_percent", 1, "rotary embedding is of a part of each head"}};
    static const struct usual_arg plain_router[] = {
        {"moe_router_num_groups", 0, "experts are chosen by group"},
        {"moe_router_topk_scaling_factor", 1, "experts' outputs are scaled"}};
    const char *type = json_string_value(json_object_get(b->doc, "model_type"));
    bool part =
        strcmp(type, "glm4_moe") == 0 || strcmp(type, "gpt_neox") == 0 || strcmp(type, "gpt2") == 0;
    bool plain = strcmp(type, "mixtral") == 0 || strncmp(type, "qwen", 4) == 0;
    HL_TRY(check_usual(b, all, HL_ARRAY_LEN(all)));
    HL_TRY(check_usual(b, whole_heads, part ? 0 : HL_ARRAY_LEN(whole_heads)));
    return check_usual(b, plain_router, plain ? HL_ARRAY_LEN(plain_router) : 0);
}

/* Checks that an argument which the family depends on is one of these words. */
HL_CHECK static hl_status check_word(const struct config_builder *b, const char *name,
                                     const char *const *words)
{
    char what[256];
    const struct hl_pickle_value *v = hl_pickle_attribute(b->args, name);
    bool known = v == NULL || v->kind == HL_PICKLE_NONE;
    for (; *words != NULL && !known; words++)
        known = hl_pickle_text_is(v, *words);
    if (known)
        return HL_OK;
    if (v->kind == HL_PICKLE_TEXT)
        snprintf(what, sizeof(what), "'%.*s'", (int)(v->text.len < 80 ? v->text.len : 80),
                 v->text.data);
    else
        hl_pickle_what(v, what, sizeof(what));
    return hl_fail(HL_EUNSUPPORTED, "args.%s is %s, which matches no family: " GIVE_CONFIG, name,
                   what);
}

HL_CHECK static hl_status check_words(const struct config_builder *b)
{
    static const char *const norms[] = {"RMSNorm", "LayerNorm", NULL};
    static const char *const positions[] = {"rope", "learned_absolute", NULL};
    static const char *const ropes[] = {"rope", "yarn", NULL};
    static const char *const scores[] = {"softmax", "sigmoid", NULL};
    HL_TRY(check_word(b, "normalization", norms));
    HL_TRY(check_word(b, "position_embedding_type", positions));
    HL_TRY(check_word(b, "rope_type", ropes));
    return check_word(b, "moe_router_score_function", scores);
}

/* Writes the number of multi-token prediction layers. A family without such layers would drop them,
 * so it is refused. */
HL_CHECK static hl_status put_mtp(struct config_builder *b)
{
    uint64_t count;
    const char *type = json_string_value(json_object_get(b->doc, "model_type"));
    HL_TRY(hl_megatron_arg_size(b->args, "mtp_num_layers", 0, &count));
    if (count == 0)
        return HL_OK;
    if (has_flag(b, "mtp_use_repeated_layer"))
        return refuse_model(b, "one layer that predicts several tokens");
    if (type == NULL || (strcmp(type, "deepseek_v3") != 0 && strcmp(type, "glm4_moe") != 0))
        return refuse_model(b, "layers that predict more tokens");
    put_size(b, "num_nextn_predict_layers", count);
    return HL_OK;
}

HL_CHECK static hl_status put_family(struct config_builder *b)
{
    bool rms = text_is(b, "normalization", "RMSNorm");
    if (rms && b->sizes.gated && b->sizes.experts > 0)
        return put_sparse(b);
    if (rms && b->sizes.gated && !has_flag(b, "multi_latent_attention"))
        return put_dense(b);
    if (!rms && !b->sizes.gated && b->sizes.experts == 0)
        return put_gpt(b);
    return refuse_model(b, rms ? "RMS norms and an MLP that is not gated by SwiGLU"
                               : "layer norms and a gated MLP");
}

HL_CHECK static hl_status put_model(struct config_builder *b)
{
    char what[256];
    HL_TRY(check_words(b));
    HL_TRY(put_family(b));
    HL_TRY(put_mtp(b));
    if (b->bad != NULL)
        return hl_fail(HL_EUNSUPPORTED, "args.%s is %s, not a number: " GIVE_CONFIG, b->bad,
                       hl_pickle_what(hl_pickle_attribute(b->args, b->bad), what, sizeof(what)));
    return check_computation(b);
}

hl_status hl_megatron_config(const struct hl_pickle_value *root, char **out)
{
    struct config_builder b = {.doc = json_object()};
    hl_status st = hl_megatron_args(root, &b.args);
    if (st == HL_OK)
        st = hl_megatron_sizes_read(root, &b.sizes);
    if (st == HL_OK)
        st = put_model(&b);
    char *text = st == HL_OK && !b.failed ? json_dumps(b.doc, JSON_COMPACT) : NULL;
    json_decref(b.doc);
    HL_TRY(st);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "description of the model");
    *out = text;
    return HL_OK;
}

/* Refuses an option that stores weights in a form that only one of Hugging Face's families has,
 * unless the model is of that family. */
HL_CHECK static hl_status check_forms(const struct hl_pickle_value *root,
                                      const struct hl_hf_config *config)
{
    static const struct {
        const char *name, *family, *what;
    } table[] = {
        {"apply_layernorm_1p", "gemma", "norm weights are stored minus 1"},
        {"rotary_interleaved", "llama4", "rotary embedding pairs neighbours"},
    };

    const struct hl_pickle_value *args = NULL;
    HL_TRY(hl_megatron_args(root, &args));
    for (size_t i = 0; i < HL_ARRAY_LEN(table); i++)
        if (is_set(args, table[i].name) &&
            strncmp(config->family->name, table[i].family, strlen(table[i].family)) != 0)
            return hl_fail(HL_EUNSUPPORTED,
                           "args.%s is set, %s, which a %s model of Hugging Face doesn't have: "
                           "convert the checkpoint with Megatron",
                           table[i].name, table[i].what, config->family->name);
    return HL_OK;
}

hl_status hl_megatron_check_config(const struct hl_pickle_value *root,
                                   const struct hl_hf_config *config)
{
    struct hl_megatron_sizes s;
    HL_TRY(hl_megatron_sizes_read(root, &s));

    const struct {
        const char *name;
        uint64_t has, want;
    } table[] = {
        {"num_layers", s.layers, config->layers},
        {"hidden_size", s.hidden, config->hidden},
        {"num_attention_heads", s.heads, config->heads},
        {"num_query_groups", s.kv_heads, config->family->mla ? s.kv_heads : config->kv_heads},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(table); i++)
        if (table[i].has != table[i].want)
            return hl_fail(HL_EINVAL,
                           "the checkpoint's args.%s is %" PRIu64 ", config.json says %" PRIu64
                           ": provide the config.json of this model",
                           table[i].name, table[i].has, table[i].want);
    HL_TRY(check_forms(root, config));
    if (s.untied == (config->tied != 0))
        return hl_fail(
            HL_EINVAL,
            "the checkpoint's args.untie_embeddings_and_output_weights is %s, config.json says "
            "tie_word_embeddings %s: provide the config.json of this model",
            s.untied ? "True" : "False", config->tied ? "true" : "false");
    return HL_OK;
}
