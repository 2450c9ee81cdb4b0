/* Clips each operation of a tensor to the rows and columns of a box, without changing its kind. */
#include "core/model/partition_clip.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OPS_MAX ((size_t)1 << 24)

struct clipper {
    const struct hl_partition_plan *from;
    const struct hl_clip_box *box;
    uint64_t pitch; /* bytes of a row of the whole tensor */
    uint32_t elem;
    struct hl_partition_plan *out;
    size_t op_cap;
    uint64_t dst; /* bytes of the box that have operations */
};

HL_CHECK static hl_status add_op(struct clipper *c, struct hl_copy_op op)
{
    struct hl_partition_plan *out = c->out;
    if (out->op_count == c->op_cap) {
        size_t cap = c->op_cap == 0 ? 256 : 2 * c->op_cap;
        struct hl_copy_op *more = cap <= OPS_MAX ? realloc(out->ops, cap * sizeof(*more)) : NULL;
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "a plan of %zu operations", cap);
        out->ops = more;
        c->op_cap = cap;
    }
    op.dst = c->dst;
    c->dst += hl_copy_bytes(&op);
    out->ops[out->op_count++] = op;
    return HL_OK;
}

/* Clips rows [first, first + n) of the tensor to the box; in the source they begin at op->src,
 * `stride` apart. */
HL_CHECK static hl_status clip_rows(struct clipper *c, const struct hl_copy_op *op, uint64_t first,
                                    uint64_t n, uint64_t src, uint64_t stride)
{
    const struct hl_clip_box *b = c->box;
    uint64_t from = first > b->row ? first : b->row;
    uint64_t to = first + n < b->row + b->rows ? first + n : b->row + b->rows;
    struct hl_copy_op cut = *op;
    if (from >= to)
        return HL_OK;
    cut.rows = to - from;
    if (op->kind == HL_COPY_ZERO) {
        cut.run = (to - from) * b->cols * c->elem;
        cut.rows = 1;
    } else if (op->kind == HL_COPY_TRANSPOSE) {
        cut.src = op->src + (from - first) * op->step + b->col * op->stride;
        cut.cols = b->cols;
    } else {
        cut.src = src + (from - first) * stride + b->col * c->elem;
        cut.run = b->cols * c->elem;
        cut.stride = stride;
    }
    return add_op(c, cut);
}

HL_CHECK static hl_status clip_op(struct clipper *c, const struct hl_copy_op *op, const char *name)
{
    uint64_t first = op->dst / c->pitch, n = hl_copy_bytes(op) / c->pitch;
    bool whole_rows = op->dst % c->pitch == 0 && hl_copy_bytes(op) % c->pitch == 0;
    if (op->kind == HL_COPY_TRANSPOSE)
        whole_rows = whole_rows && op->cols * op->elem == c->pitch;
    if (op->kind == HL_COPY_RUNS)
        whole_rows = whole_rows && op->run % c->pitch == 0;
    if (!whole_rows)
        return hl_fail(HL_EUNSUPPORTED, "tensor '%s' is not written row by row", name);
    if (op->kind != HL_COPY_RUNS || op->rows == 1)
        return clip_rows(c, op, first, n, op->src, c->pitch);
    if (op->run == c->pitch)
        return clip_rows(c, op, first, n, op->src, op->stride);
    uint64_t each = op->run / c->pitch;
    for (uint64_t i = 0; i < op->rows; i++)
        HL_TRY(clip_rows(c, op, first + i * each, each, op->src + i * op->stride, c->pitch));
    return HL_OK;
}

/* Writes the box's tensor, tightly packed. */
HL_CHECK static hl_status clip_tensor(struct clipper *c, const struct hl_clip_box *box,
                                      struct hl_tensor *out)
{
    const struct hl_tensor *t = &c->from->tensors[box->tensor];
    uint64_t cols = t->rank > 1 ? t->shape[t->rank - 1] : 1, rows = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        rows *= t->rank == 1 || i + 1 < t->rank ? t->shape[i] : 1;
    if (box->row > rows || box->rows > rows - box->row || box->col > cols ||
        box->cols > cols - box->col)
        return hl_fail(HL_EINVAL,
                       "a piece of tensor '%s' is %" PRIu64 " x %" PRIu64 " at %" PRIu64
                       ", %" PRIu64 " of %" PRIu64 " x %" PRIu64,
                       t->name, box->rows, box->cols, box->row, box->col, rows, cols);
    c->box = box;
    c->elem = hl_dtype_size(t->dtype);
    c->pitch = cols * c->elem;
    c->dst = 0;
    *out = *t;
    out->rank = t->rank > 1 ? 2 : 1;
    memset(out->shape, 0, sizeof(out->shape));
    out->shape[0] = box->rows;
    if (out->rank > 1)
        out->shape[1] = box->cols;
    HL_TRY(hl_tensor_bytes(out, &out->size));
    for (uint32_t i = c->from->op_first[box->tensor];
         i < c->from->op_first[box->tensor + 1] && out->size > 0; i++)
        HL_TRY(clip_op(c, &c->from->ops[i], t->name));
    if (c->dst != out->size)
        return hl_fail(HL_EINVAL, "a piece of tensor '%s' has %" PRIu64 " of %" PRIu64 " bytes",
                       t->name, c->dst, out->size);
    return HL_OK;
}

HL_CHECK static hl_status clip_all(struct clipper *c, const struct hl_clip_box *boxes, size_t count)
{
    struct hl_partition_plan *out = c->out;
    const struct hl_partition_plan *from = c->from;
    size_t next = 0;
    out->shards = calloc(from->shard_count + 1, sizeof(*out->shards));
    out->tensors = calloc(count + 1, sizeof(*out->tensors));
    out->op_first = calloc(count + 1, sizeof(*out->op_first));
    if (out->shards == NULL || out->tensors == NULL || out->op_first == NULL)
        return hl_fail(HL_ENOMEM, "a plan of %zu pieces", count);
    for (size_t s = 0; s < from->shard_count; s++) {
        struct hl_partition_shard *shard = &out->shards[out->shard_count++];
        const struct hl_partition_shard *whole = &from->shards[s];
        *shard = *whole;
        shard->tensor_first = (uint32_t)next;
        shard->data_size = 0;
        for (; next < count && boxes[next].tensor < whole->tensor_first + whole->tensor_count;
             next++) {
            HL_TRY(clip_tensor(c, &boxes[next], &out->tensors[next]));
            out->tensors[next].offset = shard->data_size;
            shard->data_size += out->tensors[next].size;
            out->op_first[next + 1] = (uint32_t)out->op_count;
        }
        shard->tensor_count = (uint32_t)next - shard->tensor_first;
    }
    out->tensor_count = next;
    return HL_OK;
}

hl_status hl_partition_clip(const struct hl_partition_plan *plan, const struct hl_clip_box *boxes,
                            size_t count, struct hl_partition_plan *out)
{
    struct hl_partition_plan made = {.padded_vocab = plan->padded_vocab, .dtype = plan->dtype};
    struct clipper c = {.from = plan, .out = &made};
    hl_status st = clip_all(&c, boxes, count);
    if (st != HL_OK) {
        hl_partition_fini(&made);
        return st;
    }
    *out = made;
    return HL_OK;
}
