/* Checks a new version against its model: it must have the same parameters at every position (pp,
 * tp, ep) of its own split, unless it was opened with another layout check. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/catalog/expected.h"
#include "core/model/part.h"

/* The version that defines the model's layout; NULL if no version is visible. */
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

const struct hl_version_rec *hl_version_expects_of(const struct hl_version_rec *v)
{
    const struct hl_version_rec *base;
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return NULL;
    if (oldest_visible(v->model, &base) != HL_OK) {
        hl_error_clear();
        return NULL;
    }
    if (base == NULL)
        return NULL;
    const struct hl_api_split own = hl_version_split(base), split = hl_version_split(v);
    return hl_split_equal(&own, &split) ? NULL : base;
}

/* ---- where shards stand ---------------------------------------------------------------------- */

static struct hl_part_at place_of(const struct hl_shard_rec *s)
{
    return (struct hl_part_at){s->pp, s->tp, s->ep, s->part};
}

#define EP_TEXT_MAX 24

/* ", ep 2" for a part with experts, "" for others. */
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

/* Needs the version's shards in the order that hl_version_link() leaves. */
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

/* ---- what it holds --------------------------------------------------------------------------- */

static hl_status compare_part(const struct hl_expected_part *want, const struct hl_shard_rec *got,
                              enum hl_api_layout_check check)
{
    if (want->layout != NULL && got->layout != NULL)
        return hl_layout_compare(want->layout, got->layout, check);
    if (want->tensors == got->tensors)
        return HL_OK;
    return hl_fail(HL_EINVAL, "it has %u tensors, expected %u", got->tensors, want->tensors);
}

static hl_status check_shard(const struct hl_expected *e, const struct hl_shard_rec *s,
                             enum hl_api_layout_check check)
{
    struct hl_part part = hl_part_of(s->part);
    if (part.kind == HL_PART_EXTRA)
        return HL_OK;
    const struct hl_expected_part *want =
        hl_expected_find(e, (struct hl_part_at){s->pp, s->tp, s->ep, part.of});
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

/* The rank writes parameters at this position, with or without experts as `p` says. */
static bool writes_position(struct hl_shard_rec *const *list, size_t n, struct hl_part_at p)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->pp == p.pp && list[i]->tp == p.tp && list[i]->ep == p.ep &&
            hl_part_has_experts(list[i]->part) == hl_part_has_experts(p.part) &&
            hl_part_has_parameters(list[i]->part))
            return true;
    return false;
}

/* A rank writes all experts of a position, all other parameters, or both; together all ranks must
 * write every position. An adapter's import has parts without tensors; a save never has. */
static hl_status check_whole(const struct hl_expected *e, const struct hl_version_rec *v,
                             struct hl_shard_rec *const *list, size_t n, bool last)
{
    for (size_t i = 0; i < e->count; i++) {
        const struct hl_expected_part *want = &e->list[i];
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
    return hl_fail(
        HL_EINVAL,
        "version %" PRId64 " does not match the layout of %s@%" PRId64
        ": %s; if that is intended, save with strict=False (any_dtype=True for other dtypes only)",
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

static hl_status check_against(const struct hl_expected *e, const struct hl_version_rec *v,
                               struct hl_shard_rec *const *list, size_t n, bool last)
{
    char ep[EP_TEXT_MAX];
    if (e->st != HL_OK)
        return hl_fail(e->st, "%s", e->why);
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

/* Rejects a version in which no rank saved anything: it would load as a model without tensors. */
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

static hl_status check_same(const struct hl_version_rec *base, const struct hl_version_rec *v,
                            struct hl_shard_rec *const *list, size_t n, bool last)
{
    struct hl_expected e = {0};
    hl_status st = hl_expected_same(base, &e);
    if (st == HL_OK)
        st = check_against(&e, v, list, n, last);
    hl_arena_fini(&e.arena);
    return st;
}

static hl_status check_other(const struct hl_version_rec *base, const struct hl_version_commit *p,
                             struct hl_shard_rec *const *list, size_t n, bool last)
{
    const struct hl_api_split split = hl_version_split(p->version);
    struct hl_expected *e;
    if (p->expected != NULL && hl_expected_serves(p->expected, p->version, base))
        return check_against(p->expected, p->version, list, n, last);
    HL_TRY(hl_expected_new(base, &split, &e));
    hl_expected_plan(e);
    hl_status st = check_against(e, p->version, list, n, last);
    hl_expected_free(e);
    return st;
}

hl_status hl_version_check(const struct hl_version_commit *p, struct hl_shard_rec *const *list,
                           bool last)
{
    const struct hl_version_rec *v = p->version, *base;
    size_t n = p->shards.count;
    HL_TRY(check_twice(v, list, n));
    if (last)
        HL_TRY(check_holds(v, list, n));
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return HL_OK;
    HL_TRY(oldest_visible(v->model, &base));
    if (base == NULL)
        return HL_OK;
    hl_status st = hl_version_expects_of(v) == NULL ? check_same(base, v, list, n, last)
                                                    : check_other(base, p, list, n, last);
    return st == HL_OK || st == HL_ENOMEM ? st : fail_layout(v, base);
}
