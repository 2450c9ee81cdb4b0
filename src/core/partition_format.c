/* What a matrix is stored as is decided by the names and dtypes that the files have; the config
 * only gives the size of blocks. */
#include "core/partition_format.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define WEIGHT       "weight"
#define PER_BYTE     2  /* FP4 elements */
#define MX_BLOCK     32 /* elements that share a scale in *_blocks */
#define MX_BYTES     16
#define SCALE_DTYPES "F32, BF16, F16, F8_E4M3, F8_E8M0 or U8"

/* Endings of scales beside "weight", in the order of the result. */
static const struct {
    const char *ending;
    bool weight; /* of the weight's elements: one of these must be there */
} scales[] = {
    {"weight_scale_inv", true},     {"weight_scale", true}, {"weight_scale_2", false},
    {"weight_global_scale", false}, {"input_scale", false}, {"input_global_scale", false},
};

/* A part while its sources are looked for. */
struct finding {
    struct hl_planner *p;
    const struct hl_format_ask *ask;
    struct hl_format *out;
    uint64_t rows[HL_FAMILY_SOURCES_MAX]; /* of source k as a matrix */
    uint64_t cols;
};

static bool is_fp8(enum hl_dtype d)
{
    return d == HL_DTYPE_F8_E4M3 || d == HL_DTYPE_F8_E5M2;
}

static bool is_scale_dtype(enum hl_dtype d)
{
    return d == HL_DTYPE_F32 || d == HL_DTYPE_BF16 || d == HL_DTYPE_F16 || d == HL_DTYPE_F8_E4M3 ||
           d == HL_DTYPE_F8_E8M0 || d == HL_DTYPE_U8;
}

/* "a.b.weight" with another ending; 0 = the name does not end so, or is too long. */
static bool name_sibling(const char *name, const char *ending, char *out, size_t cap)
{
    size_t n = strlen(name), w = strlen(WEIGHT);
    if (n <= w || strcmp(name + n - w, WEIGHT) != 0 || name[n - w - 1] != '.')
        return false;
    int k = snprintf(out, cap, "%.*s%s", (int)(n - w), name, ending);
    return k > 0 && (size_t)k < cap;
}

static bool has_sibling(const struct hl_planner *p, const char *name, const char *ending)
{
    char other[HL_PLANNER_NAME_MAX];
    return name_sibling(name, ending, other, sizeof(other)) && hl_planner_has(p, other);
}

static bool has_suffixed(const struct hl_planner *p, const char *name, const char *suffix)
{
    char other[HL_PLANNER_NAME_MAX];
    int n = snprintf(other, sizeof(other), "%s%s", name, suffix);
    return n > 0 && (size_t)n < sizeof(other) && hl_planner_has(p, other);
}

static struct hl_format_part *add_part(struct finding *f, const char *ending, enum hl_grain grain)
{
    struct hl_format_part *part = &f->out->parts[f->out->count++];
    *part = (struct hl_format_part){
        .ending = ending, .grain = grain, .block_rows = 1, .block_cols = 1, .rank = 2};
    return part;
}

/* ---- elements -------------------------------------------------------------------------------- */

HL_CHECK static hl_status find_plain(struct finding *f)
{
    struct hl_format_part *part = add_part(f, NULL, HL_GRAIN_BLOCK);
    part->form = f->ask->row->form;
    for (size_t k = 0; k < f->ask->count; k++)
        HL_TRY(hl_planner_source(f->p, f->ask->names[k], &f->ask->dims[k], &part->source[k]));
    return HL_OK;
}

/* Matrices that are stored one by one, [out, in]. */
HL_CHECK static hl_status check_form(const struct finding *f, const struct hl_tensor *t)
{
    if (f->ask->row->form == 0)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "tensor '%s' is %s, and is stored [in, out] or with all experts in one: its "
                   "scales have no known form; convert the checkpoint to bf16",
                   t->name, hl_dtype_name(t->dtype));
}

