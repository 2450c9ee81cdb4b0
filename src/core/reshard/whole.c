#include "core/reshard/whole.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/reshard/whole_private.h"

#define PART_BYTES ((uint64_t)1 << 30)

/* Reads the Hugging Face config inside the model's config, and how its ranks are partitioned. */
HL_CHECK static hl_status read_model(const struct hl_model_config *c, struct hl_hf_config *hf,
                                     struct hl_partition_options *options)
{
    struct hl_model_shape shape;
    HL_TRY(hl_model_shape_of(c, &shape));
    if (c->hf == NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "the model's config has no Hugging Face config, so nothing says which "
                       "tensors it is made of");
    HL_TRY(hl_model_config_hf(c, hf));
    *options = hl_model_config_options(c);
    return HL_OK;
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

/* Gives the dtype of a rank's tensor to every logical tensor that it consists of. *changed: one of
 * them was planned with another dtype. */
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

/* A copied tensor gets the dtype of its original. */
HL_CHECK static hl_status set_copied_dtypes(struct hl_whole *w)
{
    const struct hl_partition_plan *p = &w->ranks;
    for (size_t i = 0; i < p->equal_count; i++)
        HL_TRY(
            set_dtype(&w->logical.tensors[p->equal[i].b], w->logical.tensors[p->equal[i].a].dtype));
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
    return set_copied_dtypes(w);
}

/* Checks that every tensor is stored with the dtype and shape that are now planned. */
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

/* Lists the tensors from the family's table. */
HL_CHECK static hl_status list_family(struct hl_whole *w, const struct hl_checkpoint *has,
                                      enum hl_dtype dtype)
{
    hl_logical_fini(&w->logical);
    HL_TRY(hl_family_logical(&w->config, has, &w->logical));
    return set_dtypes(&w->logical, dtype);
}

/* The plan has layers for multi-token prediction, but no rank stores a part of them: the checkpoint
 * lacked them, or a job trained without them. */
static bool lacks_mtp(const struct hl_whole *w, hl_whole_find_fn find, void *arg)
{
    const struct hl_partition_plan *p = &w->ranks;
    const struct hl_tensor *stored;
    bool planned = false;
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *s = &p->shards[i];
        if (strncmp(s->part, "mtp-", strlen("mtp-")) != 0)
            continue;
        if (find(arg, s, p->tensors[s->tensor_first].name, &stored) == HL_OK)
            return false;
        hl_error_clear();
        planned = true;
    }
    return planned;
}

/* Lists the family's tensors that the ranks hold, and plans by them. */
HL_CHECK static hl_status plan_family(struct hl_whole *w, struct hl_checkpoint has,
                                      enum hl_dtype dtype,
                                      const struct hl_partition_options *options,
                                      hl_whole_find_fn find, void *arg)
{
    has.mtp = true;
    HL_TRY(list_family(w, &has, dtype));
    HL_TRY(plan_ranks(w, options));
    if (!lacks_mtp(w, find, arg))
        return HL_OK;
    has.mtp = false;
    HL_TRY(list_family(w, &has, dtype));
    return plan_ranks(w, options);
}

/* Plans again with the dtypes of the stored tensors. */
HL_CHECK static hl_status plan_held(struct hl_whole *w, const struct hl_partition_options *options,
                                    hl_whole_find_fn find, void *arg)
{
    bool changed = false;
    HL_TRY(take_dtypes(w, find, arg, &changed));
    if (changed)
        HL_TRY(plan_ranks(w, options));
    return check_stored(w, find, arg);
}

/* How far to plan. */
enum goal { GOAL_RANKS, GOAL_TARGET, GOAL_MOVES };

/* Lists the logical tensors and plans the stored shards. The list is the import's, or it comes from
 * the family's table with the dtype of the embedding. */
HL_CHECK static hl_status plan_stored(struct hl_whole *w, const struct hl_model_config *c,
                                      const struct hl_partition_options *options,
                                      hl_whole_find_fn find, void *arg)
{
    const struct hl_checkpoint has = {.prefix = c->own.hf_prefix, .copies = c->copies};
    enum hl_dtype dtype;
    if (c->tensors != NULL) {
        HL_TRY(hl_logical_read(c->tensors, &w->logical));
        HL_TRY(plan_ranks(w, options));
    } else {
        HL_TRY(hl_dtype_parse(c->own.dtype != NULL ? c->own.dtype : "", &dtype));
        HL_TRY(plan_family(w, has, dtype, options, find, arg));
    }
    return plan_held(w, options, find, arg);
}

/* The target keeps the version's vocabulary padding and layer names. */
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

HL_CHECK static hl_status plan_from_config(struct hl_whole *w, const struct hl_model_config *c,
                                           const struct hl_api_split *split,
                                           const struct hl_whole_stored *stored, enum goal goal)
{
    struct hl_partition_options own;
    w->adapter = c->peft != NULL;
    HL_TRY(read_model(c, &w->config, &own));
    HL_TRY(plan_stored(w, c, &own, stored->find, stored->arg));
    if (goal == GOAL_RANKS)
        return HL_OK;
    HL_TRY(plan_target(w, &own, split));
    if (stored->list != NULL)
        HL_TRY(hl_whole_add_beside(w, stored));
    if (goal == GOAL_TARGET)
        return HL_OK;
    return hl_reshard_plan(w->logical.tensors, w->logical.count, &w->ranks, &w->whole, &w->plan);
}

HL_CHECK static hl_status plan_from_text(const char *config, const struct hl_api_split *split,
                                         const struct hl_whole_stored *stored, enum goal goal,
                                         struct hl_whole *out)
{
    struct hl_whole w = {0};
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    hl_status st = plan_from_config(&w, &c, split, stored, goal);
    if (st != HL_OK) {
        hl_whole_fini(&w);
        return st;
    }
    *out = w;
    return HL_OK;
}

hl_status hl_whole_split(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out)
{
    return plan_from_text(config, split, stored, GOAL_TARGET, out);
}

hl_status hl_whole_recut(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out)
{
    return plan_from_text(config, split, stored, GOAL_MOVES, out);
}

hl_status hl_whole_plan(const char *config, hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, NULL, &(struct hl_whole_stored){.find = find, .arg = arg},
                          GOAL_MOVES, out);
}

hl_status hl_whole_ranks(const char *config, hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    return plan_from_text(config, NULL, &(struct hl_whole_stored){.find = find, .arg = arg},
                          GOAL_RANKS, out);
}

hl_status hl_whole_held(struct hl_hf_config *config, const struct hl_partition_options *options,
                        hl_whole_find_fn find, void *arg, struct hl_whole *out)
{
    struct hl_whole w = {.config = *config};
    *config = (struct hl_hf_config){0};
    const struct hl_checkpoint has = {.mtp_copies = true};
    hl_status st = plan_family(&w, has, HL_DTYPE_F32, options, find, arg);
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
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    return read_model(&c, hf, options);
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
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    w.config.hf = json_incref((json_t *)c.hf);
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
    hl_arena_fini(&w->beside_names);
}
