#include "core/model/megatron_args.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/model/hf.h"
#include "core/model/model_config.h"

struct args_builder {
    const struct hl_megatron_args *in;
    struct hl_model_config config;
    struct hl_hf_config hf;
    struct hl_hf_training training;
    json_t *args;
    json_t *notes;
    bool failed;
};

static void args_builder_fini(struct args_builder *b)
{
    hl_hf_config_fini(&b->hf);
    hl_model_config_fini(&b->config);
    json_decref(b->args);
    json_decref(b->notes);
}

static void args_set(struct args_builder *b, const char *name, json_t *value)
{
    b->failed |= json_object_set_new(b->args, name, value) != 0;
}

static void set_int(struct args_builder *b, const char *name, uint64_t value)
{
    args_set(b, name, json_integer((json_int_t)value));
}

static void set_bool(struct args_builder *b, const char *name, bool value)
{
    args_set(b, name, json_boolean(value));
}

static void set_text(struct args_builder *b, const char *name, const char *value)
{
    args_set(b, name, json_string(value));
}

static void set_none(struct args_builder *b, const char *name)
{
    args_set(b, name, json_null());
}

static void args_note(struct args_builder *b, json_t *text)
{
    b->failed |= json_array_append_new(b->notes, text) != 0;
}

static void set_sizes(struct args_builder *b)
{
    const struct hl_hf_config *c = &b->hf;
    bool grouped = c->kv_heads != c->heads && !c->family->mla;
    set_int(b, "num_layers", c->layers);
    set_int(b, "hidden_size", c->hidden);
    set_int(b, "ffn_hidden_size", c->ffn);
    set_int(b, "num_attention_heads", c->heads);
    set_bool(b, "group_query_attention", grouped);
    set_int(b, "num_query_groups", grouped ? c->kv_heads : 1);
    set_int(b, "kv_channels", c->head_dim);
    set_int(b, "seq_length", c->max_positions);
    set_int(b, "max_position_embeddings", c->max_positions);
    set_int(b, "make_vocab_size_divisible_by", (uint64_t)b->config.sizes.vocab_divisor);
    set_int(b, "vocab_size", c->vocab); /* tells which rows are padding */
    set_int(b, "padded_vocab_size", b->config.sizes.padded_vocab);
    set_bool(b, "untie_embeddings_and_output_weights", !c->tied);
}

/* Most versions only accept an integer for --rotary-base. */
static void set_rotary_base(struct args_builder *b, double base)
{
    bool whole = base >= 0 && base < 1e15 && (double)(uint64_t)base == base;
    if (whole)
        set_int(b, "rotary_base", (uint64_t)base);
    else
        args_set(b, "rotary_base", json_real(base));
}

/* Megatron only has arguments for llama 3's scaling, with fixed frequency factors. */
static void set_rope_scaling(struct args_builder *b)
{
    const struct hl_hf_training *t = &b->training;
    const char *type = t->rope.type;
    bool llama3 = strcmp(type, "llama3") == 0 && t->rope.low_freq_factor == 1 &&
                  t->rope.high_freq_factor == 4 && t->rope.original_positions == 8192;
    if (strcmp(type, "default") == 0) {
        set_bool(b, "use_rope_scaling", false);
    } else if (llama3) {
        set_bool(b, "use_rope_scaling", true);
        args_set(b, "rope_scaling_factor", json_real(t->rope.factor));
    } else {
        args_note(b, json_sprintf("rope_scaling of type %s has no argument in Megatron with these "
                                  "factors; the exported args leave it out",
                                  type));
    }
}

/* ---- what config.json says besides ----------------------------------------------------------- */

/* A number of config.json. */
HL_CHECK static hl_status read_number(const json_t *object, const char *field, double absent,
                                      double *out)
{
    const json_t *v = json_object_get(object, field);
    *out = absent;
    if (v == NULL || json_is_null(v))
        return HL_OK;
    if (!json_is_number(v))
        return hl_fail(HL_EINVAL, "the model's config: field '%s' is not a number", field);
    *out = json_number_value(v);
    return HL_OK;
}

/* A value of the family's table for a layer; `absent` if the table does not have it. */
HL_CHECK static hl_status read_symbol(const struct args_builder *b, const char *name,
                                      uint64_t layer, uint64_t absent, uint64_t *out)
{
    struct hl_family_scope scope = hl_hf_scope(&b->hf, layer);
    *out = absent;
    if (hl_family_symbol_index(b->hf.family, name, strlen(name)) < 0)
        return HL_OK;
    return hl_family_size(&scope, name, absent, out);
}

