/* Quantized matrices. Compared are pairs of an element and its scale: the checkpoint's pairs, split
 * by Megatron's rules, with the ranks' pairs. */
#include "quantized_rig.h"

TESTS_IN(NULL, free_oracle)

/* Element (r, c) and, above its 8 bits, the lowest 24 of its scale, which covers `block` rows. */
static struct mx pairs_by(const struct subject *s, struct held w, struct held scale, uint64_t block)
{
    uint64_t rows = w.t->shape[0], cols = w.t->shape[1] * s->per_byte;
    uint64_t width = s->block[1] > 0 ? (cols + s->block[1] - 1) / s->block[1] : 1;
    uint32_t *v = oracle_alloc(rows * cols * sizeof(*v));
    assert_int_equal(w.t->dtype, s->dtype);
    assert_int_equal(scale.t->dtype, s->scale_dtype);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) {
            uint32_t number = 0, elem = hl_dtype_size(s->scale_dtype);
            uint64_t at =
                (block > 0 ? r / block * width : 0) + (s->block[1] > 0 ? c / s->block[1] : 0);
            uint8_t byte = w.data[(r * cols + c) / s->per_byte];
            assert_true((at + 1) * elem <= scale.t->size);
            memcpy(&number, scale.data + at * elem, elem < 3 ? elem : 3);
            v[r * cols + c] = number << 8 | (s->per_byte == 1 ? byte
                                             : (c & 1) != 0   ? byte >> 4
                                                              : byte & 15);
        }
    return (struct mx){rows, cols, v};
}

static struct mx pairs_of(const struct subject *s, struct held w, struct held scale)
{
    return pairs_by(s, w, scale, s->block[0]);
}

/* A fused weight's shape and that of its scales give the number of rows per scale. */
static uint64_t rows_of_scale(const struct subject *s, struct held w, struct held scale)
{
    uint64_t rows = w.t->shape[0], n = scale.t->rank > 0 ? scale.t->shape[0] : 0;
    return s->block[0] > 1 && rows % n == 0 ? rows / n : s->block[0];
}

static struct mx source_pairs(const struct subject *s, const struct hf_model *m, int layer,
                              size_t k)
{
    const char *at = w_text("model.layers.%d.%s", layer, projections[k]);
    return pairs_of(s, held_of(m, NULL, 0, w_text("%s.%s", at, s->weight)),
                    held_of(m, NULL, 0, w_text("%s.%s", at, s->scale)));
}

static void same_pairs(const struct subject *s, const struct hf_slices *got, int tp,
                       const char *module, struct mx want)
{
    struct held w = held_of(NULL, got, tp, w_text("%s.%s", module, s->weight));
    struct held scale = held_of(NULL, got, tp, w_text("%s.%s", module, s->scale));
    struct mx have = pairs_by(s, w, scale, rows_of_scale(s, w, scale));
    assert_int_equal(have.r, want.r);
    assert_int_equal(have.c, want.c);
    for (uint64_t i = 0; i < want.r * want.c; i++)
        if (have.v[i] != want.v[i])
            fail_msg("%s: %s of tp %d: pair %" PRIu64 " is %x, expected %x", s->name, module, tp, i,
                     have.v[i], want.v[i]);
}

/* Scales of one number: the sources' numbers, in order, on every rank. */
static void same_numbers(const struct hf_model *m, const struct hf_slices *got, int tp, int layer,
                         const char *module, const char *ending, size_t first, size_t n)
{
    struct held h = held_of(NULL, got, tp, w_text("%s.%s", module, ending));
    for (size_t k = 0; k < n; k++) {
        struct held one = held_of(
            m, NULL, 0, w_text("model.layers.%d.%s.%s", layer, projections[first + k], ending));
        assert_int_equal(h.t->size, n * one.t->size);
        assert_int_equal(h.t->rank, one.t->rank + (n > 1 ? 1 : 0));
        assert_memory_equal(h.data + k * one.t->size, one.data, one.t->size);
    }
}

static struct mx ranks_rows(struct mx m, int t, int ranks)
{
    return mx_rows(m, (uint64_t)t * m.r / (uint64_t)ranks, m.r / (uint64_t)ranks, 1);
}

