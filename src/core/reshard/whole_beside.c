/* Tensors of a version that its config does not name; a save without a layout check can have them.
 * Nothing describes how they are sliced. If all tensor ranks of their part hold identical ones, the
 * tensors are whole on each rank. In every other layout they are then an additional logical tensor
 * that each rank of the part holds completely. */
#include <stdlib.h>
#include <string.h>

#include "core/model/part.h"
#include "core/model/view.h"
#include "core/reshard/whole.h"
#include "core/reshard/whole_private.h"

/* The tensors of a shard. */
struct listed {
    const struct hl_tensor *tensors;
    size_t count;
};

/* A tensor of a plan's shard that is the whole of a logical tensor. */
struct added {
    uint32_t shard;
    uint32_t logical;
    const char *name;
};

struct added_list {
    struct added *list;
    size_t count, cap;
};

struct besides {
    struct hl_whole *w;
    const struct hl_whole_stored *stored;
    struct added_list ranks, target;
};

HL_CHECK static hl_status list_shard(const struct besides *b, size_t shard, struct listed *out)
{
    return b->stored->list(b->stored->arg, &b->w->ranks.shards[shard], &out->tensors, &out->count);
}

static bool is_planned(const struct hl_whole *w, size_t shard, const char *name)
{
    const struct hl_partition_shard *s = &w->ranks.shards[shard];
    for (uint32_t i = 0; i < s->tensor_count; i++)
        if (strcmp(w->ranks.tensors[s->tensor_first + i].name, name) == 0)
            return true;
    return false;
}

static const struct hl_tensor *find_listed(const struct listed *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->tensors[i].name, name) == 0)
            return &l->tensors[i];
    return NULL;
}

static hl_status fail_beside(const struct besides *b, size_t shard, const char *name,
                             const char *why)
{
    const struct hl_partition_shard *s = &b->w->ranks.shards[shard];
    char place[HL_PART_PLACE_MAX];
    return hl_fail(HL_EUNSUPPORTED,
                   "tensor '%.200s' of part %s is not one that the model's config asks for, and "
                   "%s: nothing says how it is cut; read the version as it was saved",
                   name, hl_part_place(s->pp, s->tp, s->ep, s->part, place), why);
}

/* All planned tensors are held, so a shard with only as many tensors has no others. */
static bool has_beside(const struct besides *b, size_t shard, const struct listed *held)
{
    return held->count > b->w->ranks.shards[shard].tensor_count;
}

/* ---- equal on all tensor ranks --------------------------------------------------------------- */

HL_CHECK static hl_status check_equal(const struct besides *b, size_t first, size_t other,
                                      const struct hl_tensor *t, const struct listed *held)
{
    const struct hl_partition_shard *shards = b->w->ranks.shards;
    const struct hl_tensor *twin = find_listed(held, t->name);
    uint32_t crc, twin_crc;
    if (twin == NULL)
        return fail_beside(b, first, t->name, "not every tensor rank of its part holds it");
    if (twin->dtype != t->dtype || twin->rank != t->rank ||
        memcmp(twin->shape, t->shape, t->rank * sizeof(*t->shape)) != 0)
        return fail_beside(b, first, t->name, "tensor ranks hold it in different shapes");
    HL_TRY(b->stored->crc(b->stored->arg, &shards[first], t->name, &crc));
    HL_TRY(b->stored->crc(b->stored->arg, &shards[other], t->name, &twin_crc));
    return crc == twin_crc ? HL_OK
                           : fail_beside(b, first, t->name, "tensor ranks hold different bytes");
}

