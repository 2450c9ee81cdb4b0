/* Models as they are published: from its config.json a family asks for exactly the tensors in the
 * model's files, at their real sizes, and splits them. Only names and shapes are used.
 *
 * Sizes and their sources: metadata.total_size of model.safetensors.index.json of
 * meta-llama/Meta-Llama-3-8B, mistralai/Mistral-7B-Instruct-v0.2, mistralai/Mixtral-8x7B-v0.1,
 * Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen1.5-MoE-A2.7B, Qwen/Qwen3-8B, Qwen/Qwen3-30B-A3B,
 * google/gemma-2-9b, microsoft/Phi-3-mini-4k-instruct, deepseek-ai/DeepSeek-V2-Lite and
 * openai/gpt-oss-20b; elements of the headers of deepseek-ai/DeepSeek-V3 (91,991 tensors in 163
 * files; its README_WEIGHTS.md says what the layer 61 holds), zai-org/GLM-4.5-Air,
 * google/gemma-3-1b-it, openai-community/gpt2 and EleutherAI/pythia-6.9b. */
#include "support/test.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/family.h"
#include "core/families/logical.h"
#include "core/model/partition.h"

#define DENSE(type, layers, hidden, heads, groups, ffn, vocab, more)                               \
    "{\"model_type\": \"" type "\", \"num_hidden_layers\": " #layers ", \"hidden_size\": " #hidden \
    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #groups                     \
    ", \"intermediate_size\": " #ffn ", \"vocab_size\": " #vocab                                   \
    ", \"max_position_embeddings\": 4096" more "}"
#define FP8                                                                                        \
    ", \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\","           \
    " \"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define DEEPSEEK_V3                                                                                \
    ", \"first_k_dense_replace\": 3, \"kv_lora_rank\": 512, \"moe_intermediate_size\": 2048,"      \
    " \"moe_layer_freq\": 1, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"                  \
    " \"num_nextn_predict_layers\": 1, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128,"          \
    " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"topk_method\": \"noaux_tc\","               \
    " \"tie_word_embeddings\": false"
#define DEEPSEEK_V3_FILES UINT64_C(688586727753) /* bytes, with their headers */
#define QWEN3_30B                                                                                  \
    ", \"head_dim\": 128, \"num_experts\": 128, \"moe_intermediate_size\": 768,"                   \
    " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"norm_topk_prob\": true"

struct published {
    const char *name, *config;
    size_t tensors;    /* in its files; 0 = not known */
    uint64_t elements; /* in those tensors */
    bool mtp;          /* including the layers that predict more tokens, if its files have them */
    struct hl_partition_options cut;
};

