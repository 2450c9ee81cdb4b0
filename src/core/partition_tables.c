/* The tables that a plan is built in: the checkpoint's tensors by name, and the tensors, operations
 * and blocks of the shards. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/partition_private.h"

#define TABLE_MAX ((size_t)1 << 24)

hl_status hl_planner_index_sources(struct hl_planner *p)
{
    p->nodes = malloc((p->source_count + 1) * sizeof(*p->nodes));
    p->used = calloc(p->source_count + 1, 1);
    if (p->nodes == NULL || p->used == NULL)
        return hl_fail(HL_ENOMEM, "index of %zu tensors", p->source_count);
    for (size_t i = 0; i < p->source_count; i++) {
        struct hl_source_node *node = &p->nodes[i], *hit;
        node->name = p->sources[i].name;
        HASH_FIND_STR(p->index, node->name, hit);
        if (hit != NULL)
            return hl_fail(HL_EINVAL, "tensor '%s' stands in two files", node->name);
        HASH_ADD_KEYPTR(hh, p->index, node->name, strlen(node->name), node);
    }
    return HL_OK;
}

int hl_planner_has(const struct hl_planner *p, const char *prefix, const char *name)
{
    char full[128];
    struct hl_source_node *hit;
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    HASH_FIND_STR(p->index, full, hit);
    return hit != NULL;
}

hl_status hl_planner_source(struct hl_planner *p, uint32_t rank, uint64_t dim0, uint64_t dim1,
                            uint32_t *out, const char *fmt, ...)
{
    char name[160], has[192], want[64];
    struct hl_source_node *hit;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    HASH_FIND_STR(p->index, name, hit);
    if (hit == NULL)
        return hl_fail(HL_ENOENT, "tensor '%s' is missing", name);
    size_t i = (size_t)(hit - p->nodes);
    const struct hl_tensor *t = &p->sources[i];
    struct hl_tensor ask = {.name = name, .rank = rank, .shape = {dim0, dim1}};
    if (t->rank != rank || t->shape[0] != dim0 || (rank == 2 && t->shape[1] != dim1))
        return hl_fail(HL_EINVAL, "tensor '%s' has shape %s, config.json asks for %s", name,
                       hl_tensor_shape_text(t, has, sizeof(has)),
                       hl_tensor_shape_text(&ask, want, sizeof(want)));
    if (t->dtype != HL_DTYPE_BF16 && t->dtype != HL_DTYPE_F16 && t->dtype != HL_DTYPE_F32 &&
        t->dtype != HL_DTYPE_F64)
        return hl_fail(HL_EUNSUPPORTED, "tensor '%s' has dtype %s: use BF16, F16, F32 or F64", name,
                       hl_dtype_name(t->dtype));
    p->used[i] = 1;
    *out = (uint32_t)i;
    return HL_OK;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Tables that are computed, not trained: rotary frequencies and GPT-2's causal masks. */
static int is_buffer(const struct hl_planner *p, const char *name)
{
    if (p->config->layout == HL_LAYOUT_GPT2)
        return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
    return ends_with(name, "rotary_emb.inv_freq");
}