/* *out: in Megatron, the layer has a tensor of that name. */
HL_CHECK static hl_status read_has(const struct args_builder *b, const char *name, uint64_t layer,
                                   bool *out)
{
    struct hl_family_scope scope = hl_hf_scope(&b->hf, layer);
    const struct hl_family_tensor *row = b->hf.family->tensors;
    uint64_t wanted = 0;
    while (row->name != NULL && strcmp(row->name, name) != 0)
        row++;
    if (row->name != NULL)
        HL_TRY(hl_family_size(&scope, row->when, 1, &wanted));
    *out = wanted != 0;
    return HL_OK;
}

/* The config's fields about positions; older files have some of them at the top level. */
static const json_t *rope_fields(const struct args_builder *b)
{
    const json_t *scaling = json_object_get(b->hf.fields, "rope_scaling");
    return json_is_object(scaling) ? scaling : json_object_get(b->hf.fields, "rope_parameters");
}

/* Families with latent attention also use YaRN in Megatron. */
HL_CHECK static hl_status set_latent_rope(struct args_builder *b)
{
    const json_t *scaling = rope_fields(b);
    bool yarn = strcmp(b->training.rope.type, "yarn") == 0;
    double factor, scale, all, fast, slow;
    HL_TRY(read_number(scaling, "factor", 1, &factor));
    HL_TRY(read_number(scaling, "mscale", 1, &scale));
    HL_TRY(read_number(scaling, "mscale_all_dim", 0, &all));
    HL_TRY(read_number(scaling, "beta_fast", 32, &fast));
    HL_TRY(read_number(scaling, "beta_slow", 1, &slow));
    set_text(b, "rope_type", yarn ? "yarn" : "rope");
    args_set(b, "rotary_scaling_factor", json_real(yarn ? factor : 1.0));
    args_set(b, "mscale", json_real(yarn ? scale : 1.0));
    args_set(b, "mscale_all_dim", json_real(yarn ? all : 0.0));
    if (yarn)
        set_int(b, "original_max_position_embeddings",
                (uint64_t)b->training.rope.original_positions);
    if (yarn && (fast != 32 || slow != 1 || b->training.rope.original_positions != 4096))
        args_note(b, json_string("rope_scaling: not every version of Megatron has arguments for "
                                 "YaRN's beta_fast, beta_slow and original positions; its "
                                 "defaults are 32, 1 and 4096"));
    if (!yarn && strcmp(b->training.rope.type, "default") != 0)
        args_note(b, json_sprintf("rope_scaling of type %s has no argument in Megatron for latent "
                                  "attention; the exported args leave it out",
                                  b->training.rope.type));
    return HL_OK;
}

HL_CHECK static hl_status set_latent(struct args_builder *b)
{
    static const struct {
        const char *name, *symbol;
    } table[] = {{"kv_lora_rank", "kv_lora"},
                 {"qk_head_dim", "nope"},
                 {"qk_pos_emb_head_dim", "rope"},
                 {"v_head_dim", "v_dim"},
                 {"kv_channels", "v_dim"}};

    uint64_t n;
    set_bool(b, "multi_latent_attention", b->hf.family->mla);
    if (!b->hf.family->mla)
        return HL_OK;
    for (size_t i = 0; i < HL_ARRAY_LEN(table); i++) {
        HL_TRY(read_symbol(b, table[i].symbol, 0, 0, &n));
        set_int(b, table[i].name, n);
    }
    HL_TRY(read_symbol(b, "q_lora", 0, 0, &n));
    args_set(b, "q_lora_rank", n > 0 ? json_integer((json_int_t)n) : json_null());
    return set_latent_rope(b);
}

static void set_positions(struct args_builder *b)
{
    bool rope = b->hf.layout != HL_LAYOUT_GPT2;
    set_text(b, "position_embedding_type", rope ? "rope" : "learned_absolute");
    set_bool(b, "add_position_embedding", true);          /* Megatron's default, also for rope */
    set_bool(b, "use_rotary_position_embeddings", false); /* an older spelling of "rope" */
    if (!rope)
        return;
    set_rotary_base(b, b->hf.rope_theta);
    args_set(b, "rotary_percent", json_real(1.0));
    set_bool(b, "rotary_interleaved", false);
    if (!b->hf.family->mla)
        set_rope_scaling(b);
    if (b->training.window > 0)
        args_note(b, json_sprintf("sliding_window %lld is not in the exported args; give Megatron "
                                  "--window-size if your version has it",
                                  (long long)b->training.window));
}

