/* The boxes of A are sorted by logical tensor and rectangle. Boxes with equal rectangles form a
 * group of holders. A box of B takes from every group it intersects what no earlier group has
 * provided. */
#include "core/reshard/reshard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/reshard/reshard_box.h"
#include "core/reshard/reshard_private.h"

#define OPS_MAX ((size_t)1 << 26)

/* A box of A and its holder. */
struct holder {
    struct hl_box box;
    uint32_t shard;
    uint32_t tensor;
    int tp;
};

/* Holders with the same rectangle, sorted by tp. */
struct group {
    uint32_t first;
    uint32_t count;
    uint64_t reach; /* the greatest row_end of the logical tensor's groups up to this one */
};

struct resharder {
    const struct hl_tensor *logical;
    size_t logical_count;
    const struct hl_partition_plan *a;
    const struct hl_partition_plan *b;
    uint32_t *stands_for; /* the representative of equal logical tensors, such as a tied head and
                           * the embedding */
    struct holder *holders;
    struct group *groups;
    size_t group_count;
    size_t *group_first;      /* groups of logical tensor i: [group_first[i], group_first[i + 1]) */
    struct hl_box_list boxes; /* of one tensor of B */
    struct hl_rect *open;     /* parts of a box that no group has provided yet */
    size_t open_count;
    size_t open_cap;
    int tp; /* of B's shard */
    size_t op_cap;
    struct hl_reshard_plan *out;
};

/* Makes room for one more element of `size` bytes in a list of `count`. */
HL_CHECK static hl_status grow_list(void **list, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return HL_OK;
    size_t more = *cap == 0 ? 64 : *cap * 2;
    void *p = more <= OPS_MAX ? realloc(*list, more * size) : NULL;
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a transfer plan of %zu entries", more);
    *list = p;
    *cap = more;
    return HL_OK;
}

/* ---- the index of A -------------------------------------------------------------------------- */

