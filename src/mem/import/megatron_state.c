/* Optimizer state, of either format, follows its parameters. A format only knows which tensor is
 * the state of which parameter; after that, state is cut and checked like parameters, by plans of
 * its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/torch/plain.h"
#include "mem/import/megatron_private.h"

#define MAIN "param"

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Whether this is one of Megatron's names for the FP32 copy of a parameter; Helios has one name for
 * it. */
static bool is_main(const char *kind, size_t len)
{
    static const char *const names[] = {"fp32_param", "master_param", MAIN};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strlen(names[i]) == len && strncmp(names[i], kind, len) == 0)
            return true;
    return false;
}

hl_status hl_megatron_add_kind(struct hl_megatron_kinds *kinds, const char *kind, size_t len,
                               const char **out)
{
    char name[HL_MEGATRON_KIND_MAX + 1];
    if (len == 0 || len > HL_MEGATRON_KIND_MAX)
        return hl_fail(HL_EINVAL, "'%.*s' is not the name of a kind of optimizer state",
                       (int)(len < 80 ? len : 80), kind);
    snprintf(name, sizeof(name), "%.*s", is_main(kind, len) ? (int)strlen(MAIN) : (int)len,
             is_main(kind, len) ? MAIN : kind);
    for (size_t i = 0; i < kinds->count; i++)
        if (strcmp(kinds->names[i], name) == 0) {
            *out = kinds->names[i];
            return HL_OK;
        }
    if (kinds->count == HL_MEGATRON_KINDS_MAX)
        return hl_fail(HL_EUNSUPPORTED, "more than %d kinds of optimizer state",
                       HL_MEGATRON_KINDS_MAX);
    char *kept = kinds->names[kinds->count++];
    memcpy(kept, name, sizeof(name));
    *out = kept;
    return HL_OK;
}

/* ---- what is held ---------------------------------------------------------------------------- */

struct collector {
    struct hl_megatron_source *s;
    const struct hl_megatron_kinds *kinds;
    hl_megatron_state_fn find;
    void *arg;
    struct hl_arena arena;
    struct hl_tensor *tensors; /* those of all parts */
    size_t count;
};

/* Parameters that no optimizer updates have no state: a router's bias is a buffer. An FP32
 * parameter has no FP32 copy. */
static bool may_lack(const struct hl_tensor *param, const char *kind)
{
    return strstr(param->name, ".router.expert_bias") != NULL ||
           (strcmp(kind, MAIN) == 0 && param->dtype == HL_DTYPE_F32);
}

HL_CHECK static hl_status collect_state(struct collector *c, const struct hl_partition_shard *shard,
                                        const struct hl_tensor *param, const char *kind)
{
    const struct hl_tensor *found = NULL;
    HL_TRY(c->find(c->arg, shard, kind, param, &found));
    if (found == NULL && may_lack(param, kind))
        return HL_OK;
    if (found == NULL)
        return hl_fail(HL_ENOENT,
                       "optimizer state '%s' of '%s' is missing, though other parameters have it: "
                       "it was frozen, or a part of the checkpoint is missing; without --optimizer "
                       "only the parameters are imported",
                       kind, param->name);
    struct hl_tensor *t = &c->tensors[c->count++];
    *t = *found;
    t->name = hl_arena_printf(&c->arena, "%s.%s", kind, param->name);
    return t->name != NULL ? HL_OK : hl_fail(HL_ENOMEM, "the name of a tensor");
}

/* Appends the state of one part to that of the others. */
HL_CHECK static hl_status collect_part(struct collector *c, const struct hl_partition_shard *shard,
                                       struct hl_reshard_state_part *part)
{
    size_t first = c->count;
    for (uint32_t i = 0; i < shard->tensor_count; i++)
        for (size_t k = 0; k < c->kinds->count; k++)
            HL_TRY(collect_state(c, shard, &c->s->whole.ranks.tensors[shard->tensor_first + i],
                                 c->kinds->names[k]));
    *part = (struct hl_reshard_state_part){.pp = shard->pp,
                                           .tp = shard->tp,
                                           .ep = shard->ep,
                                           .of = shard->part,
                                           .tensors = &c->tensors[first],
                                           .count = c->count - first};
    return HL_OK;
}

HL_CHECK static hl_status plan_state(struct collector *c)
{
    struct hl_megatron_source *s = c->s;
    const struct hl_partition_plan *ranks = &s->whole.ranks;
    HL_AUTO(hl_freep)
    struct hl_reshard_state_part *parts = calloc(ranks->shard_count + 1, sizeof(*parts));
    size_t n = 0;
    c->tensors =
        hl_arena_array(&c->arena, ranks->tensor_count * c->kinds->count + 1, sizeof(*c->tensors));
    if (parts == NULL || c->tensors == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors of state",
                       ranks->tensor_count * c->kinds->count);
    for (size_t i = 0; i < ranks->shard_count; i++) {
        HL_TRY(collect_part(c, &ranks->shards[i], &parts[n]));
        n += parts[n].count > 0;
    }
    return hl_reshard_state(s->whole.logical.tensors, ranks, &s->target, parts, n, &s->state);
}

