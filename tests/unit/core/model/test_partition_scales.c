/* Scales that are not split like their matrix: single numbers, and rows of blocks that a fused
 * matrix has more than once. */
#include "quantized_rig.h"

#include "base/crc32.h"
#include "core/model/layout.h"
#include "core/reshard/proof.h"

TESTS_IN(NULL, free_oracle)

/* ---- scales of one number ------------------------------------------------------------------- */

/* What a rank's tensor has: the numbers of these sources, in this order. */
struct numbers {
    const char *name;
    const char *of[3];
};

#define SELF "self_attn."
#define MEGA "self_attention."

static const struct numbers all_numbers[] = {
    {MEGA "linear_qkv.act_scale",
     {SELF "q_proj.act_scale", SELF "k_proj.act_scale", SELF "v_proj.act_scale"}},
    {MEGA "linear_proj.act_scale", {SELF "o_proj.act_scale"}},
    {MEGA "linear_proj.output_scale", {SELF "o_proj.output_scale"}},
    {"mlp.linear_fc1.act_scale", {"mlp.gate_proj.act_scale", "mlp.up_proj.act_scale"}},
    {"mlp.linear_fc1.input_scale", {"mlp.gate_proj.input_scale", "mlp.up_proj.input_scale"}},
    {"mlp.linear_fc1.output_scale", {"mlp.up_proj.output_scale"}},
    {"mlp.linear_fc2.act_scale", {"mlp.down_proj.act_scale"}},
    {MEGA "linear_qkv.output_scale", {SELF "q_proj.output_scale", SELF "v_proj.output_scale"}},
    {MEGA "linear_qkv.q_scale", {SELF "q_proj.q_scale"}},
    {MEGA "linear_qkv.k_scale", {SELF "k_proj.k_scale"}},
    {MEGA "linear_qkv.v_scale", {SELF "v_proj.v_scale"}},
    {MEGA "q_scale", {SELF "q_scale"}},
    {MEGA "k_scale", {SELF "k_scale"}},
    {MEGA "v_scale", {SELF "v_scale"}},
    {MEGA "kv_scale", {SELF "kv_scale"}},
    {MEGA "prob_scale", {SELF "prob_scale"}},
};

static struct hf_model *model_with_numbers(const struct subject *s)
{
    struct hf_model *m = model_of(s);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < HL_ARRAY_LEN(all_numbers); i++)
            for (size_t k = 0; k < 3 && all_numbers[i].of[k] != NULL; k++)
                if (strstr(all_numbers[i].of[k], "input_scale") ==
                    NULL) /* the subject has this one */
                    add(m, w_text("model.layers.%d.%s", l, all_numbers[i].of[k]), HL_DTYPE_F32, 0,
                        NULL);
    return m;
}

static void same_as_of(const struct hf_model *m, const struct hf_slices *got, int tp, int layer,
                       const struct numbers *want)
{
    struct held h = held_of(NULL, got, tp, w_text("decoder.layers.%d.%s", layer, want->name));
    size_t n = 0;
    for (; n < 3 && want->of[n] != NULL; n++) {
        struct held one = held_of(m, NULL, 0, w_text("model.layers.%d.%s", layer, want->of[n]));
        assert_true(h.t->size >= (n + 1) * one.t->size);
        if (memcmp(h.data + n * one.t->size, one.data, one.t->size) != 0)
            fail_msg("%s of tp %d is not that of %s", want->name, tp, want->of[n]);
    }
    assert_int_equal(h.t->size, n * 4);
}

TEST(a_scale_of_one_number_is_on_every_rank_that_has_rows_of_its_matrix)
{
    const struct subject *one = &subjects[5];
    for (int tp = 1; tp <= 4; tp *= 2) {
        struct hl_partition_options o = {.tp = tp, .pp = 1, .vocab_divisor = 2};
        struct hf_model *m = model_with_numbers(one);
        struct hl_hf_config c;
        struct hf_slices got;
        if (slice(one, m, &o, &got) != HL_OK)
            fail_msg("tp %d: %s", tp, hl_error_text());
        for (int t = 0; t < tp; t++)
            for (int l = 0; l < LAYERS; l++)
                for (size_t i = 0; i < HL_ARRAY_LEN(all_numbers); i++)
                    same_as_of(m, &got, t, l, &all_numbers[i]);
        parse_config(one->config, &c);
        check_whole("numbers", &c, m, &got);
        hl_hf_config_fini(&c);
        hf_slices_free(&got);
        hf_model_free(m);
    }
}

/* Worked out by hand: heads of 4 rows, blocks of 8. K and V have a block each, and each group's
 * head takes half of it. */
TEST(a_scale_row_is_there_once_for_each_piece_that_its_block_is_cut_into)
{
    static const struct {
        const char *of;
        size_t row;
    } want[] = {{"q", 0}, {"q", 0}, {"k", 0}, {"v", 0}, {"q", 1}, {"q", 1}, {"k", 0}, {"v", 0}};

    struct subject s = subjects[0];
    struct hl_partition_options o = {.tp = 1, .pp = 1, .vocab_divisor = 2};
    struct hf_slices got;
    s.config = "{\"quant_method\": \"fp8\", \"weight_block_size\": [8, 16]}";
    s.block[0] = 8;
    s.block[1] = 16;
    struct hf_model *m = model_of(&s);
    assert_int_equal(slice(&s, m, &o, &got), HL_OK);
    struct held h =
        held_of(NULL, &got, 0, "decoder.layers.0.self_attention.linear_qkv.weight_scale_inv");
    assert_int_equal(h.t->shape[0], HL_ARRAY_LEN(want));
    assert_int_equal(h.t->shape[1], 1);
    for (size_t i = 0; i < HL_ARRAY_LEN(want); i++) {
        struct held of = held_of(
            m, NULL, 0, w_text("model.layers.0.self_attn.%s_proj.weight_scale_inv", want[i].of));
        assert_memory_equal(h.data + i * 4, of.data + want[i].row * 4, 4);
    }
    assert_true(got.plan.repeated);
    hf_slices_free(&got);
    hf_model_free(m);
}

