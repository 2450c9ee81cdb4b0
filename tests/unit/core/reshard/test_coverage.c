/* Whole versions pass; a thousand versions damaged in one place do not. HL_SEED repeats a run. */
#include "support/test.h"

#include <inttypes.h>

#include "base/crc32.h"
#include "base/id.h"
#include "core/reshard/coverage.h"
#include "support/reshard_models.h"

#define HELD_MAX 4096
#define OPS_MAX  16384

/* A version that two data-parallel ranks hold at every (pp, tp). */
struct version {
    struct hl_coverage_tensor held[HELD_MAX];
    struct hl_copy_op ops[OPS_MAX];
    size_t count, op_count;
};

static void add_tensor(struct version *v, const struct hf_slices *s, size_t i, int dp)
{
    const struct hf_slice *t = &s->list[i];
    const struct hl_partition_plan *p = &s->plan;
    uint32_t n = p->op_first[i + 1] - p->op_first[i];
    assert_true(v->count < HELD_MAX && v->op_count + n + 1 < OPS_MAX);
    struct hl_coverage_tensor *h = &v->held[v->count++];
    *h = (struct hl_coverage_tensor){.name = t->name,
                                     .rank = t->tp + s->o.tp * (dp + 2 * t->pp),
                                     .pp = t->pp,
                                     .tp = t->tp,
                                     .size = t->tensor.size,
                                     .crc32 = hl_crc32(0, t->data, t->tensor.size),
                                     .ops = &v->ops[v->op_count],
                                     .op_count = n};
    memcpy(&v->ops[v->op_count], &p->ops[p->op_first[i]], n * sizeof(*v->ops));
    v->op_count += n + 1; /* room for one more */
}

static void version_make(struct version *v, const struct hf_slices *s)
{
    v->count = v->op_count = 0;
    for (int dp = 0; dp < 2; dp++)
        for (size_t i = 0; i < s->count; i++)
            add_tensor(v, s, i, dp);
}

static hl_status check(const struct hf_model *m, const struct hf_slices *s, const struct version *v)
{
    return hl_coverage_check(&(struct hl_coverage){.logical = m->tensors,
                                                   .logical_count = m->count,
                                                   .equal = s->plan.equal,
                                                   .equal_count = s->plan.equal_count,
                                                   .held = v->held,
                                                   .held_count = v->count});
}

TEST(every_whole_layout_is_accepted)
{
    struct version *v = malloc(sizeof(*v));
    for (size_t f = 0; f < HL_ARRAY_LEN(rs_models); f++) {
        struct rs_layout list[RS_LAYOUTS];
        struct hf_model *m = hf_model_make(&rs_models[f]);
        size_t n = rs_layouts(m, list);
        for (size_t i = 1; i < n; i++) {
            version_make(v, &list[i].s);
            if (check(m, &list[i].s, v) != HL_OK)
                fail_msg("%s: %s", list[i].name, hl_error_text());
        }
        rs_layouts_free(list, n);
        hf_model_free(m);
    }
    free(v);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static uint64_t seed;

static uint64_t pick(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static struct hl_copy_op *ops_of(struct version *v, const struct hl_coverage_tensor *h)
{
    return &v->ops[h->ops - v->ops];
}

static int holds_data(const struct hl_copy_op *op)
{
    return op->kind == HL_COPY_TRANSPOSE || (op->kind == HL_COPY_RUNS && op->stride != 0);
}

/* Makes the destinations contiguous again, so that only the boxes are wrong. */
static void lay_out(struct version *v, struct hl_coverage_tensor *h)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < h->op_count; i++) {
        struct hl_copy_op *op = &ops_of(v, h)[i];
        op->dst = at;
        at += hl_copy_bytes(op);
    }
    h->size = at;
}

static int drop_tensor_everywhere(struct version *v)
{
    struct hl_coverage_tensor gone = v->held[pick(v->count)];
    size_t n = 0;
    int padding = 1;
    for (uint32_t i = 0; i < gone.op_count; i++)
        padding &= !holds_data(&gone.ops[i]);
    if (padding || strstr(gone.name, "output_layer") != NULL ||
        strstr(gone.name, "word_embeddings") != NULL || strstr(gone.name, "norm") != NULL ||
        strstr(gone.name, "bias") != NULL || strstr(gone.name, "position") != NULL)
        return 0; /* another tp or part may hold the same elements */
    for (size_t i = 0; i < v->count; i++)
        if (v->held[i].pp != gone.pp || v->held[i].tp != gone.tp ||
            strcmp(v->held[i].name, gone.name) != 0)
            v->held[n++] = v->held[i];
    v->count = n;
    return 1;
}

