#include "core/reshard/reshard_state.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "base/buf.h"
#include "core/reshard/piece.h"

#define PREFIXES_MAX 64
#define NAMES_MAX    ((size_t)1 << 30)

/* The state of one logical tensor. */
struct state_logical {
    char *key; /* its name */
    uint32_t index;
    UT_hash_handle hh;
};

/* A plan under construction; until it is complete, names are offsets into its text. */
struct growing {
    struct hl_partition_plan *plan;
    struct hl_buf names;
    size_t shard_cap, tensor_cap, op_cap;
};

struct stater {
    const struct hl_tensor *params; /* logical tensors */
    const struct hl_partition_plan *a, *b;
    const struct hl_reshard_state_part *parts;
    size_t part_count;
    char *prefixes[PREFIXES_MAX];
    size_t prefix_count;
    struct state_logical *index;
    size_t logical_cap;
    struct growing to_a, to_b;
    struct hl_reshard_state *out;
};

HL_CHECK static hl_status grow_list(void **list, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return HL_OK;
    size_t more = *cap == 0 ? 64 : *cap * 2;
    void *p = realloc(*list, more * size);
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan of %zu entries of state", more);
    *list = p;
    *cap = more;
    return HL_OK;
}

/* ---- logical tensors of state ---------------------------------------------------------------- */

static struct state_logical *find_logical(const struct stater *s, const char *prefix,
                                          uint32_t source)
{
    char name[2 * HL_TENSOR_NAME_MAX + 2];
    struct state_logical *hit;
    snprintf(name, sizeof(name), "%s%s", prefix, s->params[source].name);
    HASH_FIND_STR(s->index, name, hit);
    return hit;
}

