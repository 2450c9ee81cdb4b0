/* A view is right if its names, with the stored bytes, are those of a fresh slicing of the model
 * for the wanted split. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/layout.h"
#include "core/model/view.h"
#include "support/hf_slices.h"

static const struct hf_fixture llama = {.arch = "llama",
                                        .layers = 8,
                                        .hidden = 4,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 8,
                                        .vocab = 5,
                                        .dtype = HL_DTYPE_F32};
static const struct hf_fixture gpt2 = {.arch = "gpt2",
                                       .layers = 8,
                                       .hidden = 4,
                                       .heads = 4,
                                       .ffn = 8,
                                       .vocab = 5,
                                       .positions = 3,
                                       .tied = 1,
                                       .dtype = HL_DTYPE_F32};

#define STORED_MAX 256

/* All shards of a sliced model, and as many shards of optimizer state. */
struct store {
    struct hf_slices slices;
    struct hl_stored_part list[STORED_MAX];
    size_t first[STORED_MAX]; /* slice of its first tensor */
    char parts[STORED_MAX][HL_PARTITION_PART_MAX + 16];
    size_t count;
};

static char *state_layout(const char *layout)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    for (; *layout != '\0'; layout += strcspn(layout, "\n") + 1)
        fprintf(f, "exp_avg.%.*s", (int)strcspn(layout, "\n") + 1, layout);
    fclose(f);
    return out;
}

static void add_stored(struct store *st, const struct hl_partition_shard *s, const char *kind,
                       char *layout)
{
    size_t i = st->count++;
    assert_true(st->count <= STORED_MAX);
    snprintf(st->parts[i], sizeof(st->parts[i]), "%s%s", kind, s->part);
    st->list[i] =
        (struct hl_stored_part){.pp = s->pp, .tp = s->tp, .part = st->parts[i], .layout = layout};
    st->first[i] = s->tensor_first;
}

static void store_make(const struct hf_model *m, const struct hl_partition_options *o,
                       struct store *st)
{
    *st = (struct store){0};
    assert_int_equal(hf_slice(m, o, &st->slices), HL_OK);
    const struct hl_partition_plan *plan = &st->slices.plan;
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        char *layout;
        assert_int_equal(hl_layout_text(&plan->tensors[s->tensor_first], s->tensor_count, &layout),
                         HL_OK);
        char *state = state_layout(layout);
        add_stored(st, s, "", layout);
        add_stored(st, s, "optim-", state);
    }
}

static void store_free(struct store *st)
{
    for (size_t i = 0; i < st->count; i++)
        free((char *)st->list[i].layout);
    hf_slices_free(&st->slices);
}

/* The bytes of a stored tensor; for state, those of its parameter. */
static const struct hf_slice *stored_slice(const struct store *st, size_t index, const char *name)
{
    const struct hl_stored_part *s = &st->list[index];
    if (strncmp(name, "exp_avg.", 8) == 0)
        name += 8;
    return hf_slices_find(&st->slices, s->pp, s->tp, name);
}

static void expect_shown(const struct store *from, size_t index, const struct hl_view_name *n,
                         const struct hf_slices *want, int pp, int tp, size_t *parameters,
                         size_t *states)
{
    int state = strncmp(n->shown, "exp_avg.", 8) == 0;
    const struct hf_slice *has = stored_slice(from, index, n->stored);
    const struct hf_slice *wanted = hf_slices_find(want, pp, tp, n->shown + (state ? 8 : 0));
    if (has == NULL || wanted == NULL)
        fail_msg("%s shown as %s at pp %d: %s", n->stored, n->shown, pp,
                 has == NULL ? "not stored" : "not wanted");
    assert_int_equal(has->tensor.size, wanted->tensor.size);
    assert_memory_equal(has->data, wanted->data, wanted->tensor.size);
    *(state ? states : parameters) += 1;
}

