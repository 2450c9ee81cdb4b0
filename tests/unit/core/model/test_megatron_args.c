/* The args that Megatron's parser would make from the flags for these models, by hand. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/megatron_args.h"

#define LLAMA                                                                                      \
    "\"hf\":{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"                \
    "\"num_hidden_layers\":8,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":61,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,"                     \
    "\"rope_theta\":500000.0"
#define CUT "\"vocabDivisor\":8,\"paddedVocab\":64,\"tp\":2,"
#define EVEN                                                                                       \
    "\"pp\":2,\"virtualStages\":1,\"stages\":[[{\"first\":0,\"count\":4}],"                        \
    "[{\"first\":4,\"count\":4}]],"

struct made {
    json_t *args;
    json_t *notes;
};

static struct made make(const char *config, struct hl_megatron_args in)
{
    struct made m;
    in.config = config;
    assert_int_equal(hl_megatron_args_make(&in, &m.args, &m.notes), HL_OK);
    return m;
}

static void drop(struct made *m)
{
    json_decref(m->args);
    json_decref(m->notes);
}

/* Checks that args has the members of `want`; JSON distinguishes integers from reals, as Python
 * does. */
static void has(const struct made *m, const char *want)
{
    json_t *doc = json_loads(want, 0, NULL);
    const char *key;
    json_t *value;
    assert_non_null(doc);
    json_object_foreach (doc, key, value) {
        const json_t *got = json_object_get(m->args, key);
        if (got == NULL || !json_equal(got, value))
            fail_msg("%s is %s", key, got == NULL ? "absent" : json_dumps(got, JSON_ENCODE_ANY));
    }
    json_decref(doc);
}

TEST(a_llama_is_rms_norm_swiglu_rope_and_grouped_queries)
{
    struct made m =
        make("{" CUT EVEN LLAMA "}}", (struct hl_megatron_args){.naming = HL_API_LAYER_NAMING_TE,
                                                                .dtype = HL_DTYPE_BF16,
                                                                .iteration = 20});
    has(&m, "{\"num_layers\":8,\"hidden_size\":64,\"ffn_hidden_size\":96,"
            "\"num_attention_heads\":4,\"group_query_attention\":true,\"num_query_groups\":2,"
            "\"kv_channels\":16,\"max_position_embeddings\":128,\"seq_length\":128,"
            "\"position_embedding_type\":\"rope\",\"add_position_embedding\":true,"
            "\"rotary_base\":500000,\"rotary_percent\":1.0,\"use_rope_scaling\":false,"
            "\"swiglu\":true,\"normalization\":\"RMSNorm\",\"norm_epsilon\":1e-6,"
            "\"add_bias_linear\":false,\"add_qkv_bias\":false,"
            "\"untie_embeddings_and_output_weights\":true,\"padded_vocab_size\":64,"
            "\"make_vocab_size_divisible_by\":8,\"attention_dropout\":0.0,\"hidden_dropout\":0.0,"
            "\"num_experts\":null,\"spec\":null,\"sequence_parallel\":false,"
            "\"apply_query_key_layer_scaling\":false}");
    has(&m, "{\"tensor_model_parallel_size\":2,\"pipeline_model_parallel_size\":2,"
            "\"virtual_pipeline_model_parallel_size\":null,"
            "\"num_layers_per_virtual_pipeline_stage\":null,"
            "\"decoder_first_pipeline_num_layers\":null,\"fp16\":false,\"bf16\":true,"
            "\"params_dtype\":\"torch.bfloat16\",\"transformer_impl\":\"transformer_engine\","
            "\"tokenizer_type\":\"HuggingFaceTokenizer\",\"ckpt_format\":\"torch\","
            "\"no_save_optim\":true,\"iteration\":20}");
    assert_int_equal(json_array_size(m.notes), 0);
    char *flags;
    assert_int_equal(hl_megatron_flags(m.args, &flags), HL_OK);
    assert_string_equal(flags, " --transformer-impl transformer_engine"
                               " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
                               " --make-vocab-size-divisible-by 8 --norm-epsilon 1e-06"
                               " --rotary-base 500000 --bf16");
    free(flags);
    drop(&m);
}