static void set_activation(struct args_builder *b)
{
    const char *act = b->training.activation;
    if (b->hf.layout == HL_LAYOUT_GPT2)
        set_bool(b, "swiglu", false);
    else if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0)
        set_bool(b, "swiglu", true);
    else
        args_note(b, json_sprintf("a gated MLP with hidden_act %s is not Megatron's --swiglu; the "
                                  "exported args leave it out",
                                  act));
    set_bool(b, "squared_relu", false);
}

static void set_biases(struct args_builder *b)
{
    const struct hl_hf_config *c = &b->hf;
    if (c->proj_bias == c->mlp_bias)
        set_bool(b, "add_bias_linear", c->mlp_bias);
    else
        args_note(
            b, json_string("the model has biases in attention or in the MLP only, and Megatron's "
                           "add_bias_linear means both; the exported args leave it out"));
    set_bool(b, "add_qkv_bias", c->qkv_bias);
}

static void set_layers(struct args_builder *b)
{
    bool gpt2 = b->hf.layout == HL_LAYOUT_GPT2;
    set_positions(b);
    set_activation(b);
    set_biases(b);
    set_text(b, "normalization", gpt2 ? "LayerNorm" : "RMSNorm");
    args_set(b, "norm_epsilon", json_real(b->hf.norm_eps));
    set_bool(b, "apply_layernorm_1p", false);
    set_bool(b, "apply_query_key_layer_scaling", false);
    args_set(b, "attention_dropout", json_real(b->training.attention_dropout));
    args_set(b, "hidden_dropout", json_real(b->training.hidden_dropout));
    set_none(b, "spec");
}

/* ---- experts --------------------------------------------------------------------------------- */

/* 1 = every layer has experts; else a list of 0 and 1. */
HL_CHECK static hl_status set_expert_layers(struct args_builder *b)
{
    json_t *list = json_array();
    bool all = true;
    for (uint64_t i = 0; i < b->hf.layers; i++) {
        uint64_t moe;
        hl_status st = read_symbol(b, "moe", i, 1, &moe);
        if (st != HL_OK) {
            json_decref(list);
            return st;
        }
        all = all && moe != 0;
        b->failed |= json_array_append_new(list, json_integer(moe != 0)) != 0;
    }
    args_set(b, "moe_layer_freq", all ? json_integer(1) : json_incref(list));
    json_decref(list);
    return HL_OK;
}

/* Only some groups of experts serve each token. */
HL_CHECK static hl_status set_router_groups(struct args_builder *b)
{
    double groups, taken;
    HL_TRY(read_number(b->hf.fields, "n_group", 1, &groups));
    HL_TRY(read_number(b->hf.fields, "topk_group", 1, &taken));
    set_none(b, "moe_router_num_groups");
    set_none(b, "moe_router_group_topk");
    if (groups <= 1)
        return HL_OK;
    set_int(b, "moe_router_num_groups", (uint64_t)groups);
    set_int(b, "moe_router_group_topk", (uint64_t)taken);
    return HL_OK;
}

/* Used only in training. */
HL_CHECK static hl_status set_router_losses(struct args_builder *b)
{
    double factor;
    HL_TRY(read_number(b->hf.fields, "aux_loss_alpha", 0, &factor));
    HL_TRY(read_number(b->hf.fields, "router_aux_loss_coef", factor, &factor));
    set_text(b, "moe_router_load_balancing_type", b->hf.family->mla ? "seq_aux_loss" : "aux_loss");
    args_set(b, "moe_aux_loss_coeff", json_real(factor));
    return HL_OK;
}

/* If a model doesn't normalize the weights of the top k, softmax is applied before they are
 * chosen. */