static void expect_view(const struct store *from, const struct hl_view *v,
                        const struct hf_slices *want, int pp, int tp)
{
    size_t parameters = 0, states = 0, wanted = 0;
    for (size_t i = 0; i < v->count; i++) {
        const struct hl_view_part *p = &v->parts[i];
        if (!p->as_stored) {
            for (size_t k = 0; k < p->count; k++)
                expect_shown(from, p->stored, &p->names[k], want, pp, tp, &parameters, &states);
            continue;
        }
        for (const char *line = from->list[p->stored].layout; *line != '\0';
             line += strcspn(line, "\n") + 1) {
            char name[160];
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(line, "\t"), line);
            expect_shown(from, p->stored, &(struct hl_view_name){name, name}, want, pp, tp,
                         &parameters, &states);
        }
    }
    for (size_t i = 0; i < want->count; i++)
        wanted += want->list[i].pp == pp && want->list[i].tp == tp;
    assert_int_equal(parameters, wanted);
    assert_int_equal(states, wanted);
}

/* The expected layouts of a rank that saves under the split: those of a fresh slicing. */
static void expect_layouts(const struct store *from, const struct hl_view *v,
                           const struct hl_partition_plan *plan, int pp, int tp)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view_layout *list;
    size_t count, parts = 0;
    assert_int_equal(hl_view_layouts(from->list, v, &arena, &list, &count), HL_OK);
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        char *layout;
        if (s->pp != pp || s->tp != tp)
            continue;
        assert_int_equal(hl_layout_text(&plan->tensors[s->tensor_first], s->tensor_count, &layout),
                         HL_OK);
        size_t k = 0;
        while (k < count && strcmp(list[k].part, s->part) != 0)
            k++;
        assert_true(k < count);
        assert_string_equal(list[k].layout, layout);
        free(layout);
        parts++;
    }
    assert_int_equal(count, 2 * parts); /* and as many shards of state */
}

static void check_pair(const struct hf_model *m, const struct hl_partition_options *a,
                       const struct hl_partition_options *b)
{
    static struct store from;
    struct hf_slices want;
    store_make(m, a, &from);
    assert_int_equal(hf_slice(m, b, &want), HL_OK);
    for (int pp = 0; pp < b->pp; pp++) {
        for (int tp = 0; tp < b->tp; tp++) {
            HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
            const struct hl_view_want w = {
                .split = b, .layers = m->f->layers, .tied = m->f->tied, .pp = pp, .tp = tp};
            struct hl_view v;
            if (hl_view_position(from.list, from.count, &w, &arena, &v) != HL_OK)
                fail_msg("%s", hl_error_text());
            expect_view(&from, &v, &want, pp, tp);
            expect_layouts(&from, &v, &want.plan, pp, tp);
        }
    }
    hf_slices_free(&want);
    store_free(&from);
}

static const struct hl_partition_options splits[] = {
    {.tp = 2, .pp = 1},
    {.tp = 2, .pp = 2},
    {.tp = 2, .pp = 4},
    {.tp = 2, .pp = 8},
    {.tp = 2, .pp = 3, .first_stage_layers = 1, .last_stage_layers = 3},
    {.tp = 2, .pp = 2, .virtual_stages = 2},
    {.tp = 2, .pp = 4, .virtual_stages = 2},
};

static void check_all_pairs(struct hf_fixture f)
{
    struct hf_model *m = hf_model_make(&f);
    for (size_t a = 0; a < HL_ARRAY_LEN(splits); a++)
        for (size_t b = 0; b < HL_ARRAY_LEN(splits); b++)
            check_pair(m, &splits[a], &splits[b]);
    hf_model_free(m);
}

TEST(every_split_is_seen_through_every_other)
{
    check_all_pairs(llama);
}

TEST(tied_heads_come_from_the_embedding_and_go_again)
{
    struct hf_fixture tied = llama;
    tied.tied = 1;
    check_all_pairs(tied);
    check_all_pairs(gpt2);
}

TEST(the_stored_split_is_shown_under_its_own_names)
{
    static struct store from;
    struct hf_model *m = hf_model_make(&llama);
    store_make(m, &splits[2], &from);
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view v;
    assert_int_equal(
        hl_view_position(from.list, from.count,
                         &(struct hl_view_want){.split = &splits[2], .layers = 8, .pp = 3, .tp = 1},
                         &arena, &v),
        HL_OK);
    assert_int_equal(v.count, 2 * 3); /* two layers and the head, with their state */
    for (size_t i = 0; i < v.count; i++)
        assert_true(v.parts[i].as_stored);
    store_free(&from);
    hf_model_free(m);
}

