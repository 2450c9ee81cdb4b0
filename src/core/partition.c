/* The plan is built shard by shard in the order of the result. Every tensor of Megatron-core is
 * either blocks of rows laid end to end of which the rank takes a window (column and vocabulary
 * parallel, fused QKV, replicated), or a window of columns (row parallel); partition_layers.c says
 * which. */
#include "core/partition.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/partition_private.h"

#define PARALLEL_MAX 4096
#define TPS_NAMED    16 /* in a message */
#define DIVISOR_MAX  65536
#define TABLE_MAX    ((size_t)1 << 24)
#define NAMES_MAX    ((size_t)4 << 30)

hl_status hl_pad_parse(const char *text, enum hl_pad *out)
{
    if (text == NULL || *text == '\0' || strcmp(text, "repeat") == 0)
        *out = HL_PAD_REPEAT;
    else if (strcmp(text, "zero") == 0)
        *out = HL_PAD_ZERO;
    else
        return hl_fail(HL_EINVAL, "pad '%.40s' is unknown: use repeat or zero", text);
    return HL_OK;
}

uint64_t hl_partition_padded_vocab(uint64_t vocab, uint64_t divisor, uint64_t tp)
{
    uint64_t unit = (divisor == 0 ? HL_VOCAB_DIVISOR_DEFAULT : divisor) * tp;
    return (vocab + unit - 1) / unit * unit;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static uint64_t chunk_count(const struct hl_partition_options *o)
{
    return o->virtual_stages > 1 ? (uint64_t)o->virtual_stages : 1;
}

static uint64_t stage_layers(const struct hl_partition_options *o, uint64_t layers, int pp)
{
    if (pp == 0 && o->first_stage_layers > 0)
        return (uint64_t)o->first_stage_layers;
    if (pp == o->pp - 1 && o->last_stage_layers > 0)
        return (uint64_t)o->last_stage_layers;
    int fixed = (o->first_stage_layers > 0) + (o->last_stage_layers > 0);
    uint64_t rest = layers - (uint64_t)o->first_stage_layers - (uint64_t)o->last_stage_layers;
    return rest / (uint64_t)(o->pp - fixed);
}

HL_CHECK static hl_status check_stages(const struct hl_partition_options *o, uint64_t layers)
{
    uint64_t fixed = (uint64_t)o->first_stage_layers + (uint64_t)o->last_stage_layers;
    uint64_t others = (uint64_t)(o->pp - (o->first_stage_layers > 0) - (o->last_stage_layers > 0));
    if (fixed == 0) {
        if (layers % others != 0)
            return hl_fail(HL_EINVAL,
                           "pp %d: %" PRIu64 " layers over %d stages leave %" PRIu64
                           "; choose another pp or set the first or last stage's layers",
                           o->pp, layers, o->pp, layers % others);
        return HL_OK;
    }
    if (o->pp < 2)
        return hl_fail(HL_EINVAL, "first or last stage layers are set, but pp is 1");
    if (fixed > layers || (others == 0 ? fixed != layers : (layers - fixed) % others != 0) ||
        (others > 0 && fixed == layers))
        return hl_fail(HL_EINVAL,
                       "first stage %d + last stage %d of %" PRIu64 " layers leave %" PRId64
                       " for the other %" PRIu64 " stages, which must share them evenly",
                       o->first_stage_layers, o->last_stage_layers, layers,
                       (int64_t)layers - (int64_t)fixed, others);
    return HL_OK;
}

hl_status hl_partition_check_layers(const struct hl_partition_options *o, uint64_t layers)
{
    if (o->pp < 1 || o->pp > PARALLEL_MAX)
        return hl_fail(HL_EINVAL, "pp %d is not 1..%d", o->pp, PARALLEL_MAX);
    if (o->first_stage_layers < 0 || o->last_stage_layers < 0 || o->virtual_stages < 0)
        return hl_fail(HL_EINVAL, "stage layers %d, %d and virtual stages %d can't be negative",
                       o->first_stage_layers, o->last_stage_layers, o->virtual_stages);
    HL_TRY(check_stages(o, layers));
    if (chunk_count(o) == 1)
        return HL_OK;
    if (o->pp < 2)
        return hl_fail(HL_EINVAL, "virtual stages need pp of at least 2");
    for (int pp = 0; pp < o->pp; pp++) {
        uint64_t n = stage_layers(o, layers, pp);
        if (n % chunk_count(o) != 0)
            return hl_fail(HL_EINVAL,
                           "stage %d has %" PRIu64 " layers: they can't be shared evenly by %d "
                           "virtual stages",
                           pp, n, o->virtual_stages);
    }
    return HL_OK;
}

void hl_partition_stage(const struct hl_partition_options *o, uint64_t layers, int pp, int chunk,
                        uint64_t *first, uint64_t *count)
{
    uint64_t at = (uint64_t)chunk * (layers / chunk_count(o));
    for (int q = 0; q < pp; q++)
        at += stage_layers(o, layers, q) / chunk_count(o);
    *first = at;
    *count = stage_layers(o, layers, pp) / chunk_count(o);
}

/* ---- options --------------------------------------------------------------------------------- */

static bool kv_heads_fit(const struct hl_hf_config *c, uint64_t tp)
{
    return c->kv_heads % tp == 0 || tp % c->kv_heads == 0;
}

static uint64_t qkv_rows(const struct hl_hf_config *c)
{
    return (c->heads + 2 * c->kv_heads) * c->head_dim;
}

/* "1, 2 or 4": every tp that the model can be cut by. */
static const char *fitting_tps(const struct hl_hf_config *c, char *buf, size_t cap)
{
    uint64_t fit[TPS_NAMED];
    size_t count = 0, at = 0;
    for (uint64_t tp = 1; tp <= c->heads && tp <= PARALLEL_MAX && count < TPS_NAMED; tp++)
        if (c->heads % tp == 0 && c->ffn % tp == 0 && kv_heads_fit(c, tp) && qkv_rows(c) % tp == 0)
            fit[count++] = tp;
    buf[0] = '\0';
    for (size_t i = 0; i < count && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%" PRIu64,
                               i == 0           ? ""
                               : i + 1 == count ? " or "
                                                : ", ",
                               fit[i]);
    return buf;
}

HL_CHECK static hl_status divide(const struct hl_hf_config *c, const char *what, uint64_t n, int tp)
{
    char fit[TPS_NAMED * 8];
    if (n % (uint64_t)tp == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL, "tp %d does not divide the %" PRIu64 " %s of this model; use tp %s",
                   tp, n, what, fitting_tps(c, fit, sizeof(fit)));
}

HL_CHECK static hl_status check_options(const struct hl_hf_config *c,
                                        const struct hl_partition_options *o)
{
    uint64_t tp = (uint64_t)o->tp;
    char fit[TPS_NAMED * 8];
    if (o->tp < 1 || o->tp > PARALLEL_MAX)
        return hl_fail(HL_EINVAL, "tp %d is not 1..%d", o->tp, PARALLEL_MAX);
    if (o->vocab_divisor < 0 || o->vocab_divisor > DIVISOR_MAX)
        return hl_fail(HL_EINVAL, "vocabulary divisor %d is not 0..%d", o->vocab_divisor,
                       DIVISOR_MAX);
    HL_TRY(hl_partition_check_layers(o, c->layers));
    HL_TRY(divide(c, "attention heads", c->heads, o->tp));
    HL_TRY(divide(c, "MLP columns", c->ffn, o->tp));
    if (!kv_heads_fit(c, tp))
        return hl_fail(HL_EINVAL,
                       "tp %d is neither a divisor nor a multiple of the %" PRIu64
                       " query groups; use tp %s",
                       o->tp, c->kv_heads, fitting_tps(c, fit, sizeof(fit)));
    return divide(c, "fused QKV rows", qkv_rows(c), o->tp);
}

/* ---- sources --------------------------------------------------------------------------------- */

HL_CHECK static hl_status index_sources(struct hl_planner *p)
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

HL_CHECK static hl_status count_sources(struct hl_planner *p)
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
HL_CHECK static hl_status find_tied_head(struct hl_planner *p)
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

/* ---- building -------------------------------------------------------------------------------- */

HL_CHECK static hl_status grow(void **list, size_t count, size_t *cap, size_t size)
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
    HL_TRY(grow((void **)&plan->tensors, plan->tensor_count, &cap, sizeof(*plan->tensors)));
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
    HL_TRY(grow((void **)&plan->ops, plan->op_count, &p->op_cap, sizeof(*plan->ops)));
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

HL_CHECK static hl_status begin_shard(struct hl_planner *p, int pp, const char *part)
{
    struct hl_partition_plan *plan = p->plan;
    HL_TRY(grow((void **)&plan->shards, plan->shard_count, &p->shard_cap, sizeof(*plan->shards)));
    struct hl_partition_shard *s = &plan->shards[plan->shard_count++];
    *s = (struct hl_partition_shard){
        .pp = pp, .tp = p->tp, .tensor_first = (uint32_t)plan->tensor_count};
    snprintf(s->part, sizeof(s->part), "%s", part);
    return HL_OK;
}

HL_CHECK static hl_status plan_chunk(struct hl_planner *p, int pp, int chunk)
{
    const struct hl_partition_options *o = p->o;
    uint64_t first, count;
    char prefix[24] = "", part[HL_PARTITION_PART_MAX];
    if (o->virtual_stages > 1)
        snprintf(prefix, sizeof(prefix), "model%d.", chunk);
    p->chunk = prefix;
    if (pp == 0 && chunk == 0) {
        HL_TRY(begin_shard(p, pp, "embedding"));
        HL_TRY(hl_planner_embedding(p));
    }
    hl_partition_stage(o, p->config->layers, pp, chunk, &first, &count);
    for (uint64_t i = 0; i < count; i++) {
        snprintf(part, sizeof(part), "layer-%04" PRIu64, first + i);
        HL_TRY(begin_shard(p, pp, part));
        HL_TRY(hl_planner_layer(p, first + i, i));
    }
    if (pp == o->pp - 1 && chunk == (int)chunk_count(o) - 1) {
        HL_TRY(begin_shard(p, pp, "head"));
        HL_TRY(hl_planner_head(p));
    }
    p->chunk = "";
    return HL_OK;
}

HL_CHECK static hl_status build(struct hl_planner *p)
{
    const struct hl_hf_config *c = p->config;
    int gpt2 = c->layout == HL_LAYOUT_GPT2;
    HL_TRY(check_options(c, p->o));
    HL_TRY(index_sources(p));
    p->prefix = gpt2 ? "transformer." : "model.";
    if (hl_planner_has(p, "", gpt2 ? "wte.weight" : "embed_tokens.weight"))
        p->prefix = "";
    p->plan->padded_vocab =
        hl_partition_padded_vocab(c->vocab, (uint64_t)p->o->vocab_divisor, (uint64_t)p->o->tp);
    for (int pp = 0; pp < p->o->pp; pp++)
        for (p->tp = 0; p->tp < p->o->tp; p->tp++)
            for (int chunk = 0; chunk < (int)chunk_count(p->o); chunk++)
                HL_TRY(plan_chunk(p, pp, chunk));
    HL_TRY(find_tied_head(p));
    return count_sources(p);
}

static void planner_finish(struct hl_planner *p)
{
    struct hl_partition_plan *plan = p->plan;
    plan->names = hl_buf_take(&p->names);
    for (size_t i = 0; i < plan->tensor_count; i++)
        plan->tensors[i].name = plan->names + (uintptr_t)plan->tensors[i].name;
    for (size_t i = 0; i < plan->shard_count; i++)
        plan->data_bytes += plan->shards[i].data_size;
    plan->dtype = plan->tensors[0].dtype;
}

hl_status hl_partition_plan(const struct hl_hf_config *config, const struct hl_tensor *sources,
                            size_t source_count, const struct hl_partition_options *options,
                            struct hl_partition_plan *out)
{
    struct hl_partition_plan plan = {0};
    struct hl_planner p = {.config = config,
                           .o = options,
                           .sources = sources,
                           .source_count = source_count,
                           .chunk = "",
                           .names = HL_BUF(NAMES_MAX),
                           .plan = &plan};
    hl_status st = build(&p);
    if (st == HL_OK)
        planner_finish(&p);
    HASH_CLEAR(hh, p.index);
    free(p.nodes);
    free(p.used);
    hl_buf_fini(&p.names);
    if (st != HL_OK) {
        hl_partition_fini(&plan);
        return st;
    }
    *out = plan;
    return HL_OK;
}

void hl_partition_fini(struct hl_partition_plan *plan)
{
    free(plan->shards);
    free(plan->tensors);
    free(plan->op_first);
    free(plan->ops);
    free(plan->equal);
    free(plan->names);
    *plan = (struct hl_partition_plan){0};
}
