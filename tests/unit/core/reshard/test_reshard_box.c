/* Boxes of random operations, compared with where each element goes by the operation's definition;
 * and layouts of models whose experts are stored transposed and interleaved. HL_SEED repeats a
 * run. */
#include "support/test.h"

#include <inttypes.h>

#include "base/id.h"
#include "core/families/logical.h"
#include "core/reshard/reshard_box.h"
#include "support/reshard_models.h"

#define ELEMENTS 4096
#define NOTHING  UINT32_MAX

static uint64_t random_state;

static uint64_t pick(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 16) % below;
}

/* The sources of a held tensor's elements: numbers of logical elements. */
static size_t elements_of_op(const struct hl_copy_op *op, uint32_t *out)
{
    uint64_t elem = op->elem;
    size_t n = 0;
    if (op->kind == HL_COPY_ZERO)
        for (uint64_t i = 0; i < op->run / elem; i++)
            out[n++] = NOTHING;
    else if (op->kind == HL_COPY_RUNS)
        for (uint64_t i = 0; i < op->rows; i++)
            for (uint64_t j = 0; j < op->run / elem; j++)
                out[n++] = (uint32_t)((op->src + i * op->stride) / elem + j);
    else
        for (uint64_t i = 0; i < op->rows; i++)
            for (uint64_t j = 0; j < op->cols; j++)
                out[n++] = (uint32_t)((op->src + j * op->stride + i * op->step) / elem);
    return n;
}

static void place_boxes(const struct hl_box_list *boxes, uint64_t cols, uint32_t *out,
                        unsigned *hits)
{
    for (size_t b = 0; b < boxes->count; b++) {
        const struct hl_box *box = &boxes->list[b];
        if (box->kind == HL_BOX_ZERO) {
            for (uint64_t i = 0; i < box->period / box->elem; i++)
                hits[box->at / box->elem + i]++, out[box->at / box->elem + i] = NOTHING;
            continue;
        }
        for (uint64_t n = 0; n < box->count; n++)
            for (uint64_t r = box->rect.row; r < box->rect.row_end; r++)
                for (uint64_t c = box->rect.col; c < box->rect.col_end; c++) {
                    uint64_t at = (hl_box_at(box, r, c) + n * box->period) / box->elem;
                    assert_true(at < ELEMENTS);
                    hits[at]++;
                    out[at] = (uint32_t)(r * cols + c);
                }
    }
}

/* An operation that reads inside rows x cols elements, or one that may not. */
static struct hl_copy_op random_op(uint64_t rows, uint64_t cols, uint32_t elem)
{
    struct hl_copy_op op = {.kind = (enum hl_copy_kind)pick(3), .elem = elem, .rows = 1 + pick(6)};
    uint64_t step = 1 + pick(3);
    op.src = pick(rows * cols) * elem;
    op.run = (1 + pick(2 * cols)) * elem;
    op.stride = pick(4) == 0 ? pick(3 * cols) * elem : cols * elem;
    if (op.kind == HL_COPY_ZERO)
        op.rows = 0;
    if (op.kind != HL_COPY_TRANSPOSE)
        return op;
    op.run = 0;
    op.cols = 1 + pick(6);
    op.step = step * elem;
    return op;
}

static int reads_inside(const struct hl_copy_op *op, uint64_t elements)
{
    uint32_t from[ELEMENTS];
    size_t n = elements_of_op(op, from);
    for (size_t i = 0; i < n; i++)
        if (from[i] != NOTHING && from[i] >= elements)
            return 0;
    return 1;
}

TEST(boxes_of_every_operation_are_where_its_definition_says)
{
    size_t checked[3] = {0}, stepped = 0;
    const char *text = getenv("HL_SEED");
    random_state = text != NULL ? strtoull(text, NULL, 0) : hl_random_u64() | 1;
    printf("HL_SEED=%" PRIu64 "\n", random_state);
    for (int round = 0; round < 20000; round++) {
        uint64_t rows = 1 + pick(8), cols = 1 + pick(12);
        struct hl_tensor t = {.name = "w", .dtype = HL_DTYPE_F16, .rank = 2, .shape = {rows, cols}};
        struct hl_copy_op op = random_op(rows, cols, 2);
        struct hl_box_list boxes = {0};
        hl_status st = hl_box_list_add(&boxes, &op, &t, 1);
        int inside = reads_inside(&op, rows * cols);
        if (st == HL_OK) {
            uint32_t want[ELEMENTS], got[ELEMENTS];
            unsigned hits[ELEMENTS] = {0};
            size_t n = elements_of_op(&op, want);
            assert_true(inside);
            place_boxes(&boxes, cols, got, hits);
            for (size_t i = 0; i < n; i++)
                if (hits[i] != 1 || got[i] != want[i])
                    fail_msg("kind %d, %" PRIu64 "x%" PRIu64 ": element %zu is %u, expected %u, "
                             "placed %u times",
                             op.kind, rows, cols, i, got[i], want[i], hits[i]);
            for (size_t i = n; i < ELEMENTS; i++)
                assert_int_equal(hits[i], 0);
            checked[op.kind]++;
            stepped += op.kind == HL_COPY_TRANSPOSE && op.step != op.elem && op.rows > 1;
        } else if (inside) { /* only a transpose across rows is not a set of rectangles */
            assert_int_equal(st, HL_EUNSUPPORTED);
            assert_int_equal(op.kind, HL_COPY_TRANSPOSE);
        }
        hl_box_list_fini(&boxes);
    }
    assert_true(checked[0] > 500 && checked[1] > 500 && checked[2] > 500 && stepped > 200);
}

