/* Adapters: the product of a rank's A and B is the rank's slice of the product of the adapter's A
 * and B, module by module, in wrapping whole numbers. */
#include "support/test.h"

#include "unit/core/families/family_oracle.h"

#include <inttypes.h>

#include "core/model/lora.h"
#include "support/reshard_models.h"

TESTS_IN(NULL, free_oracle)

#define H      16
#define NH     4
#define NG     2
#define DIM    4
#define F      24
#define VOCAB  10
#define LAYERS 4

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4,"                   \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 10"

static const char llama[] = "{\"model_type\": \"llama\", " SIZES "}";
static const char tied[] = "{\"model_type\": \"qwen2\", \"tie_word_embeddings\": true, " SIZES "}";
static const char phi3[] = "{\"model_type\": \"phi3\", " SIZES "}";
static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 16, \"n_head\": 4,"
    "\"n_inner\": 24, \"vocab_size\": 10, \"n_positions\": 8}";

static void add_half(struct hf_model *m, const char *name, uint64_t rows, uint64_t cols)
{
    size_t i = m->count++;
    assert_true(i < HF_TENSORS && strlen(name) < sizeof(m->names[0]));
    snprintf(m->names[i], sizeof(m->names[i]), "%s", name);
    m->tensors[i] = (struct hl_tensor){.name = m->names[i],
                                       .dtype = HL_DTYPE_F32,
                                       .rank = 2,
                                       .shape = {rows, cols},
                                       .size = 4 * rows * cols};
    m->data[i] = malloc(m->tensors[i].size);
    hf_fill(name, m->data[i], m->tensors[i].size);
}

static void adapt(struct hf_model *m, const char *module, uint64_t r, uint64_t in, uint64_t out)
{
    add_half(m, w_text("base_model.model.%s.lora_A.weight", module), r, in);
    add_half(m, w_text("base_model.model.%s.lora_B.weight", module), out, r);
}

static hl_status slice(const char *base, const struct hf_model *m, int tp, int pp,
                       struct hf_slices *out)
{
    struct hl_partition_options o = {.tp = tp, .pp = pp, .vocab_divisor = 2};
    struct hl_partition_plan plan;
    struct hl_hf_config c;
    assert_int_equal(hl_hf_config_parse(base, strlen(base), "config.json", &c), HL_OK);
    hl_status st = hl_lora_plan(&c, m->tensors, m->count, &o, &plan);
    if (st == HL_OK)
        hf_slice_by(m, &o, plan, out);
    hl_hf_config_fini(&c);
    return st;
}

static void sliced(const char *base, const struct hf_model *m, int tp, int pp,
                   struct hf_slices *out)
{
    if (slice(base, m, tp, pp, out) != HL_OK)
        fail_msg("tp %d pp %d: %s", tp, pp, hl_error_text());
}

/* ---- products -------------------------------------------------------------------------------- */

static struct mx matrix(const struct hl_tensor *t, const uint8_t *data)
{
    uint32_t *v = oracle_alloc(t->size + 1);
    memcpy(v, data, t->size);
    return (struct mx){t->shape[0], t->shape[1], v};
}

static struct mx product(struct mx b, struct mx a)
{
    uint32_t *v = oracle_alloc(4 * b.r * a.c + 1);
    assert_int_equal(b.c, a.r);
    for (uint64_t i = 0; i < b.r; i++)
        for (uint64_t j = 0; j < a.c; j++)
            for (uint64_t k = 0; k < b.c; k++)
                v[i * a.c + j] += b.v[i * b.c + k] * a.v[k * a.c + j];
    return (struct mx){b.r, a.c, v};
}

static struct mx source_delta(const struct hf_model *m, const char *module)
{
    struct mx half[2] = {{0}};
    for (int k = 0; k < 2; k++) {
        const char *name = w_text("base_model.model.%s.lora_%c.weight", module, 'A' + k);
        for (size_t i = 0; i < m->count; i++)
            if (strcmp(m->names[i], name) == 0)
                half[k] = matrix(&m->tensors[i], m->data[i]);
    }
    return product(half[1], half[0]);
}

