/* What a new version has to have in common with its model: the same parameters at every position
 * (pp, tp, ep) of its own split, unless the version was opened with another layout check. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog_cut.h"
#include "core/catalog_private.h"
#include "core/part.h"
#include "core/view.h"

bool hl_part_has_parameters(const char *part)
{
    return hl_part_of(part).kind == HL_PART_MODEL;
}

/* The version whose layout is the model's; NULL when nothing is visible. */
static hl_status oldest_visible(const struct hl_model_rec *m, const struct hl_version_rec **out)
{
    bool visible = false;
    *out = NULL;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        visible |= v->state == HL_API_VERSION_STATE_VISIBLE;
        if (v->state == HL_API_VERSION_STATE_VISIBLE && hl_version_has_all_records(v))
            *out = v;
    }
    if (visible && *out == NULL)
        return hl_fail(HL_ECORRUPT,
                       "every version of '%s' has damaged records: there is no layout to compare "
                       "with; restore the Controller's store from a backup, or save with "
                       "strict=False",
                       m->name);
    return HL_OK;
}

/* ---- what a version has to hold -------------------------------------------------------------- */

struct expected_part {
    int pp, tp, ep;
    const char *part;
    const char *layout; /* NULL = stored by an earlier release */
    uint32_t tensors;
};

/* The parameters of the oldest visible version, as the split of the new one sees them, sorted by
 * place. */
struct expected {
    struct hl_arena arena;
    struct expected_part *list;
    size_t count;
};

static struct hl_part_at place_of(const struct hl_shard_rec *s)
{
    return (struct hl_part_at){s->pp, s->tp, s->ep, s->part};
}

#define EP_TEXT_MAX 24

/* ", ep 2" of a part of experts, "" of others. */
static const char *ep_text(const char *part, int ep, char buf[EP_TEXT_MAX])
{
    if (!hl_part_has_experts(part))
        return "";
    snprintf(buf, EP_TEXT_MAX, ", ep %d", ep);
    return buf;
}

static int shard_order(const void *key, const void *element)
{
    const struct hl_part_at p = place_of(*(struct hl_shard_rec *const *)element);
    return hl_part_at_order(key, &p);
}

static int expected_order(const void *key, const void *element)
{
    const struct expected_part *e = element;
    return hl_part_at_order(key, &(struct hl_part_at){e->pp, e->tp, e->ep, e->part});
}

static const struct expected_part *find_expected(const struct expected *e, struct hl_part_at p)
{
    return e->count > 0 ? bsearch(&p, e->list, e->count, sizeof(*e->list), expected_order) : NULL;
}

/* The version's shards are in the order that hl_version_link() leaves. */
static const struct hl_shard_rec *find_linked(const struct hl_version_rec *v, struct hl_part_at p)
{
    if (v->shard_count == 0)
        return NULL;
    struct hl_shard_rec **found =
        bsearch(&p, v->shards, v->shard_count, sizeof(*v->shards), shard_order);
    return found != NULL ? *found : NULL;
}

static const struct hl_shard_rec *find_listed(struct hl_shard_rec *const *list, size_t n,
                                              struct hl_part_at p)
{
    for (size_t i = 0; i < n; i++)
        if (shard_order(&p, &list[i]) == 0)
            return list[i];
    return NULL;
}

static bool position_listed(struct hl_shard_rec *const *list, size_t n, int pp, int tp, int ep)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->pp == pp && list[i]->tp == tp && list[i]->ep == ep)
            return true;
    return false;
}

/* The version is split as the model: its shards are those that are expected. */
static void expect_same(const struct hl_version_rec *base, struct expected *e)
{
    e->list = hl_arena_array(&e->arena, base->shard_count, sizeof(*e->list));
    for (size_t i = 0; e->list != NULL && i < base->shard_count; i++) {
        const struct hl_shard_rec *s = base->shards[i];
        if (hl_part_has_parameters(s->part))
            e->list[e->count++] =
                (struct expected_part){s->pp, s->tp, s->ep, s->part, s->layout, s->tensors};
    }
}

/* Ranks of every ep read the parts without experts, and ranks of several tp those with them: each
 * is expected once. */
static bool is_its_own(const struct hl_view_want *w, const char *part)
{
    int etp = w->split->etp > 0 ? w->split->etp : w->split->tp;
    return hl_part_has_experts(part) ? w->tp < etp : w->ep == 0;
}

