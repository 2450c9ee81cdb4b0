/* Every family compared with family_oracle.h: 4 layers, hidden 8, 4 heads of 4 in 2 groups, MLP 16
 * wide, experts 4 wide, 10 words. */
#include "core/families/logical.h"
#include "unit/core/families/family_rules.h"

struct subject {
    const char *config, *body;
    void (*add)(struct world *w);   /* one layer */
    void (*check)(struct world *w); /* one layer */
    const char *embedding, *norm, *head;
    int mtp;
};

static void qwen3_add(struct world *w)
{
    add_qkvo(w);
    add_qk_norm(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    add_gated(w, "mlp", F);
}

static void qwen3_check(struct world *w)
{
    check_qkvo(w);
    check_qk_norm(w);
    check_mlp_norm(w, "post_attention_layernorm.weight", 0);
    check_gated(w, "mlp", "mlp");
}

/* decoder_sparse_step 2, layer 3 is dense by name: layer 1 alone has experts. */
static void qwen2_moe_add(struct world *w)
{
    add_qkvo(w);
    add_qkv_bias(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    if (layer != 1) {
        add_gated(w, "mlp", F);
        return;
    }
    add(w, "mlp.gate.weight", E, H);
    add_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj", FE);
    add_gated(w, "mlp.shared_expert", FS);
    add(w, "mlp.shared_expert_gate.weight", 1, H);
}

static void qwen2_moe_check(struct world *w)
{
    check_qkvo(w);
    check_qkv(w, "bias");
    check_mlp_norm(w, "post_attention_layernorm.weight", layer == 1);
    if (layer != 1) {
        check_gated(w, "mlp", "mlp");
        return;
    }
    whole(w, "mlp.router.weight", NULL, SRC("mlp.gate.weight"));
    check_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj");
    check_gated(w, "mlp.shared_expert", "mlp.shared_experts");
    whole(w, "mlp.shared_experts.gate_weight", NULL, SRC("mlp.shared_expert_gate.weight"));
}

static void qwen3_moe_add(struct world *w)
{
    add_qkvo(w);
    add_qk_norm(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    add(w, "mlp.gate.weight", E, H);
    add_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj", FE);
}

static void qwen3_moe_check(struct world *w)
{
    check_qkvo(w);
    check_qk_norm(w);
    check_mlp_norm(w, "post_attention_layernorm.weight", 1);
    whole(w, "mlp.router.weight", NULL, SRC("mlp.gate.weight"));
    check_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj");
}

static void mixtral_add(struct world *w)
{
    add_qkvo(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    add(w, "block_sparse_moe.gate.weight", E, H);
    add_experts(w, "block_sparse_moe.experts", "w1", "w3", "w2", F);
}

static void mixtral_check(struct world *w)
{
    check_qkvo(w);
    check_mlp_norm(w, "post_attention_layernorm.weight", 1);
    whole(w, "mlp.router.weight", NULL, SRC("block_sparse_moe.gate.weight"));
    check_experts(w, "block_sparse_moe.experts", "w1", "w3", "w2");
}

static void phi3_add(struct world *w)
{
    add(w, "input_layernorm.weight", H, 0);
    add(w, "self_attn.qkv_proj.weight", (NH + 2 * NG) * D, H);
    add(w, "self_attn.o_proj.weight", H, NH * D);
    add(w, "post_attention_layernorm.weight", H, 0);
    add(w, "mlp.gate_up_proj.weight", 2 * F, H);
    add(w, "mlp.down_proj.weight", H, F);
}

static void phi3_check(struct world *w)
{
    struct mx qkv = SRC("self_attn.qkv_proj.weight"), gate_up = SRC("mlp.gate_up_proj.weight");
    check_input_norm(w);
    by_rows(w, "self_attention.linear_qkv.weight",
            mx_qkv(mx_rows(qkv, 0, NH * D, 1), mx_rows(qkv, NH * D, NG * D, 1),
                   mx_rows(qkv, (NH + NG) * D, NG * D, 1), NH, NG, D));
    by_cols(w, "self_attention.linear_proj.weight", SRC("self_attn.o_proj.weight"));
    check_mlp_norm(w, "post_attention_layernorm.weight", 0);
    by_pairs(w, "mlp.linear_fc1.weight", mx_rows(gate_up, 0, F, 1), mx_rows(gate_up, F, F, 1));
    by_cols(w, "mlp.linear_fc2.weight", SRC("mlp.down_proj.weight"));
}

static void gemma2_add(struct world *w)
{
    add_qkvo(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    add(w, "pre_feedforward_layernorm.weight", H, 0);
    add_gated(w, "mlp", F);
    add(w, "post_feedforward_layernorm.weight", H, 0);
}

static void gemma2_check(struct world *w)
{
    check_qkvo(w);
    whole(w, "self_attention.linear_proj.post_layernorm.weight", NULL,
          SRC("post_attention_layernorm.weight"));
    check_mlp_norm(w, "pre_feedforward_layernorm.weight", 0);
    check_gated(w, "mlp", "mlp");
    whole(w, "mlp.linear_fc2.post_layernorm.weight", NULL,
          SRC("post_feedforward_layernorm.weight"));
}

static void gemma3_add(struct world *w)
{
    gemma2_add(w);
    add_qk_norm(w);
}

static void gemma3_check(struct world *w)
{
    gemma2_check(w);
    check_qk_norm(w);
}

/* hidden 16 = 4 heads of 4; HF's rows are [head][q, k, v][D] already. */
static void neox_add(struct world *w)
{
    static const char *const vectors[] = {
        "input_layernorm.weight",        "input_layernorm.bias", "post_attention_layernorm.weight",
        "post_attention_layernorm.bias", "attention.dense.bias", "mlp.dense_4h_to_h.bias"};
    for (size_t i = 0; i < HL_ARRAY_LEN(vectors); i++)
        add(w, vectors[i], H, 0);
    add(w, "attention.query_key_value.weight", 3 * H, H);
    add(w, "attention.query_key_value.bias", 3 * H, 0);
    add(w, "attention.dense.weight", H, H);
    add(w, "mlp.dense_h_to_4h.weight", F, H);
    add(w, "mlp.dense_h_to_4h.bias", F, 0);
    add(w, "mlp.dense_4h_to_h.weight", H, F);
    if (layer == 0)
        w_add(w, "gpt_neox.final_layer_norm.bias", 1, H, 0, 0);
}

static void neox_check(struct world *w)
{
    check_input_norm(w);
    whole(w, "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias",
          SRC("input_layernorm.bias"));
    by_rows(w, "self_attention.linear_qkv.weight", SRC("attention.query_key_value.weight"));
    by_rows(w, "self_attention.linear_qkv.bias", SRC("attention.query_key_value.bias"));
    by_cols(w, "self_attention.linear_proj.weight", SRC("attention.dense.weight"));
    whole(w, "self_attention.linear_proj.bias", NULL, SRC("attention.dense.bias"));
    check_mlp_norm(w, "post_attention_layernorm.weight", 0);
    whole(w, "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias",
          SRC("post_attention_layernorm.bias"));
    by_rows(w, "mlp.linear_fc1.weight", SRC("mlp.dense_h_to_4h.weight"));
    by_rows(w, "mlp.linear_fc1.bias", SRC("mlp.dense_h_to_4h.bias"));
    by_cols(w, "mlp.linear_fc2.weight", SRC("mlp.dense_4h_to_h.weight"));
    whole(w, "mlp.linear_fc2.bias", NULL, SRC("mlp.dense_4h_to_h.bias"));
    if (layer != L - 1)
        return;
    char at[64];
    snprintf(at, sizeof(at), "%s", w->at);
    w->at[0] = '\0';
    snprintf(w->part, sizeof(w->part), "%s", "head");
    whole(w, "decoder.final_layernorm.bias", NULL, mx_source(w, "gpt_neox.final_layer_norm.bias"));
    snprintf(w->at, sizeof(w->at), "%s", at);
}

/* Latent attention: ranks 3 and 5, heads of 4 + 2, values of 3. */
static void mla_add(struct world *w, int q_lora)
{
    add(w, "input_layernorm.weight", H, 0);
    add(w, "post_attention_layernorm.weight", H, 0);
    if (q_lora) {
        add(w, "self_attn.q_a_proj.weight", 3, H);
        add(w, "self_attn.q_a_layernorm.weight", 3, 0);
        add(w, "self_attn.q_b_proj.weight", NH * 6, 3);
    } else {
        add(w, "self_attn.q_proj.weight", NH * 6, H);
    }
    add(w, "self_attn.kv_a_proj_with_mqa.weight", 5 + 2, H);
    add(w, "self_attn.kv_a_layernorm.weight", 5, 0);
    add(w, "self_attn.kv_b_proj.weight", NH * (4 + 3), 5);
    add(w, "self_attn.o_proj.weight", H, NH * 3);
}

static void mla_check(struct world *w, int q_lora)
{
    whole(w, "input_layernorm.weight", NULL, SRC("input_layernorm.weight"));
    if (q_lora) {
        whole(w, "self_attention.linear_q_down_proj.weight", NULL,
              SRC("self_attn.q_a_proj.weight"));
        whole(w, "self_attention.q_layernorm.weight",
              "self_attention.linear_q_up_proj.layer_norm_weight",
              SRC("self_attn.q_a_layernorm.weight"));
        by_rows(w, "self_attention.linear_q_up_proj.weight", SRC("self_attn.q_b_proj.weight"));
    } else {
        by_rows(w, "self_attention.linear_q_proj.weight", SRC("self_attn.q_proj.weight"));
    }
    whole(w, "self_attention.linear_kv_down_proj.weight", NULL,
          SRC("self_attn.kv_a_proj_with_mqa.weight"));
    whole(w, "self_attention.kv_layernorm.weight",
          "self_attention.linear_kv_up_proj.layer_norm_weight",
          SRC("self_attn.kv_a_layernorm.weight"));
    by_rows(w, "self_attention.linear_kv_up_proj.weight", SRC("self_attn.kv_b_proj.weight"));
    by_cols(w, "self_attention.linear_proj.weight", SRC("self_attn.o_proj.weight"));
}

/* Layer 0 is dense; two shared experts are one of twice the width. */
static void deepseek_mlp_add(struct world *w, int v3)
{
    if (layer == 0) {
        add_gated(w, "mlp", F);
        return;
    }
    add(w, "mlp.gate.weight", E, H);
    if (v3)
        add(w, "mlp.gate.e_score_correction_bias", E, 0);
    add_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj", FE);
    add_gated(w, "mlp.shared_experts", 2 * FE);
    if (layer < L)
        return;
    add(w, "enorm.weight", H, 0);
    add(w, "hnorm.weight", H, 0);
    add(w, "eh_proj.weight", H, 2 * H);
    add(w, "shared_head.norm.weight", H, 0);
    add(w, "embed_tokens.weight", V, H);
    add(w, "shared_head.head.weight", V, H);
}

static void check_mtp(struct world *w)
{
    snprintf(w->at, sizeof(w->at), "%s", "mtp.layers.0.");
    whole(w, "enorm.weight", NULL, SRC("enorm.weight"));
    whole(w, "hnorm.weight", NULL, SRC("hnorm.weight"));
    by_rows(w, "eh_proj.weight", SRC("eh_proj.weight"));
    whole(w, "final_layernorm.weight", NULL, SRC("shared_head.norm.weight"));
    assert_int_equal(w->plan.equal_count, 2);
    assert_string_equal(w->sources[w->plan.equal[0].a].name, "model.embed_tokens.weight");
    assert_string_equal(w->sources[w->plan.equal[0].b].name, "model.layers.4.embed_tokens.weight");
    assert_string_equal(w->sources[w->plan.equal[1].a].name, "lm_head.weight");
}

static void deepseek_mlp_check(struct world *w, int v3)
{
    check_mlp_norm(w, "post_attention_layernorm.weight", layer > 0);
    if (layer == 0) {
        check_gated(w, "mlp", "mlp");
        return;
    }
    whole(w, "mlp.router.weight", NULL, SRC("mlp.gate.weight"));
    if (v3)
        whole(w, "mlp.router.expert_bias", NULL, SRC("mlp.gate.e_score_correction_bias"));
    check_experts(w, "mlp.experts", "gate_proj", "up_proj", "down_proj");
    check_gated(w, "mlp.shared_experts", "mlp.shared_experts");
    if (layer == L)
        check_mtp(w);
}

#define DEEPSEEK(name, v3)                                                                         \
    static void name##_add(struct world *w)                                                        \
    {                                                                                              \
        mla_add(w, v3);                                                                            \
        deepseek_mlp_add(w, v3);                                                                   \
    }                                                                                              \
    static void name##_check(struct world *w)                                                      \
    {                                                                                              \
        mla_check(w, v3);                                                                          \
        deepseek_mlp_check(w, v3);                                                                 \
    }
DEEPSEEK(deepseek_v2, 0)
DEEPSEEK(deepseek_v3, 1)

static void glm4_add(struct world *w)
{
    add_qkvo(w);
    add_qkv_bias(w);
    add_qk_norm(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    deepseek_mlp_add(w, 1);
}

static void glm4_check(struct world *w)
{
    check_qkvo(w);
    check_qkv(w, "bias");
    check_qk_norm(w);
    deepseek_mlp_check(w, 1);
}

static void gpt_oss_add(struct world *w)
{
    add_qkvo(w);
    add_qkv_bias(w);
    add(w, "self_attn.o_proj.bias", H, 0);
    add(w, "self_attn.sinks", NH, 0);
    add(w, "post_attention_layernorm.weight", H, 0);
    add(w, "mlp.router.weight", E, H);
    add(w, "mlp.router.bias", E, 0);
    w_add(w, hf("mlp.experts.gate_up_proj"), 3, E, H, 2 * F);
    add(w, "mlp.experts.gate_up_proj_bias", E, 2 * F);
    w_add(w, hf("mlp.experts.down_proj"), 3, E, F, H);
    add(w, "mlp.experts.down_proj_bias", E, H);
}

static struct mx vector_of(struct mx m, uint64_t row)
{
    return (struct mx){m.c, 0, m.v + row * m.c};
}

static void gpt_oss_check(struct world *w)
{
    check_qkvo(w);
    check_qkv(w, "bias");
    whole(w, "self_attention.linear_proj.bias", NULL, SRC("self_attn.o_proj.bias"));
    by_rows(w, "self_attention.core_attention.softmax_offset", SRC("self_attn.sinks"));
    check_mlp_norm(w, "post_attention_layernorm.weight", 1);
    whole(w, "mlp.router.weight", NULL, SRC("mlp.router.weight"));
    whole(w, "mlp.router.bias", NULL, SRC("mlp.router.bias"));
    w->experts = E;
    for (uint64_t e = 0; e < E; e++) {
        struct mx fc1 = mx_turn(mx_plane(w, hf("mlp.experts.gate_up_proj"), e));
        struct mx bias = vector_of(SRC("mlp.experts.gate_up_proj_bias"), e);
        expert(w, e, layer, "linear_fc1", "weight", mx_rows(fc1, 0, F, 2), mx_rows(fc1, 1, F, 2),
               0);
        expert(w, e, layer, "linear_fc1", "bias", mx_rows(bias, 0, F, 2), mx_rows(bias, 1, F, 2),
               0);
        expert(w, e, layer, "linear_fc2", "weight",
               mx_turn(mx_plane(w, hf("mlp.experts.down_proj"), e)), (struct mx){0}, 0);
        expert(w, e, layer, "linear_fc2", "bias", vector_of(SRC("mlp.experts.down_proj_bias"), e),
               (struct mx){0}, 1);
    }
}

/* interleave_moe_layer_step 2: layers 1 and 3 have experts. */
static void llama4_add(struct world *w)
{
    add_qkvo(w);
    add(w, "post_attention_layernorm.weight", H, 0);
    if (layer % 2 == 0) {
        add_gated(w, "feed_forward", 2 * F);
        return;
    }
    add(w, "feed_forward.router.weight", E, H);
    w_add(w, hf("feed_forward.experts.gate_up_proj"), 3, E, H, 2 * F);
    w_add(w, hf("feed_forward.experts.down_proj"), 3, E, F, H);
    add_gated(w, "feed_forward.shared_expert", F);
}

static void llama4_check(struct world *w)
{
    check_qkvo(w);
    check_mlp_norm(w, "post_attention_layernorm.weight", layer % 2 == 1);
    if (layer % 2 == 0) {
        check_gated(w, "feed_forward", "mlp");
        return;
    }
    whole(w, "mlp.router.weight", NULL, SRC("feed_forward.router.weight"));
    check_gated(w, "feed_forward.shared_expert", "mlp.shared_experts");
    w->experts = E;
    for (uint64_t e = 0; e < E; e++) {
        struct mx fc1 = mx_turn(mx_plane(w, hf("feed_forward.experts.gate_up_proj"), e));
        expert(w, e, layer, "linear_fc1", "weight", mx_rows(fc1, 0, F, 1), mx_rows(fc1, F, F, 1),
               0);
        expert(w, e, layer, "linear_fc2", "weight",
               mx_turn(mx_plane(w, hf("feed_forward.experts.down_proj"), e)), (struct mx){0}, 0);
    }
}

#define MLA                                                                                        \
    "\"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, \"v_head_dim\": 3, \"kv_lora_rank\": 5,"
#define MOE                                                                                        \
    "\"moe_intermediate_size\": 4, \"n_routed_experts\": 4, \"n_shared_experts\": 2,"              \
    "\"first_k_dense_replace\": 1,"
#define MODEL(type, more, add_, check_, head_, mtp_)                                               \
    {                                                                                              \
        "{\"model_type\": \"" type "\", " more SIZES "}", "model.", add_, check_,                  \
            "embed_tokens.weight", "norm.weight", head_, mtp_                                      \
    }

static const struct subject subjects[] = {
    MODEL("qwen3", "", qwen3_add, qwen3_check, "lm_head.weight", 0),
    MODEL("qwen2_moe",
          "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3], \"num_experts\": 4,"
          "\"moe_intermediate_size\": 4, \"shared_expert_intermediate_size\": 8,",
          qwen2_moe_add, qwen2_moe_check, "lm_head.weight", 0),
    MODEL("qwen3_moe", "\"num_experts\": 4, \"moe_intermediate_size\": 4,", qwen3_moe_add,
          qwen3_moe_check, "lm_head.weight", 0),
    MODEL("mixtral", "\"num_local_experts\": 4,", mixtral_add, mixtral_check, "lm_head.weight", 0),
    MODEL("phi3", "", phi3_add, phi3_check, "lm_head.weight", 0),
    MODEL("gemma2", "", gemma2_add, gemma2_check, NULL, 0),
    MODEL("gemma3_text", "", gemma3_add, gemma3_check, NULL, 0),
    {"{\"model_type\": \"gemma3\", \"text_config\": {" SIZES "}}", "language_model.model.",
     gemma3_add, gemma3_check, "embed_tokens.weight", "norm.weight", NULL, 0},
    {"{\"model_type\": \"gpt_neox\", " SIZES "}", "gpt_neox.", neox_add, neox_check,
     "embed_in.weight", "final_layer_norm.weight", "embed_out.weight", 0},
    MODEL("deepseek_v2", MLA MOE, deepseek_v2_add, deepseek_v2_check, "lm_head.weight", 0),
    MODEL("deepseek_v3", MLA MOE "\"q_lora_rank\": 3, \"num_nextn_predict_layers\": 1,",
          deepseek_v3_add, deepseek_v3_check, "lm_head.weight", 1),
    MODEL("deepseek_v3", MLA MOE "\"q_lora_rank\": 3, \"num_nextn_predict_layers\": 1,",
          deepseek_v3_add, deepseek_v3_check, "lm_head.weight", 0),
    MODEL("glm4_moe",
          MOE "\"attention_bias\": true, \"use_qk_norm\": true, \"num_nextn_predict_layers\": 1,",
          glm4_add, glm4_check, "lm_head.weight", 1),
    MODEL("gpt_oss", "\"num_local_experts\": 4,", gpt_oss_add, gpt_oss_check, "lm_head.weight", 0),
    {"{\"model_type\": \"llama4\", \"text_config\": {\"interleave_moe_layer_step\": 2,"
     "\"intermediate_size_mlp\": 32, \"num_local_experts\": 4, " SIZES "}}",
     "language_model.model.", llama4_add, llama4_check, "embed_tokens.weight", "norm.weight",
     "language_model.lm_head.weight", 0},
};

static struct world *build(const struct subject *s)
{
    struct world *w = oracle_alloc(sizeof(*w));
    w->config = s->config;
    body = s->body;
    add_ends(w, s->embedding, s->norm, s->head);
    for (layer = 0; layer < (uint64_t)(L + s->mtp); layer++)
        s->add(w);
    return w;
}

static hl_status plan(struct world *w, const struct hl_partition_options *o)
{
    struct hl_hf_config c;
    HL_TRY(hl_hf_config_parse(w->config, strlen(w->config), "config.json", &c));
    w->o = *o;
    hl_status st = hl_partition_plan(&c, w->sources, w->count, o, &w->plan);
    hl_hf_config_fini(&c);
    return st;
}

static void check(const struct subject *s, struct world *w)
{
    w->seen = calloc(w->plan.tensor_count + 1, 1);
    check_ends(w, s->embedding, s->norm, s->head);
    uint64_t per = L / (uint64_t)w->o.pp;
    for (layer = 0; layer < (uint64_t)(L + s->mtp); layer++) {
        int mtp = layer >= L;
        w->pp = mtp ? w->o.pp - 1 : (int)(layer / per);
        snprintf(w->part, sizeof(w->part), mtp ? "mtp-%04d" : "layer-%04d",
                 (int)(mtp ? layer - L : layer));
        snprintf(w->at, sizeof(w->at),
                 mtp ? "mtp.layers.%d.mtp_model_layer." : "decoder.layers.%d.",
                 (int)(mtp ? layer - L : layer % per));
        s->check(w);
    }
    for (size_t i = 0; i < w->plan.tensor_count; i++)
        if (!w->seen[i])
            fail_msg("%s should not be there", w->plan.tensors[i].name);
    free(w->seen);
}

TESTS_IN(NULL, free_oracle)

TEST(every_family_is_cut_as_megatron_cuts_it)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++) {
        struct world *w = build(&subjects[i]);
        int dense = strstr(w->config, "experts") == NULL;
        for (size_t k = 0; k < HL_ARRAY_LEN(layouts); k++) {
            struct hl_partition_options o = layouts[k];
            if (dense)
                o.ep = o.etp = 0;
            if (plan(w, &o) != HL_OK)
                fail_msg("%.60s layout %zu: %s", w->config, k, hl_error_text());
            check(&subjects[i], w);
            hl_partition_fini(&w->plan);
        }
    }
}

TEST(a_layout_that_does_not_divide_the_experts_is_refused_with_what_does)
{
    struct world *w = build(&subjects[2]); /* 4 experts, 4 columns wide */
    struct hl_partition_options o = {.tp = 1, .pp = 1, .ep = 3};
    assert_int_equal(plan(w, &o), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "ep 3 does not divide the 4 experts of this model; use "
                                            "ep 1, 2 or 4"));
    o = (struct hl_partition_options){.tp = 1, .pp = 1, .etp = 8};
    assert_int_equal(plan(w, &o), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "etp 8 does not divide the 4 columns of an expert of "
                                            "this model; use etp 1, 2 or 4"));
    w = build(&subjects[0]);
    o = (struct hl_partition_options){.tp = 2, .pp = 1, .ep = 2};
    assert_int_equal(plan(w, &o), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "qwen3 model has no experts"));
}

TEST(missing_double_and_misshapen_tensors_are_named_in_every_family)
{
    struct hl_partition_options o = {.tp = 1, .pp = 1};
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++) {
        struct world *w = build(&subjects[i]);
        for (size_t k = 0; k < w->count; k++) {
            const char *name = w->sources[k].name;
            if (strstr(name, "layers.4.") != NULL) /* these may be absent */
                continue;
            w->sources[k].name = "else.weight";
            assert_int_equal(plan(w, &o), HL_ENOENT);
            assert_non_null(strstr(hl_error_text(), name));
            w->sources[k].name = w->sources[k == 0].name;
            assert_int_equal(plan(w, &o), HL_EINVAL);
            assert_non_null(strstr(hl_error_text(), "is in two files"));
            w->sources[k].name = name;
            w->sources[k].shape[0]++;
            assert_int_equal(plan(w, &o), HL_EINVAL);
            assert_non_null(strstr(hl_error_text(), name));
            w->sources[k].shape[0]--;
        }
        w_add(w, "audio_tower.patch.weight", 1, 2, 0, 0);
        assert_int_equal(plan(w, &o), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "'audio_tower.patch.weight' has no place"));
    }
}