static hl_status view_of(const struct hl_stored_part *list, size_t n,
                         const struct hl_partition_options *split, int pp)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view v;
    return hl_view_position(list, n, &(struct hl_view_want){.split = split, .layers = 2, .pp = pp},
                            &arena, &v);
}

TEST(what_cannot_be_shown_is_refused_by_name)
{
    static const struct hl_partition_options one = {.tp = 1, .pp = 1}, two = {.tp = 1, .pp = 2},
                                             three = {.tp = 1, .pp = 3};
    struct hl_stored_part list[] = {
        {0, 0, "embedding", "embedding.word_embeddings.weight\tF32\t4,2\n", 0, NULL},
        {0, 0, "layer-0000", "decoder.layers.0.mlp.linear_fc1.weight\tF32\t4,2\n", 0, NULL},
        {0, 0, "layer-0001", "decoder.layers.1.mlp.linear_fc1.weight\tF32\t4,2\n", 0, NULL},
        {0, 0, "head", "decoder.final_layernorm.weight\tF32\t2\n", 0, NULL},
    };
    assert_int_equal(view_of(list, 4, &two, 1), HL_OK);
    assert_int_equal(view_of(list, 4, &three, 0), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "pp 3"));
    assert_int_equal(view_of(list, 4, &two, 2), HL_EINVAL);
    assert_int_equal(view_of(list, 2, &one, 0), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "layer-0001"));
    list[2].layout = NULL; /* from an earlier release */
    assert_int_equal(view_of(list, 4, &two, 1), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "layer-0001"));
    list[2] = (struct hl_stored_part){0, 0, "lora", "a\tF32\t2\n", 0, NULL};
    assert_int_equal(view_of(list, 4, &one, 0), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "lora"));
    list[2] = (struct hl_stored_part){0, 0, "layer-0007", "a\tF32\t2\n", 0, NULL};
    assert_int_equal(view_of(list, 4, &one, 0), HL_EINVAL);
}

TEST(experts_follow_their_layer_and_belong_to_ranks_of_their_own)
{
    const struct hl_partition_options two = {.tp = 2, .pp = 2, .ep = 2, .etp = 1};
    const struct hl_stored_part list[] = {
        {0, 0, "embedding", "embedding.word_embeddings.weight\tF32\t2\n", 0, NULL},
        {0, 0, "layer-0000", "decoder.layers.0.a\tF32\t2\n", 0, NULL},
        {0, 0, "layer-0001", "decoder.layers.1.a\tF32\t2\n", 0, NULL},
        {0, 1, "layer-0001", "decoder.layers.1.a\tF32\t2\n", 0, NULL},
        {0, 0, "head", "output_layer.weight\tF32\t2\n", 0, NULL},
        {0, 1, "head", "output_layer.weight\tF32\t2\n", 0, NULL},
        {0, 0, "mtp-0000", "mtp.layers.0.enorm.weight\tF32\t2\n", 0, NULL},
        {0, 0, "experts-0001", "decoder.layers.1.mlp.experts.x\tF32\t2\n", 0, NULL},
        {0, 0, "experts-0001", "decoder.layers.1.mlp.experts.x\tF32\t2\n", 1, NULL},
        {0, 0, "experts-0002", "mtp.layers.0.mlp.experts.x\tF32\t2\n", 1, NULL},
    };
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view v;
    const struct hl_view_want want = {
        .split = &two, .layers = 2, .pp = 1, .tp = 1, .ep = 1}; /* rank 0 within etp */
    assert_int_equal(hl_view_position(list, HL_ARRAY_LEN(list), &want, &arena, &v), HL_OK);
    const size_t expected[] = {3, 5, 8, 9};
    assert_int_equal(v.count, 4);
    for (size_t i = 0; i < v.count; i++)
        assert_int_equal(v.parts[i].stored, expected[i]);
    assert_string_equal(v.parts[2].names[0].shown, "decoder.layers.0.mlp.experts.x");
    assert_true(v.parts[3].as_stored);
    const struct hl_view_want absent = {.split = &two, .layers = 2, .pp = 1, .tp = 1, .ep = 0};
    assert_int_equal(hl_view_position(list, HL_ARRAY_LEN(list), &absent, &arena, &v), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "experts-0002 of pp 1, tp 1, ep 0"));
}