/* `held`: the tensors of the part's shard at tp 0. */
HL_CHECK static hl_status check_ranks(const struct besides *b, size_t first,
                                      const struct listed *held)
{
    const struct hl_partition_plan *p = &b->w->ranks;
    for (size_t other = 0; other < p->shard_count; other++) {
        struct listed its;
        if (other == first || p->shards[other].pp != p->shards[first].pp ||
            strcmp(p->shards[other].part, p->shards[first].part) != 0)
            continue;
        HL_TRY(list_shard(b, other, &its));
        for (size_t i = 0; has_beside(b, first, held) && i < held->count; i++)
            if (!is_planned(b->w, first, held->tensors[i].name))
                HL_TRY(check_equal(b, first, other, &held->tensors[i], &its));
        for (size_t i = 0; has_beside(b, other, &its) && i < its.count; i++)
            if (!is_planned(b->w, other, its.tensors[i].name) &&
                find_listed(held, its.tensors[i].name) == NULL)
                return fail_beside(b, other, its.tensors[i].name,
                                   "not every tensor rank of its part holds it");
    }
    return HL_OK;
}

/* ---- the plans ------------------------------------------------------------------------------- */

HL_CHECK static hl_status list_add(struct added_list *l, size_t shard, size_t logical,
                                   const char *name)
{
    if (l->count == l->cap) {
        size_t cap = l->cap == 0 ? 16 : l->cap * 2;
        struct added *list = realloc(l->list, cap * sizeof(*list));
        if (list == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", cap);
        l->list = list;
        l->cap = cap;
    }
    l->list[l->count++] = (struct added){(uint32_t)shard, (uint32_t)logical, name};
    return HL_OK;
}

/* Adds to every shard of a plan that holds the part; in the ranks' plan only where the tensor is
 * stored. */
HL_CHECK static hl_status add_to_plan(const struct hl_partition_plan *p,
                                      const struct hl_partition_shard *of, bool same_stage,
                                      size_t logical, const char *name, struct added_list *out)
{
    for (size_t i = 0; i < p->shard_count; i++)
        if (strcmp(p->shards[i].part, of->part) == 0 && (!same_stage || p->shards[i].pp == of->pp))
            HL_TRY(list_add(out, i, logical, name));
    return HL_OK;
}

HL_CHECK static hl_status add_tensor(struct besides *b, size_t shard, const struct hl_tensor *t)
{
    struct hl_whole *w = b->w;
    const struct hl_partition_shard *s = &w->ranks.shards[shard];
    const char *name = hl_arena_strdup(&w->beside_names, t->name);
    const char *shown = hl_view_whole_name(s->part, t->name, &w->beside_names);
    size_t logical = w->logical.count;
    struct hl_tensor *more = realloc(w->logical.tensors, (logical + 1) * sizeof(*more));
    if (more == NULL || name == NULL || shown == NULL) {
        w->logical.tensors = more != NULL ? more : w->logical.tensors;
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", logical + 1);
    }
    w->logical.tensors = more;
    more[logical] = *t;
    more[logical].name = shown;
    HL_TRY(hl_tensor_bytes(&more[logical], &more[logical].size));
    w->logical.count++;
    HL_TRY(add_to_plan(&w->ranks, s, true, logical, name, &b->ranks));
    return add_to_plan(&w->whole, s, false, logical, shown, &b->target);
}

static int added_order(const void *x, const void *y)
{
    const struct added *a = x, *b = y;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    return (a->logical > b->logical) - (a->logical < b->logical);
}

/* A plan that can take more tensors. */
struct grown {
    struct hl_tensor *tensors;
    uint32_t *op_first;
    struct hl_copy_op *ops;
    size_t tensor_count, op_count;
};

static void grown_copy(struct grown *g, const struct hl_partition_plan *p, size_t tensor)
{
    size_t n = p->op_first[tensor + 1] - p->op_first[tensor];
    g->tensors[g->tensor_count] = p->tensors[tensor];
    g->op_first[g->tensor_count++] = (uint32_t)g->op_count;
    if (n > 0)
        memcpy(&g->ops[g->op_count], &p->ops[p->op_first[tensor]], n * sizeof(*p->ops));
    g->op_count += n;
}

/* Appends the whole logical tensor to the shard. */
static void grown_add(struct grown *g, struct hl_partition_plan *p, const struct added *a,
                      const struct hl_tensor *logical)
{
    struct hl_partition_shard *s = &p->shards[a->shard];
    struct hl_tensor *t = &g->tensors[g->tensor_count];
    *t = logical[a->logical];
    t->name = a->name;
    t->offset = s->data_size;
    g->op_first[g->tensor_count++] = (uint32_t)g->op_count;
    if (t->size > 0)
        g->ops[g->op_count++] = (struct hl_copy_op){.kind = HL_COPY_RUNS,
                                                    .source = a->logical,
                                                    .elem = hl_dtype_size(t->dtype),
                                                    .rows = 1,
                                                    .run = t->size,
                                                    .stride = t->size};
    s->data_size += t->size;
    p->data_bytes += t->size;
}

HL_CHECK static hl_status plan_grow(struct hl_partition_plan *p, struct added_list *more,
                                    const struct hl_tensor *logical)
{
    struct grown g = {.tensors = calloc(p->tensor_count + more->count + 1, sizeof(*g.tensors)),
                      .op_first = calloc(p->tensor_count + more->count + 1, sizeof(*g.op_first)),
                      .ops = calloc(p->op_count + more->count + 1, sizeof(*g.ops))};
    size_t next = 0;
    if (g.tensors == NULL || g.op_first == NULL || g.ops == NULL) {
        free(g.tensors);
        free(g.op_first);
        free(g.ops);
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", p->tensor_count + more->count);
    }
    qsort(more->list, more->count, sizeof(*more->list), added_order);
    for (size_t i = 0; i < p->shard_count; i++) {
        struct hl_partition_shard *s = &p->shards[i];
        uint32_t first = (uint32_t)g.tensor_count;
        for (uint32_t k = 0; k < s->tensor_count; k++)
            grown_copy(&g, p, s->tensor_first + k);
        for (; next < more->count && more->list[next].shard == i; next++)
            grown_add(&g, p, &more->list[next], logical);
        s->tensor_first = first;
        s->tensor_count = (uint32_t)g.tensor_count - first;
    }
    g.op_first[g.tensor_count] = (uint32_t)g.op_count;
    free(p->tensors);
    free(p->op_first);
    free(p->ops);
    p->tensors = g.tensors;
    p->op_first = g.op_first;
    p->ops = g.ops;
    p->tensor_count = g.tensor_count;
    p->op_count = g.op_count;
    return HL_OK;
}

/* ---- a version ------------------------------------------------------------------------------- */

HL_CHECK static hl_status add_part(struct besides *b, size_t shard, const struct listed *held)
{
    HL_TRY(check_ranks(b, shard, held));
    for (size_t i = 0; has_beside(b, shard, held) && i < held->count; i++)
        if (!is_planned(b->w, shard, held->tensors[i].name))
            HL_TRY(add_tensor(b, shard, &held->tensors[i]));
    return HL_OK;
}

/* With another number of ranks, each rank has other experts. */
HL_CHECK static hl_status check_experts(const struct besides *b, size_t shard,
                                        const struct listed *held)
{
    for (size_t i = 0; has_beside(b, shard, held) && i < held->count; i++)
        if (!is_planned(b->w, shard, held->tensors[i].name))
            return fail_beside(b, shard, held->tensors[i].name, "its part holds experts");
    return HL_OK;
}

HL_CHECK static hl_status add_all(struct besides *b)
{
    const struct hl_partition_plan *p = &b->w->ranks;
    for (size_t i = 0; i < p->shard_count; i++) {
        struct listed held;
        HL_TRY(list_shard(b, i, &held));
        if (hl_part_has_experts(p->shards[i].part))
            HL_TRY(check_experts(b, i, &held));
        else if (p->shards[i].tp == 0)
            HL_TRY(add_part(b, i, &held));
    }
    return HL_OK;
}

hl_status hl_whole_add_beside(struct hl_whole *w, const struct hl_whole_stored *stored)
{
    struct besides b = {.w = w, .stored = stored};
    w->beside_first = w->logical.count;
    hl_status st = add_all(&b);
    if (st == HL_OK && b.ranks.count > 0)
        st = plan_grow(&w->ranks, &b.ranks, w->logical.tensors);
    if (st == HL_OK && b.target.count > 0)
        st = plan_grow(&w->whole, &b.target, w->logical.tensors);
    free(b.ranks.list);
    free(b.target.list);
    return st;
}
