#include "core/megatron_args.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/hf.h"
#include "core/model_config.h"

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
    bool grouped = c->kv_heads != c->heads;
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
    set_int(b, "padded_vocab_size", b->config.sizes.padded_vocab);
    set_bool(b, "untie_embeddings_and_output_weights", !c->tied);
}

/* --rotary-base takes a whole number in most versions. */
static void set_rotary_base(struct args_builder *b, double base)
{
    bool whole = base >= 0 && base < 1e15 && (double)(uint64_t)base == base;
    if (whole)
        set_int(b, "rotary_base", (uint64_t)base);
    else
        args_set(b, "rotary_base", json_real(base));
}

/* The one scaling that Megatron has arguments for is llama 3's, with fixed frequency factors. */
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

static void set_positions(struct args_builder *b)
{
    bool rope = b->hf.layout != HL_LAYOUT_GPT2;
    set_text(b, "position_embedding_type", rope ? "rope" : "learned_absolute");
    set_bool(b, "add_position_embedding",
             true); /* what Megatron has without a flag, also for rope */
    set_bool(b, "use_rotary_position_embeddings", false); /* an older spelling of "rope" */
    if (!rope)
        return;
    set_rotary_base(b, b->hf.rope_theta);
    args_set(b, "rotary_percent", json_real(1.0));
    set_bool(b, "rotary_interleaved", false);
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
    set_bool(b, "qk_layernorm", false);
    set_bool(b, "apply_query_key_layer_scaling", false);
    args_set(b, "attention_dropout", json_real(b->training.attention_dropout));
    args_set(b, "hidden_dropout", json_real(b->training.hidden_dropout));
    set_none(b, "num_experts");
    set_none(b, "mtp_num_layers");
    set_none(b, "spec");
}

static void set_parallelism(struct args_builder *b)
{
    const struct hl_api_split *s = &b->config.split;
    uint64_t chunks = (uint64_t)hl_split_chunks(s), pp = (uint64_t)s->pp, middle = 0;
    bool uneven = s->first_stage_layers > 0;
    /* The stages in the middle are alike; with two of them only the first has a number. */
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
    else /* the two are alternatives; uneven stages need this one */
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
    set_bool(b, "no_save_optim", true); /* none in Megatron's own form */
    set_bool(b, "no_save_rng", true);
    set_int(b, "iteration", (uint64_t)b->in->iteration);
}

/* The config of the import keeps the Hugging Face config, which is read again. */
HL_CHECK static hl_status read_config(struct args_builder *b)
{
    HL_TRY(hl_model_config_read(b->in->config, &b->config));
    HL_TRY(hl_model_config_hf(&b->config, &b->hf));
    if (b->hf.layout == HL_LAYOUT_OTHER)
        return hl_fail(
            HL_EUNSUPPORTED,
            "Megatron's arguments of a %s model are not known; export with --no-args and "
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
        int64_t absent; /* Megatron's own default, which needs no flag */
    } table[] = {
        {"--transformer-impl", "transformer_impl", 0},
        {"--tensor-model-parallel-size", "tensor_model_parallel_size", 0},
        {"--pipeline-model-parallel-size", "pipeline_model_parallel_size", 0},
        {"--decoder-first-pipeline-num-layers", "decoder_first_pipeline_num_layers", 0},
        {"--decoder-last-pipeline-num-layers", "decoder_last_pipeline_num_layers", 0},
        {"--num-layers-per-virtual-pipeline-stage", "num_layers_per_virtual_pipeline_stage", 0},
        {"--num-virtual-stages-per-pipeline-rank", "num_virtual_stages_per_pipeline_rank", 0},
        {"--make-vocab-size-divisible-by", "make_vocab_size_divisible_by", 128},
        {"--norm-epsilon", "norm_epsilon", 0},
        {"--rotary-base", "rotary_base", 10000},
        {"--use-rope-scaling", "use_rope_scaling", 0},
        {"--rope-scaling-factor", "rope_scaling_factor", 0},
        {"--fp16", "fp16", 0},
        {"--bf16", "bf16", 0},
    };

    HL_AUTO(hl_buf_fini) struct hl_buf b = HL_BUF(4096);
    for (size_t i = 0; i < HL_ARRAY_LEN(table); i++)
        if (table[i].absent == 0 ||
            json_integer_value(json_object_get(args, table[i].name)) != table[i].absent)
            put_flag(&b, args, table[i].flag, table[i].name);
    /* Megatron's own RMS norm refuses the persistent kernel. */
    if (arg_is(args, "transformer_impl", "local") && arg_is(args, "normalization", "RMSNorm"))
        (void)hl_buf_printf(&b, " --no-persist-layer-norm");
    if (b.failed)
        return hl_fail(HL_ENOMEM, "out of memory building Megatron's flags");
    *out = hl_buf_take(&b);
    return HL_OK;
}