TEST(a_gpt2_is_layer_norm_gelu_learned_positions_and_biases)
{
    struct made m = make("{\"vocabDivisor\":128,\"paddedVocab\":50304,\"tp\":1,\"pp\":1,"
                         "\"virtualStages\":1,\"stages\":[[{\"first\":0,\"count\":2}]],"
                         "\"hf\":{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,"
                         "\"n_head\":4,\"n_positions\":32,\"vocab_size\":50257,"
                         "\"attn_pdrop\":0.2}}",
                         (struct hl_megatron_args){.dtype = HL_DTYPE_F32});
    has(&m, "{\"position_embedding_type\":\"learned_absolute\",\"add_position_embedding\":true,"
            "\"swiglu\":false,\"normalization\":\"LayerNorm\",\"norm_epsilon\":1e-5,"
            "\"add_bias_linear\":true,\"add_qkv_bias\":true,\"ffn_hidden_size\":256,"
            "\"group_query_attention\":false,\"num_query_groups\":1,\"kv_channels\":16,"
            "\"untie_embeddings_and_output_weights\":false,\"attention_dropout\":0.2,"
            "\"hidden_dropout\":0.1,\"params_dtype\":\"torch.float32\",\"fp16\":false,"
            "\"bf16\":false,\"transformer_impl\":\"local\",\"tokenizer_type\":\"GPT2BPETokenizer\","
            "\"iteration\":0}");
    assert_null(json_object_get(m.args, "rotary_base"));
    assert_int_equal(json_array_size(m.notes), 0);
    drop(&m);
}

TEST(qwen2_has_biases_of_qkv_only)
{
    struct made m = make("{" CUT EVEN "\"hf\":{\"model_type\":\"qwen2\",\"hidden_size\":64,"
                         "\"intermediate_size\":96,\"num_hidden_layers\":8,"
                         "\"num_attention_heads\":4,\"vocab_size\":61,\"use_sliding_window\":false,"
                         "\"sliding_window\":4096,\"tie_word_embeddings\":true}}",
                         (struct hl_megatron_args){.dtype = HL_DTYPE_F16});
    has(&m, "{\"add_bias_linear\":false,\"add_qkv_bias\":true,\"fp16\":true,"
            "\"untie_embeddings_and_output_weights\":false,\"params_dtype\":\"torch.float16\","
            "\"group_query_attention\":false}");
    assert_int_equal(json_array_size(m.notes), 0);
    drop(&m);
}

#define EXPERTS(hf)                                                                                \
    "{\"vocabDivisor\":8,\"paddedVocab\":64,\"tp\":2,\"pp\":1,\"ep\":2,\"etp\":1,"                 \
    "\"virtualStages\":1,\"stages\":[[{\"first\":0,\"count\":4}]],\"hf\":{\"hidden_size\":64,"     \
    "\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                  \
    "\"vocab_size\":61,\"max_position_embeddings\":128," hf "}}"

