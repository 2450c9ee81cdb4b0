/* Slices compared with numbers worked out by hand: element [row, column] of a numbered tensor is
 * base + 10 * row + column. */
#include "support/test.h"

#include "core/model/partition.h"
#include "support/hf_slices.h"

#define L0        "decoder.layers.0."
#define QKV       L0 "self_attention.linear_qkv.weight"
#define PROJ      L0 "self_attention.linear_proj.weight"
#define FC1       L0 "mlp.linear_fc1.weight"
#define FC2       L0 "mlp.linear_fc2.weight"
#define LIST(...) ((const float[]){__VA_ARGS__})

static void number(struct hf_model *m, const char *name, int base)
{
    int i = hf_find(m, name);
    assert_true(i >= 0);
    uint64_t cols = m->tensors[i].rank == 2 ? m->tensors[i].shape[1] : 1;
    for (uint64_t k = 0; k < m->tensors[i].size / 4; k++) {
        float v = (float)(base + (int)(k / cols) * 10 + (int)(k % cols));
        memcpy(m->data[i] + k * 4, &v, 4);
    }
}

static void check(const struct hf_slices *s, int tp, const char *name, uint64_t rows, uint64_t cols,
                  const float *want)
{
    const struct hf_slice *t = hf_slices_find(s, 0, tp, name);
    assert_non_null(t);
    assert_int_equal(t->tensor.rank, cols > 0 ? 2 : 1);
    assert_int_equal(t->tensor.shape[0], rows);
    if (cols > 0)
        assert_int_equal(t->tensor.shape[1], cols);
    assert_memory_equal(t->data, want, rows * (cols > 0 ? cols : 1) * 4);
}

static struct hf_slices slice(const struct hf_model *m, struct hl_partition_options o)
{
    struct hf_slices s;
    if (hf_slice(m, &o, &s) != HL_OK)
        fail_msg("%s", hl_error_text());
    return s;
}

static const struct hf_fixture llama = {.arch = "llama",
                                        .layers = 1,
                                        .hidden = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 1,
                                        .ffn = 6,
                                        .vocab = 3,
                                        .dtype = HL_DTYPE_F32};

/* 4 heads of size 1 in 2 groups: q0 q1 k0 v0 | q2 q3 k1 v1. */
TEST(qkv_rows_stand_group_by_group)
{
    struct hf_model *m = hf_model_make(&llama);
    number(m, "model.layers.0.self_attn.q_proj.weight", 1000);
    number(m, "model.layers.0.self_attn.k_proj.weight", 2000);
    number(m, "model.layers.0.self_attn.v_proj.weight", 3000);
    struct hf_slices s = slice(m, (struct hl_partition_options){.tp = 1, .pp = 1});
    check(&s, 0, QKV, 8, 2,
          LIST(1000, 1001, 1010, 1011, 2000, 2001, 3000, 3001, 1020, 1021, 1030, 1031, 2010, 2011,
               3010, 3011));
    hf_slices_free(&s);
    s = slice(m, (struct hl_partition_options){.tp = 2, .pp = 1});
    check(&s, 1, QKV, 4, 2, LIST(1020, 1021, 1030, 1031, 2010, 2011, 3010, 3011));
    hf_slices_free(&s);
    hf_model_free(m);
}

/* Megatron-core 0.16: the weight is split plainly even if a rank then holds part of a group. */
TEST(more_ranks_than_groups_share_a_group_without_copies)
{
    struct hf_fixture f = llama;
    f.ffn = 8;
    struct hf_model *m = hf_model_make(&f);
    number(m, "model.layers.0.self_attn.q_proj.weight", 1000);
    number(m, "model.layers.0.self_attn.k_proj.weight", 2000);
    number(m, "model.layers.0.self_attn.v_proj.weight", 3000);
    struct hf_slices s = slice(m, (struct hl_partition_options){.tp = 4, .pp = 1});
    check(&s, 0, QKV, 2, 2, LIST(1000, 1001, 1010, 1011));
    check(&s, 1, QKV, 2, 2, LIST(2000, 2001, 3000, 3001));
    check(&s, 3, QKV, 2, 2, LIST(2010, 2011, 3010, 3011));
    hf_slices_free(&s);
    hf_model_free(m);
}