HL_CHECK static hl_status find_fp8(struct finding *f)
{
    struct hl_format_part *part = add_part(f, NULL, HL_GRAIN_BLOCK);
    for (size_t k = 0; k < f->ask->count; k++) {
        const struct hl_tensor *t;
        HL_TRY(hl_planner_stored(f->p, f->ask->names[k], &f->ask->dims[k], HL_USED_WEIGHT,
                                 &part->source[k]));
        t = &f->p->sources[part->source[k]];
        HL_TRY(check_form(f, t));
        if (!is_fp8(t->dtype))
            return hl_fail(HL_EINVAL,
                           "tensor '%s' is %s, but is fused with '%s' of %s: convert the "
                           "checkpoint to one dtype",
                           t->name, hl_dtype_name(t->dtype), f->ask->names[0],
                           hl_dtype_name(f->p->sources[part->source[0]].dtype));
    }
    return HL_OK;
}

HL_CHECK static hl_status check_bytes(const struct hl_tensor *t)
{
    if (t->dtype == HL_DTYPE_U8)
        return HL_OK;
    return hl_fail(HL_EINVAL, "tensor '%s' has dtype %s: packed FP4 is U8", t->name,
                   hl_dtype_name(t->dtype));
}

/* Two elements in a byte, under "weight" or under a name of its own. */
HL_CHECK static hl_status find_packed(struct finding *f, const char *ending)
{
    struct hl_format_part *part = add_part(f, ending, HL_GRAIN_BLOCK);
    part->block_cols = PER_BYTE;
    if (f->cols % PER_BYTE != 0)
        return hl_fail(HL_EINVAL, "tensor '%s': %" PRIu64 " columns can't be packed two in a byte",
                       f->ask->names[0], f->cols);
    for (size_t k = 0; k < f->ask->count; k++) {
        char name[HL_PLANNER_NAME_MAX];
        struct hl_dims dims = {.rank = 2, .shape = {f->rows[k], f->cols / PER_BYTE}};
        if (!name_sibling(f->ask->names[k], ending != NULL ? ending : WEIGHT, name, sizeof(name)))
            return hl_fail(HL_EINVAL, "a tensor's name is too long: %.80s", f->ask->names[k]);
        HL_TRY(hl_planner_stored(f->p, name, &dims, HL_USED_PACKED, &part->source[k]));
        HL_TRY(check_form(f, &f->p->sources[part->source[k]]));
        HL_TRY(check_bytes(&f->p->sources[part->source[k]]));
    }
    return HL_OK;
}

/* The experts of gpt_oss: rows of all experts in *_blocks and *_scales, not turned. */
HL_CHECK static hl_status find_mx(struct finding *f)
{
    const struct hl_format_ask *ask = f->ask;
    uint64_t experts = ask->dims[0].shape[0], blocks = f->cols / MX_BLOCK;
    char name[HL_PLANNER_NAME_MAX + 8];
    struct hl_dims dims = {.rank = 4, .shape = {experts, f->rows[0], blocks, MX_BYTES}};
    if (ask->count != 1 || !(ask->row->form & HL_FORM_STACKED) || f->cols % MX_BLOCK != 0)
        return hl_fail(HL_EINVAL,
                       "tensor '%s_blocks': %" PRIu64
                       " columns are no blocks of %d, or its experts "
                       "are not in one tensor",
                       ask->names[0], f->cols, MX_BLOCK);
    for (int k = 0; k < 2; k++) {
        struct hl_format_part *part =
            add_part(f, k == 0 ? "weight_blocks" : "weight_scales", HL_GRAIN_BLOCK);
        part->form = ask->row->form & ~(unsigned)HL_FORM_TRANSPOSED;
        part->block_cols = k == 0 ? PER_BYTE : MX_BLOCK;
        snprintf(name, sizeof(name), "%s_%s", ask->names[0], k == 0 ? "blocks" : "scales");
        HL_TRY(hl_planner_stored(f->p, name, &dims, k == 0 ? HL_USED_PACKED : HL_USED_SCALE,
                                 &part->source[0]));
        HL_TRY(check_bytes(&f->p->sources[part->source[0]]));
        dims.rank = 3;
    }
    return HL_OK;
}