static struct mx rank_delta(struct hf_slices *s, int pp, int tp, const char *adapter)
{
    struct mx half[2];
    for (int k = 0; k < 2; k++) {
        struct hf_slice *t = hf_slices_find(
            s, pp, tp, w_text("%s.linear_%s.weight", adapter, k == 0 ? "in" : "out"));
        if (t == NULL)
            fail_msg("no half %d of %s at pp %d tp %d", k, adapter, pp, tp);
        half[k] = matrix(&t->tensor, t->data);
    }
    return product(half[1], half[0]);
}

static void same(struct mx a, struct mx b, const char *what)
{
    assert_int_equal(a.r, b.r);
    assert_int_equal(a.c, b.c);
    if (memcmp(a.v, b.v, 4 * a.r * a.c) != 0)
        fail_msg("%s differs", what);
}

static struct mx rows_of(struct mx m, int t, int ranks)
{
    return mx_chunk(m, (uint64_t)ranks, (uint64_t)t);
}

static struct mx cols_of(struct mx m, int t, int ranks)
{
    uint64_t n = m.c / (uint64_t)ranks;
    return mx_cols(m, (uint64_t)t * n, n);
}

/* ---- llama ----------------------------------------------------------------------------------- */

static struct hf_model *llama_adapter(void)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    for (int l = 0; l < LAYERS; l++) {
        char at[32];
        snprintf(at, sizeof(at), "model.layers.%d", l);
        uint64_t r = l == 2 ? 5 : 3; /* rank_pattern */
        adapt(m, w_text("%s.self_attn.q_proj", at), r, H, NH * DIM);
        adapt(m, w_text("%s.self_attn.k_proj", at), r, H, NG * DIM);
        adapt(m, w_text("%s.self_attn.v_proj", at), r, H, NG * DIM);
        adapt(m, w_text("%s.self_attn.o_proj", at), r, NH * DIM, H);
        if (l == 1) /* layers_to_transform */
            continue;
        adapt(m, w_text("%s.mlp.gate_proj", at), r, H, F);
        adapt(m, w_text("%s.mlp.up_proj", at), r, H, F);
        adapt(m, w_text("%s.mlp.down_proj", at), r, F, H);
    }
    return m;
}

static void check_llama(const struct hf_model *m, struct hf_slices *s, int layer, int tp)
{
    int ranks = s->o.tp, pp = layer / (LAYERS / s->o.pp), local = layer % (LAYERS / s->o.pp);
    struct mx part[3], whole[3];
    static const char *const fused[] = {"q", "k", "v"}, *const pairs[] = {"gate", "up"};
    char hf[64], name[64];
    snprintf(hf, sizeof(hf), "model.layers.%d", layer);
    snprintf(name, sizeof(name), "decoder.layers.%d", local);
    for (size_t i = 0; i < 3; i++) {
        part[i] = rank_delta(
            s, pp, tp, w_text("%s.self_attention.linear_qkv.adapter.adapter_%s", name, fused[i]));
        whole[i] = source_delta(m, w_text("%s.self_attn.%s_proj", hf, fused[i]));
    }
    same(mx_qkv(part[0], part[1], part[2], (uint64_t)(NH / ranks), (uint64_t)(NG / ranks), DIM),
         rows_of(mx_qkv(whole[0], whole[1], whole[2], NH, NG, DIM), tp, ranks), "qkv");
    same(rank_delta(s, pp, tp, w_text("%s.self_attention.linear_proj.adapter", name)),
         cols_of(source_delta(m, w_text("%s.self_attn.o_proj", hf)), tp, ranks), "proj");
    if (layer == 1) {
        assert_null(
            hf_slices_find(s, pp, tp, w_text("%s.mlp.linear_fc2.adapter.linear_in.weight", name)));
        return;
    }
    for (size_t i = 0; i < 2; i++)
        same(rank_delta(s, pp, tp, w_text("%s.mlp.linear_fc1.adapter.adapter_%s", name, pairs[i])),
             rows_of(source_delta(m, w_text("%s.mlp.%s_proj", hf, pairs[i])), tp, ranks), pairs[i]);
    same(rank_delta(s, pp, tp, w_text("%s.mlp.linear_fc2.adapter", name)),
         cols_of(source_delta(m, w_text("%s.mlp.down_proj", hf)), tp, ranks), "fc2");
}