static void check_layer(const struct subject *s, const struct hf_model *m,
                        const struct hf_slices *got, int tp, int layer)
{
    static const struct {
        const char *module;
        size_t first, n;
    } fused[] = {{"self_attention.linear_qkv", 0, 3},
                 {"self_attention.linear_proj", 3, 1},
                 {"mlp.linear_fc1", 4, 2},
                 {"mlp.linear_fc2", 6, 1}};

    int ranks = got->o.tp;
    struct mx p[7];
    char at[4][64];
    bool one = s->block[0] == 0 && s->block[1] == 0;
    for (size_t k = 0; k < 7; k++)
        p[k] = source_pairs(s, m, layer, k);
    for (size_t k = 0; k < 4; k++) {
        snprintf(at[k], sizeof(at[k]), "decoder.layers.%d.%s", layer, fused[k].module);
        for (size_t i = 0; i < 3 && s->numbers[i] != NULL; i++)
            same_numbers(m, got, tp, layer, at[k], s->numbers[i], fused[k].first, fused[k].n);
        if (one)
            same_numbers(m, got, tp, layer, at[k], s->scale, fused[k].first, fused[k].n);
    }
    uint64_t wide = p[3].c / (uint64_t)ranks, narrow = p[6].c / (uint64_t)ranks;
    same_pairs(s, got, tp, at[1], mx_cols(p[3], (uint64_t)tp * wide, wide));
    same_pairs(s, got, tp, at[3], mx_cols(p[6], (uint64_t)tp * narrow, narrow));
    if (one)
        return;
    same_pairs(s, got, tp, at[0], ranks_rows(mx_qkv(p[0], p[1], p[2], NH, NG, DIM), tp, ranks));
    same_pairs(s, got, tp, at[2],
               mx_join(ranks_rows(p[4], tp, ranks), ranks_rows(p[5], tp, ranks)));
}

TEST(every_element_keeps_its_scale_on_every_rank)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            struct hl_partition_options o = {.tp = tp, .pp = 1, .vocab_divisor = 2};
            struct hf_model *m = model_of(&subjects[i]);
            struct hf_slices got;
            if (slice(&subjects[i], m, &o, &got) != HL_OK)
                fail_msg("%s at tp %d: %s", subjects[i].name, tp, hl_error_text());
            for (int t = 0; t < tp; t++)
                for (int l = 0; l < LAYERS; l++)
                    check_layer(&subjects[i], m, &got, t, l);
            hf_slices_free(&got);
            hf_model_free(m);
        }
}

/* ---- and back -------------------------------------------------------------------------------- */

TEST(the_checkpoint_comes_back_byte_for_byte)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++) {
        struct hl_partition_options o = {.tp = 2, .pp = 2, .vocab_divisor = 2};
        struct hf_model *m = model_of(&subjects[i]);
        struct hf_slices got;
        assert_int_equal(slice(&subjects[i], m, &o, &got), HL_OK);
        struct hl_hf_config c;
        parse_config(subjects[i].config, &c);
        check_whole(subjects[i].name, &c, m, &got);
        hl_hf_config_fini(&c);
        hf_slices_free(&got);
        hf_model_free(m);
    }
}

/* ---- gpt_oss --------------------------------------------------------------------------------- */

#define E 2

static struct hf_model *gpt_oss_of(struct hl_hf_config *c)
{
    static const char text[] =
        "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 1, \"hidden_size\": 64,"
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 4,"
        "\"vocab_size\": 10, \"intermediate_size\": 128, \"num_local_experts\": 2,"
        "\"quantization_config\": {\"quant_method\": \"mxfp4\"}}";
    struct hl_logical l;
    struct hf_model *m = calloc(1, sizeof(*m));
    assert_int_equal(hl_hf_config_parse(text, sizeof(text) - 1, "config.json", c), HL_OK);
    assert_int_equal(hl_family_logical(c, &(struct hl_checkpoint){0}, &l), HL_OK);
    for (size_t i = 0; i < l.count; i++) {
        const char *name = l.tensors[i].name;
        if (strcmp(strrchr(name, '.'), ".gate_up_proj") != 0 &&
            strcmp(strrchr(name, '.'), ".down_proj") != 0) {
            add(m, name, HL_DTYPE_BF16, l.tensors[i].rank, l.tensors[i].shape);
            continue;
        }
        bool up = strstr(name, "gate_up") != NULL;
        uint64_t rows = up ? 256 : 64, blocks = up ? 64 / 32 : 128 / 32;
        add(m, w_text("%s_blocks", name), HL_DTYPE_U8, 4, (uint64_t[]){E, rows, blocks, 16});
        add(m, w_text("%s_scales", name), HL_DTYPE_U8, 3, (uint64_t[]){E, rows, blocks});
    }
    hl_logical_fini(&l);
    return m;
}

