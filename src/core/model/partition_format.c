/* Names and dtypes in the files decide how a matrix is stored; the config only gives the block
 * size. */
#include "core/model/partition_format.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define WEIGHT       "weight"
#define PER_BYTE     2  /* FP4 elements */
#define MX_BLOCK     32 /* elements that share a scale in *_blocks */
#define MX_BYTES     16
#define SCALE_DTYPES "F32, BF16, F16, F8_E4M3, F8_E8M0 or U8"

enum scale_kind {
    SCALE_ELEMENTS, /* for the weight's elements; one of these must exist */
    SCALE_NUMBER,   /* one number per source */
    SCALE_OWN,      /* one number for some of the sources; elements of any kind */
};

/* Endings of scales that replace "weight", in the order of the result. */
static const struct {
    const char *ending;
    enum scale_kind kind;
} scales[] = {
    {"weight_scale_inv", SCALE_ELEMENTS},
    {"weight_scale", SCALE_ELEMENTS},
    {"weight_scale_2", SCALE_NUMBER},
    {"weight_global_scale", SCALE_NUMBER},
    {"input_scale", SCALE_NUMBER},
    {"input_global_scale", SCALE_NUMBER},
    {"input_scale_ub", SCALE_NUMBER},
    {"act_scale", SCALE_NUMBER},
    {"q_scale", SCALE_OWN},
    {"k_scale", SCALE_OWN},
    {"v_scale", SCALE_OWN},
    {"output_scale", SCALE_OWN},
};

/* Suffixes after the name of all experts in one tensor, and the ending used beside one expert's
 * weight. */
static const struct {
    const char *suffix, *ending;
    enum scale_kind kind;
} stacked_scales[] = {
    {"_weight_scale", "weight_scale", SCALE_ELEMENTS},
    {"_scale", "weight_scale", SCALE_ELEMENTS},
    {"_weight_scale_2", "weight_scale_2", SCALE_NUMBER},
    {"_input_scale", "input_scale", SCALE_NUMBER},
};

/* A part whose sources are being looked up. */
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

/* Replaces the ending of "a.b.weight"; 0 = the name ends differently or is too long. */
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

bool hl_planner_has_packed(const struct hl_planner *p, const char *weight)
{
    return has_sibling(p, weight, "weight_packed");
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
    *part = (struct hl_format_part){.ending = ending,
                                    .grain = grain,
                                    .block_rows = 1,
                                    .block_cols = 1,
                                    .rank = 2,
                                    .count = f->ask->count};
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

/* Checks matrices that are stored one by one, as [out, in]. */
HL_CHECK static hl_status check_form(const struct finding *f, const struct hl_tensor *t)
{
    if ((f->ask->row->form & ~(unsigned)HL_FORM_SEPARATE) == 0)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "tensor '%s' is %s, and is stored [in, out] or with all experts in one: the "
                   "form of its scales is not known; " HL_FORMAT_REMEDY,
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

HL_CHECK static hl_status check_bytes(const struct hl_planner *p, const char *name)
{
    enum hl_dtype dtype;
    if (!hl_planner_dtype(p, name, &dtype) || dtype == HL_DTYPE_U8)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "tensor '%s' has dtype %s: of packed weights only FP4, two in a byte of U8, can "
                   "be sliced; " HL_FORMAT_REMEDY,
                   name, hl_dtype_name(dtype));
}

/* Two elements per byte, under "weight" or under another name. */
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
        HL_TRY(check_bytes(f->p, name));
        HL_TRY(hl_planner_stored(f->p, name, &dims, HL_USED_PACKED, &part->source[k]));
        HL_TRY(check_form(f, &f->p->sources[part->source[k]]));
    }
    return HL_OK;
}