TEST(mixtral_has_experts_in_every_layer_and_normalized_weights)
{
    struct made m =
        make(EXPERTS("\"model_type\":\"mixtral\",\"num_key_value_heads\":2,"
                     "\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                     "\"router_aux_loss_coef\":0.02"),
             (struct hl_megatron_args){.naming = HL_API_LAYER_NAMING_TE, .dtype = HL_DTYPE_BF16});
    has(&m, "{\"num_experts\":8,\"moe_ffn_hidden_size\":96,\"moe_layer_freq\":1,"
            "\"moe_router_topk\":2,\"moe_router_pre_softmax\":false,\"moe_grouped_gemm\":true,"
            "\"moe_router_score_function\":\"softmax\",\"moe_router_enable_expert_bias\":false,"
            "\"moe_shared_expert_intermediate_size\":null,\"moe_shared_expert_gate\":false,"
            "\"moe_router_load_balancing_type\":\"aux_loss\",\"moe_aux_loss_coeff\":0.02,"
            "\"moe_router_topk_scaling_factor\":null,\"moe_router_num_groups\":null,"
            "\"expert_model_parallel_size\":2,\"expert_tensor_parallel_size\":1,"
            "\"multi_latent_attention\":false,\"qk_layernorm\":false,\"mtp_num_layers\":null}");
    assert_int_equal(json_array_size(m.notes), 0);
    char *flags;
    assert_int_equal(hl_megatron_flags(m.args, &flags), HL_OK);
    assert_non_null(strstr(flags, " --expert-model-parallel-size 2"
                                  " --expert-tensor-parallel-size 1"));
    assert_non_null(strstr(flags, " --moe-router-load-balancing-type aux_loss"
                                  " --moe-aux-loss-coeff 0.02"));
    free(flags);
    drop(&m);
}

TEST(qwen2_moe_has_dense_layers_a_gated_shared_expert_and_softmax_first)
{
    struct made m = make(EXPERTS("\"model_type\":\"qwen2_moe\",\"num_experts\":8,"
                                 "\"moe_intermediate_size\":16,\"mlp_only_layers\":[1],"
                                 "\"shared_expert_intermediate_size\":32"),
                         (struct hl_megatron_args){.dtype = HL_DTYPE_F32});
    has(&m, "{\"num_experts\":8,\"moe_ffn_hidden_size\":16,\"moe_layer_freq\":[1,0,1,1],"
            "\"moe_router_pre_softmax\":true,\"moe_grouped_gemm\":false,"
            "\"moe_shared_expert_intermediate_size\":32,\"moe_shared_expert_gate\":true,"
            "\"add_qkv_bias\":true,\"add_bias_linear\":false}");
    assert_null(json_object_get(m.args, "moe_router_topk"));
    assert_int_equal(json_array_size(m.notes), 1); /* says that the top k is not known */
    drop(&m);
}

/* As in NVIDIA's recipe for DeepSeek-V3, with smaller sizes. */
TEST(deepseek_v3_has_latent_attention_groups_of_experts_and_yarn)
{
    struct made m =
        make(EXPERTS("\"model_type\":\"deepseek_v3\",\"q_lora_rank\":24,\"kv_lora_rank\":16,"
                     "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,\"v_head_dim\":6,"
                     "\"n_routed_experts\":8,\"n_shared_experts\":2,\"moe_intermediate_size\":16,"
                     "\"first_k_dense_replace\":1,\"num_experts_per_tok\":4,\"n_group\":4,"
                     "\"topk_group\":2,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,"
                     "\"scoring_func\":\"sigmoid\",\"num_nextn_predict_layers\":1,"
                     "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,"
                     "\"mscale_all_dim\":1.0,\"beta_fast\":32,\"beta_slow\":1,"
                     "\"original_max_position_embeddings\":4096}"),
             (struct hl_megatron_args){.naming = HL_API_LAYER_NAMING_TE, .dtype = HL_DTYPE_BF16});
    has(&m, "{\"multi_latent_attention\":true,\"q_lora_rank\":24,\"kv_lora_rank\":16,"
            "\"qk_head_dim\":8,\"qk_pos_emb_head_dim\":4,\"v_head_dim\":6,"
            "\"qk_layernorm\":true,\"group_query_attention\":false,\"num_query_groups\":1,"
            "\"rope_type\":\"yarn\",\"rotary_scaling_factor\":40.0,\"mscale\":1.0,"
            "\"mscale_all_dim\":1.0,\"moe_layer_freq\":[0,1,1,1],"
            "\"moe_shared_expert_intermediate_size\":32,\"moe_router_topk\":4,"
            "\"moe_router_num_groups\":4,\"moe_router_group_topk\":2,"
            "\"moe_router_topk_scaling_factor\":2.5,\"moe_router_pre_softmax\":true,"
            "\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":true,"
            "\"moe_router_load_balancing_type\":\"seq_aux_loss\",\"mtp_num_layers\":null}");
    assert_null(json_object_get(m.args, "use_rope_scaling"));
    assert_int_equal(json_array_size(m.notes), 0);
    drop(&m);
}