/* The pairs of one expert, [out, in], with subjects[].block {1, 32}. */
static struct mx expert_pairs(const struct hf_model *m, const struct subject *s, const char *name,
                              uint64_t e, uint64_t rows, uint64_t cols)
{
    struct held b = held_of(m, NULL, 0, w_text("model.layers.0.mlp.experts.%s_blocks", name));
    struct held k = held_of(m, NULL, 0, w_text("model.layers.0.mlp.experts.%s_scales", name));
    struct hl_tensor bt = {
        .dtype = HL_DTYPE_U8, .rank = 2, .shape = {rows, cols / 2}, .size = rows * cols / 2};
    struct hl_tensor kt = {
        .dtype = HL_DTYPE_U8, .rank = 2, .shape = {rows, cols / 32}, .size = rows * cols / 32};
    return pairs_of(s, (struct held){&bt, b.data + e * bt.size},
                    (struct held){&kt, k.data + e * kt.size});
}

TEST(experts_in_mxfp4_are_cut_with_their_scales)
{
    static const struct subject s = {.name = "gpt_oss",
                                     .dtype = HL_DTYPE_U8,
                                     .weight = "weight_blocks",
                                     .per_byte = 2,
                                     .scale = "weight_scales",
                                     .scale_dtype = HL_DTYPE_U8,
                                     .block = {1, 32}};
    for (int tp = 1; tp <= 4; tp *= 2) {
        struct hl_partition_options o = {.tp = tp, .pp = 1, .vocab_divisor = 2};
        struct hl_hf_config c;
        struct hl_partition_plan plan;
        struct hf_slices got;
        struct hf_model *m = gpt_oss_of(&c);
        if (hl_partition_plan(&c, m->tensors, m->count, &o, &plan) != HL_OK)
            fail_msg("%s", hl_error_text());
        hf_slice_by(m, &o, plan, &got);
        for (int t = 0; t < tp; t++)
            for (uint64_t e = 0; e < E; e++) {
                char at[96];
                struct mx up = expert_pairs(m, &s, "gate_up_proj", e, 256, 64);
                struct mx down = expert_pairs(m, &s, "down_proj", e, 64, 128);
                uint64_t n = 128 / (uint64_t)tp;
                snprintf(at, sizeof(at), "decoder.layers.0.mlp.experts.local_experts.%d.linear_fc1",
                         (int)e);
                same_pairs(&s, &got, t, at,
                           mx_join(ranks_rows(mx_rows(up, 0, 128, 2), t, tp),
                                   ranks_rows(mx_rows(up, 1, 128, 2), t, tp)));
                at[strlen(at) - 1] = '2';
                same_pairs(&s, &got, t, at, mx_cols(down, (uint64_t)t * n, n));
            }
        check_whole(s.name, &c, m, &got);
        hf_slices_free(&got);
        hf_model_free(m);
        hl_hf_config_fini(&c);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void rename_tensor(struct hf_model *m, const char *from, const char *to)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->names[i], from) == 0) {
            snprintf(m->names[i], sizeof(m->names[i]), "%s", to);
            return;
        }
    fail_msg("no %s", from);
}

static struct hl_tensor *tensor_of(struct hf_model *m, const char *name)
{
    return (struct hl_tensor *)held_of(m, NULL, 0, name).t;
}

static void refused(const struct subject *s, struct hf_model *m, int tp, const char *const *says)
{
    struct hl_partition_options o = {.tp = tp, .pp = 1, .vocab_divisor = 2};
    struct hf_slices got;
    assert_int_not_equal(slice(s, m, &o, &got), HL_OK);
    for (; *says != NULL; says++)
        if (strstr(hl_error_text(), *says) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), *says);
    hf_model_free(m);
}