/* ---- scales ---------------------------------------------------------------------------------- */

static uint64_t parts_of(uint64_t n, uint64_t size)
{
    return (n + size - 1) / size;
}

static bool is_shape(const struct hl_tensor *t, uint32_t rank, uint64_t d0, uint64_t d1)
{
    return t->rank == rank && (rank < 1 || t->shape[0] == d0) && (rank < 2 || t->shape[1] == d1);
}

/* What a scale of source k stands for, by its shape. */
static bool read_grain(const struct finding *f, size_t k, const struct hl_tensor *t,
                       struct hl_format_part *out)
{
    const uint64_t *block = f->p->config->block;
    uint64_t rows = f->rows[k];
    out->grain = HL_GRAIN_ONE;
    out->rank = t->rank;
    if (is_shape(t, 0, 0, 0) || is_shape(t, 1, 1, 0))
        return true;
    out->grain = HL_GRAIN_BLOCK;
    if (block[0] > 0 && is_shape(t, 2, parts_of(rows, block[0]), parts_of(f->cols, block[1]))) {
        out->block_rows = block[0];
        out->block_cols = block[1];
        return true;
    }
    if (block[0] == 0 && t->rank == 2 && t->shape[0] == rows && t->shape[1] > 1 &&
        f->cols % t->shape[1] == 0) {
        out->block_cols = f->cols / t->shape[1];
        return true;
    }
    out->grain = HL_GRAIN_ROW;
    return is_shape(t, 1, rows, 0) || is_shape(t, 2, rows, 1);
}

HL_CHECK static hl_status fail_shape(const struct finding *f, size_t k, const struct hl_tensor *t)
{
    const uint64_t *block = f->p->config->block;
    uint64_t rows = f->rows[k];
    char has[192], blocks[128];
    if (block[0] > 0)
        snprintf(blocks, sizeof(blocks),
                 "[%" PRIu64 ",%" PRIu64 "] for blocks of %" PRIu64 "x%" PRIu64,
                 parts_of(rows, block[0]), parts_of(f->cols, block[1]), block[0], block[1]);
    else
        snprintf(blocks, sizeof(blocks), "blocks of a size that config.json does not give");
    return hl_fail(HL_EINVAL,
                   "scale '%s' has shape %s; its weight of [%" PRIu64 ",%" PRIu64 "] has %s, "
                   "[%" PRIu64 "] for its rows, or one number",
                   t->name, hl_tensor_shape_text(t, has, sizeof(has)), rows, f->cols, blocks, rows);
}

/* One ending of all sources; they must agree in what their scales stand for. */
HL_CHECK static hl_status find_scale(struct finding *f, const char *ending, bool one)
{
    struct hl_format_part part = {0};
    for (size_t k = 0; k < f->ask->count; k++) {
        struct hl_format_part got = {.ending = ending, .block_rows = 1, .block_cols = 1};
        char name[HL_PLANNER_NAME_MAX];
        uint32_t source;
        if (!name_sibling(f->ask->names[k], ending, name, sizeof(name)))
            return hl_fail(HL_EINVAL, "a tensor's name is too long: %.80s", f->ask->names[k]);
        if (!hl_planner_has(f->p, name))
            return hl_fail(HL_ENOENT,
                           "scale '%s' is missing, though '%s' has one and they are fused", name,
                           f->ask->names[0]);
        HL_TRY(hl_planner_stored(f->p, name, NULL, HL_USED_SCALE, &source));
        const struct hl_tensor *t = &f->p->sources[source];
        if (!is_scale_dtype(t->dtype))
            return hl_fail(HL_EINVAL, "scale '%s' has dtype %s, not " SCALE_DTYPES, t->name,
                           hl_dtype_name(t->dtype));
        if (!read_grain(f, k, t, &got) || (one && got.grain != HL_GRAIN_ONE))
            return fail_shape(f, k, t);
        memcpy(got.source, part.source, sizeof(got.source));
        got.source[k] = source;
        if (k > 0 && (got.grain != part.grain || got.rank != part.rank ||
                      got.block_rows != part.block_rows || got.block_cols != part.block_cols))
            return hl_fail(HL_EINVAL,
                           "scales '%s' and '%s' differ in what they stand for, and their weights "
                           "are fused",
                           f->p->sources[part.source[0]].name, t->name);
        part = got;
    }
    f->out->parts[f->out->count++] = part;
    return HL_OK;
}