/* 6 rows of gate and up over 3 ranks: each holds two of gate, then two of up. */
TEST(gate_and_up_are_paired_per_rank)
{
    struct hf_fixture f = llama;
    f.heads = f.kv_heads = 3;
    struct hf_model *m = hf_model_make(&f);
    number(m, "model.layers.0.mlp.gate_proj.weight", 1000);
    number(m, "model.layers.0.mlp.up_proj.weight", 2000);
    struct hf_slices s = slice(m, (struct hl_partition_options){.tp = 3, .pp = 1});
    check(&s, 1, FC1, 4, 2, LIST(1020, 1021, 1030, 1031, 2020, 2021, 2030, 2031));
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(row_parallel_weights_are_cut_by_columns)
{
    struct hf_model *m = hf_model_make(&llama);
    number(m, "model.layers.0.mlp.down_proj.weight", 1000);
    number(m, "model.layers.0.self_attn.o_proj.weight", 2000);
    struct hf_slices s = slice(m, (struct hl_partition_options){.tp = 2, .pp = 1});
    check(&s, 0, FC2, 2, 3, LIST(1000, 1001, 1002, 1010, 1011, 1012));
    check(&s, 1, FC2, 2, 3, LIST(1003, 1004, 1005, 1013, 1014, 1015));
    check(&s, 1, PROJ, 2, 2, LIST(2002, 2003, 2012, 2013));
    hf_slices_free(&s);
    hf_model_free(m);
}

/* c_attn is [in 2, out 6] = Q(h0 h1) K(h0 h1) V(h0 h1): Megatron's rows are columns 0 2 4 | 1 3 5.
 */
TEST(gpt2_is_transposed_and_regrouped_by_head)
{
    struct hf_fixture f = {.arch = "gpt2",
                           .layers = 1,
                           .hidden = 2,
                           .heads = 2,
                           .ffn = 4,
                           .vocab = 3,
                           .positions = 2,
                           .tied = 1,
                           .dtype = HL_DTYPE_F32,
                           .buffers = 1};
    struct hf_model *m = hf_model_make(&f);
    number(m, "transformer.h.0.attn.c_attn.weight", 1000);
    number(m, "transformer.h.0.attn.c_attn.bias", 5000);
    number(m, "transformer.h.0.mlp.c_fc.weight", 2000);
    number(m, "transformer.h.0.mlp.c_proj.weight", 3000);
    struct hf_slices s = slice(m, (struct hl_partition_options){.tp = 2, .pp = 1});
    check(&s, 0, QKV, 3, 2, LIST(1000, 1010, 1002, 1012, 1004, 1014));
    check(&s, 1, QKV, 3, 2, LIST(1001, 1011, 1003, 1013, 1005, 1015));
    check(&s, 1, L0 "self_attention.linear_qkv.bias", 3, 0, LIST(5010, 5030, 5050));
    check(&s, 1, FC1, 2, 2, LIST(2002, 2012, 2003, 2013));
    check(&s, 1, FC2, 2, 2, LIST(3020, 3030, 3021, 3031));
    assert_null(hf_slices_find(&s, 0, 0, "output_layer.weight"));
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(padding_repeats_the_last_row_or_is_zero)
{
    struct hf_model *m = hf_model_make(&llama);
    const char *name = "embedding.word_embeddings.weight";
    number(m, "model.embed_tokens.weight", 1000);
    struct hl_partition_options o = {.tp = 2, .pp = 1, .vocab_divisor = 4};
    struct hf_slices s = slice(m, o);
    check(&s, 0, name, 4, 2, LIST(1000, 1001, 1010, 1011, 1020, 1021, 1020, 1021));
    check(&s, 1, name, 4, 2, LIST(1020, 1021, 1020, 1021, 1020, 1021, 1020, 1021));
    hf_slices_free(&s);
    o.pad = HL_API_VOCAB_PADDING_ZERO;
    s = slice(m, o);
    check(&s, 0, name, 4, 2, LIST(1000, 1001, 1010, 1011, 1020, 1021, 0, 0));
    check(&s, 1, name, 4, 2, LIST(0, 0, 0, 0, 0, 0, 0, 0));
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(padded_vocabulary_follows_divisor_and_tp)
{

    static const struct {
        uint64_t divisor, tp, want;
    } rows[] = {{128, 1, 1024}, {128, 2, 1024}, {128, 8, 1024}, {0, 4, 1024},
                {1, 1, 1003},   {1, 2, 1004},   {1, 4, 1004},   {1, 8, 1008},
                {8, 1, 1008},   {8, 2, 1008},   {8, 4, 1024},   {128, 16, 2048}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_partition_padded_vocab(1003, rows[i].divisor, rows[i].tp),
                         rows[i].want);
}

static void stage(const struct hl_partition_options *o, int pp, int chunk, uint64_t first,
                  uint64_t count)
{
    uint64_t f, n;
    hl_partition_stage(o, 8, pp, chunk, &f, &n);
    assert_int_equal(f, first);
    assert_int_equal(n, count);
}

TEST(stages_are_even_uneven_or_virtual)
{
    struct hl_partition_options o = {.tp = 1, .pp = 2};
    assert_int_equal(hl_partition_check_layers(&o, 8), HL_OK);
    stage(&o, 1, 0, 4, 4);
    o.virtual_stages = 2; /* stage 0: 0 1, 4 5; stage 1: 2 3, 6 7 */
    assert_int_equal(hl_partition_check_layers(&o, 8), HL_OK);
    stage(&o, 0, 1, 4, 2);
    stage(&o, 1, 0, 2, 2);
    stage(&o, 1, 1, 6, 2);
    o = (struct hl_partition_options){.pp = 4, .first_stage_layers = 1, .last_stage_layers = 3};
    assert_int_equal(hl_partition_check_layers(&o, 8), HL_OK); /* 1 2 2 3 */
    stage(&o, 0, 0, 0, 1);
    stage(&o, 1, 0, 1, 2);
    stage(&o, 2, 0, 3, 2);
    stage(&o, 3, 0, 5, 3);
    o = (struct hl_partition_options){.pp = 2, .first_stage_layers = 6, .virtual_stages = 2};
    assert_int_equal(hl_partition_check_layers(&o, 8), HL_OK); /* chunks 3 1 3 1 */
    stage(&o, 0, 1, 4, 3);
    stage(&o, 1, 0, 3, 1);
    stage(&o, 1, 1, 7, 1);
}

TEST(virtual_stages_number_layers_from_zero_in_every_chunk)
{
    struct hf_fixture f = llama;
    f.layers = 8;
    struct hf_model *m = hf_model_make(&f);
    struct hf_slices s =
        slice(m, (struct hl_partition_options){.tp = 1, .pp = 2, .virtual_stages = 2});
    const struct hf_slice *t =
        hf_slices_find(&s, 1, 0, "model1.decoder.layers.1.mlp.linear_fc2.weight");
    assert_non_null(t);
    assert_string_equal(t->part, "layer-0007");
    assert_non_null(hf_slices_find(&s, 0, 0, "model0.embedding.word_embeddings.weight"));
    assert_non_null(hf_slices_find(&s, 1, 0, "model1.output_layer.weight"));
    assert_null(hf_slices_find(&s, 1, 0, "model0.output_layer.weight"));
    hf_slices_free(&s);
    hf_model_free(m);
}

TEST(transformer_engine_names_move_the_norms)
{
    struct hf_model *m = hf_model_make(&llama);
    struct hf_slices s =
        slice(m, (struct hl_partition_options){.tp = 1, .pp = 1, .naming = HL_API_LAYER_NAMING_TE});
    assert_non_null(hf_slices_find(&s, 0, 0, L0 "self_attention.linear_qkv.layer_norm_weight"));
    assert_non_null(hf_slices_find(&s, 0, 0, L0 "mlp.linear_fc1.layer_norm_weight"));
    assert_non_null(hf_slices_find(&s, 0, 0, "decoder.final_layernorm.weight"));
    assert_null(hf_slices_find(&s, 0, 0, L0 "input_layernorm.weight"));
    hf_slices_free(&s);
    hf_model_free(m);
}

/* Any shape of any family, split any way, gives the model back bit for bit. */
TEST(random_models_come_back_bit_for_bit)
{
    static const char *const archs[] = {"llama", "qwen2", "gpt2", "mistral"};

    static const enum hl_dtype dtypes[] = {HL_DTYPE_BF16, HL_DTYPE_F32, HL_DTYPE_F64};

    srandom(20);
    for (int round = 0; round < 150; round++) {
        int tp = 1 << random() % 3, pp = 1 + (int)(random() % 3);
        int chunks = pp > 1 ? 1 + (int)(random() % 2) : 1;
        uint64_t groups = 1u << random() % 3, dim = (uint64_t)(1 + random() % 3) * 4;
        struct hf_fixture f = {.arch = archs[round % 4],
                               .layers = (uint64_t)(pp * chunks * (1 + (int)(random() % 2))),
                               .hidden = 12,
                               .heads = groups * (uint64_t)tp,
                               .kv_heads = groups,
                               .head_dim = dim,
                               .ffn = (uint64_t)tp * (uint64_t)(1 + random() % 5),
                               .vocab = 1 + (uint64_t)(random() % 30),
                               .positions = 5,
                               .tied = (int)(random() % 2),
                               .dtype = dtypes[random() % 3],
                               .bare = (int)(random() % 2),
                               .buffers = (int)(random() % 2),
                               .head_anyway = (int)(random() % 2)};
        if (round % 4 == 2) {
            f.heads = (uint64_t)tp * (uint64_t)(1 + random() % 2);
            f.hidden = f.heads * (uint64_t)(1 + random() % 4);
            f.head_dim = 0;
        }
        struct hl_partition_options o = {.tp = tp,
                                         .pp = pp,
                                         .virtual_stages = chunks,
                                         .vocab_divisor = 1 + (int)(random() % 9),
                                         .pad = (enum hl_api_vocab_padding)(random() % 2),
                                         .naming = (enum hl_api_layer_naming)(random() % 2)};
        struct hf_model *m = hf_model_make(&f);
        struct hf_slices s = slice(m, o);
        if (!hf_reassemble(m, &s))
            fail_msg("round %d: %s tp %d pp %d chunks %d", round, f.arch, tp, pp, chunks);
        assert_int_equal(s.plan.equal_count, f.tied && f.head_anyway);
        hf_slices_free(&s);
        hf_model_free(m);
    }
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

static void refuse(const struct hf_fixture *f, struct hl_partition_options o, const char *what)
{
    struct hf_model *m = hf_model_make(f);
    struct hl_partition_plan plan;
    assert_int_not_equal(hf_plan(m, &o, &plan), HL_OK);
    if (strstr(hl_error_text(), what) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), what);
    hf_model_free(m);
}

TEST(what_does_not_divide_is_refused_with_the_arithmetic)
{
    struct hf_fixture f = llama;
    f.layers = 3;
    refuse(&f, (struct hl_partition_options){.tp = 3, .pp = 1},
           "tp 3 does not divide the 4 attention heads of this model; use tp 1 or 2");
    refuse(&f, (struct hl_partition_options){.tp = 4, .pp = 1},
           "tp 4 does not divide the 6 MLP columns");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 2},
           "3 layers over 2 stages leave 1; use pp 1 or 3, or set the first");
    refuse(&f, (struct hl_partition_options){.tp = 0, .pp = 1}, "tp 0");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 1, .vocab_divisor = -1}, "divisor -1");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 3, .virtual_stages = 2},
           "stage 0 has 1 layers: they can't be shared evenly by 2 virtual stages; use 1");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 1, .virtual_stages = 3}, "pp of at");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 2, .first_stage_layers = 4},
           "leave -1");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 1, .first_stage_layers = 1}, "pp is 1");
    refuse(&f, (struct hl_partition_options){.tp = 1, .pp = 3, .first_stage_layers = 3}, "leave 0");
    f.heads = 6;
    f.kv_heads = 3;
    refuse(&f, (struct hl_partition_options){.tp = 2, .pp = 1}, "3 query groups; use tp 1, 3 or 6");
    f.heads = f.kv_heads = f.ffn = 12;
    refuse(&f, (struct hl_partition_options){.tp = 5, .pp = 1}, "use tp 1, 2, 3, 4, 6 or 12");
}