TEST(what_a_rank_adds_is_its_slice_of_what_the_adapter_adds)
{
    static const int grids[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 4}};
    struct hf_model *m = llama_adapter();
    for (size_t g = 0; g < HL_ARRAY_LEN(grids); g++) {
        struct hf_slices s;
        sliced(llama, m, grids[g][0], grids[g][1], &s);
        for (int layer = 0; layer < LAYERS; layer++)
            for (int tp = 0; tp < grids[g][0]; tp++)
                check_llama(m, &s, layer, tp);
        /* A and B of every module on every rank, and nothing else. */
        assert_int_equal(s.count, m->count * (size_t)grids[g][0]);
        hf_slices_free(&s);
    }
    hf_model_free(m);
}

TEST(an_adapter_of_a_fused_matrix_has_its_rows_in_megatrons_order)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hf_slices s;
    adapt(m, "model.layers.3.self_attn.qkv_proj", 3, H, (NH + 2 * NG) * DIM);
    adapt(m, "model.layers.3.mlp.gate_up_proj", 3, H, 2 * F);
    sliced(phi3, m, 2, 1, &s);
    struct mx qkv = source_delta(m, "model.layers.3.self_attn.qkv_proj");
    struct mx up = source_delta(m, "model.layers.3.mlp.gate_up_proj");
    struct mx grouped = mx_qkv(mx_rows(qkv, 0, NH * DIM, 1), mx_rows(qkv, NH * DIM, NG * DIM, 1),
                               mx_rows(qkv, (NH + NG) * DIM, NG * DIM, 1), NH, NG, DIM);
    for (int tp = 0; tp < 2; tp++) {
        same(rank_delta(&s, 0, tp, "decoder.layers.3.self_attention.linear_qkv.adapter"),
             rows_of(grouped, tp, 2), "qkv");
        same(rank_delta(&s, 0, tp, "decoder.layers.3.mlp.linear_fc1.adapter"),
             mx_join(rows_of(mx_rows(up, 0, F, 1), tp, 2), rows_of(mx_rows(up, F, F, 1), tp, 2)),
             "fc1");
    }
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(an_adapter_of_conv1d_is_not_turned)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hf_slices s;
    adapt(m, "transformer.h.0.mlp.c_fc", 2, H, F);
    adapt(m, "transformer.h.0.mlp.c_proj", 2, F, H);
    sliced(gpt2, m, 2, 1, &s);
    for (int tp = 0; tp < 2; tp++) {
        same(rank_delta(&s, 0, tp, "decoder.layers.0.mlp.linear_fc1.adapter"),
             rows_of(source_delta(m, "transformer.h.0.mlp.c_fc"), tp, 2), "fc1");
        same(rank_delta(&s, 0, tp, "decoder.layers.0.mlp.linear_fc2.adapter"),
             cols_of(source_delta(m, "transformer.h.0.mlp.c_proj"), tp, 2), "fc2");
    }
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(an_adapter_of_the_head_is_padded_as_the_head_is)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hf_slices s;
    adapt(m, "lm_head", 2, H, VOCAB);
    sliced(llama, m, 2, 2, &s);
    struct mx delta = source_delta(m, "lm_head");
    struct mx padded = mx_join(mx_join(delta, mx_rows(delta, VOCAB - 1, 1, 1)),
                               mx_rows(delta, VOCAB - 1, 1, 1)); /* 10 -> 12 */
    for (int tp = 0; tp < 2; tp++)
        same(rank_delta(&s, 1, tp, "output_layer.adapter"), rows_of(padded, tp, 2), "head");
    hf_slices_free(&s);
    hf_model_free(m);
}

/* ---- beside A and B -------------------------------------------------------------------------- */

static void add_vector(struct hf_model *m, const char *name, uint64_t n)
{
    add_half(m, name, n, 1);
    m->tensors[m->count - 1].rank = 1;
}

static const struct hl_tensor *source_of(const struct hf_model *m, const char *name,
                                         const uint8_t **data)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->names[i], name) == 0) {
            *data = m->data[i];
            return &m->tensors[i];
        }
    fail_msg("no %s", name);
    return NULL;
}

