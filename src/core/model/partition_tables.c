/* The tables of a plan under construction: the checkpoint's tensors by name, and the tensors,
 * operations and blocks of the shards. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/partition_private.h"

#define TABLE_MAX ((size_t)1 << 24)

hl_status hl_planner_index_sources(struct hl_planner *p)
{
    p->nodes = malloc((p->source_count + 1) * sizeof(*p->nodes));
    p->used = calloc(p->source_count + 1, 1);
    if (p->nodes == NULL || p->used == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu tensors",
                       p->source_count);
    for (size_t i = 0; i < p->source_count; i++) {
        struct hl_source_node *node = &p->nodes[i], *hit;
        node->name = p->sources[i].name;
        HASH_FIND_STR(p->index, node->name, hit);
        if (hit != NULL)
            return hl_fail(HL_EINVAL, "tensor '%s' is in two files: remove one of them",
                           node->name);
        HASH_ADD_KEYPTR(hh, p->index, node->name, strlen(node->name), node);
    }
    return HL_OK;
}

bool hl_planner_has(const struct hl_planner *p, const char *name)
{
    struct hl_source_node *hit;
    HASH_FIND_STR(p->index, name, hit);
    return hit != NULL;
}

bool hl_planner_dtype(const struct hl_planner *p, const char *name, enum hl_dtype *out)
{
    struct hl_source_node *hit;
    HASH_FIND_STR(p->index, name, hit);
    if (hit == NULL)
        return false;
    *out = p->sources[hit - p->nodes].dtype;
    return true;
}

static bool has_dims(const struct hl_tensor *t, const struct hl_dims *dims)
{
    if (t->rank != dims->rank)
        return false;
    for (uint32_t i = 0; i < dims->rank; i++)
        if (t->shape[i] != dims->shape[i])
            return false;
    return true;
}

HL_CHECK static hl_status check_dtype(const struct hl_tensor *t)
{
    if (t->dtype == HL_DTYPE_BF16 || t->dtype == HL_DTYPE_F16 || t->dtype == HL_DTYPE_F32 ||
        t->dtype == HL_DTYPE_F64)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "tensor '%s' has dtype %s: use BF16, F16, F32 or F64, or import the checkpoint "
                   "with --unsliced",
                   t->name, hl_dtype_name(t->dtype));
}

hl_status hl_planner_stored(struct hl_planner *p, const char *name, const struct hl_dims *dims,
                            enum hl_used as, uint32_t *out)
{
    char has[192], want[64];
    struct hl_source_node *hit;
    HASH_FIND_STR(p->index, name, hit);
    if (hit == NULL)
        return hl_fail(HL_ENOENT,
                       "tensor '%s' is missing, config.json asks for it in a %s model: complete "
                       "the files, correct config.json, or import the checkpoint with --unsliced",
                       name, p->config->architecture);
    size_t i = (size_t)(hit - p->nodes);
    const struct hl_tensor *t = &p->sources[i];
    if (dims != NULL && !has_dims(t, dims)) {
        struct hl_tensor ask = {.name = name, .rank = dims->rank};
        memcpy(ask.shape, dims->shape, sizeof(dims->shape));
        return hl_fail(HL_EINVAL,
                       "tensor '%s' has shape %s, config.json asks for %s: they do not belong "
                       "together; correct config.json, or import the checkpoint with --unsliced",
                       name, hl_tensor_shape_text(t, has, sizeof(has)),
                       hl_tensor_shape_text(&ask, want, sizeof(want)));
    }
    p->used[i] = (unsigned char)as;
    *out = (uint32_t)i;
    return HL_OK;
}

hl_status hl_planner_source(struct hl_planner *p, const char *name, const struct hl_dims *dims,
                            uint32_t *out)
{
    uint32_t i;
    HL_TRY(hl_planner_stored(p, name, dims, HL_USED_WEIGHT, &i));
    HL_TRY(check_dtype(&p->sources[i]));
    *out = i;
    return HL_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Tables that are computed, not trained: rotary frequencies and causal masks. */
