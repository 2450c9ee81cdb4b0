#include "core/split.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/json.h"
#include "core/part.h"

#define TP_MAX 4096

/* Layers of a stage, all its chunks together. */
static uint64_t stage_sum(const json_t *stage)
{
    uint64_t sum = 0;
    size_t i;
    json_t *chunk;
    json_array_foreach (stage, i, chunk)
        sum += (uint64_t)hl_json_int(chunk, "count", 0);
    return sum;
}

/* The first and the last stage's layers where they are not those of every stage. */
static void read_stages(const json_t *stages, struct hl_api_split *s)
{
    size_t n = json_array_size(stages);
    bool even = true;
    for (size_t i = 1; i < n; i++)
        even = even && stage_sum(json_array_get(stages, i)) == stage_sum(json_array_get(stages, 0));
    if (even || n < 2)
        return;
    s->first_stage_layers = (int32_t)stage_sum(json_array_get(stages, 0));
    s->last_stage_layers = (int32_t)stage_sum(json_array_get(stages, n - 1));
}

hl_status hl_model_shape_read(const char *config, struct hl_model_shape *out)
{
    json_t *doc = json_loads(config, 0, NULL);
    struct hl_model_shape shape = {
        .split = {.tp = (int32_t)hl_json_int(doc, "tp", 0),
                  .pp = (int32_t)hl_json_int(doc, "pp", 0),
                  .virtual_stages = (int32_t)hl_json_int(doc, "virtualStages", 1),
                  .ep = (int32_t)hl_json_int(doc, "ep", 0),
                  .etp = (int32_t)hl_json_int(doc, "etp", 0)},
        .layers = (uint64_t)hl_json_int(doc, "layers", 0),
        .tied = hl_json_bool(doc, "tied", 0) != 0,
    };
    shape.as_saved = hl_json_bool(doc, "asSaved", 0) != 0;
    shape.unsliced = hl_json_bool(doc, "unsliced", 0) != 0;
    read_stages(hl_json_list(doc, "stages"), &shape.split);
    json_decref(doc);
    if (shape.unsliced) {
        *out = (struct hl_model_shape){.split = {.tp = 1, .pp = 1, .virtual_stages = 1},
                                       .unsliced = true};
        return HL_OK;
    }
    if (shape.split.tp < 1 || shape.split.pp < 1 || (shape.layers < 1 && !shape.as_saved))
        return hl_fail(HL_EUNSUPPORTED,
                       "the model's config does not say how it was split; import the model again");
    *out = shape;
    return HL_OK;
}

bool hl_split_reads(const struct hl_api_split *s, int tp, int ep, const char *part, int shard_tp,
                    int shard_ep)
{
    if (!hl_part_has_experts(part))
        return shard_tp == tp;
    return shard_tp == tp % hl_split_etp(s) && shard_ep == ep;
}

bool hl_split_same_cut(const struct hl_api_split *a, const struct hl_api_split *b)
{
    return a->tp == b->tp && hl_split_ep(a) == hl_split_ep(b) && hl_split_etp(a) == hl_split_etp(b);
}

bool hl_split_equal(const struct hl_api_split *a, const struct hl_api_split *b)
{
    return hl_split_same_cut(a, b) && a->pp == b->pp && hl_split_chunks(a) == hl_split_chunks(b) &&
           a->first_stage_layers == b->first_stage_layers &&
           a->last_stage_layers == b->last_stage_layers;
}

struct hl_api_split hl_split_resolve(const struct hl_api_split *want,
                                     const struct hl_api_split *own)
{
    struct hl_api_split s = *want;
    if (s.tp == 0)
        s.tp = own->tp;
    if (s.pp == 0)
        s.pp = own->pp;
    if (s.ep == 0)
        s.ep = own->ep;
    if (s.etp == 0 && s.tp == own->tp)
        s.etp = own->etp;
    if (s.virtual_stages == 0 && s.pp == own->pp)
        s.virtual_stages = own->virtual_stages;
    bool same = hl_split_same_cut(&s, own) && s.pp == own->pp &&
                hl_split_chunks(&s) == hl_split_chunks(own) && s.first_stage_layers == 0 &&
                s.last_stage_layers == 0;
    return same ? *own : s;
}