HL_CHECK static hl_status set_router_scores(struct args_builder *b)
{
    const char *function = json_string_value(json_object_get(b->hf.fields, "scoring_func"));
    const json_t *normed = json_object_get(b->hf.fields, "norm_topk_prob");
    double factor;
    bool bias;
    HL_TRY(read_has(b, "mlp.router.expert_bias", b->hf.layers - 1, &bias));
    bool sigmoid = function != NULL ? strcmp(function, "sigmoid") == 0 : bias;
    bool norm = json_is_boolean(normed) ? json_is_true(normed)
                                        : sigmoid || strcmp(b->hf.architecture, "mixtral") == 0;
    set_text(b, "moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
    set_bool(b, "moe_router_pre_softmax", sigmoid || !norm);
    set_bool(b, "moe_router_enable_expert_bias", bias);
    if (sigmoid && !norm)
        args_note(b, json_string("norm_topk_prob is false, but Megatron's sigmoid router "
                                 "normalizes the weights of a token's experts"));
    HL_TRY(read_number(b->hf.fields, "routed_scaling_factor", 1, &factor));
    args_set(b, "moe_router_topk_scaling_factor", factor != 1 ? json_real(factor) : json_null());
    return HL_OK;
}

HL_CHECK static hl_status set_router(struct args_builder *b)
{
    double topk;
    HL_TRY(read_number(b->hf.fields, "num_experts_per_tok", 0, &topk));
    if (topk >= 1)
        set_int(b, "moe_router_topk", (uint64_t)topk);
    else
        args_note(b, json_string("config.json has no num_experts_per_tok: give Megatron "
                                 "--moe-router-topk"));
    HL_TRY(set_router_scores(b));
    HL_TRY(set_router_groups(b));
    return set_router_losses(b);
}

HL_CHECK static hl_status set_experts(struct args_builder *b)
{
    const struct hl_api_split *s = &b->config.split;
    uint64_t experts, ffn, shared;
    bool gate;
    HL_TRY(read_symbol(b, "experts", 0, 0, &experts));
    if (experts == 0) {
        set_none(b, "num_experts");
        return HL_OK;
    }
    HL_TRY(read_symbol(b, "moe_ffn", 0, b->hf.ffn, &ffn));
    HL_TRY(read_symbol(b, "shared_ffn", 0, 0, &shared));
    HL_TRY(read_has(b, "mlp.shared_experts.gate_weight", b->hf.layers - 1, &gate));
    set_int(b, "num_experts", experts);
    set_int(b, "moe_ffn_hidden_size", ffn);
    args_set(b, "moe_shared_expert_intermediate_size",
             shared > 0 ? json_integer((json_int_t)shared) : json_null());
    set_bool(b, "moe_shared_expert_gate", gate);
    /* Transformer Engine uses the experts of the grouped MLP. */
    set_bool(b, "moe_grouped_gemm", b->in->naming == HL_API_LAYER_NAMING_TE);
    set_int(b, "expert_model_parallel_size", (uint64_t)(s->ep > 0 ? s->ep : 1));
    set_int(b, "expert_tensor_parallel_size", (uint64_t)(s->etp > 0 ? s->etp : s->tp));
    HL_TRY(set_expert_layers(b));
    return set_router(b);
}

/* Layers for multi-token prediction, if the version has them. */
HL_CHECK static hl_status set_mtp(struct args_builder *b)
{
    uint64_t count = 0;
    if (b->in->mtp)
        HL_TRY(read_symbol(b, "mtp_layers", 0, 0, &count));
    args_set(b, "mtp_num_layers", count > 0 ? json_integer((json_int_t)count) : json_null());
    return HL_OK;
}

/* Settings that only some families have. */
HL_CHECK static hl_status set_family(struct args_builder *b)
{
    bool norms;
    double part;
    HL_TRY(read_has(b, "self_attention.q_layernorm.weight", 0, &norms));
    HL_TRY(read_number(rope_fields(b), "partial_rotary_factor", 1, &part));
    HL_TRY(read_number(b->hf.fields, "partial_rotary_factor", part, &part));
    set_bool(b, "qk_layernorm", norms || b->hf.family->mla);
    if (b->hf.layout != HL_LAYOUT_GPT2)
        args_set(b, "rotary_percent", json_real(part));
    HL_TRY(set_latent(b));
    HL_TRY(set_experts(b));
    return set_mtp(b);
}

static void set_parallelism(struct args_builder *b)
{
    const struct hl_api_split *s = &b->config.split;
    uint64_t chunks = (uint64_t)hl_split_chunks(s), pp = (uint64_t)s->pp, middle = 0;
    bool uneven = s->first_stage_layers > 0;
    /* All middle stages are equal; with two stages only the first has a number. */
    if (pp > 2 && uneven)
        middle = (b->hf.layers - (uint64_t)s->first_stage_layers - (uint64_t)s->last_stage_layers) /
                 (pp - 2);
    else if (pp > 1)
        middle = uneven ? (uint64_t)s->last_stage_layers : b->hf.layers / pp;
    bool first = uneven && (uint64_t)s->first_stage_layers != middle;
    bool last = uneven && pp > 2 && (uint64_t)s->last_stage_layers != middle;
    set_int(b, "tensor_model_parallel_size", (uint64_t)s->tp);
    set_int(b, "pipeline_model_parallel_size", pp);
    set_int(b, "expert_model_parallel_size", 1);
    set_int(b, "context_parallel_size", 1);
    set_bool(b, "sequence_parallel", false);
    set_none(b, "decoder_first_pipeline_num_layers");
    set_none(b, "decoder_last_pipeline_num_layers");
    if (first)
        set_int(b, "decoder_first_pipeline_num_layers", (uint64_t)s->first_stage_layers);
    if (last)
        set_int(b, "decoder_last_pipeline_num_layers", (uint64_t)s->last_stage_layers);
    set_none(b, "virtual_pipeline_model_parallel_size");
    set_none(b, "num_layers_per_virtual_pipeline_stage");
    set_none(b, "num_virtual_stages_per_pipeline_rank");
    if (chunks < 2)
        return;
    set_int(b, "virtual_pipeline_model_parallel_size", chunks);
    if (!first && !last)
        set_int(b, "num_layers_per_virtual_pipeline_stage", middle / chunks);
    else /* uneven stages need this argument instead */
        set_int(b, "num_virtual_stages_per_pipeline_rank", chunks);
}

static void set_rest(struct args_builder *b)
{
    bool bf16 = b->in->dtype == HL_DTYPE_BF16, fp16 = b->in->dtype == HL_DTYPE_F16;
    set_bool(b, "fp16", fp16);
    set_bool(b, "bf16", bf16);
    set_text(b, "params_dtype", bf16 ? "torch.bfloat16" : fp16 ? "torch.float16" : "torch.float32");
    set_text(b, "transformer_impl", hl_naming_transformer_impl(b->in->naming));
    set_text(b, "tokenizer_type",
             b->hf.layout == HL_LAYOUT_GPT2 ? "GPT2BPETokenizer" : "HuggingFaceTokenizer");
    set_bool(b, "use_legacy_models", false);
    set_bool(b, "data_parallel_random_init", false);
    set_text(b, "ckpt_format", "torch");
    set_bool(b, "no_save_optim", true); /* there is none in Megatron's own form */
    set_bool(b, "no_save_rng", true);
    set_int(b, "iteration", (uint64_t)b->in->iteration);
}

/* Families that Megatron's arguments can describe although they have no layout of their own. */
static bool is_known(const char *family)
{
    static const char *const known[] = {"qwen3",       "mixtral",     "qwen2_moe", "qwen3_moe",
                                        "deepseek_v2", "deepseek_v3", "glm4_moe"};
    for (size_t i = 0; i < HL_ARRAY_LEN(known); i++)
        if (strcmp(family, known[i]) == 0)
            return true;
    return false;
}

/* The import's config contains the Hugging Face config, which is parsed again. */
HL_CHECK static hl_status read_config(struct args_builder *b)
{
    HL_TRY(hl_model_config_read(b->in->config, &b->config));
    HL_TRY(hl_model_config_hf(&b->config, &b->hf));
    if (b->hf.layout == HL_LAYOUT_OTHER && !is_known(b->hf.architecture))
        return hl_fail(HL_EUNSUPPORTED,
                       "Megatron's arguments for a %s model are unknown; export with --no-args and "
                       "write them by hand",
                       b->hf.architecture);
    return hl_hf_training_read(&b->hf, "the model's config", &b->training);
}

hl_status hl_megatron_args_make(const struct hl_megatron_args *in, json_t **args, json_t **notes)
{
    HL_AUTO(args_builder_fini)
    struct args_builder b = {.in = in, .args = json_object(), .notes = json_array()};
    HL_TRY(read_config(&b));
    set_sizes(&b);
    set_layers(&b);
    set_parallelism(&b);
    HL_TRY(set_family(&b));
    set_rest(&b);
    if (b.failed)
        return hl_fail(HL_ENOMEM, "out of memory building Megatron's arguments");
    *args = json_incref(b.args);
    *notes = json_incref(b.notes);
    return HL_OK;
}

static void put_flag(struct hl_buf *b, const json_t *args, const char *flag, const char *name)
{
    const json_t *value = json_object_get(args, name);
    if (json_is_integer(value))
        (void)hl_buf_printf(b, " %s %lld", flag, (long long)json_integer_value(value));
    else if (json_is_real(value))
        (void)hl_buf_printf(b, " %s %.12g", flag, json_real_value(value));
    else if (json_is_string(value))
        (void)hl_buf_printf(b, " %s %s", flag, json_string_value(value));
    else if (json_is_true(value))
        (void)hl_buf_printf(b, " %s", flag);
}

static bool arg_is(const json_t *args, const char *name, const char *text)
{
    const char *has = json_string_value(json_object_get(args, name));
    return has != NULL && strcmp(has, text) == 0;
}

hl_status hl_megatron_flags(const json_t *args, char **out)
{
    static const struct {
        const char *flag;
        const char *name;
        int64_t absent; /* Megatron's default, which needs no flag */
    } table[] = {
        {"--transformer-impl", "transformer_impl", 0},
        {"--tensor-model-parallel-size", "tensor_model_parallel_size", 0},
        {"--pipeline-model-parallel-size", "pipeline_model_parallel_size", 0},
        {"--expert-model-parallel-size", "expert_model_parallel_size", 1},
        {"--expert-tensor-parallel-size", "expert_tensor_parallel_size", 0},
        {"--decoder-first-pipeline-num-layers", "decoder_first_pipeline_num_layers", 0},
        {"--decoder-last-pipeline-num-layers", "decoder_last_pipeline_num_layers", 0},
        {"--num-layers-per-virtual-pipeline-stage", "num_layers_per_virtual_pipeline_stage", 0},
        {"--num-virtual-stages-per-pipeline-rank", "num_virtual_stages_per_pipeline_rank", 0},
        {"--make-vocab-size-divisible-by", "make_vocab_size_divisible_by", 128},
        {"--norm-epsilon", "norm_epsilon", 0},
        {"--rotary-base", "rotary_base", 10000},
        {"--use-rope-scaling", "use_rope_scaling", 0},
        {"--rope-scaling-factor", "rope_scaling_factor", 0},
        {"--qk-layernorm", "qk_layernorm", 0},
        {"--multi-latent-attention", "multi_latent_attention", 0},
        {"--q-lora-rank", "q_lora_rank", 0},
        {"--kv-lora-rank", "kv_lora_rank", 0},
        {"--qk-head-dim", "qk_head_dim", 0},
        {"--qk-pos-emb-head-dim", "qk_pos_emb_head_dim", 0},
        {"--v-head-dim", "v_head_dim", 0},
        {"--rope-type", "rope_type", 0},
        {"--rotary-scaling-factor", "rotary_scaling_factor", 0},
        {"--mscale", "mscale", 0},
        {"--mscale-all-dim", "mscale_all_dim", 0},
        {"--moe-shared-expert-gate", "moe_shared_expert_gate", 0},
        {"--moe-router-load-balancing-type", "moe_router_load_balancing_type", 0},
        {"--moe-aux-loss-coeff", "moe_aux_loss_coeff", 0},
        {"--moe-router-num-groups", "moe_router_num_groups", 0},
        {"--moe-router-group-topk", "moe_router_group_topk", 0},
        {"--fp16", "fp16", 0},
        {"--bf16", "bf16", 0},
    };

    HL_AUTO(hl_buf_fini) struct hl_buf b = HL_BUF(4096);
    for (size_t i = 0; i < HL_ARRAY_LEN(table); i++)
        if (table[i].absent == 0 ||
            json_integer_value(json_object_get(args, table[i].name)) != table[i].absent)
            put_flag(&b, args, table[i].flag, table[i].name);
    /* Megatron's own RMS norm does not support the persistent kernel. */
    if (arg_is(args, "transformer_impl", "local") && arg_is(args, "normalization", "RMSNorm"))
        (void)hl_buf_printf(&b, " --no-persist-layer-norm");
    if (b.failed)
        return hl_fail(HL_ENOMEM, "out of memory building Megatron's flags");
    *out = hl_buf_take(&b);
    return HL_OK;
}