/* Finds the state `prefix` of a logical tensor, or creates it on first use. */
HL_CHECK static hl_status need_logical(struct stater *s, const char *prefix, uint32_t source,
                                       enum hl_dtype dtype, uint32_t *out)
{
    struct hl_reshard_state *state = s->out;
    struct state_logical *l = find_logical(s, prefix, source);
    if (l != NULL && state->logical[l->index].dtype != dtype)
        return hl_fail(HL_EINVAL, "state '%s' is %s here and %s elsewhere", l->key,
                       hl_dtype_name(dtype), hl_dtype_name(state->logical[l->index].dtype));
    if (l == NULL) {
        HL_TRY(grow_list((void **)&state->logical, state->logical_count, &s->logical_cap,
                         sizeof(*state->logical)));
        l = calloc(1, sizeof(*l));
        if (l == NULL || asprintf(&l->key, "%s%s", prefix, s->params[source].name) < 0) {
            free(l);
            return hl_fail(HL_ENOMEM, "out of memory allocating the state of %s",
                           s->params[source].name);
        }
        l->index = (uint32_t)state->logical_count++;
        struct hl_tensor *t = &state->logical[l->index];
        *t = s->params[source];
        t->name = l->key;
        t->dtype = dtype;
        HASH_ADD_KEYPTR(hh, s->index, l->key, strlen(l->key), l);
        HL_TRY(hl_tensor_bytes(t, &t->size));
    }
    *out = l->index;
    return HL_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status begin_shard(struct growing *g, const struct hl_partition_shard *of,
                                      const char *part)
{
    struct hl_partition_plan *p = g->plan;
    HL_TRY(grow_list((void **)&p->shards, p->shard_count, &g->shard_cap, sizeof(*p->shards)));
    struct hl_partition_shard *to = &p->shards[p->shard_count++];
    *to = *of;
    to->tensor_first = (uint32_t)p->tensor_count;
    to->tensor_count = 0;
    to->data_size = 0;
    if ((size_t)snprintf(to->part, sizeof(to->part), "%s%s", part != NULL ? "" : "optim-",
                         part != NULL ? part : of->part) >= sizeof(to->part))
        return hl_fail(HL_EINVAL, "the name of part '%s' is too long for its state", of->part);
    return HL_OK;
}

HL_CHECK static hl_status push_op(struct growing *g, const struct hl_copy_op *op)
{
    struct hl_partition_plan *p = g->plan;
    HL_TRY(grow_list((void **)&p->ops, p->op_count, &g->op_cap, sizeof(*p->ops)));
    p->ops[p->op_count++] = *op;
    return HL_OK;
}

/* Bytes that an operation writes contiguously in its tensor before it continues elsewhere. */
static uint64_t row_bytes(const struct hl_copy_op *op)
{
    return op->kind == HL_COPY_TRANSPOSE ? op->cols * op->elem : op->run;
}

/* `rows` rows of the operation, or a part of one row, starting at its byte `from`. */
static struct hl_copy_op rows_of(const struct hl_copy_op *op, uint64_t from, uint64_t rows,
                                 uint64_t len)
{
    struct hl_copy_op part = *op;
    uint64_t row = from / row_bytes(op), skip = from % row_bytes(op);
    part.dst = op->dst + from;
    part.rows = rows;
    if (op->kind == HL_COPY_TRANSPOSE) {
        part.src = op->src + row * op->step + skip / op->elem * op->stride;
        part.cols = len / op->elem;
    } else {
        part.src = op->src + row * op->stride + skip;
        part.run = len;
    }
    return part;
}

/* Clips the operation to bytes [lo, hi) of its tensor, as operations on a tensor that has only
 * those bytes: the end of a row, whole rows, and the beginning of a row. */
HL_CHECK static hl_status push_clipped(struct growing *g, const struct hl_copy_op *op, uint64_t lo,
                                       uint64_t hi)
{
    uint64_t all = hl_copy_bytes(op), row = row_bytes(op);
    uint64_t at = lo > op->dst ? lo - op->dst : 0, end = hi > op->dst ? hi - op->dst : 0;
    end = end < all ? end : all;
    while (at < end) {
        uint64_t left = row - at % row, rows = 1;
        if (left > end - at)
            left = end - at;
        if (left == row)
            rows = (end - at) / row;
        struct hl_copy_op part = rows_of(op, at, rows, left);
        part.dst -= lo;
        HL_TRY(push_op(g, &part));
        at += rows * left;
    }
    return HL_OK;
}

/* Converts an operation of the parameter to the state's element size and adds the part of it that
 * falls into the piece. */
HL_CHECK static hl_status add_op(struct stater *s, struct growing *g, struct hl_copy_op op,
                                 const char *prefix, enum hl_dtype dtype,
                                 const struct hl_piece *piece)
{
    uint64_t was = op.elem, is = hl_dtype_size(dtype);
    if (op.kind != HL_COPY_ZERO)
        HL_TRY(need_logical(s, prefix, op.source, dtype, &op.source));
    op.elem = (uint32_t)is;
    op.step = op.step / was * is;
    op.src = op.src / was * is;
    op.dst = op.dst / was * is;
    op.run = op.run / was * is;
    op.stride = op.stride / was * is;
    if (piece == NULL || piece->whole)
        return push_op(g, &op);
    return push_clipped(g, &op, piece->start * is, piece->end * is);
}

/* Gives the state tensor its name and shape: those of the parameter, or of a piece of it. */
HL_CHECK static hl_status name_state(struct growing *g, struct hl_tensor *t, const char *prefix,
                                     const struct hl_piece *piece)
{
    const char *name = t->name;
    t->name = (const char *)(uintptr_t)g->names.len;
    HL_TRY(hl_buf_printf(&g->names, "%s%s", prefix, name));
    if (piece != NULL && !piece->whole) {
        HL_TRY(hl_buf_printf(&g->names, "%s", piece->suffix));
        t->rank = 1;
        t->shape[0] = piece->end - piece->start;
    }
    return hl_buf_append(&g->names, "", 1);
}

/* Appends the state of tensor `param` of `of`, or a piece of it, to the current shard. */
HL_CHECK static hl_status add_state(struct stater *s, struct growing *g,
                                    const struct hl_partition_plan *of, uint32_t param,
                                    const char *prefix, enum hl_dtype dtype,
                                    const struct hl_piece *piece)
{
    struct hl_partition_plan *p = g->plan;
    size_t cap = g->tensor_cap;
    HL_TRY(grow_list((void **)&p->tensors, p->tensor_count, &cap, sizeof(*p->tensors)));
    uint32_t *first = realloc(p->op_first, (cap + 1) * sizeof(*first));
    if (first == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan of %zu tensors of state", cap);
    p->op_first = first;
    g->tensor_cap = cap;
    struct hl_partition_shard *shard = &p->shards[p->shard_count - 1];
    struct hl_tensor *t = &p->tensors[p->tensor_count];
    *t = of->tensors[param];
    t->dtype = dtype;
    HL_TRY(name_state(g, t, prefix, piece));
    HL_TRY(hl_tensor_bytes(t, &t->size));
    t->offset = shard->data_size;
    shard->data_size += t->size;
    shard->tensor_count++;
    p->data_bytes += t->size;
    p->op_first[p->tensor_count++] = (uint32_t)p->op_count;
    for (uint32_t i = of->op_first[param]; i < of->op_first[param + 1]; i++)
        HL_TRY(add_op(s, g, of->ops[i], prefix, dtype, piece));
    p->op_first[p->tensor_count] = (uint32_t)p->op_count;
    return HL_OK;
}

static void finish_plan(struct growing *g)
{
    g->plan->names = hl_buf_take(&g->names);
    for (size_t i = 0; i < g->plan->tensor_count; i++)
        g->plan->tensors[i].name = g->plan->names + (uintptr_t)g->plan->tensors[i].name;
}

/* ---- the source ------------------------------------------------------------------------------ */

static const struct hl_partition_shard *find_shard(const struct hl_partition_plan *plan,
                                                   const struct hl_reshard_state_part *part)
{
    for (size_t i = 0; i < plan->shard_count; i++)
        if (plan->shards[i].pp == part->pp && plan->shards[i].tp == part->tp &&
            plan->shards[i].ep == part->ep && strcmp(plan->shards[i].part, part->of) == 0)
            return &plan->shards[i];
    return NULL;
}

/* The parameter that a state tensor belongs to. */
struct owned {
    uint32_t param;
    size_t prefix; /* length of the name before the parameter's name */
    struct hl_piece piece;
};

/* Finds the parameter of the shard whose name ends the name of `t`. */
HL_CHECK static hl_status find_param(const struct hl_partition_plan *plan,
                                     const struct hl_partition_shard *shard,
                                     const struct hl_tensor *t, struct owned *out)
{
    struct hl_piece *piece = &out->piece;
    HL_TRY(hl_piece_read(t, piece));
    struct hl_tensor whole = {.rank = piece->rank};
    memcpy(whole.shape, piece->shape, sizeof(whole.shape));
    size_t len = piece->name_len;
    char has[192], want[192];
    for (uint32_t i = shard->tensor_first; i < shard->tensor_first + shard->tensor_count; i++) {
        const struct hl_tensor *p = &plan->tensors[i];
        size_t n = strlen(p->name);
        if (n > len || strncmp(t->name + len - n, p->name, n) != 0 ||
            (n < len && t->name[len - n - 1] != '.'))
            continue;
        if (whole.rank != p->rank ||
            memcmp(whole.shape, p->shape, p->rank * sizeof(p->shape[0])) != 0)
            return hl_fail(HL_EINVAL,
                           "state '%s' has shape %s, its parameter %s: it can't follow it to "
                           "another layout",
                           t->name, hl_tensor_shape_text(&whole, has, sizeof(has)),
                           hl_tensor_shape_text(p, want, sizeof(want)));
        out->param = i;
        out->prefix = len - n;
        return HL_OK;
    }
    return hl_fail(HL_EINVAL, "state '%s' does not end with the name of a parameter of %s", t->name,
                   shard->part);
}

HL_CHECK static hl_status need_prefix(struct stater *s, const char *text, size_t len, size_t *out)
{
    for (*out = 0; *out < s->prefix_count; ++*out)
        if (strlen(s->prefixes[*out]) == len && strncmp(s->prefixes[*out], text, len) == 0)
            return HL_OK;
    if (s->prefix_count == PREFIXES_MAX)
        return hl_fail(HL_EINVAL, "more than %d kinds of state", PREFIXES_MAX);
    s->prefixes[s->prefix_count] = strndup(text, len);
    if (s->prefixes[s->prefix_count] == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating state '%s'", text);
    s->prefix_count++;
    return HL_OK;
}

HL_CHECK static hl_status add_part(struct stater *s, const struct hl_reshard_state_part *part)
{
    const struct hl_partition_shard *shard = find_shard(s->a, part);
    struct owned is;
    size_t prefix;
    if (shard == NULL)
        return hl_fail(HL_EINVAL, "there is state of pp %d, tp %d, %s, but no such part", part->pp,
                       part->tp, part->of);
    HL_TRY(begin_shard(&s->to_a, shard, part->part));
    for (size_t i = 0; i < part->count; i++) {
        const struct hl_tensor *t = &part->tensors[i];
        HL_TRY(find_param(s->a, shard, t, &is));
        HL_TRY(need_prefix(s, t->name, is.prefix, &prefix));
        HL_TRY(add_state(s, &s->to_a, s->a, is.param, s->prefixes[prefix], t->dtype, &is.piece));
    }
    return HL_OK;
}

/* ---- the target ------------------------------------------------------------------------------ */

/* The part's state in the source, from the same tp if possible; NULL = none. */
static const struct hl_reshard_state_part *find_model(const struct stater *s,
                                                      const struct hl_partition_shard *shard)
{
    const struct hl_reshard_state_part *found = NULL;
    for (size_t i = 0; i < s->part_count; i++)
        if (strcmp(s->parts[i].of, shard->part) == 0 &&
            (found == NULL || s->parts[i].tp == shard->tp))
            found = &s->parts[i];
    return found;
}

/* Adds the state `prefix` of a parameter of the target, unless the shard has it already or no shard
 * of the source has it. */
HL_CHECK static hl_status add_missing(struct stater *s, uint32_t param, const char *prefix,
                                      unsigned char *done)
{
    const struct hl_partition_plan *b = s->b;
    for (uint32_t i = b->op_first[param]; i < b->op_first[param + 1] && !*done; i++) {
        if (b->ops[i].kind == HL_COPY_ZERO)
            continue;
        const struct state_logical *l = find_logical(s, prefix, b->ops[i].source);
        if (l == NULL)
            return HL_OK;
        *done = 1;
        return add_state(s, &s->to_b, b, param, prefix, s->out->logical[l->index].dtype, NULL);
    }
    return HL_OK;
}

/* Adds the states of the source's part in their order, then the part's remaining states. */
HL_CHECK static hl_status add_target(struct stater *s, const struct hl_partition_shard *shard)
{
    const struct hl_reshard_state_part *model = find_model(s, shard);
    const struct hl_partition_shard *from = model != NULL ? find_shard(s->a, model) : NULL;
    HL_AUTO(hl_freep)
    unsigned char *done = calloc((size_t)shard->tensor_count * PREFIXES_MAX + 1, 1);
    if (done == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the state of %s", shard->part);
    HL_TRY(begin_shard(&s->to_b, shard, NULL));
    for (size_t i = 0; from != NULL && i < model->count; i++) {
        struct owned is;
        size_t prefix;
        HL_TRY(find_param(s->a, from, &model->tensors[i], &is));
        HL_TRY(need_prefix(s, model->tensors[i].name, is.prefix, &prefix));
        uint32_t k = is.param - from->tensor_first;
        if (k < shard->tensor_count)
            HL_TRY(add_missing(s, shard->tensor_first + k, s->prefixes[prefix],
                               &done[k * PREFIXES_MAX + prefix]));
    }
    for (uint32_t k = 0; k < shard->tensor_count; k++)
        for (size_t prefix = 0; prefix < s->prefix_count; prefix++)
            HL_TRY(add_missing(s, shard->tensor_first + k, s->prefixes[prefix],
                               &done[k * PREFIXES_MAX + prefix]));
    if (s->to_b.plan->shards[s->to_b.plan->shard_count - 1].tensor_count == 0)
        s->to_b.plan->shard_count--;
    return HL_OK;
}

HL_CHECK static hl_status build_state(struct stater *s)
{
    for (size_t i = 0; i < s->part_count; i++)
        HL_TRY(add_part(s, &s->parts[i]));
    for (size_t i = 0; i < s->b->shard_count; i++)
        HL_TRY(add_target(s, &s->b->shards[i]));
    return HL_OK;
}

/* Gives the result one text that holds all names of logical tensors. */
HL_CHECK static hl_status finish_names(struct stater *s)
{
    HL_AUTO(hl_buf_fini) struct hl_buf names = HL_BUF(NAMES_MAX);
    for (size_t i = 0; i < s->out->logical_count; i++) {
        const char *name = s->out->logical[i].name;
        s->out->logical[i].name = (const char *)(uintptr_t)names.len;
        HL_TRY(hl_buf_append(&names, name, strlen(name) + 1));
    }
    s->out->names = hl_buf_take(&names);
    for (size_t i = 0; i < s->out->logical_count; i++)
        s->out->logical[i].name = s->out->names + (uintptr_t)s->out->logical[i].name;
    return HL_OK;
}

static void stater_fini(struct stater *s)
{
    struct state_logical *l, *next;
    HASH_ITER (hh, s->index, l, next) {
        HASH_DEL(s->index, l);
        free(l->key);
        free(l);
    }
    for (size_t i = 0; i < s->prefix_count; i++)
        free(s->prefixes[i]);
    hl_buf_fini(&s->to_a.names);
    hl_buf_fini(&s->to_b.names);
}

hl_status hl_reshard_state(const struct hl_tensor *logical, const struct hl_partition_plan *a,
                           const struct hl_partition_plan *b,
                           const struct hl_reshard_state_part *parts, size_t part_count,
                           struct hl_reshard_state *out)
{
    struct hl_reshard_state state = {0};
    struct stater s = {.params = logical,
                       .a = a,
                       .b = b,
                       .parts = parts,
                       .part_count = part_count,
                       .to_a = {.plan = &state.a, .names = HL_BUF(NAMES_MAX)},
                       .to_b = {.plan = &state.b, .names = HL_BUF(NAMES_MAX)},
                       .out = &state};
    hl_status st = build_state(&s);
    st = st == HL_OK ? finish_names(&s) : st;
    if (st == HL_OK) {
        finish_plan(&s.to_a);
        finish_plan(&s.to_b);
    }
    stater_fini(&s);
    if (st != HL_OK) {
        hl_reshard_state_fini(&state);
        return st;
    }
    *out = state;
    return HL_OK;
}

void hl_reshard_state_fini(struct hl_reshard_state *state)
{
    hl_partition_fini(&state->a);
    hl_partition_fini(&state->b);
    free(state->logical);
    free(state->names);
    *state = (struct hl_reshard_state){0};
}
