/* Builds the plan shard by shard in the order of the result. The family's table lists what each
 * shard holds; partition_layers.c makes the tensors. */
#include "core/model/partition.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/logical.h"
#include "core/model/partition_format.h"

#define PARALLEL_MAX 4096
#define NAMES_MAX    ((size_t)4 << 30)

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

static int ep_count(const struct hl_partition_options *o)
{
    return o->ep > 0 ? o->ep : 1;
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
    char fit[HL_PLANNER_SIZES_TEXT];
    if (fixed == 0) {
        if (layers % others != 0)
            return hl_fail(HL_EINVAL,
                           "pp %d: %" PRIu64 " layers over %d stages leave %" PRIu64
                           "; use pp %s, or set the first or last stage's layers",
                           o->pp, layers, o->pp, layers % others,
                           hl_planner_divisors(layers, fit, sizeof(fit)));
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
    char fit[HL_PLANNER_SIZES_TEXT];
    if (chunk_count(o) == 1)
        return HL_OK;
    if (o->pp < 2)
        return hl_fail(HL_EINVAL, "virtual stages need pp of at least 2");
    for (int pp = 0; pp < o->pp; pp++) {
        uint64_t n = stage_layers(o, layers, pp);
        if (n % chunk_count(o) != 0)
            return hl_fail(HL_EINVAL,
                           "stage %d has %" PRIu64 " layers: they can't be shared evenly by %d "
                           "virtual stages; use %s",
                           pp, n, o->virtual_stages, hl_planner_divisors(n, fit, sizeof(fit)));
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

/* ---- building -------------------------------------------------------------------------------- */

HL_CHECK static hl_status begin_shard(struct hl_planner *p, int pp, const char *part)
{
    struct hl_partition_plan *plan = p->plan;
    HL_TRY(hl_planner_grow((void **)&plan->shards, plan->shard_count, &p->shard_cap,
                           sizeof(*plan->shards)));
    struct hl_partition_shard *s = &plan->shards[plan->shard_count++];
    *s = (struct hl_partition_shard){
        .pp = pp, .tp = p->tp, .tensor_first = (uint32_t)plan->tensor_count};
    snprintf(s->part, sizeof(s->part), "%s", part);
    return HL_OK;
}

HL_CHECK static hl_status plan_part(struct hl_planner *p, int pp, const char *part,
                                    struct hl_planner_at at)
{
    HL_TRY(begin_shard(p, pp, part));
    return hl_planner_place(p, &at);
}

/* Layers for multi-token prediction follow the last layer, in names and in the pipeline. They are
 * planned only if the files have them: Hugging Face's own classes drop them but leave their number
 * in config.json. */
HL_CHECK static hl_status mtp_layers(const struct hl_planner *p, uint64_t *out)
{
    const struct hl_family *f = p->config->family;
    struct hl_family_scope scope = hl_hf_scope(p->config, p->config->layers);
    const struct hl_family_tensor *row = f->tensors;
    char name[HL_PLANNER_NAME_MAX];
    *out = 0;
    while (row->name != NULL && row->place != HL_PLACE_MTP)
        row++;
    if (row->name == NULL)
        return HL_OK;
    HL_TRY(hl_family_source_name(f, p->prefix, row, 0, p->config->layers, 0, name, sizeof(name)));
    return hl_planner_has(p, name) ? hl_family_size(&scope, "mtp_layers", 0, out) : HL_OK;
}

HL_CHECK static hl_status plan_mtp(struct hl_planner *p, int pp)
{
    uint64_t count;
    char part[HL_PARTITION_PART_MAX];
    HL_TRY(mtp_layers(p, &count));
    for (uint64_t i = 0; i < count; i++) {
        struct hl_planner_at at = {.place = HL_PLACE_MTP, .layer = p->config->layers + i};
        snprintf(part, sizeof(part), "mtp-%04" PRIu64, i);
        HL_TRY(plan_part(p, pp, part, at));
        at.place = HL_PLACE_LAYER;
        HL_TRY(hl_planner_place(p, &at));
        at.place = HL_PLACE_MTP_COPY;
        HL_TRY(hl_planner_place(p, &at));
    }
    return HL_OK;
}

/* Plans a tensor that every rank of the stage has whole, under its own name. */
HL_CHECK static hl_status plan_whole(struct hl_planner *p, uint32_t source, const char *name)
{
    const struct hl_tensor *t = &p->sources[source];
    struct hl_dims dims = {.rank = t->rank};
    struct hl_rows all = {.source = source, .row = 1, .col = 1, .count = 1};
    if (t->rank > HL_ARRAY_LEN(dims.shape))
        return hl_fail(HL_EUNSUPPORTED, "tensor '%s' has %u dimensions, at most %zu are stored",
                       t->name, t->rank, HL_ARRAY_LEN(dims.shape));
    for (uint32_t i = 0; i < t->rank; i++) {
        dims.shape[i] = t->shape[i];
        all.count *= t->shape[i];
    }
    HL_TRY(hl_planner_stored(p, t->name, &dims, HL_USED_WHOLE, &source));
    HL_TRY(hl_planner_tensor(p, source, &dims, name));
    return hl_planner_rows(p, &all, 1, 0, all.count, 0, 1);
}

/* Plans the other tensors of a checkpoint whose text model is inside another model. */
HL_CHECK static hl_status plan_vision(struct hl_planner *p)
{
    bool begun = false;
    for (uint32_t i = 0; i < p->source_count && p->config->family->nested != NULL; i++) {
        const char *name = hl_vision_name(p->sources[i].name);
        if (name == NULL)
            continue;
        if (!begun)
            HL_TRY(begin_shard(p, 0, "vision"));
        begun = true;
        HL_TRY(plan_whole(p, i, name));
    }
    return HL_OK;
}

static bool last_chunk(const struct hl_planner *p, int pp, int chunk)
{
    return pp == p->o->pp - 1 && chunk == (int)chunk_count(p->o) - 1;
}

HL_CHECK static hl_status plan_chunk(struct hl_planner *p, int pp, int chunk)
{
    const struct hl_partition_options *o = p->o;
    uint64_t first, count;
    char part[HL_PARTITION_PART_MAX];
    if (pp == 0 && chunk == 0) {
        HL_TRY(plan_part(p, pp, "embedding", (struct hl_planner_at){.place = HL_PLACE_EMBEDDING}));
        HL_TRY(plan_vision(p));
    }
    hl_partition_stage(o, p->config->layers, pp, chunk, &first, &count);
    for (uint64_t i = 0; i < count; i++) {
        snprintf(part, sizeof(part), "layer-%04" PRIu64, first + i);
        HL_TRY(plan_part(
            p, pp, part,
            (struct hl_planner_at){.place = HL_PLACE_LAYER, .layer = first + i, .local = i}));
    }
    if (!last_chunk(p, pp, chunk))
        return HL_OK;
    HL_TRY(plan_part(p, pp, "head", (struct hl_planner_at){.place = HL_PLACE_HEAD}));
    return plan_mtp(p, pp);
}

/* Plans the rank's experts of one layer. A layer without experts has no shard. */
HL_CHECK static hl_status plan_experts(struct hl_planner *p, int pp, uint64_t layer, uint64_t local)
{
    struct hl_partition_plan *plan = p->plan;
    struct hl_family_scope scope = hl_hf_scope(p->config, layer);
    char part[HL_PARTITION_PART_MAX];
    uint64_t experts;
    HL_TRY(hl_family_size(&scope, "experts", 0, &experts));
    uint64_t n = experts / (uint64_t)ep_count(p->o);
    snprintf(part, sizeof(part), "experts-%04" PRIu64, layer);
    HL_TRY(begin_shard(p, pp, part));
    plan->shards[plan->shard_count - 1].ep = p->ep;
    for (uint64_t i = 0; i < n; i++)
        HL_TRY(hl_planner_place(p, &(struct hl_planner_at){.place = HL_PLACE_EXPERT,
                                                           .layer = layer,
                                                           .local = local,
                                                           .expert = (uint64_t)p->ep * n + i}));
    if (plan->shards[plan->shard_count - 1].tensor_count == 0)
        plan->shard_count--;
    return HL_OK;
}

HL_CHECK static hl_status plan_expert_chunk(struct hl_planner *p, int pp, int chunk)
{
    uint64_t first, count, mtp = 0;
    hl_partition_stage(p->o, p->config->layers, pp, chunk, &first, &count);
    for (uint64_t i = 0; i < count; i++)
        HL_TRY(plan_experts(p, pp, first + i, i));
    if (last_chunk(p, pp, chunk))
        HL_TRY(mtp_layers(p, &mtp));
    for (uint64_t i = 0; i < mtp; i++)
        HL_TRY(plan_experts(p, pp, p->config->layers + i, 0));
    return HL_OK;
}

/* Plans every chunk of a stage for one rank, under the chunk's prefix. */
HL_CHECK static hl_status plan_chunks(struct hl_planner *p, int pp,
                                      hl_status (*plan)(struct hl_planner *, int, int))
{
    char prefix[24] = "";
    for (int chunk = 0; chunk < (int)chunk_count(p->o); chunk++) {
        if (p->o->virtual_stages > 1)
            snprintf(prefix, sizeof(prefix), "model%d.", chunk);
        p->chunk = prefix;
        hl_status st = plan(p, pp, chunk);
        p->chunk = "";
        HL_TRY(st);
    }
    return HL_OK;
}

HL_CHECK static hl_status plan_stage(struct hl_planner *p, int pp)
{
    int etp = p->o->etp > 0 ? p->o->etp : p->o->tp;
    for (p->tp = 0; p->tp < p->o->tp; p->tp++)
        HL_TRY(plan_chunks(p, pp, plan_chunk));
    if (hl_family_symbol_index(p->config->family, "experts", strlen("experts")) < 0)
        return HL_OK;
    for (p->ep = 0; p->ep < ep_count(p->o); p->ep++)
        for (p->tp = 0; p->tp < etp; p->tp++)
            HL_TRY(plan_chunks(p, pp, plan_expert_chunk));
    return HL_OK;
}

static bool has_layers(const struct hl_planner *p, const struct hl_family_prefix *prefix)
{
    char start[HL_PLANNER_NAME_MAX];
    int n = snprintf(start, sizeof(start), "%s%s", prefix->body, p->config->family->layers);
    for (size_t i = 0; i < p->source_count; i++)
        if (strncmp(p->sources[i].name, start, (size_t)n) == 0)
            return true;
    return false;
}

/* Finds the prefix of the layers; without layers it is the family's usual one. */
static void find_prefix(struct hl_planner *p)
{
    p->prefix = p->config->family->prefixes;
    for (const struct hl_family_prefix *at = p->prefix; at->body != NULL; at++)
        if (has_layers(p, at)) {
            p->prefix = at;
            return;
        }
}

HL_CHECK static hl_status list_copies(struct hl_planner *p)
{
    const struct hl_partition_plan *plan = p->plan;
    p->plan->copies = json_array();
    for (size_t i = 0; i < plan->equal_count; i++)
        if (json_array_append_new(plan->copies, json_string(p->sources[plan->equal[i].b].name)) !=
            0)
            return hl_fail(HL_ENOMEM, "a list of %zu copies", plan->equal_count);
    return HL_OK;
}

/* Reads from the files what the config does not say: which matrices are quantized and how, which
 * other tensors exist, how names begin, and which tensors are stored twice. */
HL_CHECK static hl_status list_sources(struct hl_planner *p)
{
    bool listed = p->listed;
    for (size_t i = 0; i < p->source_count; i++)
        listed = listed || p->used[i] == HL_USED_SCALE || p->used[i] == HL_USED_WHOLE;
    if (p->prefix != p->config->family->prefixes)
        p->plan->prefix = p->prefix->body;
    if (!listed)
        return list_copies(p);
    p->plan->logical = hl_logical_json(p->sources, p->used, p->source_count);
    return p->plan->logical != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors",
                         p->source_count);
}

HL_CHECK static hl_status build(struct hl_planner *p)
{
    HL_TRY(hl_planner_check_options(p));
    HL_TRY(hl_partition_check_layers(p->o, p->config->layers));
    HL_TRY(hl_planner_index_sources(p));
    find_prefix(p);
    p->plan->padded_vocab = hl_partition_padded_vocab(
        p->config->vocab, (uint64_t)p->o->vocab_divisor, (uint64_t)p->o->tp);
    for (int pp = 0; pp < p->o->pp; pp++)
        HL_TRY(plan_stage(p, pp));
    HL_TRY(hl_planner_find_tied_head(p));
    HL_TRY(hl_planner_check_scales(p));
    HL_TRY(hl_planner_count_sources(p));
    return list_sources(p);
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
    json_decref(plan->logical);
    json_decref(plan->copies);
    *plan = (struct hl_partition_plan){0};
}
