#include "core/whole.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/lora.h"
#include "core/split.h"

#define PART_BYTES ((uint64_t)1 << 30)

/* The Hugging Face config inside the model's. */
HL_CHECK static hl_status read_hf(const json_t *doc, struct hl_hf_config *out)
{
    const json_t *hf = json_object_get(doc, "hf");
    char *text = json_is_object(hf) ? json_dumps(hf, JSON_COMPACT) : NULL;
    if (text == NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "the model's config has no Hugging Face config, so nothing says which "
                       "tensors it is made of");
    hl_status st = hl_hf_config_parse(text, strlen(text), "the model's config", out);
    free(text);
    return st;
}

HL_CHECK static hl_status read_options(const char *config, const json_t *doc,
                                       struct hl_partition_options *out)
{
    struct hl_model_shape shape;
    HL_TRY(hl_model_shape_read(config, &shape));
    *out = hl_split_options(&shape.split);
    out->vocab_divisor = (int)hl_json_int(doc, "vocabDivisor", HL_VOCAB_DIVISOR_DEFAULT);
    HL_TRY(hl_api_vocab_padding_parse(hl_json_str(doc, "pad", "repeat"), &out->pad));
    return hl_api_layer_naming_parse(hl_json_str(doc, "naming", "local"), &out->naming);
}

HL_CHECK static hl_status set_dtype(struct hl_tensor *t, enum hl_dtype dtype)
{
    t->dtype = dtype;
    return hl_tensor_bytes(t, &t->size);
}

HL_CHECK static hl_status set_dtypes(struct hl_logical *l, enum hl_dtype dtype)
{
    for (size_t i = 0; i < l->count; i++)
        HL_TRY(set_dtype(&l->tensors[i], dtype));
    return HL_OK;
}

/* A rank's tensor has the dtype of every logical tensor that it is made of. *changed: one of them
 * was planned with another. */
HL_CHECK static hl_status take_dtype(struct hl_whole *w, size_t tensor, enum hl_dtype dtype,
                                     unsigned char *known, bool *changed)
{
    const struct hl_partition_plan *p = &w->ranks;
    for (uint32_t i = p->op_first[tensor]; i < p->op_first[tensor + 1]; i++) {
        if (p->ops[i].kind == HL_COPY_ZERO)
            continue;
        struct hl_tensor *t = &w->logical.tensors[p->ops[i].source];
        if (known[p->ops[i].source] && t->dtype != dtype)
            return hl_fail(HL_ECONFLICT, "ranks hold tensor '%s' as %s and as %s", t->name,
                           hl_dtype_name(t->dtype), hl_dtype_name(dtype));
        known[p->ops[i].source] = 1;
        *changed = *changed || t->dtype != dtype;
        HL_TRY(set_dtype(t, dtype));
    }
    return HL_OK;
}