static int drop_box(struct version *v)
{
    struct hl_coverage_tensor *h = &v->held[pick(v->count)];
    uint32_t i = (uint32_t)pick(h->op_count);
    if (!holds_data(&h->ops[i]))
        return 0;
    memmove(&ops_of(v, h)[i], &ops_of(v, h)[i + 1], (h->op_count - i - 1) * sizeof(*v->ops));
    h->op_count--;
    if (pick(2))
        lay_out(v, h);
    return h->op_count > 0;
}

static int double_box(struct version *v)
{
    struct hl_coverage_tensor *h = &v->held[pick(v->count)];
    uint32_t i = (uint32_t)pick(h->op_count);
    if (!holds_data(&h->ops[i]))
        return 0;
    ops_of(v, h)[h->op_count++] = h->ops[i];
    if (pick(2))
        lay_out(v, h);
    return 1;
}

static int double_tensor(struct version *v)
{
    v->held[v->count] = v->held[pick(v->count)];
    v->count++;
    return 1;
}

static int shift_box(struct version *v)
{
    struct hl_coverage_tensor *h = &v->held[pick(v->count)];
    struct hl_copy_op *op = &ops_of(v, h)[pick(h->op_count)];
    if (!holds_data(op))
        return 0;
    uint64_t by = op->elem * (1 + pick(8));
    if (pick(3) == 0)
        op->dst += by;
    else if (pick(2) && op->src >= by)
        op->src -= by;
    else
        op->src += by;
    return 1;
}

/* Swaps two boxes of different data, in one tensor or in two. */
static int swap_boxes(struct version *v)
{
    struct hl_coverage_tensor *a = &v->held[pick(v->count)];
    struct hl_coverage_tensor *b = pick(2) ? a : &v->held[pick(v->count)];
    struct hl_copy_op *x = &ops_of(v, a)[pick(a->op_count)];
    struct hl_copy_op *y = &ops_of(v, b)[pick(b->op_count)];
    struct hl_copy_op keep = *x;
    if (!holds_data(x) || !holds_data(y) || (x->source == y->source && x->src == y->src))
        return 0;
    *x = *y;
    *y = keep;
    lay_out(v, a);
    lay_out(v, b);
    return 1;
}

/* The rank takes another rank's whole tensor for its own. */
static int swap_tensors(struct version *v)
{
    struct hl_coverage_tensor *a = &v->held[pick(v->count)], *b = &v->held[pick(v->count)];
    if (a->op_count != b->op_count || a->crc32 == b->crc32)
        return 0;
    uint32_t crc = a->crc32;
    a->crc32 = b->crc32;
    b->crc32 = crc;
    return 1;
}

static int flip_crc(struct version *v)
{
    v->held[pick(v->count)].crc32 ^= 1u << pick(32);
    return 1;
}

static int stale_replica(struct version *v)
{
    v->held[pick(v->count)].crc32 += (uint32_t)(1 + pick(1000));
    return 1;
}

static int hostile_number(struct version *v)
{
    struct hl_coverage_tensor *h = &v->held[pick(v->count)];
    struct hl_copy_op *op = &ops_of(v, h)[pick(h->op_count)];
    uint64_t *fields[] = {&op->src, &op->dst, &op->rows, &op->cols, &op->run, &op->stride};
    uint64_t field = pick(HL_ARRAY_LEN(fields));
    int turned = op->kind == HL_COPY_TRANSPOSE;
    if (!holds_data(op) || (field == 3 && !turned) || (field == 4 && turned) ||
        (field == 5 && !turned && op->rows == 1))
        return 0; /* not read */
    *fields[field] = UINT64_MAX - pick(64);
    return 1;
}

static const struct {
    const char *name;
    int (*apply)(struct version *v); /* 0: not possible here */
} mutations[] = {
    {"drop_tensor_everywhere", drop_tensor_everywhere},
    {"drop_box", drop_box},
    {"double_box", double_box},
    {"double_tensor", double_tensor},
    {"shift_box", shift_box},
    {"swap_boxes", swap_boxes},
    {"swap_tensors", swap_tensors},
    {"flip_crc", flip_crc},
    {"stale_replica", stale_replica},
    {"hostile_number", hostile_number},
};