/* ---- any layout ------------------------------------------------------------------------------ */

/* All tp and pp that split no block. */
static size_t layouts_of(const struct subject *s, const struct hf_model *m, struct rs_layout *list)
{
    size_t n = 0;
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int pp = 1; pp <= LAYERS; pp++) {
            struct hl_partition_options o = {.tp = tp, .pp = pp, .vocab_divisor = 2};
            if (slice(s, m, &o, &list[n].s) != HL_OK)
                continue;
            snprintf(list[n].name, sizeof(list[n].name), "%.20s tp %d pp %d", s->name, tp, pp);
            n++;
        }
    return n;
}

static void every_pair(const struct subject *s, struct hf_model *m, size_t wanted)
{
    struct rs_layout list[6];
    size_t n = layouts_of(s, m, list);
    assert_int_equal(n, wanted);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            rs_check_pair(m, &list[i], &list[k]);
    rs_layouts_free(list, n);
    hf_model_free(m);
}

TEST(every_layout_of_every_quantized_form_becomes_every_other_one)
{
    struct subject halves = subjects[0];
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++)
        every_pair(&subjects[i], model_of(&subjects[i]), 6);
    every_pair(&subjects[5], model_with_numbers(&subjects[5]), 6);
    halves.config = "{\"quant_method\": \"fp8\", \"weight_block_size\": [8, 4]}";
    halves.block[0] = 8;
    every_pair(&halves, model_of(&halves), 4); /* tp 4 cuts blocks of gate and up */
}

/* ---- the proof ------------------------------------------------------------------------------- */

/* What the ranks say of their shards: names, shapes and checksums. */
static struct hl_proof_shard *shards_of(const struct hf_slices *got)
{
    const struct hl_partition_plan *p = &got->plan;
    struct hl_proof_shard *list = oracle_alloc(p->shard_count * sizeof(*list));
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *s = &p->shards[i];
        uint32_t *crcs = oracle_alloc((s->tensor_count + 1) * sizeof(*crcs));
        char *layout, *text;
        for (uint32_t k = 0; k < s->tensor_count; k++) {
            const struct hf_slice *t = &got->list[s->tensor_first + k];
            crcs[k] = hl_crc32(0, t->data, t->tensor.size);
        }
        const struct hl_tensor *tensors = &p->tensors[s->tensor_first];
        assert_int_equal(hl_layout_text(tensors, s->tensor_count, &layout), HL_OK);
        assert_int_equal(hl_layout_crcs(tensors, crcs, s->tensor_count, &text), HL_OK);
        list[i] = (struct hl_proof_shard){.pp = s->pp,
                                          .tp = s->tp,
                                          .rank = s->tp,
                                          .part = s->part,
                                          .layout = layout,
                                          .crcs = text};
    }
    return list;
}

static struct hl_proof proof_of(const struct subject *s, bool imported)
{
    struct hl_partition_options o = {.tp = 2, .pp = 1, .vocab_divisor = 2};
    struct hf_model *m = model_of(s);
    struct hl_hf_config c;
    struct hf_slices got;
    struct hl_proof proof;
    char *config;
    assert_int_equal(slice(s, m, &o, &got), HL_OK);
    parse_config(s->config, &c);
    assert_int_equal(hl_partition_config(&c, &o, &got.plan, &config), HL_OK);
    struct hl_proof_shard *list = shards_of(&got);
    if (hl_proof_check(&(struct hl_proof_input){.config = config,
                                                .shards = list,
                                                .count = got.plan.shard_count,
                                                .imported = imported},
                       &proof) != HL_OK)
        fail_msg("%s: %s", s->name, hl_error_text());
    for (size_t i = 0; i < got.plan.shard_count; i++) {
        free((char *)list[i].layout);
        free((char *)list[i].crcs);
    }
    free(config);
    hl_hf_config_fini(&c);
    hf_slices_free(&got);
    hf_model_free(m);
    return proof;
}

/* Each scale is held once, however often it stands there; of a save nothing says that it stands
 * there alike. */
TEST(repeated_scales_are_proved_of_an_import_and_not_of_a_save)
{
    const struct subject *inside = &subjects[2];
    assert_string_equal(inside->name, "blocks that end inside heads and gates");
    for (size_t i = 0; i < HL_ARRAY_LEN(subjects); i++) {
        struct hl_proof imported = proof_of(&subjects[i], true);
        if (!imported.proved)
            fail_msg("%s: %s", subjects[i].name, imported.unproved);
        assert_int_equal(proof_of(&subjects[i], false).proved, &subjects[i] != inside);
    }
    struct hl_proof saved = proof_of(inside, false);
    assert_non_null(strstr(saved.unproved, "rows of scales"));
}