HL_CHECK static hl_status take_dtypes(struct hl_whole *w, hl_whole_find_fn find, void *arg,
                                      bool *changed)
{
    HL_AUTO(hl_freep) unsigned char *known = calloc(w->logical.count + 1, 1);
    const struct hl_partition_plan *p = &w->ranks;
    if (known == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", w->logical.count);
    for (size_t s = 0; s < p->shard_count; s++) {
        const struct hl_partition_shard *shard = &p->shards[s];
        for (uint32_t k = 0; k < shard->tensor_count; k++) {
            const struct hl_tensor *stored;
            HL_TRY(find(arg, shard, p->tensors[shard->tensor_first + k].name, &stored));
            HL_TRY(take_dtype(w, shard->tensor_first + k, stored->dtype, known, changed));
        }
    }
    return HL_OK;
}

/* Every tensor is stored with the dtype and shape that are planned now. */
HL_CHECK static hl_status check_stored(const struct hl_whole *w, hl_whole_find_fn find, void *arg)
{
    const struct hl_partition_plan *p = &w->ranks;
    char has[128], want[128];
    for (size_t s = 0; s < p->shard_count; s++) {
        const struct hl_partition_shard *shard = &p->shards[s];
        for (uint32_t k = 0; k < shard->tensor_count; k++) {
            const struct hl_tensor *t = &p->tensors[shard->tensor_first + k], *stored;
            HL_TRY(find(arg, shard, t->name, &stored));
            if (stored->rank == t->rank && stored->dtype == t->dtype &&
                memcmp(stored->shape, t->shape, t->rank * sizeof(*t->shape)) == 0)
                continue;
            return hl_fail(
                HL_EINVAL,
                "tensor '%s' of part %s at pp %d, tp %d has shape %s, the model's config "
                "asks for %s",
                t->name, shard->part, shard->pp, shard->tp,
                hl_tensor_shape_text(stored, has, sizeof(has)),
                hl_tensor_shape_text(t, want, sizeof(want)));
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status plan_ranks(struct hl_whole *w, const struct hl_partition_options *o)
{
    hl_partition_fini(&w->ranks);
    return (w->adapter ? hl_lora_plan : hl_partition_plan)(&w->config, w->logical.tensors,
                                                           w->logical.count, o, &w->ranks);
}

/* As the import has listed them, or as the family's table does with the dtype of the embedding. */
HL_CHECK static hl_status list_logical(struct hl_whole *w, const json_t *doc)
{
    const json_t *list = json_object_get(doc, "tensors");
    enum hl_dtype dtype;
    if (list != NULL)
        return hl_logical_read(list, &w->logical);
    HL_TRY(hl_family_logical(&w->config, &w->logical));
    HL_TRY(hl_dtype_parse(hl_json_str(doc, "dtype", ""), &dtype));
    return set_dtypes(&w->logical, dtype);
}

/* Plan what is stored, with the dtypes that it is stored in. */
HL_CHECK static hl_status plan_held(struct hl_whole *w, const struct hl_partition_options *options,
                                    hl_whole_find_fn find, void *arg)
{
    bool changed = false;
    HL_TRY(plan_ranks(w, options));
    HL_TRY(take_dtypes(w, find, arg, &changed));
    if (changed)
        HL_TRY(plan_ranks(w, options));
    return check_stored(w, find, arg);
}

/* How far a plan goes. */
enum goal { GOAL_RANKS, GOAL_TARGET, GOAL_MOVES };

/* The logical tensors and the plan that the stored shards follow. */
HL_CHECK static hl_status plan_stored(struct hl_whole *w, const json_t *doc,
                                      const struct hl_partition_options *options,
                                      hl_whole_find_fn find, void *arg)
{
    w->adapter = json_object_get(doc, "adapter") != NULL;
    HL_TRY(read_hf(doc, &w->config));
    HL_TRY(list_logical(w, doc));
    return plan_held(w, options, find, arg);
}

/* Vocabulary padding and layer names stay as the version has them. */
HL_CHECK static hl_status plan_target(struct hl_whole *w, const struct hl_partition_options *own,
                                      const struct hl_api_split *split)
{
    if (split == NULL)
        return hl_partition_unsliced(w->logical.tensors, w->logical.count, PART_BYTES, &w->whole);
    struct hl_partition_options o = hl_split_options(split);
    o.vocab_divisor = own->vocab_divisor;
    o.pad = own->pad;
    o.naming = own->naming;
    return (w->adapter ? hl_lora_plan : hl_partition_plan)(&w->config, w->logical.tensors,
                                                           w->logical.count, &o, &w->whole);
}

HL_CHECK static hl_status plan_from_json(struct hl_whole *w, const char *config, const json_t *doc,
                                         const struct hl_api_split *split, hl_whole_find_fn find,
                                         void *arg, enum goal goal)
{
    struct hl_partition_options own;
    HL_TRY(read_options(config, doc, &own));
    HL_TRY(plan_stored(w, doc, &own, find, arg));
    if (goal == GOAL_RANKS)
        return HL_OK;
    HL_TRY(plan_target(w, &own, split));
    if (goal == GOAL_TARGET)
        return HL_OK;
    return hl_reshard_plan(w->logical.tensors, w->logical.count, &w->ranks, &w->whole, &w->plan);
}

HL_CHECK static hl_status plan_from_text(const char *config, const struct hl_api_split *split,
                                         hl_whole_find_fn find, void *arg, enum goal goal,
                                         struct hl_whole *out)
{
    struct hl_whole w = {0};
    json_t *doc = json_loads(config, 0, NULL);
    hl_status st = plan_from_json(&w, config, doc, split, find, arg, goal);
    json_decref(doc);
    if (st != HL_OK) {
        hl_whole_fini(&w);
        return st;
    }
    *out = w;
    return HL_OK;
}

hl_status hl_whole_split(const char *config, const struct hl_api_split *split,
                         hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, split, find, arg, GOAL_TARGET, out);
}

hl_status hl_whole_recut(const char *config, const struct hl_api_split *split,
                         hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, split, find, arg, GOAL_MOVES, out);
}

hl_status hl_whole_plan(const char *config, hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, NULL, find, arg, GOAL_MOVES, out);
}

hl_status hl_whole_ranks(const char *config, hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, NULL, find, arg, GOAL_RANKS, out);
}

