#include "core/reshard/reshard_box.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BOXES_MAX ((size_t)1 << 26)

struct hl_rect hl_rect_of(const struct hl_tensor *logical)
{
    struct hl_rect r = {.row_end = 1, .col_end = 1};
    if (logical->rank > 0)
        r.col_end = logical->shape[logical->rank - 1];
    for (uint32_t d = 0; d + 1 < logical->rank; d++)
        r.row_end *= logical->shape[d];
    return r;
}

const char *hl_rect_text(const struct hl_tensor *logical, const struct hl_rect *rect, char *buf,
                         size_t cap)
{
    if (logical->rank < 2)
        snprintf(buf, cap, "elements [%" PRIu64 ", %" PRIu64 ")", rect->col, rect->col_end);
    else
        snprintf(buf, cap, "rows [%" PRIu64 ", %" PRIu64 "), columns [%" PRIu64 ", %" PRIu64 ")",
                 rect->row, rect->row_end, rect->col, rect->col_end);
    return buf;
}

void hl_box_list_fini(struct hl_box_list *boxes)
{
    free(boxes->list);
    *boxes = (struct hl_box_list){0};
}

/* An operation that is converted to boxes. */
struct op_view {
    struct hl_box_list *boxes;
    const struct hl_copy_op *op;
    const char *name;
    uint64_t row_bytes;
    uint64_t size; /* bytes of the logical tensor */
};

HL_CHECK static hl_status add_box(const struct op_view *v, struct hl_box box)
{
    struct hl_box_list *l = v->boxes;
    if (l->count == l->cap) {
        size_t more = l->cap == 0 ? 16 : 2 * l->cap;
        void *p = more <= BOXES_MAX ? realloc(l->list, more * sizeof(*l->list)) : NULL;
        if (p == NULL)
            return hl_fail(HL_ENOMEM,
                           "out of memory allocating a layout of %zu boxes; use a smaller tp",
                           more);
        l->list = p;
        l->cap = more;
    }
    box.logical = v->op->source;
    box.elem = v->op->elem;
    l->list[l->count++] = box;
    return HL_OK;
}

/* Adds `len` contiguous bytes from byte `src` of the logical tensor: the rest of a row, whole rows,
 * and the beginning of a row. */
HL_CHECK static hl_status add_run(const struct op_view *v, uint64_t src, uint64_t len,
                                  struct hl_box box)
{
    uint64_t elem = v->op->elem;
    while (len > 0) {
        uint64_t row = src / v->row_bytes, skip = src % v->row_bytes, rows = 1, n;
        if (skip > 0 || len < v->row_bytes)
            n = len < v->row_bytes - skip ? len : v->row_bytes - skip;
        else
            n = v->row_bytes, rows = len / v->row_bytes;
        box.rect = (struct hl_rect){row, row + rows, skip / elem, (skip + n) / elem};
        box.row_pitch = n;
        box.col_pitch = elem;
        HL_TRY(add_box(v, box));
        box.at += rows * n;
        src += rows * n;
        len -= rows * n;
    }
    return HL_OK;
}

HL_CHECK static hl_status add_runs(const struct op_view *v)
{
    const struct hl_copy_op *op = v->op;
    struct hl_box box = {.kind = HL_BOX_DATA, .at = op->dst, .count = 1};
    if (op->stride == 0) {
        box.kind = HL_BOX_REPEAT;
        box.count = op->rows;
        box.period = op->run;
        return add_run(v, op->src, op->run, box);
    }
    if (op->rows == 1 || op->stride == op->run)
        return add_run(v, op->src, op->rows * op->run, box);
    uint64_t skip = op->src % v->row_bytes, row = op->src / v->row_bytes;
    if (op->stride == v->row_bytes && skip + op->run <= v->row_bytes) {
        box.rect =
            (struct hl_rect){row, row + op->rows, skip / op->elem, (skip + op->run) / op->elem};
        box.row_pitch = op->run;
        box.col_pitch = op->elem;
        return add_box(v, box);
    }
    for (uint64_t i = 0; i < op->rows; i++, box.at += op->run)
        HL_TRY(add_run(v, op->src + i * op->stride, op->run, box));
    return HL_OK;
}

