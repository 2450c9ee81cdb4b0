#include "core/catalog/settle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/logical.h"
#include "core/model/layout.h"
#include "core/model/model_config.h"
#include "core/model/part.h"
#include "core/model/split.h"

#define EMBEDDING   "embedding.word_embeddings.weight\t"
#define DIVISOR_MAX 65536

struct settling {
    const struct hl_settle *in;
    const struct hl_proof_shard **parts; /* those with parameters, sorted by place */
    size_t count;
    struct hl_hf_config hf;
    struct hl_partition_options options;
    enum hl_dtype dtype;
    struct hl_logical logical;
    struct hl_partition_plan plan;
};

static struct hl_part_at at_of(const struct hl_proof_shard *s)
{
    return (struct hl_part_at){s->pp, s->tp, s->ep, s->part};
}

static int find_order(const void *key, const void *element)
{
    const struct hl_part_at at = at_of(*(const struct hl_proof_shard *const *)element);
    return hl_part_at_order(key, &at);
}

static int part_order(const void *a, const void *b)
{
    const struct hl_part_at at = at_of(*(const struct hl_proof_shard *const *)a);
    return find_order(&at, b);
}

static hl_status sort_parts(struct settling *s)
{
    s->parts = calloc(s->in->count + 1, sizeof(struct hl_proof_shard *));
    if (s->parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", s->in->count);
    for (size_t i = 0; i < s->in->count; i++)
        if (hl_part_of(s->in->shards[i].part).kind == HL_PART_MODEL)
            s->parts[s->count++] = &s->in->shards[i];
    qsort(s->parts, s->count, sizeof(struct hl_proof_shard *), part_order);
    return HL_OK;
}

static const struct hl_proof_shard *find_part(const struct settling *s, struct hl_part_at at)
{
    const struct hl_proof_shard **found =
        s->count > 0 ? bsearch(&at, s->parts, s->count, sizeof(*s->parts), find_order) : NULL;
    return found != NULL && (*found)->layout != NULL ? *found : NULL;
}

/* Finds the divisor that pads the vocabulary to this many rows, trying the usual one first. */
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

/* Reads the padded size from the first rank's embedding, which every family has. */
static hl_status read_embedding(struct settling *s)
{
    const struct hl_proof_shard *r = find_part(s, (struct hl_part_at){0, 0, 0, "embedding"});
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
    for (size_t i = 0; i < s->count; i++)
        if (s->parts[i]->layout != NULL &&
            strstr(s->parts[i]->layout, ".layer_norm_weight\t") != NULL)
            s->options.naming = HL_API_LAYER_NAMING_TE;
}

/* A job can train without the layers for multi-token prediction. */
static bool has_mtp(const struct settling *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (strncmp(s->parts[i]->part, "mtp-", strlen("mtp-")) == 0)
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

static hl_status check_part(const struct settling *s, const struct hl_partition_shard *want,
                            const struct hl_proof_shard *got)
{
    char *layout;
    if (got == NULL)
        return want->tensor_count == 0 ? HL_OK : hl_fail(HL_EINVAL, "it is missing");
    HL_TRY(hl_layout_text(&s->plan.tensors[want->tensor_first], want->tensor_count, &layout));
    hl_status st = hl_layout_compare(layout, got->layout, HL_API_LAYOUT_CHECK_ANY_DTYPE);
    free(layout);
    return st;
}

/* The first part that the plan lacks; NULL = none. */
static const struct hl_proof_shard *find_unplanned(const struct settling *s,
                                                   const unsigned char *planned)
{
    for (size_t i = 0; i < s->count; i++)
        if (!planned[s->parts[i] - s->in->shards])
            return s->parts[i];
    return NULL;
}

static hl_status check_parts(const struct settling *s)
{
    char at[HL_PART_PLACE_MAX];
    HL_AUTO(hl_freep) unsigned char *planned = calloc(s->in->count + 1, 1);
    if (planned == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", s->in->count);
    for (size_t i = 0; i < s->plan.shard_count; i++) {
        const struct hl_partition_shard *want = &s->plan.shards[i];
        const struct hl_proof_shard *got =
            find_part(s, (struct hl_part_at){want->pp, want->tp, want->ep, want->part});
        hl_status st = check_part(s, want, got);
        if (st != HL_OK)
            return hl_fail_prefix(
                st, "part %s: ", hl_part_place(want->pp, want->tp, want->ep, want->part, at));
        if (got != NULL)
            planned[got - s->in->shards] = 1;
    }
    const struct hl_proof_shard *other = find_unplanned(s, planned);
    if (other == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "part %s is not of the config's model",
                   hl_part_place(other->pp, other->tp, other->ep, other->part, at));
}

static hl_status settle_model(struct settling *s, const json_t *hf, char **out)
{
    HL_TRY(hl_hf_config_read(hf, "config", &s->hf));
    s->options = hl_split_options(&s->in->split);
    HL_TRY(sort_parts(s));
    HL_TRY(read_embedding(s));
    read_naming(s);
    HL_TRY(plan_parts(s));
    HL_TRY(check_parts(s));
    return hl_partition_config(&s->hf, &s->options, &s->plan, out);
}

hl_status hl_settle(const struct hl_settle *in, char **out)
{
    struct settling s = {.in = in};
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    *out = NULL;
    HL_TRY(hl_model_config_read(in->config, &c));
    hl_status st = c.hf != NULL ? settle_model(&s, c.hf, out) : HL_OK;
    hl_partition_fini(&s.plan);
    hl_logical_fini(&s.logical);
    hl_hf_config_fini(&s.hf);
    free(s.parts);
    return st == HL_OK ? st
                       : hl_fail_prefix(st, "model '%s' does not match its config: ", in->model);
}