struct hl_partition_options hl_split_options(const struct hl_api_split *s)
{
    return (struct hl_partition_options){.tp = s->tp,
                                         .pp = s->pp,
                                         .virtual_stages = hl_split_chunks(s),
                                         .first_stage_layers = s->first_stage_layers,
                                         .last_stage_layers = s->last_stage_layers,
                                         .ep = s->ep,
                                         .etp = s->etp};
}

hl_status hl_split_check(const struct hl_api_split *s, uint64_t layers)
{
    const struct hl_partition_options o = hl_split_options(s);
    if (s->tp < 1 || s->tp > TP_MAX)
        return hl_fail(HL_EINVAL, "tp %d is not 1..%d", s->tp, TP_MAX);
    if (s->ep < 0 || s->ep > TP_MAX)
        return hl_fail(HL_EINVAL, "ep %d is not 1..%d", s->ep, TP_MAX);
    if (s->etp < 0 || s->etp > s->tp || s->tp % hl_split_etp(s) != 0)
        return hl_fail(HL_EINVAL, "etp %d does not divide tp %d", s->etp, s->tp);
    return hl_partition_check_layers(&o, layers);
}

static int print_experts(const struct hl_api_split *s, char *buf, size_t cap)
{
    int n = 0;
    if (hl_split_ep(s) > 1)
        n += snprintf(buf, cap, " x EP%d", s->ep);
    if (hl_split_etp(s) != s->tp)
        n += snprintf(buf + n, cap - (size_t)n, ", ETP%d", s->etp);
    return n;
}

const char *hl_split_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX])
{
    int n = snprintf(buf, HL_SPLIT_TEXT_MAX, "TP%d x PP%d", s->tp, s->pp);
    n += print_experts(s, buf + n, HL_SPLIT_TEXT_MAX - (size_t)n);
    if (hl_split_chunks(s) > 1)
        n += snprintf(buf + n, HL_SPLIT_TEXT_MAX - (size_t)n, ", %d virtual stages",
                      s->virtual_stages);
    if (s->first_stage_layers > 0 || s->last_stage_layers > 0)
        snprintf(buf + n, HL_SPLIT_TEXT_MAX - (size_t)n, ", %d first and %d last layers",
                 s->first_stage_layers, s->last_stage_layers);
    return buf;
}

const char *hl_split_cut_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX])
{
    int n = snprintf(buf, HL_SPLIT_TEXT_MAX, "TP%d", s->tp);
    print_experts(s, buf + n, HL_SPLIT_TEXT_MAX - (size_t)n);
    return buf;
}

hl_status hl_split_config(const char *config, const struct hl_api_split *split, uint64_t layers,
                          char **out)
{
    const struct hl_partition_options o = hl_split_options(split);
    HL_TRY(hl_split_check(split, layers));
    json_t *doc = json_loads(config, 0, NULL);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return hl_fail(HL_EINVAL, "the model's config is not a JSON object");
    }
    json_object_set_new(doc, "tp", json_integer(o.tp));
    json_object_set_new(doc, "pp", json_integer(o.pp));
    json_object_set_new(doc, "virtualStages", json_integer(o.virtual_stages));
    if (json_object_get(doc, "ep") != NULL) {
        json_object_set_new(doc, "ep", json_integer(hl_split_ep(split)));
        json_object_set_new(doc, "etp", json_integer(hl_split_etp(split)));
    }
    json_object_set_new(doc, "stages", hl_partition_stages(&o, layers));
    uint64_t vocab = (uint64_t)hl_json_int(doc, "vocab", 0);
    uint64_t divisor = (uint64_t)hl_json_int(doc, "vocabDivisor", HL_VOCAB_DIVISOR_DEFAULT);
    if (vocab > 0)
        json_object_set_new(
            doc, "paddedVocab",
            json_integer((json_int_t)hl_partition_padded_vocab(vocab, divisor, (uint64_t)o.tp)));
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the config of a model");
    *out = text;
    return HL_OK;
}