/* Compares rows [first, first + n) of the adapter's tensor, under that name. */
static void same_rows(struct hf_slices *s, int pp, int tp, const char *name,
                      const struct hf_model *m, const char *hf, uint64_t first, uint64_t n)
{
    const uint8_t *data = NULL;
    const struct hl_tensor *t = source_of(m, hf, &data);
    struct hf_slice *got = hf_slices_find(s, pp, tp, name);
    uint64_t row = 4 * (t->rank == 1 ? 1 : t->shape[1]);
    if (got == NULL)
        fail_msg("no %s at pp %d tp %d", name, pp, tp);
    assert_int_equal(got->tensor.rank, t->rank);
    assert_int_equal(got->tensor.size, n * row);
    if (memcmp(got->data, data + first * row, n * row) != 0)
        fail_msg("%s at pp %d tp %d differs", name, pp, tp);
}

TEST(magnitudes_and_biases_are_cut_as_the_rows_of_b)
{
#define AT "base_model.model.model.layers.1."
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hf_slices s;
    adapt(m, "model.layers.1.self_attn.k_proj", 3, H, NG * DIM);
    add_vector(m, AT "self_attn.k_proj.lora_magnitude_vector", NG * DIM);
    add_vector(m, AT "self_attn.k_proj.lora_B.bias", NG * DIM);
    adapt(m, "model.layers.1.mlp.down_proj", 3, F, H);
    add_vector(m, AT "mlp.down_proj.lora_magnitude_vector.weight", H);
    sliced(llama, m, 2, 2, &s);
    for (int tp = 0; tp < 2; tp++) {
        uint64_t n = NG * DIM / 2, first = (uint64_t)tp * n;
        const char *k = "decoder.layers.1.self_attention.linear_qkv.adapter.adapter_k";
        same_rows(&s, 0, tp, w_text("%s.weight_magnitude", k), m,
                  AT "self_attn.k_proj.lora_magnitude_vector", first, n);
        same_rows(&s, 0, tp, w_text("%s.linear_out.bias", k), m, AT "self_attn.k_proj.lora_B.bias",
                  first, n);
        same_rows(&s, 0, tp, "decoder.layers.1.mlp.linear_fc2.adapter.weight_magnitude", m,
                  AT "mlp.down_proj.lora_magnitude_vector.weight", 0, H);
    }
    assert_int_equal(s.count, 2 * m->count);
    hf_slices_free(&s);
    hf_model_free(m);
#undef AT
}