static int number_order(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_rect(const struct holder *x, const struct holder *y)
{
    int c = number_order(x->box.logical, y->box.logical);
    c = c != 0 ? c : number_order(x->box.rect.row, y->box.rect.row);
    c = c != 0 ? c : number_order(x->box.rect.col, y->box.rect.col);
    c = c != 0 ? c : number_order(x->box.rect.row_end, y->box.rect.row_end);
    return c != 0 ? c : number_order(x->box.rect.col_end, y->box.rect.col_end);
}

static int by_rect_and_tp(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    int c = by_rect(x, y);
    c = c != 0 ? c : (x->tp > y->tp) - (x->tp < y->tp);
    c = c != 0 ? c : number_order(x->tensor, y->tensor);
    return c != 0 ? c : number_order(x->box.at, y->box.at);
}

HL_CHECK static hl_status add_holders(struct resharder *r, uint32_t shard, uint32_t tensor,
                                      size_t *count, size_t *cap)
{
    const struct hl_partition_plan *a = r->a;
    r->boxes.count = 0;
    for (uint32_t i = a->op_first[tensor]; i < a->op_first[tensor + 1]; i++)
        HL_TRY(hl_box_list_add(&r->boxes, &a->ops[i], r->logical, r->logical_count));
    for (size_t i = 0; i < r->boxes.count; i++) {
        struct hl_box *box = &r->boxes.list[i];
        if (box->kind != HL_BOX_DATA)
            continue;
        box->logical = r->stands_for[box->logical];
        HL_TRY(grow_list((void **)&r->holders, *count, cap, sizeof(*r->holders)));
        r->holders[(*count)++] = (struct holder){*box, shard, tensor, a->shards[shard].tp};
    }
    return HL_OK;
}

HL_CHECK static hl_status group_holders(struct resharder *r, size_t count)
{
    r->groups = calloc(count + 1, sizeof(*r->groups));
    r->group_first = calloc(r->logical_count + 1, sizeof(*r->group_first));
    if (r->groups == NULL || r->group_first == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu boxes", count);
    size_t next = 0; /* the next logical tensor whose groups have not begun */
    for (size_t i = 0; i < count; i++) {
        const struct holder *h = &r->holders[i];
        if (i > 0 && by_rect(h - 1, h) == 0) {
            r->groups[r->group_count - 1].count++;
            continue;
        }
        uint64_t reach = h->box.rect.row_end;
        if (i > 0 && h[-1].box.logical == h->box.logical &&
            r->groups[r->group_count - 1].reach > reach)
            reach = r->groups[r->group_count - 1].reach;
        while (next <= h->box.logical)
            r->group_first[next++] = r->group_count;
        r->groups[r->group_count++] = (struct group){(uint32_t)i, 1, reach};
    }
    while (next <= r->logical_count)
        r->group_first[next++] = r->group_count;
    return HL_OK;
}

HL_CHECK static hl_status index_source(struct resharder *r)
{
    size_t count = 0, cap = 0;
    for (uint32_t s = 0; s < r->a->shard_count; s++) {
        const struct hl_partition_shard *shard = &r->a->shards[s];
        for (uint32_t k = 0; k < shard->tensor_count; k++)
            HL_TRY(add_holders(r, s, shard->tensor_first + k, &count, &cap));
    }
    if (count > 0)
        qsort(r->holders, count, sizeof(*r->holders), by_rect_and_tp);
    return group_holders(r, count);
}

/* Unites tensors that either plan declares equal. */
HL_CHECK static hl_status unite_equal(struct resharder *r)
{
    const struct hl_partition_plan *plans[] = {r->a, r->b};
    r->stands_for = malloc((r->logical_count + 1) * sizeof(*r->stands_for));
    if (r->stands_for == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors",
                       r->logical_count);
    for (size_t i = 0; i < r->logical_count; i++)
        r->stands_for[i] = (uint32_t)i;
    for (size_t p = 0; p < HL_ARRAY_LEN(plans); p++)
        for (size_t i = 0; i < plans[p]->equal_count; i++)
            r->stands_for[plans[p]->equal[i].b] = r->stands_for[plans[p]->equal[i].a];
    return HL_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

HL_CHECK static hl_status add_op(struct resharder *r, const struct hl_reshard_op *op)
{
    struct hl_reshard_plan *out = r->out;
    HL_TRY(grow_list((void **)&out->ops, out->op_count, &r->op_cap, sizeof(*out->ops)));
    out->ops[out->op_count++] = *op;
    return HL_OK;
}

/* `count` elements along one dimension or across two, with the distance between them on both
 * sides. */
struct walk {
    uint64_t count;
    uint64_t src;
    uint64_t dst;
};

/* Writes two walks as one operation; the elements of `inner` are adjacent in the target. */
static void shape_op(struct hl_reshard_op *op, struct walk inner, struct walk outer)
{
    op->rows = outer.count;
    op->src_stride = outer.src;
    op->dst_stride = outer.dst;
    if (inner.src != op->elem && inner.count > 1) {
        op->kind = HL_RESHARD_TRANSPOSE;
        op->cols = inner.count;
        op->src_stride = inner.src;
        return;
    }
    op->kind = HL_RESHARD_COPY;
    op->run = inner.count * op->elem;
    if (op->rows == 1 || (op->src_stride == op->run && op->dst_stride == op->run)) {
        op->run *= op->rows;
        op->rows = 1;
        op->src_stride = op->dst_stride = op->run;
    }
}

/* Adds the part `rect` of box `to` once, from `op`'s source. */
HL_CHECK static hl_status add_part(struct resharder *r, struct hl_reshard_op op,
                                   const struct hl_rect *rect, const struct hl_box *from,
                                   const struct hl_box *to)
{
    struct walk rows = {rect->row_end - rect->row, from->row_pitch, to->row_pitch};
    struct walk cols = {rect->col_end - rect->col, from->col_pitch, to->col_pitch};
    bool along_rows = to->row_pitch == op.elem && (cols.count == 1 || to->col_pitch != op.elem);
    struct walk inner = along_rows ? rows : cols, outer = along_rows ? cols : rows;
    bool dense = inner.dst == op.elem || inner.count == 1;
    /* One operation is enough if the source is dense along either walk. */
    if (dense &&
        (inner.src == op.elem || inner.count == 1 || outer.src == op.elem || outer.count == 1)) {
        shape_op(&op, inner, outer);
        return add_op(r, &op);
    }
    for (uint64_t i = 0; i < outer.count; i++) {
        struct hl_reshard_op one = op;
        one.src += i * outer.src;
        one.dst += i * outer.dst;
        if (dense)
            shape_op(&one, inner, (struct walk){1, op.elem, inner.count * op.elem});
        else
            shape_op(&one, (struct walk){1, op.elem, op.elem}, inner);
        HL_TRY(add_op(r, &one));
    }
    return HL_OK;
}

/* Prefers the holder with the same tp; otherwise spreads the load by tp. */
static const struct holder *choose_holder(const struct resharder *r, const struct group *g)
{
    const struct holder *list = &r->holders[g->first];
    uint32_t low = 0, high = g->count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (list[mid].tp < r->tp)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < g->count && list[low].tp == r->tp)
        return &list[low];
    return &list[(uint32_t)r->tp % g->count];
}

HL_CHECK static hl_status take_part(struct resharder *r, const struct group *g,
                                    const struct hl_rect *rect, const struct hl_box *to)
{
    const struct holder *h = choose_holder(r, g);
    struct hl_reshard_op op = {.shard = h->shard,
                               .tensor = h->tensor,
                               .elem = to->elem,
                               .src = hl_box_at(&h->box, rect->row, rect->col),
                               .dst = hl_box_at(to, rect->row, rect->col)};
    size_t before = r->out->op_count;
    HL_TRY(add_part(r, op, rect, &h->box, to));
    if (to->kind != HL_BOX_REPEAT)
        return HL_OK;
    struct hl_reshard_op *added = &r->out->ops[before];
    if (r->out->op_count == before + 1 && added->kind == HL_RESHARD_COPY && added->rows == 1) {
        added->rows = to->count;
        added->src_stride = 0;
        added->dst_stride = to->period;
        return HL_OK;
    }
    size_t end = r->out->op_count;
    for (uint64_t n = 1; n < to->count; n++)
        for (size_t i = before; i < end; i++) {
            struct hl_reshard_op again = r->out->ops[i];
            again.dst += n * to->period;
            HL_TRY(add_op(r, &again));
        }
    return HL_OK;
}

/* ---- intersection ---------------------------------------------------------------------------- */

static bool rects_meet(const struct hl_rect *a, const struct hl_rect *b, struct hl_rect *out)
{
    out->row = a->row > b->row ? a->row : b->row;
    out->row_end = a->row_end < b->row_end ? a->row_end : b->row_end;
    out->col = a->col > b->col ? a->col : b->col;
    out->col_end = a->col_end < b->col_end ? a->col_end : b->col_end;
    return out->row < out->row_end && out->col < out->col_end;
}

HL_CHECK static hl_status add_open(struct resharder *r, struct hl_rect rect)
{
    if (rect.row >= rect.row_end || rect.col >= rect.col_end)
        return HL_OK;
    HL_TRY(grow_list((void **)&r->open, r->open_count, &r->open_cap, sizeof(*r->open)));
    r->open[r->open_count++] = rect;
    return HL_OK;
}

/* Takes what the group has of the open parts; the rest stays open. */
HL_CHECK static hl_status take_group(struct resharder *r, const struct group *g,
                                     const struct hl_box *to)
{
    const struct hl_rect *has = &r->holders[g->first].box.rect;
    for (size_t i = r->open_count; i-- > 0;) {
        struct hl_rect whole = r->open[i], part;
        if (!rects_meet(has, &whole, &part))
            continue;
        r->open[i] = r->open[--r->open_count];
        HL_TRY(add_open(r, (struct hl_rect){whole.row, part.row, whole.col, whole.col_end}));
        HL_TRY(add_open(r, (struct hl_rect){part.row, part.row_end, whole.col, part.col}));
        HL_TRY(add_open(r, (struct hl_rect){part.row, part.row_end, part.col_end, whole.col_end}));
        HL_TRY(
            add_open(r, (struct hl_rect){part.row_end, whole.row_end, whole.col, whole.col_end}));
        HL_TRY(take_part(r, g, &part, to));
    }
    return HL_OK;
}

/* The first group of [begin, end) at which `reach` is above `row`. */
static size_t first_reaching(const struct resharder *r, size_t begin, size_t end, uint64_t row)
{
    while (begin < end) {
        size_t mid = begin + (end - begin) / 2;
        if (r->groups[mid].reach <= row)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin;
}

HL_CHECK static hl_status plan_box(struct resharder *r, struct hl_box to)
{
    char range[128];
    if (to.kind == HL_BOX_ZERO)
        return add_op(r, &(struct hl_reshard_op){.kind = HL_RESHARD_ZERO,
                                                 .shard = HL_RESHARD_NONE,
                                                 .tensor = HL_RESHARD_NONE,
                                                 .elem = 1,
                                                 .dst = to.at,
                                                 .rows = 1,
                                                 .run = to.period});
    const char *name = r->logical[to.logical].name;
    to.logical = r->stands_for[to.logical];
    size_t end = r->group_first[to.logical + 1];
    r->open_count = 0;
    HL_TRY(add_open(r, to.rect));
    for (size_t i = first_reaching(r, r->group_first[to.logical], end, to.rect.row);
         i < end && r->open_count > 0 &&
         r->holders[r->groups[i].first].box.rect.row < to.rect.row_end;
         i++)
        HL_TRY(take_group(r, &r->groups[i], &to));
    if (r->open_count == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s of tensor '%s' are held by no shard of the source layout",
                   hl_rect_text(&r->logical[to.logical], &r->open[0], range, sizeof(range)), name);
}

/* ---- a tensor -------------------------------------------------------------------------------- */

static int by_dst(const void *a, const void *b)
{
    const struct hl_reshard_op *x = a, *y = b;
    return number_order(x->dst, y->dst);
}

/* Extends `op` by `next` if that follows side by side or one row below. */
static bool merge_op(struct hl_reshard_op *op, const struct hl_reshard_op *next)
{
    if (op->kind != next->kind || op->tensor != next->tensor || op->elem != next->elem ||
        op->kind == HL_RESHARD_TRANSPOSE || op->src_stride == 0 || next->src_stride == 0)
        return false;
    bool beside = next->src == op->src + op->run && next->dst == op->dst + op->run;
    if (beside && op->rows == 1 && next->rows == 1) {
        op->run += next->run;
        op->src_stride = op->dst_stride = op->run;
        return true;
    }
    if (op->src_stride != next->src_stride || op->dst_stride != next->dst_stride)
        return false;
    if (beside && op->rows == next->rows) {
        op->run += next->run;
        return true;
    }
    if (op->run != next->run || next->src != op->src + op->rows * op->src_stride ||
        next->dst != op->dst + op->rows * op->dst_stride)
        return false;
    op->rows += next->rows;
    return true;
}

static void merge_ops(struct hl_reshard_plan *out, size_t first)
{
    size_t last = first;
    for (size_t i = first + 1; i < out->op_count; i++)
        if (!merge_op(&out->ops[last], &out->ops[i]))
            out->ops[++last] = out->ops[i];
    if (out->op_count > first)
        out->op_count = last + 1;
}

static uint32_t shard_of(const struct hl_partition_plan *plan, uint32_t tensor)
{
    size_t low = 0, high = plan->shard_count;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (plan->shards[mid].tensor_first <= tensor)
            low = mid;
        else
            high = mid;
    }
    return (uint32_t)low;
}

HL_CHECK static hl_status plan_tensor(struct resharder *r, uint32_t tensor)
{
    struct hl_reshard_plan *out = r->out;
    const struct hl_partition_plan *b = r->b;
    size_t first = out->op_count;
    uint32_t same = out->same[tensor];
    uint64_t size = b->tensors[tensor].size, written = 0;
    if (same != HL_RESHARD_NONE && size > 0)
        return add_op(r, &(struct hl_reshard_op){.kind = HL_RESHARD_COPY,
                                                 .shard = shard_of(r->a, same),
                                                 .tensor = same,
                                                 .elem = hl_dtype_size(b->tensors[tensor].dtype),
                                                 .src_stride = size,
                                                 .dst_stride = size,
                                                 .rows = 1,
                                                 .run = size});
    r->boxes.count = 0;
    for (uint32_t i = b->op_first[tensor]; i < b->op_first[tensor + 1]; i++)
        HL_TRY(hl_box_list_add(&r->boxes, &b->ops[i], r->logical, r->logical_count));
    for (size_t i = 0; i < r->boxes.count; i++)
        HL_TRY(plan_box(r, r->boxes.list[i]));
    if (out->op_count > first)
        qsort(&out->ops[first], out->op_count - first, sizeof(*out->ops), by_dst);
    merge_ops(out, first);
    for (size_t i = first; i < out->op_count; i++)
        written += hl_reshard_bytes(&out->ops[i]);
    if (written != size)
        return hl_fail(HL_EINVAL,
                       "the operations of tensor '%s' fill %" PRIu64 " of %" PRIu64 " bytes",
                       b->tensors[tensor].name, written, size);
    return HL_OK;
}

HL_CHECK static hl_status plan_shard(struct resharder *r, size_t shard)
{
    struct hl_reshard_plan *out = r->out;
    const struct hl_partition_shard *s = &r->b->shards[shard];
    r->tp = s->tp;
    for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++) {
        hl_status st = plan_tensor(r, k);
        if (st != HL_OK)
            return hl_fail_prefix(st, "pp %d, tp %d, part %s, tensor '%s': ", s->pp, s->tp, s->part,
                                  r->b->tensors[k].name);
        out->op_first[k + 1] = (uint32_t)out->op_count;
    }
    if (out->shards[shard].alias == HL_RESHARD_NONE)
        out->copy_bytes += s->data_size;
    return HL_OK;
}

HL_CHECK static hl_status plan_shards(struct resharder *r)
{
    struct hl_reshard_plan *out = r->out;
    out->shard_count = r->b->shard_count;
    out->tensor_count = r->b->tensor_count;
    out->shards = calloc(out->shard_count + 1, sizeof(*out->shards));
    out->same = malloc((out->tensor_count + 1) * sizeof(*out->same));
    out->op_first = calloc(out->tensor_count + 1, sizeof(*out->op_first));
    if (out->shards == NULL || out->same == NULL || out->op_first == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a transfer plan of %zu tensors",
                       out->tensor_count);
    HL_TRY(unite_equal(r));
    HL_TRY(index_source(r));
    HL_TRY(hl_reshard_find_same(r->a, r->b, out));
    for (size_t i = 0; i < out->shard_count; i++)
        HL_TRY(plan_shard(r, i));
    return HL_OK;
}

hl_status hl_reshard_plan(const struct hl_tensor *logical, size_t logical_count,
                          const struct hl_partition_plan *a, const struct hl_partition_plan *b,
                          struct hl_reshard_plan *out)
{
    struct hl_reshard_plan plan = {0};
    struct resharder r = {
        .logical = logical, .logical_count = logical_count, .a = a, .b = b, .out = &plan};
    hl_status st = plan_shards(&r);
    free(r.stands_for);
    free(r.holders);
    free(r.groups);
    free(r.group_first);
    free(r.open);
    hl_box_list_fini(&r.boxes);
    if (st != HL_OK) {
        hl_reshard_fini(&plan);
        return st;
    }
    *out = plan;
    return HL_OK;
}

void hl_reshard_fini(struct hl_reshard_plan *plan)
{
    free(plan->shards);
    free(plan->same);
    free(plan->op_first);
    free(plan->ops);
    *plan = (struct hl_reshard_plan){0};
}
