/* core/reshard/whole.h plans every logical tensor from the stored ones. Every stored tensor that a
 * plan covers is marked, so that the others can be listed. */
#include "cli/models/logical.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/rankfile.h"
#include "core/model/layout.h"
#include "core/model/model_config.h"
#include "core/model/part.h"
#include "core/reshard/piece.h"
#include "mem/reshard_window.h"

/* ---- shards ---------------------------------------------------------------------------------- */

struct place {
    int pp, tp, ep;
    const char *part;
};

static int place_order(const struct place *x, const struct place *y)
{
    int c = (x->pp > y->pp) - (x->pp < y->pp);
    c = c != 0 ? c : (x->tp > y->tp) - (x->tp < y->tp);
    c = c != 0 ? c : (x->ep > y->ep) - (x->ep < y->ep);
    return c != 0 ? c : strcmp(x->part, y->part);
}

static struct place place_of(const struct logical_shard *s)
{
    return (struct place){s->shard->pp, s->shard->tp, s->shard->ep, s->shard->part};
}

static int shard_order(const void *a, const void *b)
{
    const struct place x = place_of(a), y = place_of(b);
    return place_order(&x, &y);
}

static int compare_place(const void *key, const void *member)
{
    const struct place y = place_of(member);
    return place_order(key, &y);
}

static struct logical_shard *find_shard(const struct logical_version *v,
                                        const struct hl_partition_shard *s)
{
    const struct place at = {s->pp, s->tp, s->ep, s->part};
    return bsearch(&at, v->shards, v->shard_count, sizeof(*v->shards), compare_place);
}