#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(weights_and_scales_that_do_not_belong_together_are_named)
{
    const struct subject *blocks = &subjects[0], *one = &subjects[5];
    struct hf_model *m = model_of(blocks);
    rename_tensor(m, "model.layers.1.mlp.down_proj.weight_scale_inv", "model.rotary_emb.inv_freq");
    refused(blocks, m, 1,
            SAYS("'model.layers.1.mlp.down_proj.weight' is F8_E4M3 and has no scale",
                 "'model.layers.1.mlp.down_proj.weight_scale_inv'"));

    m = model_of(blocks);
    rename_tensor(m, "model.layers.0.mlp.up_proj.weight_scale_inv", "model.rotary_emb.inv_freq");
    refused(blocks, m, 1,
            SAYS("scale 'model.layers.0.mlp.up_proj.weight_scale_inv' is missing", "fused"));

    m = model_of(blocks);
    tensor_of(m, "model.layers.0.self_attn.o_proj.weight")->dtype = HL_DTYPE_BF16;
    refused(blocks, m, 1,
            SAYS("scale 'model.layers.0.self_attn.o_proj.weight_scale_inv' belongs to a weight of "
                 "BF16"));

    m = model_of(blocks);
    rename_tensor(m, "model.layers.0.self_attn.q_proj.weight_scale_inv",
                  "model.layers.0.self_attn.x_proj.weight_scale_inv");
    rename_tensor(m, "model.layers.0.self_attn.q_proj.weight",
                  "model.layers.0.self_attn.x_proj.weight");
    refused(blocks, m, 1, SAYS("'model.layers.0.self_attn.q_proj.weight' is missing"));

    m = model_of(blocks);
    add(m, "model.layers.0.self_attn.x_proj.weight_scale", HL_DTYPE_F32, 0, NULL);
    refused(blocks, m, 1,
            SAYS("scale 'model.layers.0.self_attn.x_proj.weight_scale' has no weight",
                 "'model.layers.0.self_attn.x_proj.weight' is not in the files"));

    m = model_of(blocks);
    tensor_of(m, "model.layers.0.self_attn.o_proj.weight_scale_inv")->shape[1] = 3;
    refused(blocks, m, 1,
            SAYS("scale 'model.layers.0.self_attn.o_proj.weight_scale_inv' has shape [4,3]",
                 "[16,16]", "[4,4] for blocks of 4x4"));

    m = model_of(blocks);
    tensor_of(m, "model.layers.0.self_attn.o_proj.weight_scale_inv")->dtype = HL_DTYPE_I32;
    refused(blocks, m, 1, SAYS("o_proj.weight_scale_inv' has dtype I32"));

    m = model_of(one);
    struct hl_tensor *t = tensor_of(m, "model.layers.0.mlp.up_proj.weight_scale");
    t->rank = 1;
    t->shape[0] = 1;
    refused(one, m, 1, SAYS("gate_proj.weight_scale", "up_proj.weight_scale", "fused"));

    m = model_of(one);
    t = tensor_of(m, "model.layers.0.mlp.down_proj.input_scale");
    t->rank = 1;
    t->shape[0] = H;
    refused(one, m, 1, SAYS("down_proj.input_scale' has shape [16]"));
}

TEST(a_block_is_not_cut_and_the_sizes_that_work_are_named)
{
    struct subject s = subjects[0];
    s.config = "{\"quant_method\": \"fp8\", \"weight_block_size\": [4, 8]}";
    s.block[1] = 8;
    refused(&s, model_of(&s), 4,
            SAYS("tp 4 cuts the 16 columns",
                 "decoder.layers.0.self_attention.linear_proj.weight_sc", "pieces of 4",
                 "blocks of 8", "use tp 1, 2"));
    s.config = "{\"quant_method\": \"fp8\", \"weight_block_size\": [8, 4]}";
    s.block[0] = 8;
    s.block[1] = 4;
    refused(&s, model_of(&s), 4,
            SAYS("tp 4 cuts the 16 rows", "mlp.linear_fc1.weight_scale_inv", "pieces of 4",
                 "blocks of 8", "use tp 1, 2"));
}

TEST(a_quantization_without_a_known_form_is_refused)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"{\"quant_method\": \"gptq\"}", "'gptq' can't be sliced"},
        {"{}", "quant_method '' can't be sliced"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", "two sizes"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}", "two sizes"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": \"128\"}", "two sizes"},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {"
         "\"a\": {\"weights\": {\"block_structure\": [128, 128]}},"
         "\"b\": {\"weights\": {\"block_structure\": [64, 64]}}}}",
         "several sizes"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        json_t *doc = json_loads(rows[i].text, 0, NULL);
        uint64_t block[2] = {0};
        assert_int_not_equal(hl_hf_quantization(doc, "config.json", block), HL_OK);
        if (strstr(hl_error_text(), rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].says);
        json_decref(doc);
    }
}