hl_status hl_planner_count_sources(struct hl_planner *p)
{
    for (size_t i = 0; i < p->source_count; i++) {
        const struct hl_tensor *t = &p->sources[i];
        uint64_t bytes;
        if (p->used[i]) {
            HL_TRY(hl_tensor_bytes(t, &bytes));
            p->plan->parameters += bytes / hl_dtype_size(t->dtype);
        } else if (!is_buffer(p, t->name)) {
            return hl_fail(HL_EINVAL,
                           "tensor '%s' has no place in a %s model of %" PRIu64
                           " layers; remove it or correct config.json",
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

/* A tied model may carry its head all the same: it must then equal the embedding. */
hl_status hl_planner_find_tied_head(struct hl_planner *p)
{
    uint32_t head, embedding;
    const struct hl_hf_config *c = p->config;
    if (!c->tied || !hl_planner_has(p, "", "lm_head.weight"))
        return HL_OK;
    HL_TRY(hl_planner_source(p, 2, c->vocab, c->hidden, &head, "lm_head.weight"));
    HL_TRY(hl_planner_source(p, 2, c->vocab, c->hidden, &embedding, "%s%s", p->prefix,
                             c->layout == HL_LAYOUT_GPT2 ? "wte.weight" : "embed_tokens.weight"));
    if (p->sources[head].dtype != p->sources[embedding].dtype)
        return hl_fail(HL_EINVAL, "config.json ties the head to the embedding, but lm_head.weight "
                                  "and the embedding differ in dtype");
    p->plan->equal = malloc(sizeof(*p->plan->equal));
    if (p->plan->equal == NULL)
        return hl_fail(HL_ENOMEM, "plan");
    p->plan->equal[0] = (struct hl_partition_equal){.a = embedding, .b = head};
    p->plan->equal_count = 1;
    return HL_OK;
}

hl_status hl_planner_grow(void **list, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return HL_OK;
    size_t more = *cap == 0 ? 64 : *cap * 2;
    void *q = more <= TABLE_MAX ? realloc(*list, more * size) : NULL;
    if (q == NULL)
        return hl_fail(HL_ENOMEM, "a plan of %zu entries; use a smaller tp", more);
    *list = q;
    *cap = more;
    return HL_OK;
}

hl_status hl_planner_tensor(struct hl_planner *p, uint32_t source, uint32_t rank, uint64_t dim0,
                            uint64_t dim1, const char *fmt, ...)
{
    struct hl_partition_plan *plan = p->plan;
    size_t cap = p->tensor_cap;
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    HL_TRY(
        hl_planner_grow((void **)&plan->tensors, plan->tensor_count, &cap, sizeof(*plan->tensors)));
    /* op_first has one entry more than there are tensors. */
    uint32_t *first = realloc(plan->op_first, (cap + 1) * sizeof(*first));
    if (first == NULL)
        return hl_fail(HL_ENOMEM, "a plan of %zu tensors", cap);
    plan->op_first = first;
    p->tensor_cap = cap;
    /* The names move while they grow: keep the offset, hl_partition_plan makes pointers of it. */
    struct hl_tensor *t = &plan->tensors[plan->tensor_count];
    *t = (struct hl_tensor){.name = (const char *)(uintptr_t)p->names.len,
                            .dtype = p->sources[source].dtype,
                            .rank = rank,
                            .shape = {dim0, rank == 2 ? dim1 : 0}};
    HL_TRY(hl_buf_printf(&p->names, "%s%s", p->chunk, name));
    HL_TRY(hl_buf_append(&p->names, "", 1));
    t->size = dim0 * (rank == 2 ? dim1 : 1) * hl_dtype_size(t->dtype);
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

HL_CHECK static hl_status add_block(struct hl_planner *p, const struct hl_rows *b, uint64_t from,
                                    uint64_t n, uint64_t cols)
{
    const struct hl_tensor *s = &p->sources[b->source];
    uint32_t elem = hl_dtype_size(s->dtype);
    uint64_t row = cols * elem;
    struct hl_copy_op op = {.kind = HL_COPY_RUNS, .source = b->source, .elem = elem, .rows = 1};
    switch (b->kind) {
    case HL_ROWS_PLAIN:
        op.src = (b->first + from) * row;
        op.run = op.stride = n * row;
        break;
    case HL_ROWS_TRANSPOSED:
        op.kind = HL_COPY_TRANSPOSE;
        op.src = (b->first + from) * elem;
        op.rows = n;
        op.cols = cols;
        op.stride = s->shape[1] * elem;
        break;
    case HL_ROWS_REPEAT:
        op.src = b->first * row;
        op.rows = n;
        op.run = row;
        break;
    case HL_ROWS_ZERO:
        op.kind = HL_COPY_ZERO;
        op.run = n * row;
        break;
    }
    return add_op(p, op);
}

hl_status hl_planner_rows(struct hl_planner *p, const struct hl_rows *blocks, size_t n,
                          uint64_t first, uint64_t count, uint64_t cols)
{
    uint64_t at = 0, end = first + count;
    for (size_t i = 0; i < n && at < end; at += blocks[i++].count) {
        uint64_t from = at < first ? first - at : 0;
        uint64_t to = end - at < blocks[i].count ? end - at : blocks[i].count;
        if (from < to)
            HL_TRY(add_block(p, &blocks[i], from, to - from, cols));
    }
    return HL_OK;
}

hl_status hl_planner_cols(struct hl_planner *p, uint32_t source, int transposed, uint64_t rows,
                          uint64_t cols, uint64_t first, uint64_t count)
{
    uint32_t elem = hl_dtype_size(p->sources[source].dtype);
    struct hl_copy_op op = {.source = source, .elem = elem, .rows = rows};
    if (transposed) {
        op.kind = HL_COPY_TRANSPOSE;
        op.cols = count;
        op.src = first * rows * elem;
        op.stride = rows * elem;
    } else if (count == cols) {
        op.rows = 1;
        op.run = op.stride = rows * cols * elem;
    } else {
        op.src = first * elem;
        op.run = count * elem;
        op.stride = cols * elem;
    }
    return add_op(p, op);
}