hl_status logical_open(struct logical_version *v, struct cli *cli, helios_client *client,
                       const char *model, int64_t version, struct hl_arena *arena)
{
    *v = (struct logical_version){.cli = cli, .client = client, .arena = arena};
    HL_TRY(stored_list(cli, model, version, arena, &v->stored));
    v->shards = hl_arena_array(arena, v->stored.shards.count + 1, sizeof(*v->shards));
    if (v->shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->stored.shards.count);
    for (size_t i = 0; i < v->stored.shards.count; i++) {
        struct logical_shard *s = &v->shards[v->shard_count++];
        *s = (struct logical_shard){.shard = &v->stored.shards.items[i]};
        hl_status st = stored_header(client, s->shard, &s->header);
        if (st != HL_OK)
            return hl_fail_prefix(st, "%s@%" PRId64 ": ", model, v->stored.version);
        s->opened = true;
        s->planned = hl_arena_array(arena, s->header.count + 1, 1);
        if (s->planned == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", s->header.count);
        memset(s->planned, 0, s->header.count + 1);
    }
    qsort(v->shards, v->shard_count, sizeof(*v->shards), shard_order);
    return HL_OK;
}

void logical_unmap(struct logical_version *v)
{
    for (size_t i = 0; i < v->shard_count; i++)
        if (v->shards[i].data != NULL) {
            (void)helios_unmap(v->client, v->shards[i].data);
            v->shards[i].data = NULL;
        }
}

void logical_forget(struct logical_version *v)
{
    hl_reshard_fini(&v->state_plan);
    hl_reshard_state_fini(&v->state);
    hl_whole_fini(&v->whole);
    v->state_plan = (struct hl_reshard_plan){0};
    v->state = (struct hl_reshard_state){0};
    v->whole = (struct hl_whole){0};
    v->held = NULL;
    free(v->tensors);
    v->tensors = NULL;
    v->count = v->cap = v->parts = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        memset(v->shards[i].planned, 0, v->shards[i].header.count);
}

void logical_close(struct logical_version *v)
{
    logical_unmap(v);
    logical_forget(v);
    for (size_t i = 0; i < v->shard_count; i++)
        if (v->shards[i].opened)
            hl_safetensors_fini(&v->shards[i].header);
}

/* ---- tensors --------------------------------------------------------------------------------- */

HL_CHECK static hl_status tensor_add(struct logical_version *v, const struct logical_tensor *t)
{
    if (v->count == v->cap) {
        size_t cap = v->cap > 0 ? 2 * v->cap : 256;
        struct logical_tensor *more = realloc(v->tensors, cap * sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", cap);
        v->tensors = more;
        v->cap = cap;
    }
    v->tensors[v->count++] = *t;
    return HL_OK;
}

static struct logical_source source_of(const struct logical_version *v,
                                       const struct logical_shard *s, const struct hl_tensor *t)
{
    struct logical_source source = {.shard = (size_t)(s - v->shards), .t = t};
    s->planned[t - s->header.tensors] = 1;
    source.has_crc = hl_safetensors_crc(&s->header, t->name, &source.crc32) == HL_OK;
    hl_error_clear();
    return source;
}

/* Finds the stored shard and tensor for each one of a plan. */
HL_CHECK static hl_status find_sources(const struct logical_version *v,
                                       const struct hl_partition_plan *p,
                                       struct logical_source **out)
{
    struct logical_source *list = hl_arena_array(v->arena, p->tensor_count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", p->tensor_count);
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *shard = &p->shards[i];
        const struct logical_shard *s = find_shard(v, shard);
        for (uint32_t k = 0; k < shard->tensor_count; k++) {
            const char *name = p->tensors[shard->tensor_first + k].name;
            const struct hl_tensor *t = s != NULL ? hl_safetensors_find(&s->header, name) : NULL;
            if (t == NULL)
                return hl_fail(HL_EINTERNAL, "tensor '%s' was planned but is not stored", name);
            list[shard->tensor_first + k] = source_of(v, s, t);
        }
    }
    *out = list;
    return HL_OK;
}

/* Adds one logical tensor for each tensor of the target `to`. */
HL_CHECK static hl_status add_planned(struct logical_version *v, const struct hl_partition_plan *to,
                                      const struct hl_reshard_plan *plan,
                                      const struct logical_source *sources)
{
    for (size_t i = 0; i < to->shard_count; i++, v->parts++) {
        const struct hl_partition_shard *shard = &to->shards[i];
        for (uint32_t k = shard->tensor_first; k < shard->tensor_first + shard->tensor_count; k++) {
            uint32_t first = plan->op_first[k];
            HL_TRY(tensor_add(v, &(struct logical_tensor){.name = to->tensors[k].name,
                                                          .t = &to->tensors[k],
                                                          .part = v->parts,
                                                          .ops = &plan->ops[first],
                                                          .op_count = plan->op_first[k + 1] - first,
                                                          .sources = sources}));
        }
    }
    return HL_OK;
}

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    const struct logical_version *v = arg;
    char place[HL_PART_PLACE_MAX];
    const struct logical_shard *s = find_shard(v, shard);
    *out = s != NULL ? hl_safetensors_find(&s->header, name) : NULL;
    if (*out != NULL)
        return HL_OK;
    return hl_fail(HL_ENOENT,
                   "it has no tensor '%s' in part %s: the saved model was incomplete, or its "
                   "tensors have other names",
                   name, hl_part_place(shard->pp, shard->tp, shard->ep, shard->part, place));
}

/* Whether the state is shared by all data-parallel ranks, or consists of pieces to assemble. */
static bool is_planned_state(const struct logical_shard *s)
{
    const struct hl_part part = hl_part_of(s->shard->part);
    bool planned = part.kind == HL_PART_OPTIM && part.dp_size == 1;
    for (size_t i = 0; part.kind == HL_PART_OPTIM && !planned && i < s->header.count; i++) {
        const char *name = s->header.tensors[i].name;
        planned = name[hl_piece_name_len(name, strlen(name))] != '\0';
    }
    return planned;
}

HL_CHECK static hl_status plan_state(struct logical_version *v)
{
    size_t n = 0;
    struct hl_reshard_state_part *parts =
        hl_arena_array(v->arena, v->shard_count + 1, sizeof(*parts));
    if (parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu parts", v->shard_count);
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct logical_shard *s = &v->shards[i];
        if (is_planned_state(s))
            parts[n++] = (struct hl_reshard_state_part){.pp = s->shard->pp,
                                                        .tp = s->shard->tp,
                                                        .ep = s->shard->ep,
                                                        .of = hl_part_of(s->shard->part).of,
                                                        .part = s->shard->part,
                                                        .tensors = s->header.tensors,
                                                        .count = s->header.count};
    }
    if (n == 0)
        return HL_OK;
    HL_TRY(hl_reshard_state(v->whole.logical.tensors, &v->whole.ranks, &v->whole.whole, parts, n,
                            &v->state));
    HL_TRY(hl_reshard_plan(v->state.logical, v->state.logical_count, &v->state.a, &v->state.b,
                           &v->state_plan));
    struct logical_source *sources = NULL;
    HL_TRY(find_sources(v, &v->state.a, &sources));
    return add_planned(v, &v->state.b, &v->state_plan, sources);
}

/* Adds a stored tensor as a whole. */
HL_CHECK static hl_status add_stored(struct logical_version *v, const struct logical_shard *s,
                                     const struct hl_tensor *t, const char *name)
{
    struct logical_source *source = hl_arena_array(v->arena, 1, sizeof(*source));
    struct hl_reshard_op *op = hl_arena_array(v->arena, 1, sizeof(*op));
    if (source == NULL || op == NULL || name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for tensor '%s'", t->name);
    *source = source_of(v, s, t);
    *op = (struct hl_reshard_op){
        .kind = HL_RESHARD_COPY, .elem = hl_dtype_size(t->dtype), .rows = 1, .run = t->size};
    return tensor_add(v, &(struct logical_tensor){.name = name,
                                                  .t = t,
                                                  .part = v->parts,
                                                  .ops = op,
                                                  .op_count = t->size > 0,
                                                  .sources = source});
}

static bool is_wanted(const struct logical_shard *s, bool all)
{
    return all || hl_part_of(s->shard->part).kind == HL_PART_MODEL;
}

uint64_t logical_count_rest(const struct logical_version *v, bool all)
{
    uint64_t n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        for (size_t k = 0; is_wanted(&v->shards[i], all) && k < v->shards[i].header.count; k++)
            n += !v->shards[i].planned[k];
    return n;
}

static const char *name_by_place(const struct logical_version *v, const struct hl_api_shard *s,
                                 const char *name)
{
    char place[HL_PART_PLACE_MAX];
    return hl_arena_printf(v->arena, "%s: %s", hl_part_place(s->pp, s->tp, s->ep, s->part, place),
                           name);
}

HL_CHECK static hl_status is_unsliced(const struct logical_version *v, bool *out)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(v->stored.config, &c));
    *out = c.own.unsliced;
    return HL_OK;
}