static const struct published models[] = {
    {"Llama-3-8B",
     DENSE("llama", 32, 4096, 32, 8, 14336, 128256, ""),
     291,
     16060522496 / 2,
     false,
     {.tp = 8, .pp = 4}},
    {"Mistral-7B",
     DENSE("mistral", 32, 4096, 32, 8, 14336, 32000, ""),
     291,
     14483464192 / 2,
     false,
     {.tp = 4, .pp = 2}},
    {"Mixtral-8x7B",
     DENSE("mixtral", 32, 4096, 32, 8, 14336, 32000, ", \"num_local_experts\": 8"),
     995,
     93405585408 / 2,
     false,
     {.tp = 2, .pp = 4, .ep = 8, .etp = 1}},
    {"Qwen2.5-7B",
     DENSE("qwen2", 28, 3584, 28, 4, 18944, 152064, ", \"tie_word_embeddings\": false"),
     339,
     15231233024 / 2,
     false,
     {.tp = 4, .pp = 2}},
    {"Qwen1.5-MoE-A2.7B",
     DENSE("qwen2_moe", 24, 2048, 16, 16, 5632, 151936,
           ", \"num_experts\": 60, \"moe_intermediate_size\": 1408, \"decoder_sparse_step\": 1,"
           " \"shared_expert_intermediate_size\": 5632"),
     4659,
     28631568384 / 2,
     false,
     {.tp = 4, .pp = 2, .ep = 4, .etp = 1}},
    {"Qwen3-8B",
     DENSE("qwen3", 36, 4096, 32, 8, 12288, 151936, ", \"head_dim\": 128"),
     399,
     16381470720 / 2,
     false,
     {.tp = 8, .pp = 4}},
    {"Qwen3-30B-A3B",
     DENSE("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, QWEN3_30B),
     18867,
     61064245248 / 2,
     false,
     {.tp = 4, .pp = 4, .ep = 8, .etp = 1}},
    {"gemma-2-9b",
     DENSE("gemma2", 42, 3584, 16, 8, 14336, 256000, ", \"head_dim\": 256"),
     464,
     18483411968 / 2,
     false,
     {.tp = 8, .pp = 2}},
    {"gemma-3-1b",
     DENSE("gemma3_text", 26, 1152, 4, 1, 6912, 262144, ", \"head_dim\": 256"),
     340,
     999885952,
     false,
     {.tp = 4, .pp = 2}},
    {"Phi-3-mini",
     DENSE("phi3", 32, 3072, 32, 32, 8192, 32064, ""),
     195,
     7642159104 / 2,
     false,
     {.tp = 8, .pp = 4}},
    {"DeepSeek-V2-Lite",
     DENSE("deepseek_v2", 27, 2048, 16, 16, 10944, 102400,
           ", \"first_k_dense_replace\": 1, \"kv_lora_rank\": 512, \"moe_intermediate_size\": 1408,"
           " \"moe_layer_freq\": 1, \"n_routed_experts\": 64, \"n_shared_experts\": 2,"
           " \"q_lora_rank\": null, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
           " \"v_head_dim\": 128"),
     0,
     31412968448 / 2,
     false,
     {.tp = 2, .pp = 1, .ep = 8, .etp = 1}},
    {"DeepSeek-V3 without its layer 61",
     DENSE("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, DEEPSEEK_V3),
     45395,
     671026419200,
     false,
     {.tp = 8, .pp = 1, .ep = 64, .etp = 1}},
    {"GLM-4.5-Air",
     DENSE("glm4_moe", 46, 4096, 96, 8, 10944, 151552,
           ", \"attention_bias\": true, \"head_dim\": 128, \"first_k_dense_replace\": 1,"
           " \"moe_intermediate_size\": 1408, \"n_routed_experts\": 128, \"n_shared_experts\": 1,"
           " \"num_nextn_predict_layers\": 1, \"use_qk_norm\": false"),
     0,
     110468824832,
     true,
     {.tp = 8, .pp = 2, .ep = 16, .etp = 1}},
    {"pythia-6.9b",
     DENSE("gpt_neox", 32, 4096, 32, 32, 16384, 50432, ", \"tie_word_embeddings\": false"),
     0,
     6857302016,
     false,
     {.tp = 8, .pp = 4}},
    {"gpt2",
     "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_embd\": 768, \"n_head\": 12,"
     " \"vocab_size\": 50257, \"n_positions\": 1024, \"n_ctx\": 1024}",
     148,
     124439808,
     false,
     {.tp = 4, .pp = 4}},
};

/* ---- headers --------------------------------------------------------------------------------- */

struct header {
    struct hl_hf_config config;
    struct hl_tensor *tensors;
    size_t count, cap;
    uint64_t bytes;
};

static void add(struct header *h, const char *name, enum hl_dtype dtype, uint32_t rank,
                const uint64_t *shape)
{
    if (h->count == h->cap) {
        h->cap = h->cap > 0 ? 2 * h->cap : 1024;
        h->tensors = realloc(h->tensors, h->cap * sizeof(*h->tensors));
    }
    struct hl_tensor *t = &h->tensors[h->count++];
    *t = (struct hl_tensor){.name = strdup(name), .dtype = dtype, .rank = rank};
    memcpy(t->shape, shape, rank * sizeof(*shape));
    assert_int_equal(hl_tensor_bytes(t, &t->size), HL_OK);
    h->bytes += t->size;
}

static void header_free(struct header *h)
{
    for (size_t i = 0; i < h->count; i++)
        free((char *)(uintptr_t)h->tensors[i].name);
    free(h->tensors);
    hl_hf_config_fini(&h->config);
}

/* How the files store a tensor of the family. */
typedef void (*form)(struct header *h, const struct hl_tensor *t);

static void plain(struct header *h, const struct hl_tensor *t)
{
    add(h, t->name, HL_DTYPE_BF16, t->rank, t->shape);
}

static struct header header_of(const char *config, bool mtp, form as)
{
    struct header h = {0};
    struct hl_logical l;
    const struct hl_checkpoint has = {.mtp = mtp, .mtp_copies = mtp};
    assert_int_equal(hl_hf_config_parse(config, strlen(config), "config.json", &h.config), HL_OK);
    assert_int_equal(hl_family_logical(&h.config, &has, &l), HL_OK);
    for (size_t i = 0; i < l.count; i++)
        as(&h, &l.tensors[i]);
    hl_logical_fini(&l);
    return h;
}

static hl_status plan(const struct header *h, const struct hl_partition_options *o,
                      struct hl_partition_plan *out)
{
    return hl_partition_plan(&h->config, h->tensors, h->count, o, out);
}

/* The embedding's and the head's, in a layer that predicts more tokens: not stored again. */
static bool is_copy(const char *name)
{
    return strstr(name, ".layers.") != NULL &&
           (strstr(name, ".embed_tokens.") != NULL || strstr(name, ".shared_head.head.") != NULL);
}

static void assert_cut(const char *name, const struct header *h,
                       const struct hl_partition_options *o)
{
    struct hl_partition_plan p;
    uint64_t bytes = 0;
    if (plan(h, o, &p) != HL_OK)
        fail_msg("%s: %s", name, hl_error_text());
    for (size_t i = 0; i < h->count; i++)
        bytes += is_copy(h->tensors[i].name) ? 0 : h->tensors[i].size;
    assert_true(p.data_bytes >= bytes); /* norms are on every rank */
    hl_partition_fini(&p);
}

TEST(a_config_asks_for_what_the_files_of_the_model_have)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(models); i++) {
        const struct published *m = &models[i];
        struct header h = header_of(m->config, m->mtp, plain);
        if (m->tensors > 0 && h.count != m->tensors)
            fail_msg("%s has %zu tensors, not %zu", m->name, h.count, m->tensors);
        if (h.bytes / 2 != m->elements)
            fail_msg("%s has %" PRIu64 " elements, not %" PRIu64, m->name, h.bytes / 2,
                     m->elements);
        assert_cut(m->name, &h, &m->cut);
        header_free(&h);
    }
}