static bool is_buffer(const struct hl_planner *p, const char *name)
{
    const char *const *ends = p->config->family->buffers;
    for (size_t i = 0; ends != NULL && ends[i] != NULL; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

hl_status hl_planner_count_sources(struct hl_planner *p)
{
    for (size_t i = 0; i < p->source_count; i++) {
        const struct hl_tensor *t = &p->sources[i];
        uint64_t bytes;
        if (p->used[i] == HL_USED_SCALE)
            continue;
        if (p->used[i]) {
            HL_TRY(hl_tensor_bytes(t, &bytes));
            p->plan->parameters +=
                bytes / hl_dtype_size(t->dtype) * (p->used[i] == HL_USED_PACKED ? 2 : 1);
        } else if (!is_buffer(p, t->name)) {
            return hl_fail(HL_EINVAL,
                           "tensor '%s' has no place in a %s model of %" PRIu64
                           " layers; remove it, correct config.json, or import the checkpoint "
                           "with --unsliced",
                           t->name, p->config->architecture, p->config->layers);
        }
    }
    for (size_t i = 0; i < p->plan->equal_count; i++) {
        uint64_t bytes;
        const struct hl_tensor *copy = &p->sources[p->plan->equal[i].b];
        HL_TRY(hl_tensor_bytes(copy, &bytes));
        p->plan->parameters -= bytes / hl_dtype_size(copy->dtype);
    }
    return HL_OK;
}

hl_status hl_planner_equal(struct hl_planner *p, uint32_t a, uint32_t b)
{
    struct hl_partition_plan *plan = p->plan;
    const struct hl_tensor *x = &p->sources[a], *y = &p->sources[b];
    if (x->dtype != y->dtype)
        return hl_fail(HL_EINVAL, "tensors '%s' and '%s' must be equal, but differ in dtype",
                       x->name, y->name);
    HL_TRY(hl_planner_grow((void **)&plan->equal, plan->equal_count, &p->equal_cap,
                           sizeof(*plan->equal)));
    plan->equal[plan->equal_count++] = (struct hl_partition_equal){.a = a, .b = b};
    return HL_OK;
}

hl_status hl_planner_grow(void **list, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return HL_OK;
    size_t more = *cap == 0 ? 64 : *cap * 2;
    void *q = more <= TABLE_MAX ? realloc(*list, more * size) : NULL;
    if (q == NULL)
        return hl_fail(HL_ENOMEM,
                       "out of memory allocating a plan of %zu entries; use a smaller tp", more);
    *list = q;
    *cap = more;
    return HL_OK;
}

hl_status hl_planner_tensor(struct hl_planner *p, uint32_t source, const struct hl_dims *dims,
                            const char *name)
{
    struct hl_partition_plan *plan = p->plan;
    size_t cap = p->tensor_cap;
    HL_TRY(
        hl_planner_grow((void **)&plan->tensors, plan->tensor_count, &cap, sizeof(*plan->tensors)));
    /* op_first has one more entry than there are tensors. */
    uint32_t *first = realloc(plan->op_first, (cap + 1) * sizeof(*first));
    if (first == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan of %zu tensors", cap);
    plan->op_first = first;
    p->tensor_cap = cap;
    /* The buffer of names moves while it grows: store the offset; hl_partition_plan converts it to
     * a pointer. */
    struct hl_tensor *t = &plan->tensors[plan->tensor_count];
    *t = (struct hl_tensor){.name = (const char *)(uintptr_t)p->names.len,
                            .dtype = p->sources[source].dtype,
                            .rank = dims->rank};
    memcpy(t->shape, dims->shape, sizeof(dims->shape));
    HL_TRY(hl_buf_printf(&p->names, "%s%s", p->chunk, name));
    HL_TRY(hl_buf_append(&p->names, "", 1));
    HL_TRY(hl_tensor_bytes(t, &t->size));
    struct hl_partition_shard *shard = &plan->shards[plan->shard_count - 1];
    t->offset = shard->data_size;
    shard->data_size += t->size;
    shard->tensor_count++;
    plan->op_first[plan->tensor_count++] = (uint32_t)plan->op_count;
    plan->op_first[plan->tensor_count] = (uint32_t)plan->op_count;
    return HL_OK;
}

HL_CHECK static hl_status add_op(struct hl_planner *p, struct hl_copy_op op)
{
    struct hl_partition_plan *plan = p->plan;
    const struct hl_tensor *t = &plan->tensors[plan->tensor_count - 1];
    uint32_t first = plan->op_first[plan->tensor_count - 1];
    const struct hl_copy_op *last = plan->op_count > first ? &plan->ops[plan->op_count - 1] : NULL;
    if (op.kind != HL_COPY_ZERO && p->sources[op.source].dtype != t->dtype)
        return hl_fail(HL_EINVAL,
                       "tensor '%s' is %s, but is fused with others of %s: convert the checkpoint "
                       "to one dtype",
                       p->sources[op.source].name, hl_dtype_name(p->sources[op.source].dtype),
                       hl_dtype_name(t->dtype));
    op.dst = last != NULL ? last->dst + hl_copy_bytes(last) : 0;
    HL_TRY(hl_planner_grow((void **)&plan->ops, plan->op_count, &p->op_cap, sizeof(*plan->ops)));
    plan->ops[plan->op_count++] = op;
    plan->op_first[plan->tensor_count] = (uint32_t)plan->op_count;
    return HL_OK;
}

/* Columns [col, col + cols) of rows [from, from + n) of a block, whose rows are the source's. */
HL_CHECK static hl_status add_plain_block(struct hl_planner *p, const struct hl_rows *b,
                                          uint64_t from, uint64_t n, uint64_t col, uint64_t cols)
{
    uint32_t elem = hl_dtype_size(p->sources[b->source].dtype);
    struct hl_copy_op op = {.kind = HL_COPY_RUNS, .source = b->source, .elem = elem, .rows = n};
    op.src = (b->base + (b->first + from) * b->row + col * b->col) * elem;
    op.run = cols * elem;
    op.stride = b->row * elem;
    if (b->kind == HL_ROWS_ZERO) {
        op = (struct hl_copy_op){.kind = HL_COPY_ZERO, .elem = elem, .run = n * cols * elem};
        op.source = b->source;
    } else if (b->kind == HL_ROWS_REPEAT) {
        op.src = (b->base + b->first * b->row + col * b->col) * elem;
        op.stride = 0;
    } else if (b->col != 1) {
        op.kind = HL_COPY_TRANSPOSE;
        op.run = 0;
        op.cols = cols;
        op.stride = b->col * elem;
        op.step = b->row * elem;
    } else if (b->row == cols) { /* without a gap */
        op.rows = 1;
        op.run = op.stride = n * cols * elem;
    }
    return add_op(p, op);
}

/* Like add_plain_block, for any block. If `each` rows come from one source row, the first is that
 * row and the others repeat it, as padding does, because each element is held only once. */
HL_CHECK static hl_status add_block(struct hl_planner *p, const struct hl_rows *b, uint64_t from,
                                    uint64_t n, uint64_t col, uint64_t cols)
{
    uint64_t at = b->first + from, end = at + n, next;
    if (b->each < 2)
        return add_plain_block(p, b, from, n, col, cols);
    for (; at < end; at = next) {
        struct hl_rows one = *b;
        next = at % b->each == 0 ? at + 1 : (at / b->each + 1) * b->each;
        next = next < end ? next : end;
        one.kind = at % b->each == 0 ? HL_ROWS_PLAIN : HL_ROWS_REPEAT;
        one.first = at / b->each;
        HL_TRY(add_plain_block(p, &one, 0, next - at, col, cols));
    }
    p->plan->repeated = true;
    return HL_OK;
}

hl_status hl_planner_rows(struct hl_planner *p, const struct hl_rows *blocks, size_t n,
                          uint64_t first, uint64_t count, uint64_t col, uint64_t cols)
{
    uint64_t at = 0, end = first + count;
    for (size_t i = 0; i < n && at < end; at += blocks[i++].count) {
        uint64_t from = at < first ? first - at : 0;
        uint64_t to = end - at < blocks[i].count ? end - at : blocks[i].count;
        if (from < to)
            HL_TRY(add_block(p, &blocks[i], from, to - from, col, cols));
    }
    return HL_OK;
}