hl_status logical_add_rest(struct logical_version *v, bool all)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct logical_shard *s = &v->shards[i];
        for (size_t k = 0; is_wanted(s, all) && k < s->header.count; k++) {
            const struct hl_tensor *t = &s->header.tensors[k];
            if (!s->planned[k])
                HL_TRY(add_stored(v, s, t, name_by_place(v, s->shard, t->name)));
        }
        v->parts++;
    }
    return HL_OK;
}

/* Plans everything as it is stored. */
HL_CHECK static hl_status plan_unsliced(struct logical_version *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i].header.count;
    HL_AUTO(hl_freep) struct hl_tensor *tensors = calloc(n + 1, sizeof(*tensors));
    HL_AUTO(hl_freep) const char **parts = calloc(n + 1, sizeof(*parts));
    if (tensors == NULL || parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", n);
    n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        for (size_t k = 0; is_wanted(&v->shards[i], false) && k < v->shards[i].header.count; k++) {
            tensors[n] = v->shards[i].header.tensors[k];
            parts[n++] = v->shards[i].shard->part;
        }
    return hl_whole_plan_unsliced(v->stored.config, tensors, parts, n, &v->whole);
}

HL_CHECK static hl_status plan_tensors(struct logical_version *v, bool all)
{
    bool unsliced;
    HL_TRY(is_unsliced(v, &unsliced));
    HL_TRY(unsliced ? plan_unsliced(v)
                    : hl_whole_plan(v->stored.config, find_tensor, v, &v->whole));
    HL_TRY(find_sources(v, &v->whole.ranks, &v->held));
    HL_TRY(add_planned(v, &v->whole.whole, &v->whole.plan, v->held));
    if (unsliced)
        return logical_add_rest(v, all);
    if (!all || plan_state(v) == HL_OK)
        return HL_OK;
    hl_error_clear(); /* state that does not match its parameters stays unplanned */
    return HL_OK;
}