hl_status hl_megatron_plan_state(struct hl_megatron_source *s,
                                 const struct hl_megatron_kinds *kinds, hl_megatron_state_fn find,
                                 void *arg)
{
    struct collector c = {.s = s, .kinds = kinds, .find = find, .arg = arg};
    hl_status st = kinds->count > 0
                       ? plan_state(&c)
                       : hl_fail(HL_ENOENT, "the checkpoint has no optimizer state: import it "
                                            "without --optimizer");
    hl_arena_fini(&c.arena);
    return st;
}

/* ---- what is no tensor ----------------------------------------------------------------------- */

/* Describes one optimizer, without its tensors. */
HL_CHECK static hl_status describe_one(struct hl_megatron_source *s, json_t *list,
                                       const struct hl_pickle_value *v)
{
    const struct hl_pickle_value *inner = hl_pickle_find(v, "optimizer");
    inner = inner != NULL ? inner : v;
    json_t *groups = hl_pickle_json(hl_pickle_find(inner, "param_groups"));
    json_t *group;
    size_t i;
    json_array_foreach (groups, i, group)
        json_object_del(group, "params");
    const struct hl_pickle_value *step =
        hl_pickle_find(hl_pickle_find(inner, "state"), "common_step");
    json_t *one = json_pack("{s:o*,s:o*}", "param_groups", groups, "step", hl_pickle_json(step));
    if (one == NULL || json_array_append_new(list, one) != 0)
        return hl_fail(HL_ENOMEM, "a description of the optimizer");
    if (hl_pickle_find(v, "grad_scaler") == NULL)
        return HL_OK;
    return hl_megatron_leave_out(s, json_string("the gradient scaler"));
}

/* Several optimizers are a list, or a dict with their numbers as keys. */
HL_CHECK static hl_status describe_each(struct hl_megatron_source *s, json_t *list,
                                        const struct hl_pickle_value *v)
{
    const struct hl_pickle_items *items = hl_pickle_sequence(v), *pairs = hl_pickle_pairs(v);
    bool numbered = pairs != NULL && pairs->count > 0 && pairs->at[0]->kind == HL_PICKLE_INT;
    for (uint32_t i = 0; items != NULL && i < items->count; i++)
        HL_TRY(describe_one(s, list, items->at[i]));
    for (uint32_t i = 1; numbered && i < pairs->count; i += 2)
        HL_TRY(describe_one(s, list, pairs->at[i]));
    return items == NULL && pairs != NULL && !numbered ? describe_one(s, list, v) : HL_OK;
}

hl_status hl_megatron_describe_optimizer(struct hl_megatron_source *s,
                                         const struct hl_pickle_value *root)
{
    json_t *list = json_array();
    json_t *scheduler = hl_pickle_json(hl_pickle_find(root, "opt_param_scheduler"));
    json_t *own = json_pack("{s:I,s:o,s:o*}", "iteration", (json_int_t)s->iteration, "optimizers",
                            list, "opt_param_scheduler", scheduler);
    if (own == NULL || json_object_set_new(s->meta, "megatron", own) != 0)
        return hl_fail(HL_ENOMEM, "a description of the optimizer");
    return describe_each(s, list, hl_pickle_find(root, "optimizer"));
}

/* ---- the import's plan ----------------------------------------------------------------------- */

/* Appends the shards of the state to the plan's own. Their tensors have no operations here: they
 * are in `moves` of the source. */
hl_status hl_megatron_add_state(const struct hl_megatron_source *s, struct hl_partition_plan *plan)
{
    const struct hl_partition_plan *more = &s->state.b;
    size_t shards = plan->shard_count + more->shard_count;
    size_t tensors = plan->tensor_count + more->tensor_count;
    struct hl_partition_shard *list = realloc(plan->shards, (shards + 1) * sizeof(*list));
    plan->shards = list != NULL ? list : plan->shards;
    struct hl_tensor *names = realloc(plan->tensors, (tensors + 1) * sizeof(*names));
    plan->tensors = names != NULL ? names : plan->tensors;
    uint32_t *ops = realloc(plan->op_first, (tensors + 1) * sizeof(*ops));
    plan->op_first = ops != NULL ? ops : plan->op_first;
    if (list == NULL || names == NULL || ops == NULL)
        return hl_fail(HL_ENOMEM, "a plan of %zu tensors", tensors);
    for (size_t i = 0; i < more->shard_count; i++) {
        list[plan->shard_count + i] = more->shards[i];
        list[plan->shard_count + i].tensor_first += (uint32_t)plan->tensor_count;
    }
    for (size_t i = 0; i < more->tensor_count; i++) {
        names[plan->tensor_count + i] = more->tensors[i];
        ops[plan->tensor_count + i + 1] = (uint32_t)plan->op_count;
    }
    plan->shard_count = shards;
    plan->tensor_count = tensors;
    plan->data_bytes += more->data_bytes;
    return HL_OK;
}