/* The experts of gpt_oss: rows of all experts in *_blocks and *_scales, not transposed. */
HL_CHECK static hl_status find_mx(struct finding *f)
{
    const struct hl_format_ask *ask = f->ask;
    uint64_t experts = ask->dims[0].shape[0], blocks = f->cols / MX_BLOCK;
    char name[HL_PLANNER_NAME_MAX + 8];
    struct hl_dims dims = {.rank = 4, .shape = {experts, f->rows[0], blocks, MX_BYTES}};
    if (ask->count != 1 || !(ask->row->form & HL_FORM_STACKED) || f->cols % MX_BLOCK != 0)
        return hl_fail(HL_EINVAL,
                       "tensor '%s_blocks': %" PRIu64
                       " columns are not blocks of %d, or its experts are not in one tensor",
                       ask->names[0], f->cols, MX_BLOCK);
    for (int k = 0; k < 2; k++) {
        struct hl_format_part *part =
            add_part(f, k == 0 ? "weight_blocks" : "weight_scales", HL_GRAIN_BLOCK);
        part->form = ask->row->form & ~(unsigned)HL_FORM_TRANSPOSED;
        part->block_cols = k == 0 ? PER_BYTE : MX_BLOCK;
        snprintf(name, sizeof(name), "%s_%s", ask->names[0], k == 0 ? "blocks" : "scales");
        HL_TRY(check_bytes(f->p, name));
        HL_TRY(hl_planner_stored(f->p, name, &dims, k == 0 ? HL_USED_PACKED : HL_USED_SCALE,
                                 &part->source[0]));
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

/* Derives from its shape what a scale of source k applies to. */
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

HL_CHECK static hl_status fail_shape(const struct finding *f, size_t k, const struct hl_tensor *t,
                                     bool one)
{
    const uint64_t *block = f->p->config->block;
    uint64_t rows = f->rows[k];
    char has[192], blocks[128];
    if (one)
        return hl_fail(HL_EINVAL, "scale '%s' has shape %s; it must be one number: [] or [1]",
                       t->name, hl_tensor_shape_text(t, has, sizeof(has)));
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

/* Takes the scale of that name, of any shape. */
HL_CHECK static hl_status take_scale(struct hl_planner *p, const char *name, uint32_t *out)
{
    HL_TRY(hl_planner_stored(p, name, NULL, HL_USED_SCALE, out));
    const struct hl_tensor *t = &p->sources[*out];
    if (is_scale_dtype(t->dtype))
        return HL_OK;
    return hl_fail(HL_EINVAL, "scale '%s' has dtype %s, not " SCALE_DTYPES, t->name,
                   hl_dtype_name(t->dtype));
}

/* Adds the scale of source k to the part; all scales of a part must apply to the same unit. */
HL_CHECK static hl_status join_scale(struct finding *f, size_t k, const char *name, bool one,
                                     struct hl_format_part *part)
{
    struct hl_format_part got = {.ending = part->ending, .block_rows = 1, .block_cols = 1};
    uint32_t source;
    HL_TRY(take_scale(f->p, name, &source));
    const struct hl_tensor *t = &f->p->sources[source];
    if (!read_grain(f, k, t, &got) || (one && got.grain != HL_GRAIN_ONE))
        return fail_shape(f, k, t, one);
    if (part->count > 0 &&
        (got.grain != part->grain || got.rank != part->rank || got.block_rows != part->block_rows ||
         got.block_cols != part->block_cols))
        return hl_fail(HL_EINVAL,
                       "scales '%s' and '%s' differ in what they stand for, and their weights "
                       "are fused",
                       f->p->sources[part->source[0]].name, t->name);
    memcpy(got.source, part->source, sizeof(got.source));
    got.count = part->count;
    got.source[got.count++] = source;
    *part = got;
    return HL_OK;
}

/* Finds one ending for all sources, or for those that have it. */
HL_CHECK static hl_status find_scale(struct finding *f, const char *ending, enum scale_kind kind)
{
    struct hl_format_part part = {.ending = ending};
    for (size_t k = 0; k < f->ask->count; k++) {
        char name[HL_PLANNER_NAME_MAX];
        if (!name_sibling(f->ask->names[k], ending, name, sizeof(name)))
            return hl_fail(HL_EINVAL, "a tensor's name is too long: %.80s", f->ask->names[k]);
        if (!hl_planner_has(f->p, name)) {
            if (kind == SCALE_OWN)
                continue;
            return hl_fail(HL_ENOENT,
                           "scale '%s' is missing, though others of '%s' and what it is fused with "
                           "have one; the checkpoint is incomplete",
                           name, f->ask->names[k]);
        }
        HL_TRY(join_scale(f, k, name, kind != SCALE_ELEMENTS, &part));
    }
    f->out->parts[f->out->count++] = part;
    return HL_OK;
}

static bool any_has(const struct finding *f, const char *ending)
{
    for (size_t k = 0; k < f->ask->count; k++)
        if (has_sibling(f->p, f->ask->names[k], ending))
            return true;
    return false;
}

/* Scales that plain weights can have, too. */
HL_CHECK static hl_status find_own(struct finding *f)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(scales); i++)
        if (scales[i].kind == SCALE_OWN && any_has(f, scales[i].ending))
            HL_TRY(find_scale(f, scales[i].ending, SCALE_OWN));
    return HL_OK;
}

HL_CHECK static hl_status find_scales(struct finding *f)
{
    const char *name = f->ask->names[0];
    const struct hl_tensor *t = &f->p->sources[f->out->parts[0].source[0]];
    bool found = false;
    for (size_t i = 0; i < HL_ARRAY_LEN(scales); i++) {
        if (scales[i].kind == SCALE_OWN || !any_has(f, scales[i].ending))
            continue;
        HL_TRY(find_scale(f, scales[i].ending, scales[i].kind));
        found = found || scales[i].kind == SCALE_ELEMENTS;
    }
    if (found)
        return find_own(f);
    return hl_fail(HL_ENOENT,
                   "tensor '%s' is %s and has no scale: neither '%s_scale_inv' nor '%s_scale' is "
                   "in the files; the checkpoint is incomplete",
                   t->name, hl_dtype_name(t->dtype), name, name);
}

/* ---- all experts in one tensor --------------------------------------------------------------- */

/* For [experts, in, out]: a scale is one number, one per expert, one per row of out ([experts, 1,
 * out] or [experts, out, 1]), or one for several of in ([experts, in / n, out]). */
static bool read_stacked(const struct finding *f, const struct hl_tensor *t,
                         struct hl_format_part *out)
{
    uint64_t experts = f->ask->dims[0].shape[0], rows = f->rows[0];
    out->grain = HL_GRAIN_ONE;
    out->rank = t->rank < 2 ? t->rank : 0;
    if (is_shape(t, 0, 0, 0) || is_shape(t, 1, 1, 0))
        return true;
    out->form = f->ask->row->form;
    out->rank = 0;
    if (is_shape(t, 1, experts, 0))
        return true;
    out->rank = 2;
    out->grain = HL_GRAIN_ROW;
    if (t->rank != 3 || t->shape[0] != experts)
        return false;
    if ((t->shape[1] == 1 && t->shape[2] == rows) || (t->shape[1] == rows && t->shape[2] == 1))
        return true;
    out->grain = HL_GRAIN_BLOCK;
    if (t->shape[2] != rows || t->shape[1] == 0 || f->cols % t->shape[1] != 0)
        return false;
    out->block_cols = f->cols / t->shape[1];
    return true;
}

HL_CHECK static hl_status find_stacked_scale(struct finding *f, size_t i)
{
    const char *name = f->ask->names[0];
    char scale[HL_PLANNER_NAME_MAX + 16], has[192];
    struct hl_format_part part = {
        .ending = stacked_scales[i].ending, .block_rows = 1, .block_cols = 1, .count = 1};
    snprintf(scale, sizeof(scale), "%s%s", name, stacked_scales[i].suffix);
    HL_TRY(take_scale(f->p, scale, &part.source[0]));
    const struct hl_tensor *t = &f->p->sources[part.source[0]];
    if (!read_stacked(f, t, &part) ||
        (stacked_scales[i].kind == SCALE_NUMBER && part.grain != HL_GRAIN_ONE))
        return hl_fail(
            HL_EINVAL,
            "scale '%s' has shape %s, which stands for no rows or columns of '%s', whose "
            "experts are [%" PRIu64 ",%" PRIu64 "]; " HL_FORMAT_REMEDY,
            t->name, hl_tensor_shape_text(t, has, sizeof(has)), name, f->cols, f->rows[0]);
    f->out->parts[f->out->count++] = part;
    return HL_OK;
}

/* FP8, or FP4 with two columns per byte: [experts, in / 2, out]. */
HL_CHECK static hl_status find_stacked(struct finding *f, enum hl_dtype dtype)
{
    const struct hl_format_ask *ask = f->ask;
    struct hl_format_part *part = add_part(f, NULL, HL_GRAIN_BLOCK);
    uint64_t per = dtype == HL_DTYPE_U8 ? PER_BYTE : 1;
    struct hl_dims dims = ask->dims[0];
    bool found = false;
    part->form = ask->row->form;
    part->block_cols = per;
    dims.shape[1] = f->cols / per;
    if (f->cols % per != 0)
        return hl_fail(HL_EINVAL, "tensor '%s': %" PRIu64 " columns can't be packed two in a byte",
                       ask->names[0], f->cols);
    HL_TRY(hl_planner_stored(f->p, ask->names[0], &dims, per > 1 ? HL_USED_PACKED : HL_USED_WEIGHT,
                             &part->source[0]));
    for (size_t i = 0; i < HL_ARRAY_LEN(stacked_scales); i++) {
        bool elements = stacked_scales[i].kind == SCALE_ELEMENTS;
        if (!has_suffixed(f->p, ask->names[0], stacked_scales[i].suffix) || (elements && found))
            continue; /* a second scale of the elements has no place in the plan */
        HL_TRY(find_stacked_scale(f, i));
        found = found || elements;
    }
    return HL_OK;
}

static bool has_stacked_scale(const struct finding *f)
{
    const unsigned form = HL_FORM_STACKED | HL_FORM_TRANSPOSED;
    if (f->ask->count != 1 || (f->ask->row->form & form) != form)
        return false;
    for (size_t i = 0; i < HL_ARRAY_LEN(stacked_scales); i++)
        if (stacked_scales[i].kind == SCALE_ELEMENTS &&
            has_suffixed(f->p, f->ask->names[0], stacked_scales[i].suffix))
            return true;
    return false;
}

/* ---- one row of the table -------------------------------------------------------------------- */

HL_CHECK static hl_status find_format(struct finding *f)
{
    const char *name = f->ask->names[0];
    enum hl_dtype dtype;
    if (!hl_planner_dtype(f->p, name, &dtype)) {
        if (has_suffixed(f->p, name, "_blocks"))
            return find_mx(f);
        if (!has_sibling(f->p, name, "weight_packed"))
            return find_plain(f);
        HL_TRY(find_packed(f, "weight_packed"));
        return find_scales(f);
    }
    if ((is_fp8(dtype) || dtype == HL_DTYPE_U8) && has_stacked_scale(f))
        return find_stacked(f, dtype);
    if (is_fp8(dtype)) {
        HL_TRY(find_fp8(f));
        return find_scales(f);
    }
    if (dtype == HL_DTYPE_U8 && has_sibling(f->p, name, "weight_scale")) {
        HL_TRY(find_packed(f, NULL));
        return find_scales(f);
    }
    HL_TRY(find_plain(f));
    return find_own(f);
}

hl_status hl_planner_format(struct hl_planner *p, const struct hl_format_ask *ask,
                            struct hl_format *out)
{
    struct finding f = {.p = p, .ask = ask, .out = out};
    bool turned = (ask->row->form & HL_FORM_TRANSPOSED) != 0;
    uint32_t at = (ask->row->form & HL_FORM_STACKED) != 0;
    out->count = 0;
    for (size_t k = 0; k < ask->count; k++)
        f.rows[k] = ask->dims[k].shape[at + (turned ? 1 : 0)];
    f.cols = ask->dims[0].shape[at + (turned ? 0 : 1)];
    return ask->row->cols == NULL ? find_plain(&f) : find_format(&f);
}

hl_status hl_planner_number(struct hl_planner *p, const char *name, struct hl_format_part *out)
{
    struct hl_format_part part = {
        .grain = HL_GRAIN_ONE, .block_rows = 1, .block_cols = 1, .count = 1};
    char has[192];
    HL_TRY(take_scale(p, name, &part.source[0]));
    const struct hl_tensor *t = &p->sources[part.source[0]];
    part.rank = t->rank;
    if (!is_shape(t, 0, 0, 0) && !is_shape(t, 1, 1, 0))
        return hl_fail(HL_EUNSUPPORTED,
                       "scale '%s' has shape %s: a scale of keys and values must be one "
                       "number; " HL_FORMAT_REMEDY,
                       name, hl_tensor_shape_text(t, has, sizeof(has)));
    *out = part;
    return HL_OK;
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
        return hl_fail(HL_EINVAL,
                       "scale '%s' belongs to a weight of %s, which has no scales; remove it", name,
                       hl_dtype_name(dtype));
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