HL_CHECK static hl_status find_scales(struct finding *f)
{
    const char *name = f->ask->names[0];
    const struct hl_tensor *t = &f->p->sources[f->out->parts[0].source[0]];
    bool found = false;
    for (size_t i = 0; i < HL_ARRAY_LEN(scales) && f->out->count < HL_FORMAT_PARTS_MAX; i++) {
        if (!has_sibling(f->p, name, scales[i].ending))
            continue;
        HL_TRY(find_scale(f, scales[i].ending, !scales[i].weight));
        found = found || scales[i].weight;
    }
    if (found)
        return HL_OK;
    return hl_fail(HL_ENOENT,
                   "tensor '%s' is %s and has no scale: neither '%s_scale_inv' nor '%s_scale' is "
                   "in the files; the checkpoint is not whole",
                   t->name, hl_dtype_name(t->dtype), name, name);
}

hl_status hl_planner_format(struct hl_planner *p, const struct hl_format_ask *ask,
                            struct hl_format *out)
{
    const char *name = ask->names[0];
    struct finding f = {.p = p, .ask = ask, .out = out};
    enum hl_dtype dtype;
    bool turned = (ask->row->form & HL_FORM_TRANSPOSED) != 0;
    uint32_t at = (ask->row->form & HL_FORM_STACKED) != 0;
    out->count = 0;
    for (size_t k = 0; k < ask->count; k++)
        f.rows[k] = ask->dims[k].shape[at + (turned ? 1 : 0)];
    f.cols = ask->dims[0].shape[at + (turned ? 0 : 1)];
    if (ask->row->cols == NULL)
        return find_plain(&f);
    if (!hl_planner_dtype(p, name, &dtype)) {
        if (has_suffixed(p, name, "_blocks"))
            return find_mx(&f);
        if (!has_sibling(p, name, "weight_packed"))
            return find_plain(&f);
        HL_TRY(find_packed(&f, "weight_packed"));
        return find_scales(&f);
    }
    if (is_fp8(dtype))
        HL_TRY(find_fp8(&f));
    else if (dtype == HL_DTYPE_U8 && has_sibling(p, name, "weight_scale"))
        HL_TRY(find_packed(&f, NULL));
    else
        return find_plain(&f);
    return find_scales(&f);
}

HL_CHECK static hl_status check_stray(const struct hl_planner *p, const char *name)
{
    char weight[HL_PLANNER_NAME_MAX];
    enum hl_dtype dtype;
    size_t n = strlen(name);
    for (size_t i = 0; i < HL_ARRAY_LEN(scales); i++) {
        size_t m = strlen(scales[i].ending);
        if (n <= m || name[n - m - 1] != '.' || strcmp(name + n - m, scales[i].ending) != 0)
            continue;
        int k = snprintf(weight, sizeof(weight), "%.*s" WEIGHT, (int)(n - m), name);
        if (k < 0 || (size_t)k >= sizeof(weight) || !hl_planner_dtype(p, weight, &dtype))
            return hl_fail(HL_EINVAL, "scale '%s' has no weight: '%s' is not in the files", name,
                           weight);
        return hl_fail(HL_EINVAL, "scale '%s' has a weight of %s, which takes none; remove it",
                       name, hl_dtype_name(dtype));
    }
    return HL_OK;
}

hl_status hl_planner_check_scales(const struct hl_planner *p)
{
    for (size_t i = 0; i < p->source_count; i++)
        if (p->used[i] == HL_USED_NOT)
            HL_TRY(check_stray(p, p->sources[i].name));
    return HL_OK;
}