TEST(yarn_is_read_where_newer_configs_have_it_and_stretches_their_positions)
{
    struct made m =
        make(EXPERTS("\"model_type\":\"deepseek_v3\",\"q_lora_rank\":24,\"kv_lora_rank\":16,"
                     "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,\"v_head_dim\":6,"
                     "\"n_routed_experts\":8,\"n_shared_experts\":2,\"moe_intermediate_size\":16,"
                     "\"first_k_dense_replace\":1,\"num_experts_per_tok\":4,\"n_group\":4,"
                     "\"topk_group\":2,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,"
                     "\"scoring_func\":\"sigmoid\","
                     "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16,"
                     "\"mscale_all_dim\":0.5}"),
             (struct hl_megatron_args){.dtype = HL_DTYPE_F32});
    has(&m, "{\"rope_type\":\"yarn\",\"rotary_scaling_factor\":16.0,\"mscale_all_dim\":0.5,"
            "\"original_max_position_embeddings\":128}");
    assert_int_equal(json_array_size(m.notes), 1); /* Megatron's own default is 4096 */
    drop(&m);
    m = make(EXPERTS("\"model_type\":\"glm4_moe\",\"num_key_value_heads\":2,\"head_dim\":8,"
                     "\"n_routed_experts\":8,\"moe_intermediate_size\":16,"
                     "\"num_experts_per_tok\":2,\"use_qk_norm\":true,\"attention_bias\":true,"
                     "\"rope_parameters\":{\"partial_rotary_factor\":0.5}"),
             (struct hl_megatron_args){.dtype = HL_DTYPE_F32});
    has(&m, "{\"rotary_percent\":0.5}");
    drop(&m);
}

TEST(glm4_moe_has_norms_of_query_and_key_half_a_rotation_and_more_tokens)
{
    struct made m =
        make(EXPERTS("\"model_type\":\"glm4_moe\",\"num_key_value_heads\":2,\"head_dim\":8,"
                     "\"n_routed_experts\":8,\"moe_intermediate_size\":16,\"use_qk_norm\":true,"
                     "\"attention_bias\":true,\"partial_rotary_factor\":0.5,"
                     "\"num_experts_per_tok\":2,\"num_nextn_predict_layers\":1"),
             (struct hl_megatron_args){.dtype = HL_DTYPE_F32, .mtp = true});
    has(&m, "{\"qk_layernorm\":true,\"add_qkv_bias\":true,\"rotary_percent\":0.5,"
            "\"mtp_num_layers\":1,\"moe_layer_freq\":[0,1,1,1],"
            "\"moe_router_score_function\":\"sigmoid\",\"kv_channels\":8}");
    assert_int_equal(json_array_size(m.notes), 0);
    drop(&m);
}