TEST(missing_and_unknown_tensors_are_named)
{
    struct hl_partition_options o = {.tp = 1, .pp = 1};
    static const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "model.norm.weight",
                                        "lm_head.weight", "model.embed_tokens.weight"};
    struct hf_fixture f = llama;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        f.skip = names[i];
        refuse(&f, o, names[i]);
        refuse(&f, o, "is missing");
    }
    f.skip = NULL;
    struct hf_model *m = hf_model_make(&f);
    struct hl_partition_plan plan;
    hf_add(m, HL_DTYPE_F32, 1, 2, 0, "model.layers.1.input_layernorm.weight");
    assert_int_equal(hf_plan(m, &o, &plan), HL_EINVAL);
    assert_non_null(
        strstr(hl_error_text(), "'model.layers.1.input_layernorm.weight' has no place"));
    hf_model_free(m);
}

TEST(wrong_shapes_and_mixed_dtypes_are_named)
{
    struct hl_partition_options o = {.tp = 1, .pp = 1};
    struct hl_partition_plan plan;
    struct hf_model *m = hf_model_make(&llama);
    int k = hf_find(m, "model.layers.0.self_attn.k_proj.weight");
    m->tensors[k].dtype = HL_DTYPE_BF16;
    assert_int_equal(hf_plan(m, &o, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "k_proj.weight' is BF16"));
    m->tensors[k].dtype = HL_DTYPE_I8;
    assert_int_equal(hf_plan(m, &o, &plan), HL_EUNSUPPORTED);
    m->tensors[k].dtype = HL_DTYPE_F32;
    m->tensors[k].shape[0] = 3;
    assert_int_equal(hf_plan(m, &o, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "has shape [3,2], config.json asks for [2,2]: they do "
                                            "not belong together; correct config.json"));
    hf_model_free(m);
}