TEST(a_header_shows_only_the_named_tensors_end_to_end)
{
    static const char text[] =
        "{\"__metadata__\":{\"helios.part\":\"layer\",\"crc32.a\":\"00000001\","
        "\"crc32.b\":\"00000002\",\"crc32.c\":\"00000003\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}";
    static const struct hl_view_name names[] = {{"c", "model0.c"}, {"b", "z"}};
    static const struct hl_view_name wrong[] = {{"d", "e"}};
    char file[8 + sizeof(text)];
    uint64_t len = strlen(text), from[3] = {0};
    uint32_t crc = 0;
    struct hl_safetensors st;
    memcpy(file, &len, 8);
    memcpy(file + 8, text, len);
    assert_int_equal(hl_safetensors_parse(file, 8 + len, 8 + len + 24, &st), HL_OK);
    assert_int_equal(hl_view_header(&st, wrong, 1, from), HL_ECORRUPT);
    assert_int_equal(st.count, 3);
    assert_int_equal(hl_view_header(&st, names, 2, from), HL_OK);
    assert_int_equal(st.count, 2);
    assert_int_equal(st.data_size, 20);
    assert_int_equal(st.data_offset, 8 + len);
    assert_string_equal(st.tensors[0].name, "z");
    assert_int_equal(st.tensors[0].offset, 0);
    assert_int_equal(st.tensors[1].offset, 8);
    assert_int_equal(from[0], 4);
    assert_int_equal(from[1], 12);
    assert_ptr_equal(hl_safetensors_find(&st, "model0.c"), &st.tensors[1]);
    assert_int_equal(hl_safetensors_crc(&st, "model0.c", &crc), HL_OK);
    assert_int_equal(crc, 3);
    assert_int_equal(st.meta_count, 3); /* that of `a` is gone */
    hl_safetensors_fini(&st);
}

#define SHARED "extra.bias\tF32\t2\n"

/* What the stages hold besides the model's own tensors: all of them one tensor, stage 1 another
 * one. */
TEST(a_tensor_that_all_stages_hold_alike_is_on_every_stage)
{
    const struct hl_partition_options one = {.tp = 1, .pp = 1}, two = {.tp = 1, .pp = 2};
    struct hl_stored_part list[] = {
        {0, 0, "embedding", "embedding.word_embeddings.weight\tF32\t4,2\n", 0, "00000001"},
        {0, 0, "head", SHARED, 0, "00000002"},
        {0, 0, "layer-0000", "decoder.layers.0.a\tF32\t2\n", 0, "00000003"},
        {1, 0, "head", "decoder.final_layernorm.weight\tF32\t2\n" SHARED "own\tF32\t2\n", 0,
         "000000040000000200000005"},
        {1, 0, "layer-0001", "decoder.layers.0.a\tF32\t2\n", 0, "00000006"},
    };
    const size_t n = HL_ARRAY_LEN(list);
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view_want want = {.split = &one, .layers = 2};
    struct hl_view v;
    assert_int_equal(hl_view_position(list, n, &want, &arena, &v), HL_OK);
    assert_int_equal(v.count, 4); /* the head of stage 0 has nothing that stage 1's lacks */
    assert_int_equal(v.parts[2].stored, 3);
    assert_true(v.parts[2].as_stored);
    want = (struct hl_view_want){.split = &two, .layers = 2};
    assert_int_equal(hl_view_position(list, n, &want, &arena, &v), HL_OK);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.parts[2].stored, 3);
    assert_int_equal(v.parts[2].count, 1);
    assert_string_equal(v.parts[2].names[0].shown, "extra.bias");
    list[1].crcs = "00000009"; /* which of them? */
    assert_int_equal(view_of(list, n, &one, 0), HL_EUNSUPPORTED);
    assert_non_null(
        strstr(hl_error_text(), "'extra.bias' is in part head of stage 0 and of stage 1"));
    list[1].crcs = NULL;
    assert_int_equal(view_of(list, n, &one, 0), HL_EUNSUPPORTED);
    list[1] = (struct hl_stored_part){0, 0, "head", "first\tF32\t2\n", 0, NULL};
    assert_int_equal(hl_view_position(list, n, &want, &arena, &v), HL_OK);
    assert_int_equal(v.count, 2); /* each has its own, at the stage of the head */
    want.pp = 1;
    assert_int_equal(hl_view_position(list, n, &want, &arena, &v), HL_OK);
    assert_int_equal(v.count, 3);
}
