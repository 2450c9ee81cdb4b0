#include "core/catalog/expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_cut.h"
#include "core/catalog/catalog_private.h"
#include "core/model/part.h"
#include "core/model/view.h"

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
}

/* ---- the same split -------------------------------------------------------------------------- */

hl_status hl_expected_same(const struct hl_version_rec *base, struct hl_expected *e)
{
    e->list = hl_arena_array(&e->arena, base->shard_count + 1, sizeof(*e->list));
    for (size_t i = 0; e->list != NULL && i < base->shard_count; i++) {
        const struct hl_shard_rec *s = base->shards[i];
        if (hl_part_has_parameters(s->part))
            e->list[e->count++] =
                (struct hl_expected_part){s->pp, s->tp, s->ep, s->part, s->layout, s->tensors};
    }
    return hl_arena_failed(&e->arena) ? fail_memory() : HL_OK;
}

/* ---- another one ----------------------------------------------------------------------------- */

struct stored_parts {
    struct hl_stored_part *list;
    size_t count;
};

static hl_status stored_own(struct hl_expected *e, struct stored_parts *out)
{
    const struct hl_version_rec *base = e->copy;
    out->list = hl_arena_array(&e->arena, base->shard_count + 1, sizeof(*out->list));
    for (size_t i = 0; out->list != NULL && i < base->shard_count; i++) {
        const struct hl_shard_rec *s = base->shards[i];
        if (hl_part_has_parameters(s->part))
            out->list[out->count++] =
                (struct hl_stored_part){s->pp, s->tp, s->part, s->layout, s->ep, s->tensor_crcs};
    }
    return HL_OK;
}

static hl_status stored_of_plan(const struct hl_partition_plan *plan, struct hl_expected *e,
                                struct stored_parts *out)
{
    out->list = hl_arena_array(&e->arena, plan->shard_count, sizeof(*out->list));
    for (size_t i = 0; out->list != NULL && i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        HL_AUTO(hl_freep) char *layout = NULL;
        HL_TRY(hl_layout_text(&plan->tensors[s->tensor_first], s->tensor_count, &layout));
        out->list[out->count++] = (struct hl_stored_part){
            s->pp, s->tp, hl_arena_strdup(&e->arena, s->part), hl_arena_strdup(&e->arena, layout),
            s->ep, NULL};
    }
    return HL_OK;
}

/* The parts as a cut for that tensor parallel size would have them. */
static hl_status stored_cut(struct hl_expected *e, struct stored_parts *out)
{
    struct hl_whole w;
    HL_TRY(hl_version_plan_cut(e->copy, &e->split, &w));
    hl_status st = stored_of_plan(&w.whole, e, out);
    hl_whole_fini(&w);
    return st;
}

/* Parts without experts are read by the ranks of every ep, and parts with experts by ranks of
 * several tp. Each part is expected only once. */
static bool is_its_own(const struct hl_view_want *w, const char *part)
{
    int etp = w->split->etp > 0 ? w->split->etp : w->split->tp;
    return hl_part_has_experts(part) ? w->tp < etp : w->ep == 0;
}

static hl_status expect_position(const struct stored_parts *stored, const struct hl_view_want *want,
                                 struct hl_expected *e)
{
    struct hl_view view;
    struct hl_view_layout *parts;
    size_t n;
    HL_TRY(hl_view_position(stored->list, stored->count, want, &e->arena, &view));
    HL_TRY(hl_view_layouts(stored->list, &view, &e->arena, &parts, &n));
    for (size_t i = 0; i < n; i++) {
        if (!is_its_own(want, parts[i].part))
            continue;
        e->list = hl_arena_grow(&e->arena, e->list, e->count, sizeof(*e->list));
        if (e->list == NULL)
            return fail_memory();
        e->list[e->count++] = (struct hl_expected_part){
            want->pp,      want->tp,        want->ep,
            parts[i].part, parts[i].layout, (uint32_t)hl_layout_count(parts[i].layout)};
    }
    return HL_OK;
}

static hl_status expect_other(struct hl_expected *e)
{
    const struct hl_model_shape *shape = &e->copy->model->shape;
    const struct hl_partition_options options = hl_split_options(&e->split);
    struct stored_parts stored = {0};
    if (hl_split_same_cut(&e->copy->split, &e->split))
        HL_TRY(stored_own(e, &stored));
    else
        HL_TRY(stored_cut(e, &stored));
    if (hl_arena_failed(&e->arena))
        return fail_memory();
    int ep_size = hl_split_ep(&e->split), positions = e->split.pp * e->split.tp * ep_size;
    for (int i = 0; i < positions; i++) {
        const struct hl_view_want want = {.split = &options,
                                          .layers = shape->layers,
                                          .tied = shape->tied,
                                          .pp = i / ep_size / e->split.tp,
                                          .tp = i / ep_size % e->split.tp,
                                          .ep = i % ep_size};
        HL_TRY(expect_position(&stored, &want, e));
    }
    return HL_OK;
}

static hl_status expect_parts(struct hl_expected *e)
{
    char has[HL_SPLIT_TEXT_MAX], wants[HL_SPLIT_TEXT_MAX];
    const struct hl_api_split *own = &e->copy->split;
    if (e->copy->model->shape.layers == 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "it is split %s and the version %s, and the model's config does not say "
                       "how they compare; save with the model's split",
                       hl_split_text(own, has), hl_split_text(&e->split, wants));
    HL_TRY(expect_other(e));
    return hl_arena_failed(&e->arena) ? fail_memory() : HL_OK;
}

/* ---- the calls ------------------------------------------------------------------------------- */

hl_status hl_expected_new(const struct hl_version_rec *base, const struct hl_api_split *split,
                          struct hl_expected **out)
{
    struct hl_expected *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return fail_memory();
    snprintf(e->model, sizeof(e->model), "%s", base->model->name);
    e->base = base->number;
    e->split = *split;
    hl_status st = hl_version_copy_for_cut(base, &e->arena, &e->copy);
    if (st != HL_OK) {
        hl_expected_free(e);
        return st;
    }
    *out = e;
    return HL_OK;
}

void hl_expected_plan(struct hl_expected *e)
{
    e->st = expect_parts(e);
    if (e->st != HL_OK)
        snprintf(e->why, sizeof(e->why), "%s", hl_error_text());
}

void hl_expected_free(struct hl_expected *e)
{
    if (e != NULL)
        hl_arena_fini(&e->arena);
    free(e);
}

bool hl_expected_serves(const struct hl_expected *e, const struct hl_version_rec *v,
                        const struct hl_version_rec *base)
{
    const struct hl_api_split split = hl_version_split(v);
    return e->base == base->number && strcmp(e->model, v->model->name) == 0 &&
           hl_split_equal(&e->split, &split);
}

static int part_order(const void *key, const void *element)
{
    const struct hl_expected_part *p = element;
    return hl_part_at_order(key, &(struct hl_part_at){p->pp, p->tp, p->ep, p->part});
}

const struct hl_expected_part *hl_expected_find(const struct hl_expected *e, struct hl_part_at at)
{
    return e->count > 0 ? bsearch(&at, e->list, e->count, sizeof(*e->list), part_order) : NULL;
}