TEST(virtual_and_uneven_stages_are_said_as_megatrons_flags_say_them)
{
    struct hl_megatron_args in = {.dtype = HL_DTYPE_F32};
    struct made m = make("{" CUT "\"pp\":2,\"virtualStages\":2,"
                         "\"stages\":[[{\"first\":0,\"count\":2},{\"first\":4,\"count\":2}],"
                         "[{\"first\":2,\"count\":2},{\"first\":6,\"count\":2}]]," LLAMA "}}",
                         in);
    has(&m, "{\"virtual_pipeline_model_parallel_size\":2,"
            "\"num_layers_per_virtual_pipeline_stage\":2,"
            "\"num_virtual_stages_per_pipeline_rank\":null,"
            "\"decoder_first_pipeline_num_layers\":null}");
    drop(&m);
    m = make("{" CUT "\"pp\":2,\"virtualStages\":1,\"stages\":[[{\"first\":0,\"count\":3}],"
             "[{\"first\":3,\"count\":5}]]," LLAMA "}}",
             in);
    has(&m, "{\"decoder_first_pipeline_num_layers\":3,\"decoder_last_pipeline_num_layers\":null,"
            "\"virtual_pipeline_model_parallel_size\":null}");
    drop(&m);
    m = make("{" CUT "\"pp\":4,\"virtualStages\":1,\"stages\":[[{\"first\":0,\"count\":2}],"
             "[{\"first\":2,\"count\":2}],[{\"first\":4,\"count\":2}],[{\"first\":6,\"count\":1}]]"
             "," LLAMA "}}",
             in);
    has(&m, "{\"decoder_first_pipeline_num_layers\":null,\"decoder_last_pipeline_num_layers\":1}");
    drop(&m);
}

TEST(what_megatron_has_no_argument_for_is_said)
{
    struct hl_megatron_args in = {.dtype = HL_DTYPE_F32};
    struct made m = make("{" CUT EVEN LLAMA ",\"attention_bias\":true,\"hidden_act\":\"gelu\","
                         "\"sliding_window\":4096,"
                         "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}}",
                         in);
    char *text = json_dumps(m.notes, 0);
    assert_int_equal(json_array_size(m.notes), 4);
    assert_non_null(strstr(text, "yarn"));
    assert_non_null(strstr(text, "sliding_window 4096"));
    assert_non_null(strstr(text, "hidden_act gelu"));
    assert_non_null(strstr(text, "add_bias_linear"));
    free(text);
    assert_null(json_object_get(m.args, "add_bias_linear"));
    assert_null(json_object_get(m.args, "swiglu"));
    drop(&m);
    m = make("{" CUT EVEN LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
             "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
             "\"original_max_position_embeddings\":8192}}}",
             in);
    has(&m, "{\"use_rope_scaling\":true,\"rope_scaling_factor\":8.0}");
    assert_int_equal(json_array_size(m.notes), 0);
    drop(&m);
}

TEST(a_config_without_a_hugging_face_config_is_told_apart_from_a_bad_one)
{
    struct made m = {0};
    assert_int_equal(hl_megatron_args_make(&(struct hl_megatron_args){.config = "{\"tp\":1}"},
                                           &m.args, &m.notes),
                     HL_ENOENT);
    assert_int_equal(hl_megatron_args_make(&(struct hl_megatron_args){.config = "{\"hf\":{}}"},
                                           &m.args, &m.notes),
                     HL_EINVAL);
    assert_null(m.args);
}

TEST(a_field_of_the_hugging_face_config_with_another_type_is_an_error_with_its_name)
{
    static const struct {
        const char *member, *named;
    } rows[] = {{"\"hidden_act\":1", "'hidden_act' is not text"},
                {"\"attention_dropout\":\"0\"", "'attention_dropout' is not a number"},
                {"\"sliding_window\":\"4096\"", "'sliding_window' is not a number"},
                {"\"use_sliding_window\":1", "'use_sliding_window' is neither true nor false"},
                {"\"rope_scaling\":8", "'rope_scaling' is not an object"},
                {"\"rope_scaling\":{\"rope_type\":3}", "'rope_type' is not text"},
                {"\"rope_scaling\":{\"factor\":\"8\"}", "'factor' is not a number"},
                {"\"architectures\":[1]", "'architectures' is not a list of texts"}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char text[1024];
        struct made m;
        snprintf(text, sizeof(text), "{" CUT EVEN LLAMA ",%s}}", rows[i].member);
        const struct hl_megatron_args in = {.config = text};
        assert_int_equal(hl_megatron_args_make(&in, &m.args, &m.notes), HL_EINVAL);
        if (strstr(hl_error_text(), rows[i].named) == NULL)
            fail_msg("'%s' does not say %s", hl_error_text(), rows[i].named);
    }
}
