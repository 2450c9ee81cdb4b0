/* The plan is built shard by shard in the order of the result. Every tensor of Megatron-core is
 * either blocks of rows laid end to end of which the rank takes a window (column and vocabulary
 * parallel, fused QKV, replicated), or a window of columns (row parallel); partition_layers.c says
 * which. */
#include "core/partition.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/partition_private.h"

#define PARALLEL_MAX 4096
#define TPS_NAMED    16 /* in a message */
#define DIVISOR_MAX  65536
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
    HL_TRY(hl_planner_index_sources(p));
    p->prefix = gpt2 ? "transformer." : "model.";
    if (hl_planner_has(p, "", gpt2 ? "wte.weight" : "embed_tokens.weight"))
        p->prefix = "";
    p->plan->padded_vocab =
        hl_partition_padded_vocab(c->vocab, (uint64_t)p->o->vocab_divisor, (uint64_t)p->o->tp);
    for (int pp = 0; pp < p->o->pp; pp++)
        for (p->tp = 0; p->tp < p->o->tp; p->tp++)
            for (int chunk = 0; chunk < (int)chunk_count(p->o); chunk++)
                HL_TRY(plan_chunk(p, pp, chunk));
    HL_TRY(hl_planner_find_tied_head(p));
    return hl_planner_count_sources(p);
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