TEST(what_an_adapter_has_whole_is_cut_as_the_bases_own)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hf_slices s;
    add_half(m, "base_model.model.model.embed_tokens.weight", VOCAB, H);
    add_vector(m, "base_model.model.model.layers.2.input_layernorm.weight", H);
    adapt(m, "model.layers.0.mlp.up_proj", 2, H, F);
    sliced(tied, m, 2, 2, &s);
    for (int tp = 0; tp < 2; tp++) {
        uint64_t first = (uint64_t)tp * 6, n = tp == 0 ? 6 : 4; /* 10 words are padded to 12 */
        static const char *const names[] = {"embedding.word_embeddings.weight",
                                            "output_layer.weight"};
        for (int pp = 0; pp < 2; pp++) {
            struct hf_slice *got = hf_slices_find(&s, pp, tp, names[pp]);
            const uint8_t *data = NULL;
            source_of(m, "base_model.model.model.embed_tokens.weight", &data);
            assert_non_null(got);
            assert_memory_equal(got->data, data + first * 4 * H, n * 4 * H);
        }
        same_rows(&s, 1, tp, "decoder.layers.0.input_layernorm.weight", m,
                  "base_model.model.model.layers.2.input_layernorm.weight", 0, H);
    }
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(names_may_begin_as_those_of_another_class_of_the_base)
{
    static const char gemma3[] =
        "{\"model_type\": \"gemma3\", \"text_config\": {\"head_dim\": 4, " SIZES "}}";
    static const char *const bodies[] = {"model.", "language_model.model.",
                                         "model.language_model."};
    for (size_t i = 0; i < HL_ARRAY_LEN(bodies); i++) {
        struct hf_model *m = calloc(1, sizeof(*m));
        struct hf_slices s;
        adapt(m, w_text("%slayers.3.mlp.down_proj", bodies[i]), 2, F, H);
        sliced(gemma3, m, 2, 1, &s);
        for (int tp = 0; tp < 2; tp++)
            same(rank_delta(&s, 0, tp, "decoder.layers.3.mlp.linear_fc2.adapter"),
                 cols_of(source_delta(m, w_text("%slayers.3.mlp.down_proj", bodies[i])), tp, 2),
                 bodies[i]);
        hf_slices_free(&s);
        hf_model_free(m);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

static const char mixtral[] = "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, " SIZES "}";

/* A of gate is whole, B of gate has the etp rank's rows. */
static void check_expert(const struct hf_model *m, const struct hl_partition_shard *shard,
                         const struct hf_slice *got)
{
    static const char at[] = "decoder.layers.1.mlp.experts.local_experts.",
                      in[] = ".linear_fc1.adapter.adapter_gate.linear_in.weight",
                      out[] = ".linear_fc1.adapter.adapter_gate.linear_out.weight";
    assert_int_equal(strncmp(got->name, at, sizeof(at) - 1), 0);
    const char *rest = got->name + sizeof(at); /* behind a digit */
    bool a = strcmp(rest, in) == 0, b = strcmp(rest, out) == 0;
    if (!a && !b)
        return;
    char name[96];
    const uint8_t *data = NULL;
    snprintf(name, sizeof(name),
             "base_model.model.model.layers.1.block_sparse_moe.experts.%d.w1.lora_%c.weight",
             2 * shard->ep + rest[-1] - '0', a ? 'A' : 'B');
    const struct hl_tensor *t = source_of(m, name, &data);
    uint64_t size = a ? t->size : t->size / 2;
    assert_int_equal(got->tensor.size, size);
    assert_memory_equal(got->data, data + (a ? 0 : (uint64_t)shard->tp * size), size);
}

TEST(experts_are_adapted_one_by_one_and_cut_by_ep_and_etp)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    struct hl_partition_options o = {.tp = 2, .pp = 1, .ep = 2, .etp = 2, .vocab_divisor = 2};
    struct hl_partition_plan plan;
    struct hl_hf_config c;
    struct hf_slices s;
    for (int e = 0; e < 4; e++) {
        adapt(m, w_text("model.layers.1.block_sparse_moe.experts.%d.w1", e), 3, H, F);
        adapt(m, w_text("model.layers.1.block_sparse_moe.experts.%d.w3", e), 3, H, F);
        adapt(m, w_text("model.layers.1.block_sparse_moe.experts.%d.w2", e), 2, F, H);
    }
    assert_int_equal(hl_hf_config_parse(mixtral, sizeof(mixtral) - 1, "config.json", &c), HL_OK);
    if (hl_lora_plan(&c, m->tensors, m->count, &o, &plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    hf_slice_by(m, &o, plan, &s);
    assert_int_equal(s.count, 4 * 6 * 2);
    for (size_t k = 0; k < s.plan.shard_count; k++) {
        const struct hl_partition_shard *shard = &s.plan.shards[k];
        for (uint32_t i = 0; i < shard->tensor_count; i++)
            check_expert(m, shard, &s.list[shard->tensor_first + i]);
    }
    hf_slices_free(&s);
    hf_model_free(m);
    hl_hf_config_fini(&c);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const char *base, struct hf_model *m, int tp, const char *a, const char *b)
{
    struct hf_slices s;
    assert_int_not_equal(slice(base, m, tp, 1, &s), HL_OK);
    if (strstr(hl_error_text(), a) == NULL || strstr(hl_error_text(), b) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", hl_error_text(), a, b);
    hf_model_free(m);
}

static struct hf_model *one(const char *module, uint64_t r, uint64_t in, uint64_t out)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    adapt(m, module, r, in, out);
    return m;
}

TEST(an_adapter_for_another_base_is_refused_by_name)
{
    refused(llama, one("model.layers.4.mlp.up_proj", 2, H, F), 1,
            "no matrix 'model.layers.4.mlp.up_proj.weight'", "another base");
    refused(llama, one("model.layers.0.mlp.c_fc", 2, H, F), 1, "model.layers.0.mlp.c_fc.lora_A",
            "another base");
    refused(llama, one("model.layers.0.mlp.up_proj", 2, H + 1, F), 1,
            "lora_A.weight' has shape [2,17]", "16 inputs and 24 outputs");
    refused(llama, one("model.layers.0.mlp.up_proj", 2, H, F + 8), 1,
            "lora_B.weight' has shape [32,2]", "another base");
    refused(tied, one("lm_head", 2, H, VOCAB), 1, "lm_head.lora_A.weight",
            "head is its embedding 'model.embed_tokens.weight'");

    struct hf_model *m = one("model.layers.0.mlp.up_proj", 2, H, F);
    m->count--;
    free(m->data[m->count]);
    refused(llama, m, 1, "lacks its other half", "up_proj.lora_B.weight' is missing");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    m->tensors[1].shape[1] = 3;
    refused(llama, m, 1, "differ in rank", "2 and 3");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "base_model.model.model.embed_tokens.lora_embedding_A", 2, VOCAB);
    refused(llama, m, 1, "embed_tokens.lora_embedding_A' is an adapter of an embedding",
            "merge_and_unload");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "model.layers.0.mlp.up_proj.weight", F, H);
    refused(llama, m, 1, "'model.layers.0.mlp.up_proj.weight' is not a LoRA tensor",
            "lora_A.weight");

    refused(llama, one("model.layers.0.self_attn.q_proj", 2, H, NH * DIM), 4, "tp 4 cuts the 2",
            "query groups");
    refused(llama, one("model.layers.0.mlp.up_proj", 2, H, F), 5, "tp 5", "use tp 1");
}

TEST(only_lora_is_read_from_adapter_config)
{
    static const struct {
        const char *text, *says;
    } rows[] = {{"{", "adapter_config.json:1"},
                {"[]", "not a JSON object"},
                {"{}", "'peft_type' is ''"},
                {"{\"peft_type\": 1}", "'peft_type' is ''"},
                {"{\"peft_type\": \"LORA\", \"layer_replication\": [[0, 2], [1, 4]]}",
                 "'layer_replication'"},
                {"{\"peft_type\": \"LORA\", \"base_model_name_or_path\": 1}",
                 "'base_model_name_or_path' is not text"},
                {"{\"peft_type\": \"IA3\"}", "'IA3'"},
                {"{\"peft_type\": \"LORA\", \"target_parameters\": [\"mlp.experts.down_proj\"]}",
                 "'target_parameters'"}};
    struct hl_lora_config c;
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_not_equal(
            hl_lora_config_parse(rows[i].text, strlen(rows[i].text), "adapter_config.json", &c),
            HL_OK);
        if (strstr(hl_error_text(), rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].says);
    }
    static const char good[] = "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"a/b\"}";
    assert_int_equal(hl_lora_config_parse(good, sizeof(good) - 1, "f", &c), HL_OK);
    assert_string_equal(c.base, "a/b");
    hl_lora_config_fini(&c);
}

