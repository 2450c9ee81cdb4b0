#include "core/model/model_config.h"

#include <stdlib.h>
#include <string.h>

/* Borrows a member that is kept unchanged. NULL: none. */
HL_CHECK static hl_status borrow_member(const json_t *doc, const char *name, json_type type,
                                        const json_t **out)
{
    const json_t *v = json_object_get(doc, name);
    if (v == NULL || json_is_null(v))
        return HL_OK;
    if (json_typeof(v) != type)
        return hl_fail(HL_EINVAL, "field %s: expected %s", name,
                       type == JSON_ARRAY ? "a list" : "an object");
    *out = v;
    return HL_OK;
}

/* Adds up the layers of a stage over all its chunks. */
HL_CHECK static hl_status read_stage(const json_t *stage, size_t number, int64_t *sum)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const json_t *chunk;
    size_t i;
    *sum = 0;
    if (!json_is_array(stage))
        return hl_fail(HL_EINVAL, "field stages[%zu]: expected a list", number);
    json_array_foreach (stage, i, chunk) {
        struct hl_api_layer_run run;
        hl_status st = hl_api_record_from_json(&hl_api_layer_run_type, chunk, &arena, &run);
        if (st != HL_OK)
            return hl_fail_prefix(st, "stages[%zu][%zu]: ", number, i);
        *sum += (int64_t)run.count;
    }
    return HL_OK;
}

/* Reads the layers of the first and the last stage if they differ from the other stages. */
HL_CHECK static hl_status read_stages(const json_t *stages, struct hl_api_split *s)
{
    size_t n = json_array_size(stages);
    bool even = true;
    int64_t first = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        HL_TRY(read_stage(json_array_get(stages, i), i, &sum));
        if (i == 0)
            first = sum;
        even = even && sum == first;
    }
    if (even)
        return HL_OK;
    s->first_stage_layers = (int32_t)first;
    s->last_stage_layers = (int32_t)sum;
    return HL_OK;
}

HL_CHECK static hl_status read_members(struct hl_model_config *c)
{
    const json_t *stages = NULL, *adapter = NULL;
    HL_TRY(hl_api_record_from_json(&hl_api_model_config_type, c->doc, &c->arena, (void *)&c->own));
    HL_TRY(hl_api_record_from_json(&hl_api_model_sizes_type, c->doc, &c->arena, (void *)&c->sizes));
    HL_TRY(borrow_member(c->doc, "tensors", JSON_ARRAY, &c->tensors));
    HL_TRY(borrow_member(c->doc, "hfCopies", JSON_ARRAY, &c->copies));
    HL_TRY(borrow_member(c->doc, "hf", JSON_OBJECT, &c->hf));
    HL_TRY(borrow_member(c->doc, "hfQuantConfig", JSON_OBJECT, &c->quantization));
    HL_TRY(borrow_member(c->doc, "adapter", JSON_OBJECT, &adapter));
    if (adapter != NULL) {
        HL_TRY(borrow_member(adapter, "peft", JSON_OBJECT, &c->peft));
        if (c->peft == NULL)
            return hl_fail(HL_EINVAL, "field adapter.peft: missing");
    }
    HL_TRY(borrow_member(c->doc, "stages", JSON_ARRAY, &stages));
    c->split = (struct hl_api_split){.tp = c->own.tp,
                                     .pp = c->own.pp,
                                     .virtual_stages = c->own.virtual_stages,
                                     .ep = c->own.ep,
                                     .etp = c->own.etp};
    return read_stages(stages, &c->split);
}

hl_status hl_model_config_read(const char *text, struct hl_model_config *out)
{
    json_error_t error;
    struct hl_model_config c = {.doc = hl_hf_json(text, strlen(text), &error)};
    hl_status st = c.doc != NULL
                       ? read_members(&c)
                       : hl_fail(HL_EINVAL, "%d:%d: %s", error.line, error.column, error.text);
    if (st != HL_OK) {
        hl_model_config_fini(&c);
        return hl_fail_prefix(st, "the model's config: ");
    }
    *out = c;
    return HL_OK;
}

