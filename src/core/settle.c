/* A model that was made by a save with a config.json. What that does not say, the dtype, the naming
 * and how the vocabulary is padded, is read off the stored tensors; then the plan of an import is
 * made, and every part has to be as it has it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog_private.h"
#include "core/families/logical.h"

#define EMBEDDING   "embedding.word_embeddings.weight\t"
#define DIVISOR_MAX 65536

struct settling {
    const struct hl_version_rec *v;
    struct hl_shard_rec *const *list;
    size_t n;
    struct hl_hf_config hf;
    struct hl_partition_options options;
    enum hl_dtype dtype;
    struct hl_logical logical;
    struct hl_partition_plan plan;
};

static const struct hl_shard_rec *shard_at(const struct settling *s, size_t i)
{
    return i < s->v->shard_count ? s->v->shards[i] : s->list[i - s->v->shard_count];
}

static size_t shard_total(const struct settling *s)
{
    return s->v->shard_count + s->n;
}

static const struct hl_shard_rec *find_part(const struct settling *s, int pp, int tp,
                                            const char *part)
{
    for (size_t i = 0; i < shard_total(s); i++) {
        const struct hl_shard_rec *r = shard_at(s, i);
        if (r->pp == pp && r->tp == tp && strcmp(r->part, part) == 0 && r->layout != NULL)
            return r;
    }
    return NULL;
}

/* The divisor that pads the vocabulary to so many rows; the usual one first. */
static hl_status find_divisor(struct settling *s, uint64_t padded)
{
    static const int usual[] = {128, 64, 32, 16, 8, 4, 2, 1};
    uint64_t tp = (uint64_t)s->options.tp;
    for (size_t i = 0; i < HL_ARRAY_LEN(usual); i++)
        if (hl_partition_padded_vocab(s->hf.vocab, (uint64_t)usual[i], tp) == padded) {
            s->options.vocab_divisor = usual[i];
            return HL_OK;
        }
    for (int d = 1; d <= DIVISOR_MAX; d++)
        if (hl_partition_padded_vocab(s->hf.vocab, (uint64_t)d, tp) == padded) {
            s->options.vocab_divisor = d;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL,
                   "the embedding has %" PRIu64 " rows on all ranks: the config's vocabulary of "
                   "%" PRIu64 " can't be padded to that",
                   padded, s->hf.vocab);
}

/* Off the first rank's embedding, which every family has. */
static hl_status read_embedding(struct settling *s)
{
    const struct hl_shard_rec *r = find_part(s, 0, 0, "embedding");
    const char *line = r != NULL ? strstr(r->layout, EMBEDDING) : NULL;
    char dtype[16];
    uint64_t rows;
    if (line == NULL || sscanf(line + strlen(EMBEDDING), "%15s %" SCNu64, dtype, &rows) != 2)
        return hl_fail(HL_EINVAL, "part embedding at pp 0, tp 0 with 'embedding.word_embeddings."
                                  "weight' is missing");
    HL_TRY(hl_dtype_parse(dtype, &s->dtype));
    return find_divisor(s, rows * (uint64_t)s->options.tp);
}

static void read_naming(struct settling *s)
{
    for (size_t i = 0; i < shard_total(s); i++) {
        const struct hl_shard_rec *r = shard_at(s, i);
        if (hl_part_has_parameters(r->part) && r->layout != NULL &&
            strstr(r->layout, ".layer_norm_weight\t") != NULL)
            s->options.naming = HL_API_LAYER_NAMING_TE;
    }
}

/* A job may train without the layers that predict more tokens. */
static bool has_mtp(const struct settling *s)
{
    for (size_t i = 0; i < shard_total(s); i++)
        if (strncmp(shard_at(s, i)->part, "mtp-", strlen("mtp-")) == 0)
            return true;
    return false;
}

static hl_status plan_parts(struct settling *s)
{
    const struct hl_checkpoint has = {.mtp = has_mtp(s)};
    HL_TRY(hl_family_logical(&s->hf, &has, &s->logical));
    for (size_t i = 0; i < s->logical.count; i++) {
        struct hl_tensor *t = &s->logical.tensors[i];
        t->dtype = s->dtype;
        HL_TRY(hl_tensor_bytes(t, &t->size));
    }
    return hl_partition_plan(&s->hf, s->logical.tensors, s->logical.count, &s->options, &s->plan);
}

static hl_status check_part(const struct settling *s, const struct hl_partition_shard *want)
{
    char *layout;
    const struct hl_shard_rec *got = find_part(s, want->pp, want->tp, want->part);
    if (got == NULL)
        return want->tensor_count == 0 ? HL_OK : hl_fail(HL_EINVAL, "it is missing");
    HL_TRY(hl_layout_text(&s->plan.tensors[want->tensor_first], want->tensor_count, &layout));
    hl_status st = hl_layout_compare(layout, got->layout, HL_API_LAYOUT_CHECK_ANY_DTYPE);
    free(layout);
    return st;
}

static bool is_planned(const struct settling *s, const struct hl_shard_rec *r)
{
    for (size_t i = 0; i < s->plan.shard_count; i++)
        if (s->plan.shards[i].pp == r->pp && s->plan.shards[i].tp == r->tp &&
            strcmp(s->plan.shards[i].part, r->part) == 0)
            return true;
    return false;
}

static hl_status check_parts(const struct settling *s)
{
    for (size_t i = 0; i < s->plan.shard_count; i++) {
        const struct hl_partition_shard *want = &s->plan.shards[i];
        hl_status st = check_part(s, want);
        if (st != HL_OK)
            return hl_fail_prefix(st, "part %s at pp %d, tp %d: ", want->part, want->pp, want->tp);
    }
    for (size_t i = 0; i < shard_total(s); i++) {
        const struct hl_shard_rec *r = shard_at(s, i);
        if (hl_part_has_parameters(r->part) && !is_planned(s, r))
            return hl_fail(HL_EINVAL, "part %s at pp %d, tp %d is not of the config's model",
                           r->part, r->pp, r->tp);
    }
    return HL_OK;
}

static hl_status settle_model(struct settling *s, const json_t *hf, char **out)
{
    const struct hl_api_split split = hl_version_split(s->v);
    HL_TRY(hl_hf_config_read(hf, "config", &s->hf));
    s->options = hl_split_options(&split);
    HL_TRY(read_embedding(s));
    read_naming(s);
    HL_TRY(plan_parts(s));
    HL_TRY(check_parts(s));
    return hl_partition_config(&s->hf, &s->options, &s->plan, out);
}

hl_status hl_model_settle(const struct hl_version_rec *v, struct hl_shard_rec *const *list,
                          size_t n, char **out)
{
    struct settling s = {.v = v, .list = list, .n = n};
    *out = NULL;
    if (!v->model->shape.as_saved)
        return HL_OK;
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(v->model->config, &c));
    hl_status st = c.hf != NULL ? settle_model(&s, c.hf, out) : HL_OK;
    hl_partition_fini(&s.plan);
    hl_logical_fini(&s.logical);
    hl_hf_config_fini(&s.hf);
    return st == HL_OK
               ? st
               : hl_fail_prefix(st, "model '%s' is not what its config says: ", v->model->name);
}
