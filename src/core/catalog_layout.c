/* What a new version has to have in common with its model: the same parameters at every position
 * (pp, tp), unless whoever began it wants otherwise. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog_private.h"
#include "core/part.h"

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

struct place {
    int pp, tp;
    const char *part;
};

static struct place place_of(const struct hl_shard_rec *s)
{
    return (struct place){s->pp, s->tp, s->part};
}

static int place_order(const void *key, const void *element)
{
    const struct place *p = key;
    const struct hl_shard_rec *s = *(struct hl_shard_rec *const *)element;
    if (p->pp != s->pp)
        return p->pp < s->pp ? -1 : 1;
    if (p->tp != s->tp)
        return p->tp < s->tp ? -1 : 1;
    return strcmp(p->part, s->part);
}

/* The version's shards are in the order that hl_version_link() leaves. */
static const struct hl_shard_rec *find_linked(const struct hl_version_rec *v, struct place p)
{
    if (v->shard_count == 0)
        return NULL;
    struct hl_shard_rec **found =
        bsearch(&p, v->shards, v->shard_count, sizeof(*v->shards), place_order);
    return found != NULL ? *found : NULL;
}

static const struct hl_shard_rec *find_listed(struct hl_shard_rec *const *list, size_t n,
                                              struct place p)
{
    for (size_t i = 0; i < n; i++)
        if (place_order(&p, &list[i]) == 0)
            return list[i];
    return NULL;
}

static hl_status compare_part(const struct hl_shard_rec *want, const struct hl_shard_rec *got,
                              enum hl_api_layout_check check)
{
    if (want->layout != NULL && got->layout != NULL)
        return hl_layout_compare(want->layout, got->layout, check);
    if (want->tensors == got->tensors)
        return HL_OK;
    return hl_fail(HL_EINVAL, "it has %u tensors, expected %u", got->tensors, want->tensors);
}

static hl_status check_shard(const struct hl_version_rec *base, const struct hl_shard_rec *s,
                             enum hl_api_layout_check check)
{
    struct hl_part part = hl_part_of(s->part);
    if (part.kind == HL_PART_EXTRA)
        return HL_OK;
    const struct hl_shard_rec *want = find_linked(base, (struct place){s->pp, s->tp, part.of});
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

/* A rank writes all parameters of a position, and all ranks together those of every position. */
static hl_status check_whole(const struct hl_version_rec *base, const struct hl_version_rec *v,
                             struct hl_shard_rec *const *list, size_t n, bool last)
{
    for (size_t i = 0; i < base->shard_count; i++) {
        const struct hl_shard_rec *want = base->shards[i];
        bool mine = last;
        for (size_t k = 0; k < n && !mine; k++)
            mine = list[k]->pp == want->pp && list[k]->tp == want->tp &&
                   hl_part_has_parameters(list[k]->part);
        if (!mine || !hl_part_has_parameters(want->part) ||
            find_listed(list, n, place_of(want)) != NULL || find_linked(v, place_of(want)) != NULL)
            continue;
        const char *first = want->layout != NULL ? want->layout : "";
        return hl_fail(
            HL_EINVAL, "part %s at pp %d, tp %d is missing, with %u tensors such as '%.*s'",
            want->part, want->pp, want->tp, want->tensors, (int)strcspn(first, "\t"), first);
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
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        const struct hl_shard_rec *other = find_linked(v, place_of(s));
        if (other == NULL)
            other = find_listed(list, i, place_of(s));
        if (other != NULL)
            return hl_fail(HL_ECONFLICT,
                           "part %s at pp %d, tp %d of version %" PRId64
                           " was committed already, by rank %d",
                           s->part, s->pp, s->tp, v->number, other->rank);
    }
    return HL_OK;
}

hl_status hl_version_check(const struct hl_version_rec *v, struct hl_shard_rec *const *list,
                           size_t n, bool last)
{
    const struct hl_version_rec *base;
    HL_TRY(check_twice(v, list, n));
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return HL_OK;
    HL_TRY(oldest_visible(v->model, &base));
    if (base == NULL)
        return HL_OK;
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        hl_status st = check_shard(base, s, v->check);
        if (st != HL_OK) {
            (void)hl_fail_prefix(st, "part %s at pp %d, tp %d: ", s->part, s->pp, s->tp);
            return fail_layout(v, base);
        }
    }
    if (check_whole(base, v, list, n, last) != HL_OK)
        return fail_layout(v, base);
    return HL_OK;
}