hl_status hl_whole_held(struct hl_hf_config *config, const struct hl_partition_options *options,
                        hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    struct hl_whole w = {.config = *config};
    *config = (struct hl_hf_config){0};
    hl_status st = hl_family_logical(&w.config, &w.logical);
    if (st == HL_OK)
        st = set_dtypes(&w.logical, HL_DTYPE_F32);
    if (st == HL_OK)
        st = plan_held(&w, options, find, arg);
    if (st != HL_OK) {
        hl_whole_fini(&w);
        return st;
    }
    *out = w;
    return HL_OK;
}

hl_status hl_whole_read(const char *config, struct hl_hf_config *hf,
                        struct hl_partition_options *options)
{
    json_t *doc = json_loads(config, 0, NULL);
    hl_status st = read_options(config, doc, options);
    if (st == HL_OK)
        st = read_hf(doc, hf);
    json_decref(doc);
    return st;
}

HL_CHECK static hl_status copy_logical(const struct hl_tensor *tensors, size_t count,
                                       struct hl_logical *out)
{
    size_t text = 1;
    for (size_t i = 0; i < count; i++)
        text += strlen(tensors[i].name) + 1;
    *out =
        (struct hl_logical){.tensors = calloc(count + 1, sizeof(*tensors)), .names = malloc(text)};
    if (out->tensors == NULL || out->names == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", count);
    char *name = out->names;
    for (; out->count < count; out->count++) {
        struct hl_tensor *t = &out->tensors[out->count];
        *t = tensors[out->count];
        size_t len = strlen(t->name) + 1;
        memcpy(name, t->name, len);
        t->name = name;
        name += len;
    }
    return HL_OK;
}

hl_status hl_whole_plan_unsliced(const char *config, const struct hl_tensor *tensors,
                                 const char *const *parts, size_t count, struct hl_whole *out)
{
    struct hl_whole w = {0};
    json_t *doc = json_loads(config, 0, NULL), *hf = json_object_get(doc, "hf");
    w.config.hf = json_is_object(hf) ? json_incref(hf) : NULL;
    json_decref(doc);
    hl_status st = copy_logical(tensors, count, &w.logical);
    if (st == HL_OK)
        st = hl_partition_as_stored(w.logical.tensors, parts, count, &w.ranks);
    if (st == HL_OK)
        st = hl_partition_unsliced(w.logical.tensors, count, PART_BYTES, &w.whole);
    if (st == HL_OK)
        st = hl_reshard_plan(w.logical.tensors, count, &w.ranks, &w.whole, &w.plan);
    if (st != HL_OK) {
        hl_whole_fini(&w);
        return st;
    }
    *out = w;
    return HL_OK;
}

void hl_whole_fini(struct hl_whole *w)
{
    hl_reshard_fini(&w->plan);
    hl_partition_fini(&w->whole);
    hl_partition_fini(&w->ranks);
    hl_logical_fini(&w->logical);
    hl_hf_config_fini(&w->config);
}