TEST(a_thousand_damaged_versions_are_refused)
{
    const char *text = getenv("HL_SEED");
    uint64_t start = text != NULL ? strtoull(text, NULL, 0) : hl_random_u64() | 1;
    printf("HL_SEED=%" PRIu64 "\n", start);
    seed = start;
    struct version *v = malloc(sizeof(*v));
    for (size_t f = 0, done = 0; f < HL_ARRAY_LEN(rs_models); f++) {
        struct rs_layout list[RS_LAYOUTS];
        struct hf_model *m = hf_model_make(&rs_models[f]);
        size_t n = rs_layouts(m, list);
        while (done < 250 * (f + 1)) {
            const struct rs_layout *l = &list[1 + pick(n - 1)];
            size_t k = done % HL_ARRAY_LEN(mutations);
            version_make(v, &l->s);
            if (!mutations[k].apply(v))
                continue;
            hl_error_clear();
            if (check(m, &l->s, v) == HL_OK)
                fail_msg("HL_SEED=%" PRIu64 ": %s of %s at %s, number %zu, was accepted", start,
                         mutations[k].name, m->f->arch, l->name, done);
            if (strstr(hl_error_text(), "(pp ") == NULL && k != 0)
                fail_msg("no rank is named: %s", hl_error_text());
            done++;
        }
        rs_layouts_free(list, n);
        hf_model_free(m);
    }
    free(v);
}

/* ---- what is said ---------------------------------------------------------------------------- */

static struct hl_coverage_tensor *find_held(struct version *v, int rank, const char *name)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->held[i].rank == rank && strcmp(v->held[i].name, name) == 0)
            return &v->held[i];
    fail_msg("rank %d has no %s", rank, name);
    return NULL;
}

#define FC2 "decoder.layers.1.mlp.linear_fc2.weight"

TEST(errors_name_tensor_range_and_ranks)
{
    struct version *v = malloc(sizeof(*v));
    struct hf_model *m = hf_model_make(&rs_models[0]);
    struct hl_partition_options o = {.tp = 2, .pp = 1, .vocab_divisor = 8};
    struct hf_slices s;
    assert_int_equal(hf_slice(m, &o, &s), HL_OK);
    version_make(v, &s);
    find_held(v, 3, FC2)->crc32 ^= 1;
    assert_int_equal(check(m, &s, v), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "rows [0, 16), columns [12, 24) of tensor "
                                            "'model.layers.1.mlp.down_proj.weight'"));
    assert_non_null(strstr(hl_error_text(), "'" FC2 "' of rank 1 (pp 0, tp 1)"));
    assert_non_null(strstr(hl_error_text(), "'" FC2 "' of rank 3 (pp 0, tp 1)"));

    version_make(v, &s); /* both replicas of tp 1 claim the columns [11, 23) */
    for (int rank = 1; rank <= 3; rank += 2)
        ops_of(v, find_held(v, rank, FC2))->src -= 2;
    assert_int_equal(check(m, &s, v), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(),
                           "rows [0, 16), columns [11, 12) of tensor "
                           "'model.layers.1.mlp.down_proj.weight' are held twice"));
    assert_non_null(strstr(hl_error_text(), "of rank 0 (pp 0, tp 0)"));

    version_make(v, &s); /* both replicas of tp 1 begin two rows early */
    for (int rank = 1; rank <= 3; rank += 2)
        ops_of(v, find_held(v, rank, "embedding.word_embeddings.weight"))->src -= 2 * 16 * 2;
    assert_int_equal(check(m, &s, v), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "rows [22, 24), columns [0, 16) of tensor "
                                            "'model.embed_tokens.weight' are held twice"));

    version_make(v, &s); /* no rank has tp 1's columns */
    for (int rank = 1; rank <= 3; rank += 2)
        *find_held(v, rank, FC2) = v->held[--v->count];
    assert_int_equal(check(m, &s, v), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(),
                           "rows [0, 16), columns [12, 24) of tensor "
                           "'model.layers.1.mlp.down_proj.weight' are held by no"));
    hf_slices_free(&s);
    hf_model_free(m);
    free(v);
}

TEST(only_what_is_optional_may_be_held_by_none)
{
    struct version *v = malloc(sizeof(*v));
    struct hf_fixture f = rs_models[0];
    f.buffers = 1;
    struct hf_model *m = hf_model_make(&f);
    struct hl_partition_options o = {.tp = 2, .pp = 1, .vocab_divisor = 8};
    struct hf_slices s;
    unsigned char optional[HF_TENSORS] = {0};
    assert_int_equal(hf_slice(m, &o, &s), HL_OK);
    version_make(v, &s);
    assert_int_equal(check(m, &s, v), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "elements [0, 4) of tensor "
                                            "'model.layers.0.self_attn.rotary_emb.inv_freq'"));
    for (size_t i = 0; i < m->count; i++)
        optional[i] = strstr(m->names[i], "inv_freq") != NULL;
    struct hl_coverage c = {.logical = m->tensors,
                            .logical_count = m->count,
                            .optional = optional,
                            .held = v->held,
                            .held_count = v->count};
    assert_int_equal(hl_coverage_check(&c), HL_OK);
    hf_slices_free(&s);
    hf_model_free(m);
    free(v);
}
