/* Every pair of layouts of tiny models: the operations, applied element by element to slices of
 * layout A, give the slices that layout B makes of the model itself. */
#include "support/test.h"

#include <inttypes.h>

#include "support/reshard_models.h"

TEST(every_layout_becomes_every_other_one)
{
    for (size_t f = 0; f < HL_ARRAY_LEN(rs_models); f++) {
        struct rs_layout list[RS_LAYOUTS];
        struct hf_model *m = hf_model_make(&rs_models[f]);
        size_t n = rs_layouts(m, list);
        assert_true(n >= 11);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++)
                rs_check_pair(m, &list[i], &list[k]);
        rs_layouts_free(list, n);
        hf_model_free(m);
    }
}

/* ---- aliases --------------------------------------------------------------------------------- */

static void slice(const struct hf_model *m, int tp, int pp, int chunks, struct hf_slices *out)
{
    struct hl_partition_options o = {
        .tp = tp, .pp = pp, .virtual_stages = chunks, .vocab_divisor = 8};
    if (hf_slice(m, &o, out) != HL_OK)
        fail_msg("tp %d pp %d: %s", tp, pp, hl_error_text());
}

static struct hl_reshard_plan plan_of(const struct hf_model *m, const struct hf_slices *a,
                                      const struct hf_slices *b)
{
    struct hl_reshard_plan plan;
    if (hl_reshard_plan(m->tensors, m->count, &a->plan, &b->plan, &plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    return plan;
}

/* The names of an alias must follow from the rule in the header. */
static void names_follow(const struct hl_reshard_names *n, const char *from, const char *to)
{
    char before[240], after[240], rest[160];
    const char *at = strstr(from, "decoder.layers.");
    if (at == NULL) {
        at = strncmp(from, "model", 5) == 0 ? strchr(from, '.') + 1 : from;
        snprintf(rest, sizeof(rest), "%s", at);
        assert_int_equal(n->from_layer, -1);
        assert_int_equal(n->to_layer, -1);
    } else {
        snprintf(rest, sizeof(rest), "%s", strchr(at + strlen("decoder.layers."), '.') + 1);
    }

    const struct {
        int chunk, layer;
        char *text;
    } sides[] = {{n->from_chunk, n->from_layer, before}, {n->to_chunk, n->to_layer, after}};

    for (int i = 0; i < 2; i++) {
        char chunk[24] = "", layer[40] = "";
        if (sides[i].chunk >= 0)
            snprintf(chunk, sizeof(chunk), "model%d.", sides[i].chunk);
        if (sides[i].layer >= 0)
            snprintf(layer, sizeof(layer), "decoder.layers.%d.", sides[i].layer);
        snprintf(sides[i].text, sizeof(before), "%s%s%s", chunk, layer, rest);
    }
    assert_string_equal(before, from);
    assert_string_equal(after, to);
}

TEST(a_change_of_pp_alone_copies_nothing_but_a_newly_tied_head)
{
    static const int to[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}};
    for (size_t f = 0; f < HL_ARRAY_LEN(rs_models); f++) {
        struct hf_model *m = hf_model_make(&rs_models[f]);
        for (size_t i = 0; i < HL_ARRAY_LEN(to); i++)
            for (size_t k = 0; k < HL_ARRAY_LEN(to); k++) {
                struct hf_slices a, b;
                slice(m, 2, to[i][0], to[i][1], &a);
                slice(m, 2, to[k][0], to[k][1], &b);
                struct hl_reshard_plan plan = plan_of(m, &a, &b);
                int head_moves = rs_models[f].tied && (to[i][0] == 1) != (to[k][0] == 1);
                uint64_t heads = 0;
                for (size_t s = 0; s < plan.shard_count; s++) {
                    const struct hl_partition_shard *t = &b.plan.shards[s];
                    uint32_t alias = plan.shards[s].alias;
                    if (head_moves && strcmp(t->part, "head") == 0) {
                        assert_int_equal(alias, HL_RESHARD_NONE);
                        heads += t->data_size;
                        continue;
                    }
                    assert_true(alias < a.plan.shard_count);
                    const struct hl_partition_shard *from = &a.plan.shards[alias];
                    assert_string_equal(from->part, t->part);
                    assert_int_equal(from->tp, t->tp);
                    for (uint32_t q = 0; q < t->tensor_count; q++)
                        names_follow(&plan.shards[s].names, a.list[from->tensor_first + q].name,
                                     b.list[t->tensor_first + q].name);
                }
                assert_int_equal(plan.copy_bytes, heads);
                hl_reshard_fini(&plan);
                hf_slices_free(&a);
                hf_slices_free(&b);
            }
        hf_model_free(m);
    }
}

TEST(a_head_that_pp_ties_is_the_embedding_of_its_tp)
{
    struct hf_model *m = hf_model_make(&rs_models[1]);
    struct hf_slices a, b;
    slice(m, 4, 1, 1, &a);
    slice(m, 4, 2, 1, &b);
    struct hl_reshard_plan plan = plan_of(m, &a, &b);
    for (int tp = 0; tp < 4; tp++) {
        struct hf_slice *head = hf_slices_find(&b, 1, tp, "output_layer.weight");
        struct hf_slice *word = hf_slices_find(&a, 0, tp, "embedding.word_embeddings.weight");
        uint32_t tensor = (uint32_t)(head - b.list), first = plan.op_first[tensor];
        assert_int_equal(plan.same[tensor], word - a.list);
        assert_int_equal(plan.op_first[tensor + 1] - first, 1);
        assert_int_equal(plan.ops[first].kind, HL_RESHARD_COPY);
        assert_int_equal(plan.ops[first].rows, 1);
        assert_int_equal(plan.ops[first].run, head->tensor.size);
    }
    hl_reshard_fini(&plan);
    hf_slices_free(&a);
    hf_slices_free(&b);
    hf_model_free(m);
}

TEST(another_padding_or_naming_makes_no_alias)
{
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hl_partition_options o = {.tp = 2, .pp = 2, .vocab_divisor = 8};
    struct hf_slices a, zero, te;
    assert_int_equal(hf_slice(m, &o, &a), HL_OK);
    o.pad = HL_API_VOCAB_PADDING_ZERO;
    assert_int_equal(hf_slice(m, &o, &zero), HL_OK);
    o.pad = HL_API_VOCAB_PADDING_REPEAT;
    o.naming = HL_API_LAYER_NAMING_TE;
    assert_int_equal(hf_slice(m, &o, &te), HL_OK);
    struct hl_reshard_plan padded = plan_of(m, &a, &zero), named = plan_of(m, &a, &te);
    for (size_t s = 0; s < padded.shard_count; s++) {
        const struct hl_partition_shard *t = &zero.plan.shards[s];
        /* Only the last tp has padding. */
        int differs = t->tp == 1 && strncmp(t->part, "layer", 5) != 0;
        assert_int_equal(padded.shards[s].alias == HL_RESHARD_NONE, differs);
        assert_int_equal(named.shards[s].alias == HL_RESHARD_NONE,
                         strncmp(t->part, "layer", 5) == 0);
    }
    for (size_t k = 0; k < named.tensor_count; k++)
        assert_int_not_equal(named.same[k], HL_RESHARD_NONE);
    hl_reshard_fini(&padded);
    hl_reshard_fini(&named);
    hf_slices_free(&a);
    hf_slices_free(&zero);
    hf_slices_free(&te);
    hf_model_free(m);
}

/* ---- choices and refusals -------------------------------------------------------------------- */

/* As whole tensors, and as boxes of tensors of another shape. */
TEST(replicas_are_read_from_the_same_tp_else_by_turns)
{
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hf_slices two, four;
    slice(m, 2, 1, 1, &two);
    slice(m, 4, 1, 1, &four);
    for (int boxes = 0; boxes < 2; boxes++) {
        for (int tp = 0; tp < 4 && boxes; tp++) {
            struct hf_slice *s = hf_slices_find(&four, 0, tp, "decoder.final_layernorm.weight");
            struct hl_tensor *t = &four.plan.tensors[s - four.list];
            t->rank = 2;
            t->shape[1] = t->shape[0];
            t->shape[0] = 1;
        }
        struct hl_reshard_plan plan = plan_of(m, &two, &four);
        for (int tp = 0; tp < 4; tp++) {
            struct hf_slice *s = hf_slices_find(&four, 0, tp, "decoder.final_layernorm.weight");
            size_t norm = (size_t)(s - four.list);
            const struct hl_reshard_op *op = &plan.ops[plan.op_first[norm]];
            assert_int_equal(plan.same[norm] == HL_RESHARD_NONE, boxes);
            assert_int_equal(two.list[op->tensor].tp, tp % 2);
        }
        hl_reshard_fini(&plan);
    }
    hf_slices_free(&two);
    hf_slices_free(&four);
    hf_model_free(m);
}

TEST(a_row_parallel_weight_is_one_operation_per_rank)
{
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hf_slices four, one;
    slice(m, 4, 1, 1, &four);
    slice(m, 1, 1, 1, &one);
    struct hl_reshard_plan plan = plan_of(m, &four, &one);
    struct hf_slice *fc2 = hf_slices_find(&one, 0, 0, "decoder.layers.2.mlp.linear_fc2.weight");
    struct hf_slice *fc1 = hf_slices_find(&one, 0, 0, "decoder.layers.2.mlp.linear_fc1.weight");
    size_t a = (size_t)(fc2 - one.list), b = (size_t)(fc1 - one.list);
    assert_int_equal(plan.op_first[a + 1] - plan.op_first[a], 4);
    assert_int_equal(plan.op_first[b + 1] - plan.op_first[b], 8); /* gate and up of each */
    for (uint32_t i = 0; i < 4; i++) {
        const struct hl_reshard_op *op = &plan.ops[plan.op_first[a] + i];
        assert_int_equal(op->rows, 16);
        assert_int_equal(op->run, 24 / 4 * 2);
        assert_int_equal(op->dst_stride, 24 * 2);
        assert_int_equal(op->dst, i * op->run);
    }
    hl_reshard_fini(&plan);
    hf_slices_free(&four);
    hf_slices_free(&one);
    hf_model_free(m);
}

TEST(what_the_source_lacks_is_named_with_its_range)
{
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hf_slices a, b;
    struct hl_reshard_plan plan;
    slice(m, 2, 1, 1, &a);
    slice(m, 4, 1, 1, &b);
    struct hf_slice *fc2 = hf_slices_find(&a, 0, 1, "decoder.layers.3.mlp.linear_fc2.weight");
    a.plan.ops[a.plan.op_first[fc2 - a.list]].src = 0; /* both ranks claim the first half */
    assert_int_equal(hl_reshard_plan(m->tensors, m->count, &a.plan, &b.plan, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "tensor 'model.layers.3.mlp.down_proj.weight'"));
    assert_non_null(strstr(hl_error_text(), "rows [0, 16), columns [12, 18)"));
    assert_non_null(strstr(hl_error_text(), "tp 2"));
    hf_slices_free(&a);
    hf_slices_free(&b);
    hf_model_free(m);
}

TEST(an_operation_outside_its_tensor_is_refused)
{
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hf_slices a, b;
    struct hl_reshard_plan plan;
    slice(m, 2, 1, 1, &a);
    slice(m, 4, 1, 1, &b);
    a.plan.ops[0].src = m->tensors[0].size - 2;
    assert_int_equal(hl_reshard_plan(m->tensors, m->count, &a.plan, &b.plan, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "not a part of tensor 'model.embed_tokens.weight'"));
    hf_slices_free(&a);
    hf_slices_free(&b);
    hf_model_free(m);
}
