/* Assigns the optimizer's numbers to parameters in one pass over the parameters: each takes the
 * next number of the group that fits its kind and shape. At the end no number may be left. */
#include "core/torch/megatron_optimizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/torch/tensors.h"

#define GROUPS_MAX  64
#define NUMBERS_MAX ((size_t)1 << 20)
#define KINDS_MAX   16
#define MAIN        "fp32_param"

/* An optimizer's state, indexed by the number of the parameter; NULL = none. */
struct states {
    const struct hl_pickle_value **at;
    size_t count;
};

/* A parameter group of one optimizer. */
struct group {
    int optimizer;
    const struct states *states; /* of its optimizer */
    const struct hl_pickle_items *numbers;
    const struct hl_pickle_items *main; /* the FP32 copies; NULL = none */
    uint32_t next, next_main;
    bool has_kind, experts; /* is_expert_parallel */
};

struct reader {
    struct group groups[GROUPS_MAX];
    size_t group_count;
    struct hl_arena *arena;
    struct hl_megatron_optimizer *out;
    size_t cap;
};

static bool is_none(const struct hl_pickle_value *v)
{
    return v == NULL || v->kind == HL_PICKLE_NONE;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Converts the dictionary {number: state} to an array. */
HL_CHECK static hl_status read_states(struct reader *r, const struct hl_pickle_items *pairs,
                                      struct states **out)
{
    struct states *s = hl_arena_alloc(r->arena, sizeof(*s));
    size_t count = 0;
    for (uint32_t i = 0; i + 1 < pairs->count; i += 2) {
        const struct hl_pickle_value *key = pairs->at[i];
        if (key->kind == HL_PICKLE_INT && key->integer >= (int64_t)count)
            count = (size_t)key->integer + 1;
    }
    if (count > NUMBERS_MAX)
        return hl_fail(HL_EUNSUPPORTED,
                       "the optimizer numbers a parameter %zu; at most %zu are allowed", count - 1,
                       NUMBERS_MAX - 1);
    const struct hl_pickle_value **at = hl_arena_array(r->arena, count + 1, sizeof(*at));
    if (s == NULL || at == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu numbers", count);
    for (uint32_t i = 0; i + 1 < pairs->count; i += 2)
        if (pairs->at[i]->kind == HL_PICKLE_INT && pairs->at[i]->integer >= 0)
            at[pairs->at[i]->integer] = pairs->at[i + 1];
    *s = (struct states){at, count};
    *out = s;
    return HL_OK;
}

HL_CHECK static hl_status read_group(struct reader *r, const struct hl_pickle_value *v,
                                     const struct states *states,
                                     const struct hl_pickle_value *main, int optimizer)
{
    const struct hl_pickle_value *kind = hl_pickle_find(v, "is_expert_parallel");
    struct group g = {.optimizer = optimizer,
                      .states = states,
                      .numbers = hl_pickle_sequence(hl_pickle_find(v, "params")),
                      .main = hl_pickle_sequence(main)};
    if (g.numbers == NULL)
        return hl_fail(HL_EINVAL, "a group of the optimizer has no 'params'");
    if (r->group_count == GROUPS_MAX)
        return hl_fail(HL_EUNSUPPORTED, "the optimizer has more than %d groups", GROUPS_MAX);
    g.has_kind = kind != NULL && kind->kind == HL_PICKLE_BOOL;
    g.experts = g.has_kind && kind->integer != 0;
    r->groups[r->group_count++] = g;
    return HL_OK;
}

/* Reads one optimizer: what torch's state_dict() returned. With mixed precision that is the member
 * 'optimizer', and the FP32 copies are beside it. */
HL_CHECK static hl_status read_optimizer(struct reader *r, const struct hl_pickle_value *v,
                                         int number)
{
    char what[256];
    const struct hl_pickle_value *inner = hl_pickle_find(v, "optimizer");
    const struct hl_pickle_value *main = hl_pickle_find(v, "fp32_from_fp16_params");
    main = is_none(main) ? hl_pickle_find(v, "fp32_from_fp16") : main;
    inner = is_none(inner) ? v : inner;
    const struct hl_pickle_items *state = hl_pickle_pairs(hl_pickle_find(inner, "state"));
    struct states *states = NULL;
    const struct hl_pickle_items *groups =
        hl_pickle_sequence(hl_pickle_find(inner, "param_groups"));
    const struct hl_pickle_items *mains = hl_pickle_sequence(main);
    if (groups == NULL)
        return hl_fail(HL_EINVAL, "the optimizer is %s without 'param_groups'",
                       hl_pickle_what(v, what, sizeof(what)));
    if (state == NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "it has the optimizer's groups but no state: a distributed optimizer wrote "
                       "that to distrib_optim.pt, in the order of its buffers; save as torch_dist "
                       "with --dist-ckpt-optim-fully-reshardable, or without "
                       "--use-distributed-optimizer, or import it without --optimizer");
    if (!is_none(main) && (mains == NULL || mains->count != groups->count))
        return hl_fail(HL_EINVAL,
                       "the optimizer has %u groups, and FP32 copies of another number of them",
                       groups->count);
    HL_TRY(read_states(r, state, &states));
    for (uint32_t i = 0; i < groups->count; i++)
        HL_TRY(read_group(r, groups->at[i], states, mains != NULL ? mains->at[i] : NULL, number));
    return HL_OK;
}

/* Reads one optimizer, or a list of several: for experts, or for parts of the model. */
HL_CHECK static hl_status read_optimizers(struct reader *r, const struct hl_pickle_value *root)
{
    const struct hl_pickle_value *v = hl_pickle_find(root, "optimizer");
    const struct hl_pickle_items *list = hl_pickle_sequence(v);
    if (is_none(v))
        return hl_fail(HL_ENOENT, "it has no 'optimizer': the checkpoint was saved with "
                                  "--no-save-optim, or is a release; import it without "
                                  "--optimizer");
    if (list == NULL)
        return read_optimizer(r, v, 0);
    for (uint32_t i = 0; i < list->count; i++)
        HL_TRY(read_optimizer(r, list->at[i], (int)i));
    return HL_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Reads the shape of a tensor. *is = false: the value is not a tensor. */
HL_CHECK static hl_status read_shape(const struct hl_pickle_value *v, bool *is,
                                     struct hl_tensor *out)
{
    char what[256];
    const char *class_name = hl_pickle_class(v);
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors list = {0};
    *is = false;
    if (v->kind != HL_PICKLE_OBJECT || class_name == NULL || strstr(class_name, "_rebuild") == NULL)
        return HL_OK;
    HL_TRY(hl_torch_tensors_add(&list, v, &(struct hl_torch_walk){.prefix = "state"}));
    if (list.count != 1)
        return hl_fail(HL_EUNSUPPORTED, "the optimizer's state holds %s, which is not a tensor",
                       hl_pickle_what(v, what, sizeof(what)));
    *is = true;
    *out = list.list[0].tensor;
    out->name = NULL;
    return HL_OK;
}

/* The state of the group's next number; NULL = none. */
static const struct hl_pickle_items *next_values(const struct group *g)
{
    const struct hl_pickle_value *number =
        g->next < g->numbers->count ? g->numbers->at[g->next] : NULL;
    if (number == NULL || number->kind != HL_PICKLE_INT || number->integer < 0 ||
        (uint64_t)number->integer >= g->states->count)
        return NULL;
    const struct hl_pickle_items *values = hl_pickle_pairs(g->states->at[number->integer]);
    return values != NULL && values->count <= 2 * KINDS_MAX ? values : NULL;
}

static bool same_shape(const struct hl_tensor *a, const struct hl_tensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0;
}

/* *fits: a state tensor of the group's next number has the parameter's shape. The step does not
 * count. */
HL_CHECK static hl_status fits_shape(const struct group *g, const struct hl_tensor *param,
                                     bool *fits)
{
    const struct hl_pickle_items *values = next_values(g);
    *fits = false;
    for (uint32_t i = 0; values != NULL && i + 1 < values->count && !*fits; i += 2) {
        struct hl_tensor t = {0};
        bool is = false;
        if (!hl_pickle_text_is(values->at[i], "step"))
            HL_TRY(read_shape(values->at[i + 1], &is, &t));
        *fits = is && same_shape(&t, param);
    }
    return HL_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static bool fits_kind(const struct group *g, const struct hl_tensor *param)
{
    return !g->has_kind || !g->experts || strstr(param->name, ".mlp.experts.") != NULL;
}

/* If all experts are on one rank, the optimizer treats them as dense parameters, so they can be in
 * either kind of group. If there is a group of experts, they are in that. */
static bool is_other_kind(const struct reader *r, const struct group *g,
                          const struct hl_tensor *param)
{
    bool any = false;
    for (size_t i = 0; i < r->group_count; i++)
        any = any || (r->groups[i].experts && r->groups[i].numbers->count > 0);
    return any && !g->experts && strstr(param->name, ".mlp.experts.") != NULL;
}

/* Finds the parameter's group by kind and shape. A custom rule for weight decay or learning rates
 * can make groups that shapes don't distinguish; the file is then refused. */
HL_CHECK static hl_status find_group(struct reader *r, const struct hl_tensor *param,
                                     struct group **out)
{
    struct group *found[GROUPS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < r->group_count; i++) {
        bool fits = false;
        struct group *g = &r->groups[i];
        if (fits_kind(g, param) && !is_other_kind(r, g, param))
            HL_TRY(fits_shape(g, param, &fits));
        if (fits)
            found[count++] = g;
    }
    /* Groups of other optimizers belong to later parts of the model: the first match is right. */
    if (count == 0 || (count > 1 && found[0]->optimizer == found[1]->optimizer))
        return hl_fail(HL_EINVAL,
                       "%s of the optimizer fit%s parameter '%s' by number and shape: import it "
                       "without --optimizer, or save it as torch_dist",
                       count == 0 ? "no group" : "several groups", count == 0 ? "s" : "",
                       param->name);
    *out = found[0];
    return HL_OK;
}

HL_CHECK static hl_status push_state(struct reader *r, uint32_t param, const char *kind,
                                     const struct hl_pickle_value *tensor)
{
    struct hl_megatron_optimizer *o = r->out;
    if (o->count == r->cap)
        return hl_fail(HL_EUNSUPPORTED, "more than %d tensors of state of a parameter", KINDS_MAX);
    o->states[o->count++] =
        (struct hl_megatron_state){.param = param, .kind = kind, .tensor = tensor};
    return HL_OK;
}

/* Takes the group's next FP32 copy for the parameter. FP32 parameters have no copy. */
HL_CHECK static hl_status take_main(struct reader *r, struct group *g,
                                    const struct hl_tensor *param, uint32_t index)
{
    struct hl_tensor t = {0};
    bool is = false;
    if (g->main == NULL || param->dtype == HL_DTYPE_F32)
        return HL_OK;
    if (g->next_main < g->main->count)
        HL_TRY(read_shape(g->main->at[g->next_main], &is, &t));
    if (!is || !same_shape(&t, param))
        return hl_fail(HL_EINVAL, "the FP32 copy of parameter '%s' is missing", param->name);
    return push_state(r, index, MAIN, g->main->at[g->next_main++]);
}

HL_CHECK static hl_status take_state(struct reader *r, const struct hl_tensor *params,
                                     uint32_t index)
{
    struct group *g = NULL;
    const struct hl_tensor *param = &params[index];
    HL_TRY(find_group(r, param, &g));
    const struct hl_pickle_items *values = next_values(g);
    for (uint32_t i = 0; i + 1 < values->count; i += 2) {
        struct hl_tensor t = {0};
        bool is = false;
        const struct hl_pickle_value *key = values->at[i];
        if (key->kind != HL_PICKLE_TEXT)
            continue;
        HL_TRY(read_shape(values->at[i + 1], &is, &t));
        if (is && hl_pickle_text_is(key, "step")) /* the same for all parameters */
            r->out->step = values->at[i + 1];
        if (!is || hl_pickle_text_is(key, "step"))
            continue;
        const char *kind = hl_arena_text(r->arena, key->text.data, key->text.len);
        if (kind == NULL)
            return hl_fail(HL_ENOMEM, "the name of a kind of state");
        if (!same_shape(&t, param))
            return hl_fail(HL_EINVAL, "the optimizer's '%s' of parameter '%s' has another shape",
                           kind, param->name);
        HL_TRY(push_state(r, index, kind, values->at[i + 1]));
    }
    g->next++;
    return take_main(r, g, param, index);
}

static bool is_trained(const struct hl_tensor *param)
{
    return strstr(param->name, "_extra_state") == NULL &&
           strstr(param->name, "expert_bias") == NULL &&
           strstr(param->name, "tokens_per_expert") == NULL &&
           strstr(param->name, "rotary_pos_emb.") == NULL;
}

/* Checks that every number was assigned to a parameter. */
HL_CHECK static hl_status check_taken(const struct reader *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        const struct group *g = &r->groups[i];
        if (g->next < g->numbers->count || (g->main != NULL && g->next_main < g->main->count))
            return hl_fail(HL_EINVAL,
                           "group %zu of the optimizer has %u parameters, but only %u of them are "
                           "tensors of the model",
                           i, g->numbers->count, g->next);
    }
    return HL_OK;
}

hl_status hl_megatron_optimizer_read(const struct hl_pickle_value *root,
                                     const struct hl_tensor *params, size_t param_count,
                                     struct hl_arena *arena, struct hl_megatron_optimizer *out)
{
    struct hl_megatron_optimizer made = {0};
    struct reader r = {.arena = arena, .out = &made};
    if (param_count > NUMBERS_MAX)
        return hl_fail(HL_EUNSUPPORTED, "more than %zu parameters", NUMBERS_MAX);
    r.cap = param_count * KINDS_MAX;
    made.states = hl_arena_array(arena, r.cap + 1, sizeof(*made.states));
    if (made.states == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors of state", r.cap);
    HL_TRY(read_optimizers(&r, root));
    for (uint32_t i = 0; i < param_count; i++)
        if (is_trained(&params[i]))
            HL_TRY(take_state(&r, params, i));
    HL_TRY(check_taken(&r));
    *out = made;
    return HL_OK;
}