static hl_status expect_position(const struct hl_stored_part *stored, size_t count,
                                 const struct hl_view_want *want, struct expected *e)
{
    struct hl_view view;
    struct hl_view_layout *parts;
    size_t n;
    HL_TRY(hl_view_position(stored, count, want, &e->arena, &view));
    HL_TRY(hl_view_layouts(stored, &view, &e->arena, &parts, &n));
    struct expected_part *list = hl_arena_array(&e->arena, e->count + n, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
    if (e->count > 0)
        memcpy(list, e->list, e->count * sizeof(*list));
    for (size_t i = 0; i < n; i++)
        if (is_its_own(want, parts[i].part))
            list[e->count++] = (struct expected_part){
                want->pp,      want->tp,        want->ep,
                parts[i].part, parts[i].layout, (uint32_t)hl_layout_count(parts[i].layout)};
    e->list = list;
    return HL_OK;
}

struct stored_parts {
    struct hl_stored_part *list;
    size_t count;
};

static hl_status stored_own(const struct hl_version_rec *base, struct expected *e,
                            struct stored_parts *out)
{
    out->list = hl_arena_array(&e->arena, base->shard_count, sizeof(*out->list));
    if (out->list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
    for (size_t i = 0; i < base->shard_count; i++) {
        const struct hl_shard_rec *s = base->shards[i];
        if (hl_part_has_parameters(s->part))
            out->list[out->count++] =
                (struct hl_stored_part){s->pp, s->tp, s->part, s->layout, s->ep, s->tensor_crcs};
    }
    return HL_OK;
}

static hl_status stored_of_plan(const struct hl_partition_plan *plan, struct expected *e,
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
    if (hl_arena_failed(&e->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
    return HL_OK;
}

/* As they would be cut for that tensor parallel size. */
static hl_status stored_cut(const struct hl_version_rec *base, const struct hl_api_split *split,
                            struct expected *e, struct stored_parts *out)
{
    struct hl_whole w;
    HL_TRY(hl_version_plan_cut(base, split, &w));
    hl_status st = stored_of_plan(&w.whole, e, out);
    hl_whole_fini(&w);
    return st;
}

/* Only the positions in the list, or all of them. */
static hl_status expect_other(const struct hl_version_rec *base, const struct hl_api_split *split,
                              struct hl_shard_rec *const *list, size_t n, bool all,
                              struct expected *e)
{
    const struct hl_model_shape *shape = &base->model->shape;
    const struct hl_partition_options options = hl_split_options(split);
    const struct hl_api_split own = hl_version_split(base);
    struct stored_parts stored = {0};
    if (hl_split_same_cut(&own, split))
        HL_TRY(stored_own(base, e, &stored));
    else
        HL_TRY(stored_cut(base, split, e, &stored));
    int ep_size = hl_split_ep(split), positions = split->pp * split->tp * ep_size;
    for (int i = 0; i < positions; i++) {
        const struct hl_view_want want = {.split = &options,
                                          .layers = shape->layers,
                                          .tied = shape->tied,
                                          .pp = i / ep_size / split->tp,
                                          .tp = i / ep_size % split->tp,
                                          .ep = i % ep_size};
        if (all || position_listed(list, n, want.pp, want.tp, want.ep))
            HL_TRY(expect_position(stored.list, stored.count, &want, e));
    }
    return HL_OK;
}

static hl_status expect_parts(const struct hl_version_rec *base, const struct hl_version_rec *v,
                              struct hl_shard_rec *const *list, size_t n, bool all,
                              struct expected *e)
{
    char has[HL_SPLIT_TEXT_MAX], wants[HL_SPLIT_TEXT_MAX];
    const struct hl_api_split old = hl_version_split(base), split = hl_version_split(v);
    if (hl_split_equal(&old, &split))
        expect_same(base, e);
    else if (base->model->shape.layers > 0)
        HL_TRY(expect_other(base, &split, list, n, all, e));
    else
        return hl_fail(HL_EUNSUPPORTED,
                       "it is split %s and the version %s, and the model's config does not say "
                       "how they compare; save with the model's split",
                       hl_split_text(&old, has), hl_split_text(&split, wants));
    if (hl_arena_failed(&e->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
    return HL_OK;
}

/* ---- what it holds --------------------------------------------------------------------------- */

static hl_status compare_part(const struct expected_part *want, const struct hl_shard_rec *got,
                              enum hl_api_layout_check check)
{
    if (want->layout != NULL && got->layout != NULL)
        return hl_layout_compare(want->layout, got->layout, check);
    if (want->tensors == got->tensors)
        return HL_OK;
    return hl_fail(HL_EINVAL, "it has %u tensors, expected %u", got->tensors, want->tensors);
}

static hl_status check_shard(const struct expected *e, const struct hl_shard_rec *s,
                             enum hl_api_layout_check check)
{
    struct hl_part part = hl_part_of(s->part);
    if (part.kind == HL_PART_EXTRA)
        return HL_OK;
    const struct expected_part *want =
        find_expected(e, (struct hl_part_at){s->pp, s->tp, s->ep, part.of});
    if (want == NULL)
        return hl_fail(HL_EINVAL,
                       "the model has no such part at this position, where '%.*s' is the first of "
                       "%u tensors",
                       s->layout != NULL ? (int)strcspn(s->layout, "\t") : 1,
                       s->layout != NULL ? s->layout : "?", s->tensors);
    if (part.kind == HL_PART_MODEL)
        return compare_part(want, s, check);
    if (want->layout == NULL || s->layout == NULL)
        return HL_OK;
    return hl_layout_names_parameters(want->layout, s->layout);
}

/* The rank writes parameters of this position, of experts or of the rest. */
static bool writes_position(struct hl_shard_rec *const *list, size_t n, struct hl_part_at p)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->pp == p.pp && list[i]->tp == p.tp && list[i]->ep == p.ep &&
            hl_part_has_experts(list[i]->part) == hl_part_has_experts(p.part) &&
            hl_part_has_parameters(list[i]->part))
            return true;
    return false;
}

/* A rank writes all experts of a position, or all other parameters, or both; all ranks together
 * those of every position. An adapter's import has parts without tensors, which no save has. */
static hl_status check_whole(const struct expected *e, const struct hl_version_rec *v,
                             struct hl_shard_rec *const *list, size_t n, bool last)
{
    for (size_t i = 0; i < e->count; i++) {
        const struct expected_part *want = &e->list[i];
        const struct hl_part_at place = {want->pp, want->tp, want->ep, want->part};
        if (want->tensors == 0 || (!last && !writes_position(list, n, place)) ||
            find_listed(list, n, place) != NULL || find_linked(v, place) != NULL)
            continue;
        char ep[EP_TEXT_MAX];
        const char *first = want->layout != NULL ? want->layout : "";
        return hl_fail(HL_EINVAL,
                       "part %s at pp %d, tp %d%s is missing, with %u tensors such as '%.*s'",
                       want->part, want->pp, want->tp, ep_text(want->part, want->ep, ep),
                       want->tensors, (int)strcspn(first, "\t"), first);
    }
    return HL_OK;
}

static hl_status fail_layout(const struct hl_version_rec *v, const struct hl_version_rec *base)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    return hl_fail(HL_EINVAL,
                   "version %" PRId64 " does not match the layout of %s@%" PRId64
                   ": %s; if that is meant, save with strict=False (any_dtype=True for other "
                   "dtypes only)",
                   v->number, v->model->name, base->number, why);
}

static hl_status check_twice(const struct hl_version_rec *v, struct hl_shard_rec *const *list,
                             size_t n)
{
    char ep[EP_TEXT_MAX];
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        const struct hl_shard_rec *other = find_linked(v, place_of(s));
        if (other == NULL)
            other = find_listed(list, i, place_of(s));
        if (other != NULL)
            return hl_fail(HL_ECONFLICT,
                           "part %s at pp %d, tp %d%s of version %" PRId64
                           " was committed already, by rank %d",
                           s->part, s->pp, s->tp, ep_text(s->part, s->ep, ep), v->number,
                           other->rank);
    }
    return HL_OK;
}

static hl_status check_against(const struct hl_version_rec *base, const struct hl_version_rec *v,
                               struct hl_shard_rec *const *list, size_t n, bool last,
                               struct expected *e)
{
    char ep[EP_TEXT_MAX];
    HL_TRY(expect_parts(base, v, list, n, last, e));
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        hl_status st = check_shard(e, s, v->check);
        if (st != HL_OK)
            return hl_fail_prefix(st, "part %s at pp %d, tp %d%s: ", s->part, s->pp, s->tp,
                                  ep_text(s->part, s->ep, ep));
    }
    return check_whole(e, v, list, n, last);
}

static bool holds_tensors(struct hl_shard_rec *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->tensors > 0)
            return true;
    return false;
}

/* No rank has saved anything: it would be read as a model without tensors. */
static hl_status check_holds(const struct hl_version_rec *v, struct hl_shard_rec *const *list,
                             size_t n)
{
    if (holds_tensors(v->shards, v->shard_count) || holds_tensors(list, n))
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "version %" PRId64 " of '%s' would be empty: none of its %d ranks has saved a "
                   "tensor; pass the model's tensors as the state",
                   v->number, v->model->name, v->world);
}

hl_status hl_version_check(const struct hl_version_rec *v, struct hl_shard_rec *const *list,
                           size_t n, bool last)
{
    const struct hl_version_rec *base;
    HL_TRY(check_twice(v, list, n));
    if (last)
        HL_TRY(check_holds(v, list, n));
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return HL_OK;
    HL_TRY(oldest_visible(v->model, &base));
    if (base == NULL)
        return HL_OK;
    struct expected e = {0};
    hl_status st = check_against(base, v, list, n, last, &e);
    hl_arena_fini(&e.arena);
    return st == HL_OK || st == HL_ENOMEM ? st : fail_layout(v, base);
}