/* ---- quantized ------------------------------------------------------------------------------- */

static void add_scaled(struct header *h, const struct hl_tensor *t, enum hl_dtype scales)
{
    char name[HL_TENSOR_NAME_MAX + 1];
    const uint64_t shape[] = {(t->shape[0] + 127) / 128, (t->shape[1] + 127) / 128};
    bool scaled =
        t->rank == 2 && strstr(t->name, "_proj") != NULL && strstr(t->name, "eh_proj") == NULL;
    add(h, t->name,
        scaled                                               ? HL_DTYPE_F8_E4M3
        : strstr(t->name, "e_score_correction_bias") != NULL ? HL_DTYPE_F32
                                                             : HL_DTYPE_BF16,
        t->rank, t->shape);
    if (!scaled)
        return;
    snprintf(name, sizeof(name), "%s_scale_inv", t->name);
    add(h, name, scales, 2, shape);
}

static void deepseek_fp8(struct header *h, const struct hl_tensor *t)
{
    add_scaled(h, t, HL_DTYPE_F32);
}

static void qwen3_fp8(struct header *h, const struct hl_tensor *t)
{
    add_scaled(h, t, HL_DTYPE_BF16);
}

static void assert_not_cut(const struct header *h, const struct hl_partition_options *o,
                           const char *why)
{
    struct hl_partition_plan p;
    assert_int_equal(plan(h, o, &p), HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
}

TEST(deepseek_v3_in_fp8_blocks_is_cut_at_its_real_size)
{
    struct header h =
        header_of(DENSE("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, DEEPSEEK_V3 FP8), true,
                  deepseek_fp8);
    assert_int_equal(h.count, 91991);
    assert_true(h.bytes < DEEPSEEK_V3_FILES && DEEPSEEK_V3_FILES - h.bytes < h.count * 160);
    assert_cut("DeepSeek-V3", &h,
               &(struct hl_partition_options){.tp = 8, .pp = 1, .ep = 64, .etp = 1});
    header_free(&h);
}

/* 768 rows of an expert are six blocks. */
TEST(qwen3_in_fp8_blocks_is_cut_at_the_edges_of_blocks)
{
    struct header h = header_of(DENSE("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, QWEN3_30B FP8),
                                false, qwen3_fp8);
    assert_cut("Qwen3-30B-A3B-FP8", &h,
               &(struct hl_partition_options){.tp = 2, .pp = 2, .ep = 8, .etp = 2});
    assert_not_cut(&h, &(struct hl_partition_options){.tp = 4, .pp = 2, .ep = 8, .etp = 4}, "etp");
    header_free(&h);
}

static void mxfp4(struct header *h, const struct hl_tensor *t)
{
    char name[HL_TENSOR_NAME_MAX + 1];
    if (t->rank != 3) {
        add(h, t->name, HL_DTYPE_BF16, t->rank, t->shape);
        return;
    }
    const uint64_t shape[] = {t->shape[0], t->shape[2], t->shape[1] / 32, 16};
    snprintf(name, sizeof(name), "%s_blocks", t->name);
    add(h, name, HL_DTYPE_U8, 4, shape);
    snprintf(name, sizeof(name), "%s_scales", t->name);
    add(h, name, HL_DTYPE_U8, 3, shape);
}

/* 2880 columns of down are 90 blocks of 32. */
TEST(gpt_oss_in_mxfp4_is_cut_at_its_real_size)
{
    struct header h =
        header_of(DENSE("gpt_oss", 24, 2880, 64, 8, 2880, 201088,
                        ", \"head_dim\": 64, \"num_local_experts\": 32, \"attention_bias\": true,"
                        " \"quantization_config\": {\"modules_to_not_convert\":"
                        " [\"model.layers.*.self_attn\", \"model.layers.*.mlp.router\","
                        " \"model.embed_tokens\", \"lm_head\"], \"quant_method\": \"mxfp4\"}"),
                  false, mxfp4);
    assert_int_equal(h.count, 459);
    assert_int_equal(h.bytes, 13761264768);
    assert_cut("gpt-oss-20b", &h, &(struct hl_partition_options){.tp = 2, .pp = 2, .ep = 4});
    assert_cut("gpt-oss-20b", &h,
               &(struct hl_partition_options){.tp = 8, .pp = 1, .ep = 8, .etp = 1});
    assert_not_cut(&h, &(struct hl_partition_options){.tp = 8, .pp = 1, .ep = 4, .etp = 8}, "etp");
    header_free(&h);
}