TEST(what_stands_beside_a_text_model_is_whole_on_every_rank_of_the_first_stage)
{
    const char *name = "vision_tower.patch_embedding.weight";
    struct world *w = build(&subjects[7]); /* gemma3 */
    struct hl_partition_options o = {.tp = 2, .pp = 2};
    int seen = 0;
    w_add(w, name, 2, 6, 3, 0);
    assert_int_equal(plan(w, &o), HL_OK);
    for (size_t i = 0; i < w->plan.shard_count; i++) {
        const struct hl_partition_shard *s = &w->plan.shards[i];
        if (strcmp(s->part, "vision") != 0)
            continue;
        const struct hl_tensor *t = &w->plan.tensors[s->tensor_first];
        assert_int_equal(s->pp, 0);
        assert_int_equal(s->tensor_count, 1);
        assert_string_equal(t->name, name);
        assert_int_equal(t->size, 18 * hl_dtype_size(t->dtype));
        seen |= 1 << s->tp;
    }
    assert_int_equal(seen, 3);
    assert_non_null(w->plan.logical); /* nothing else tells that it is there */
    hl_partition_fini(&w->plan);
    w->sources[w->count - 1].rank = 5;
    assert_int_equal(plan(w, &o), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), name));
}

/* The fixtures list by hand the tensors of a checkpoint. */
TEST(a_config_asks_for_the_tensors_of_its_checkpoint)
{
    const struct hl_partition_options one = {.tp = 1, .pp = 1};
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++) {
        struct world *w = build(&subjects[i]);
        struct hl_logical l;
        struct hl_hf_config c;
        size_t found = 0;
        assert_int_equal(hl_hf_config_parse(w->config, strlen(w->config), "config.json", &c), 0);
        assert_int_equal(plan(w, &one), HL_OK);
        assert_int_equal(w->plan.prefix == NULL, strcmp(c.family->prefixes[0].body, body) == 0);
        const struct hl_checkpoint has = {
            .prefix = w->plan.prefix, .copies = w->plan.copies, .mtp = subjects[i].mtp != 0};
        assert_int_equal(hl_family_logical(&c, &has, &l), HL_OK);
        for (size_t k = 0; k < w->count; k++)
            for (size_t n = 0; n < l.count; n++)
                found += strcmp(l.tensors[n].name, w->sources[k].name) == 0 &&
                         l.tensors[n].rank == w->sources[k].rank &&
                         memcmp(l.tensors[n].shape, w->sources[k].shape, 24) == 0;
        assert_int_equal(found, l.count);
        assert_int_equal(found, w->count);
        hl_logical_fini(&l);
        hl_partition_fini(&w->plan);
        hl_hf_config_fini(&c);
    }
}