TEST(config_errors_name_file_and_field)
{

    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{", "config.json:1:1"},
        {"[]", "not a JSON object"},
        {"{}", "'model_type' is missing"},
        {"{\"model_type\": \"bert\"}", "'bert' is not supported"},
        {"{\"architectures\": [\"FalconForCausalLM\"]}", "'FalconForCausalLM'"},
        {"{\"model_type\": \"llama\"}", "'num_hidden_layers' is missing"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "'n_layer' is not an integer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"2\"}", "'n_layer' is not an integer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 99999999999}", "'n_layer' is not an integer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 7, \"n_head\": 2,"
         " \"vocab_size\": 3}",
         "'n_embd' 7 is not a multiple of 'n_head' 2"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 8,"
         " \"num_attention_heads\": 4, \"num_key_value_heads\": 3, \"intermediate_size\": 4,"
         " \"vocab_size\": 3}",
         "4 is not a multiple of 'num_key_value_heads' 3"},
        {"{\"model_type\": \"llama\", \"quantization_config\": {}}", "can't be sliced"},
        {"{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}", "config.json:1"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_hf_config c;
        assert_int_not_equal(
            hl_hf_config_parse(rows[i].text, strlen(rows[i].text), "config.json", &c), HL_OK);
        if (strstr(hl_error_text(), rows[i].want) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].want);
    }
}