/* A row of the logical tensor becomes a column of the held tensor. If its rows alternate with
 * others (`step`), each box is one column wide. */
HL_CHECK static hl_status add_transposed(const struct op_view *v)
{
    const struct hl_copy_op *op = v->op;
    uint64_t width = op->step == op->elem ? op->rows : 1;
    uint64_t height = op->stride == v->row_bytes ? op->cols : 1;
    for (uint64_t i = 0; i < op->rows; i += width)
        for (uint64_t j = 0; j < op->cols; j += height) {
            uint64_t src = op->src + j * op->stride + i * op->step, run = width * op->elem;
            uint64_t row = src / v->row_bytes, skip = src % v->row_bytes;
            struct hl_box box = {.kind = HL_BOX_DATA,
                                 .at = op->dst + (i * op->cols + j) * op->elem,
                                 .count = 1,
                                 .row_pitch = op->elem,
                                 .col_pitch = op->cols * op->elem};
            if (skip + run > v->row_bytes)
                return hl_fail(HL_EUNSUPPORTED, "a transpose of tensor '%s' reads across its rows",
                               v->name);
            box.rect =
                (struct hl_rect){row, row + height, skip / op->elem, (skip + run) / op->elem};
            HL_TRY(add_box(v, box));
        }
    return HL_OK;
}

/* Checks that the operation reads inside the logical tensor and in whole elements. */
HL_CHECK static hl_status check_op(const struct op_view *v)
{
    const struct hl_copy_op *op = v->op;
    int transposed = op->kind == HL_COPY_TRANSPOSE;
    uint64_t steps = transposed ? op->cols : op->rows, run = op->run, span, end, all;
    int bad = transposed && (op->rows == 0 || op->step < op->elem || op->step % op->elem != 0 ||
                             __builtin_mul_overflow(op->rows - 1, op->step, &run) ||
                             __builtin_add_overflow(run, op->elem, &run));
    bad = bad || steps == 0 || run == 0 || __builtin_mul_overflow(steps, run, &all) ||
          __builtin_mul_overflow(steps - 1, op->stride, &span) ||
          __builtin_add_overflow(span, run, &end) || __builtin_add_overflow(end, op->src, &end);
    if (bad || end > v->size || op->src % op->elem != 0 || run % op->elem != 0 ||
        op->stride % op->elem != 0)
        return hl_fail(HL_EINVAL,
                       "%" PRIu64 " x %" PRIu64 " bytes from byte %" PRIu64 ", %" PRIu64
                       " apart, are not a part of tensor '%s' of %" PRIu64 " bytes",
                       steps, run, op->src, op->stride, v->name, v->size);
    return HL_OK;
}

hl_status hl_box_list_add(struct hl_box_list *boxes, const struct hl_copy_op *op,
                          const struct hl_tensor *logical, size_t logical_count)
{
    struct op_view v = {.boxes = boxes, .op = op};
    if (op->kind == HL_COPY_ZERO)
        return add_box(
            &v, (struct hl_box){.kind = HL_BOX_ZERO, .at = op->dst, .count = 1, .period = op->run});
    if (op->source >= logical_count)
        return hl_fail(HL_EINVAL, "an operation reads tensor %u of %zu", op->source, logical_count);
    const struct hl_tensor *t = &logical[op->source];
    struct hl_rect all = hl_rect_of(t);
    v.name = t->name;
    v.row_bytes = all.col_end * op->elem;
    HL_TRY(hl_tensor_bytes(t, &v.size));
    if (op->elem != hl_dtype_size(t->dtype))
        return hl_fail(HL_EINVAL, "tensor '%s' is %s, not one of %u bytes per element", t->name,
                       hl_dtype_name(t->dtype), op->elem);
    HL_TRY(check_op(&v));
    return op->kind == HL_COPY_TRANSPOSE ? add_transposed(&v) : add_runs(&v);
}