TEST(what_has_no_known_cut_is_refused_by_name_with_what_to_do)
{
    static const char merge[] = "merge_and_unload";
    struct hf_model *m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "base_model.model.model.embed_tokens.weight", VOCAB + 3, H);
    refused(llama, m, 1, "embed_tokens.weight' has shape [13,16], the base's has [10,16]", merge);

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "base_model.model.score.weight", 2, H);
    refused(llama, m, 1, "'base_model.model.score.weight' is not a LoRA tensor", "remove it");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "base_model.model.model.layers.0.self_attn.q_proj.weight", NH * DIM, H);
    refused(llama, m, 1, "no tensor 'base_model.model.model.layers.0.self_attn.v_proj.weight'",
            "fused with it");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_vector(m, "base_model.model.model.layers.0.mlp.gate_proj.lora_magnitude_vector", F);
    refused(llama, m, 1, "gate_proj.lora_magnitude_vector' lacks its other half",
            "gate_proj.lora_A.weight' is missing");

    m = one("model.layers.0.mlp.up_proj", 2, H, F);
    add_half(m, "base_model.model.lm_head.weight", VOCAB, H);
    refused(tied, m, 1, "lm_head.weight': the base's head is its embedding", merge);

    m = calloc(1, sizeof(*m));
    for (int e = 0; e < 4; e++)
        adapt(m, w_text("model.layers.0.block_sparse_moe.experts.%d.w1", e), e == 2 ? 3 : 2, H, F);
    refused(mixtral, m, 1, "'model.layers.0.block_sparse_moe.experts.2.w1.weight'", merge);
    refused(mixtral, one("model.layers.0.block_sparse_moe.experts.0.w1", 2, H, F), 1,
            "'model.layers.0.block_sparse_moe.experts.1.w1.weight'", "in the same way");
}