hl_status logical_plan(struct logical_version *v, bool all)
{
    hl_status st = plan_tensors(v, all);
    if (st != HL_OK)
        logical_forget(v);
    return st;
}

/* ---- the proof ------------------------------------------------------------------------------- */

/* NULL checksums: a shard of an earlier release does not have all of them. */
HL_CHECK static hl_status hold_shard(const struct logical_version *v, const struct logical_shard *s,
                                     struct hl_proof_shard *out)
{
    const struct hl_api_shard *at = s->shard;
    const struct hl_safetensors *h = &s->header;
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(h->count + 1, sizeof(*crcs));
    HL_AUTO(hl_freep) char *layout = NULL;
    HL_AUTO(hl_freep) char *text = NULL;
    bool known = true;
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", h->count);
    for (size_t i = 0; i < h->count; i++)
        known = known && hl_safetensors_crc(h, h->tensors[i].name, &crcs[i]) == HL_OK;
    hl_error_clear();
    HL_TRY(hl_layout_text(h->tensors, h->count, &layout));
    if (known)
        HL_TRY(hl_layout_crcs(h->tensors, crcs, h->count, &text));
    *out = (struct hl_proof_shard){.pp = at->pp,
                                   .tp = at->tp,
                                   .ep = at->ep,
                                   .rank = at->pp * v->stored.split.tp + at->tp,
                                   .part = at->part,
                                   .layout = hl_arena_strdup(v->arena, layout),
                                   .crcs = known ? hl_arena_strdup(v->arena, text) : NULL};
    return HL_OK;
}

hl_status logical_prove_state(const struct logical_version *v, bool *proved,
                              char why[HL_PROOF_WHY_MAX])
{
    struct hl_proof proof = {0};
    struct hl_proof_shard *held = hl_arena_array(v->arena, v->shard_count + 1, sizeof(*held));
    if (held == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->shard_count);
    for (size_t i = 0; i < v->shard_count; i++)
        HL_TRY(hold_shard(v, &v->shards[i], &held[i]));
    if (hl_arena_failed(v->arena))
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->shard_count);
    hl_status st = hl_proof_check(&(struct hl_proof_input){.config = v->stored.config,
                                                           .shards = held,
                                                           .count = v->shard_count},
                                  &proof);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s@%" PRId64 ": ", v->stored.model, v->stored.version);
    *proved = proof.state_proved;
    snprintf(why, HL_PROOF_WHY_MAX, "%s", proof.unproved);
    return HL_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

struct reading {
    struct logical_version *v;
    const struct logical_tensor *t;
};

static hl_status read_source(void *arg, const struct hl_reshard_op *op, uint64_t first,
                             uint64_t end, const uint8_t **out)
{
    const struct reading *r = arg;
    const struct logical_source *source = &r->t->sources[op->tensor];
    struct logical_shard *s = &r->v->shards[source->shard];
    (void)first;
    (void)end;
    if (s->data == NULL)
        HL_TRY(stored_map(r->v->client, s->shard, &s->data));
    *out = (const uint8_t *)s->data + s->header.data_offset + source->t->offset;
    return HL_OK;
}

hl_status logical_read(struct logical_version *v, const struct logical_tensor *t, uint64_t begin,
                       uint64_t end, void *out)
{
    struct reading r = {v, t};
    const struct hl_reshard_window w = {
        .dst = out, .begin = begin, .end = end, .source = read_source, .arg = &r};
    uint32_t first = 0;
    while (first < t->op_count && hl_reshard_op_end(&t->ops[first]) <= begin)
        first++;
    return hl_reshard_fill(&w, t->ops + first, t->op_count - first);
}