TEST(a_transpose_with_a_wrong_step_is_refused)
{
    struct hl_tensor t = {.name = "w", .dtype = HL_DTYPE_F16, .rank = 2, .shape = {4, 6}};
    struct hl_copy_op op = {
        .kind = HL_COPY_TRANSPOSE, .elem = 2, .rows = 3, .cols = 4, .stride = 12, .step = 4};
    static const uint64_t steps[] = {0, 1, 3, 6, UINT64_MAX / 2};
    struct hl_box_list boxes = {0};
    assert_int_equal(hl_box_list_add(&boxes, &op, &t, 1), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(steps); i++) {
        op.step = steps[i];
        assert_int_not_equal(hl_box_list_add(&boxes, &op, &t, 1), HL_OK);
        assert_non_null(strstr(hl_error_text(), "'w'"));
    }
    hl_box_list_fini(&boxes);
}

/* ---- families -------------------------------------------------------------------------------- */

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 4,"                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10,"                             \
    "\"intermediate_size\": 8, \"num_local_experts\": 4"

static const char *const configs[] = {
    "{\"model_type\": \"gpt_oss\", " SIZES "}",
    "{\"model_type\": \"llama4\", \"text_config\": {\"intermediate_size_mlp\": 16, " SIZES "}}",
};

static struct hf_model *model_of(const struct hl_hf_config *config)
{
    struct hl_logical l;
    struct hf_model *m = calloc(1, sizeof(*m));
    assert_int_equal(hl_family_logical(config, &(struct hl_checkpoint){0}, &l), HL_OK);
    assert_true(l.count < HF_TENSORS);
    for (; m->count < l.count; m->count++) {
        struct hl_tensor *t = &m->tensors[m->count];
        *t = l.tensors[m->count];
        t->dtype = HL_DTYPE_BF16;
        snprintf(m->names[m->count], sizeof(m->names[0]), "%s", t->name);
        t->name = m->names[m->count];
        assert_int_equal(hl_tensor_bytes(t, &t->size), HL_OK);
        m->data[m->count] = malloc(t->size);
        hf_fill(t->name, m->data[m->count], t->size);
    }
    hl_logical_fini(&l);
    return m;
}

static void reshard_pair(const struct hf_model *m, const struct hf_slices *a,
                         const struct hf_slices *b)
{
    struct hl_reshard_plan plan;
    hl_status st = hl_reshard_plan(m->tensors, m->count, &a->plan, &b->plan, &plan);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    for (size_t i = 0; i < b->count; i++) {
        uint64_t size = b->list[i].tensor.size;
        uint8_t *got = malloc(size + 1), *hits = calloc(size + 1, 1);
        for (uint32_t k = plan.op_first[i]; k < plan.op_first[i + 1]; k++)
            rs_apply(&plan.ops[k], a, got, hits, size);
        for (uint64_t k = 0; k < size; k++)
            assert_int_equal(hits[k], 1);
        if (memcmp(got, b->list[i].data, size) != 0)
            fail_msg("bytes of %s differ", b->list[i].name);
        free(got);
        free(hits);
    }
    hl_reshard_fini(&plan);
}

TEST(experts_stored_in_turns_become_every_other_layout)
{
    static const struct hl_partition_options grids[] = {
        {.tp = 1, .pp = 1, .vocab_divisor = 2},
        {.tp = 2, .pp = 1, .vocab_divisor = 2},
        {.tp = 4, .pp = 2, .ep = 2, .etp = 2, .vocab_divisor = 2},
        {.tp = 2, .pp = 1, .ep = 4, .etp = 1, .vocab_divisor = 2}};
    for (size_t c = 0; c < HL_ARRAY_LEN(configs); c++) {
        struct hl_hf_config config;
        struct rs_layout list[HL_ARRAY_LEN(grids) + 1];
        assert_int_equal(hl_hf_config_parse(configs[c], strlen(configs[c]), "c", &config), HL_OK);
        struct hf_model *m = model_of(&config);
        size_t n = 0;
        rs_whole(m, &list[n++]);
        for (size_t g = 0; g < HL_ARRAY_LEN(grids); g++) {
            struct hl_partition_plan plan;
            if (hl_partition_plan(&config, m->tensors, m->count, &grids[g], &plan) != HL_OK)
                fail_msg("%s", hl_error_text());
            hf_slice_by(m, &grids[g], plan, &list[n++].s);
        }
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < n; b++)
                reshard_pair(m, &list[a].s, &list[b].s);
        rs_layouts_free(list, n);
        hf_model_free(m);
        hl_hf_config_fini(&config);
    }
}