void hl_model_config_fini(struct hl_model_config *c)
{
    json_decref(c->doc);
    hl_arena_fini(&c->arena);
    *c = (struct hl_model_config){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

/* NULL: out of memory. */
static json_t *stages_json(const struct hl_api_split *split, uint64_t layers)
{
    const struct hl_partition_options o = hl_split_options(split);
    json_t *stages = json_array();
    int failed = 0;
    for (int pp = 0; pp < o.pp; pp++) {
        json_t *list = json_array();
        for (int k = 0; k < o.virtual_stages; k++) {
            struct hl_api_layer_run run;
            hl_partition_stage(&o, layers, pp, k, &run.first, &run.count);
            failed |= json_array_append_new(list, hl_api_to_json(&hl_api_layer_run_type, &run));
        }
        failed |= json_array_append_new(stages, list);
    }
    if (failed == 0)
        return stages;
    json_decref(stages);
    return NULL;
}

/* 0 or -1, as in jansson. */
static int put_document(json_t *doc, const char *name, const json_t *value)
{
    return value == NULL ? 0 : json_object_set(doc, name, (json_t *)value);
}

static int put_members(const struct hl_model_config *c, json_t *doc)
{
    struct hl_api_model_config own = c->own;
    own.tp = c->split.tp;
    own.pp = c->split.pp;
    own.virtual_stages = hl_split_chunks(&c->split);
    own.ep = c->split.ep;
    own.etp = c->split.etp;
    int failed = json_object_update_new(doc, hl_api_to_json(&hl_api_model_config_type, &own));
    if (c->sizes.layers > 0) {
        failed |= json_object_update_new(doc, hl_api_to_json(&hl_api_model_sizes_type, &c->sizes));
        failed |= json_object_set_new(doc, "stages", stages_json(&c->split, c->sizes.layers));
    }
    failed |= put_document(doc, "tensors", c->tensors);
    failed |= put_document(doc, "hfCopies", c->copies);
    failed |= put_document(doc, "hf", c->hf);
    failed |= put_document(doc, "hfQuantConfig", c->quantization);
    if (c->peft != NULL)
        failed |= put_document(json_object_get(doc, "adapter"), "peft", c->peft);
    return failed;
}

hl_status hl_model_config_write(const struct hl_model_config *c, char **out)
{
    json_t *doc = c->doc != NULL ? json_copy(c->doc) : json_object();
    char *text = doc != NULL && put_members(c, doc) == 0 ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the config of a model");
    *out = text;
    return HL_OK;
}

/* ---- what it means --------------------------------------------------------------------------- */

hl_status hl_model_config_hf(const struct hl_model_config *c, struct hl_hf_config *out)
{
    return c->hf != NULL ? hl_hf_config_read(c->hf, "the model's config", out)
                         : hl_fail(HL_ENOENT, "the model has no Hugging Face config");
}

struct hl_partition_options hl_model_config_options(const struct hl_model_config *c)
{
    struct hl_partition_options o = hl_split_options(&c->split);
    o.vocab_divisor = c->sizes.vocab_divisor;
    o.pad = c->sizes.pad;
    o.naming = c->sizes.naming;
    return o;
}

hl_status hl_model_shape_of(const struct hl_model_config *c, struct hl_model_shape *out)
{
    if (c->own.unsliced) {
        *out = (struct hl_model_shape){.split = {.tp = 1, .pp = 1, .virtual_stages = 1},
                                       .unsliced = true};
        return HL_OK;
    }
    if (c->split.tp < 1 || c->split.pp < 1 || (c->sizes.layers < 1 && !c->own.as_saved))
        return hl_fail(HL_EUNSUPPORTED,
                       "the model's config does not say how it was split; import the model again");
    *out = (struct hl_model_shape){.split = c->split,
                                   .layers = c->sizes.layers,
                                   .tied = c->sizes.tied,
                                   .as_saved = c->own.as_saved};
    return HL_OK;
}

hl_status hl_model_shape_read(const char *config, struct hl_model_shape *out)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    return hl_model_shape_of(&c, out);
}

hl_status hl_split_config(const char *config, const struct hl_api_split *split, uint64_t layers,
                          char **out)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_split_check(split, layers));
    HL_TRY(hl_model_config_read(config, &c));
    bool experts = c.split.ep > 0;
    c.split = *split;
    c.split.ep = experts ? hl_split_ep(split) : 0;
    c.split.etp = experts ? hl_split_etp(split) : 0;
    c.sizes.layers = layers;
    if (c.sizes.vocab > 0)
        c.sizes.padded_vocab = hl_partition_padded_vocab(
            c.sizes.vocab, (uint64_t)c.sizes.vocab_divisor, (uint64_t)split->tp);
    return hl_model_config_write(&c, out);
}