TEST(the_config_document_describes_model_and_cut)
{
    struct hf_model *m = hf_model_make(&llama);
    char *text = hf_config_text(&llama), *doc;
    struct hl_hf_config c;
    struct hl_partition_plan plan;
    struct hl_partition_options o = {.tp = 2, .pp = 1};
    assert_int_equal(hl_hf_config_parse(text, strlen(text), "config.json", &c), HL_OK);
    assert_int_equal(hl_partition_plan(&c, m->tensors, m->count, &o, &plan), HL_OK);
    assert_int_equal(hl_partition_config(&c, &o, &plan, &doc), HL_OK);
    json_t *j = json_loads(doc, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "architecture")), "llama");
    assert_string_equal(json_string_value(json_object_get(j, "dtype")), "F32");
    assert_int_equal(json_integer_value(json_object_get(j, "paddedVocab")), 256);
    /* embedding 6 + head 6 + norms 3*2 + q 8 + k 4 + v 4 + o 8 + gate 12 + up 12 + down 12 */
    assert_int_equal(json_integer_value(json_object_get(j, "parameters")), 78);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(j, "hf"), "intermediate_size")), 6);
    json_decref(j);
    free(doc);
    free(text);
    hl_partition_fini(&plan);
    hl_hf_config_fini(&c);
    hf_model_free(m);
}
