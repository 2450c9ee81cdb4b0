/* The shards that a rank at one position reads of a version. If it has the version's split, these
 * are the shards of its own position; otherwise they are a view of the shards that its tensor rank
 * has under the version's split. An unsliced model is read whole at every position. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/catalog/catalog_cut.h"
#include "core/catalog/catalog_private.h"

static hl_status check_model(const struct hl_version_rec *v)
{
    if (!v->model->damaged)
        return HL_OK;
    /* The model's split and naming are unknown. */
    return hl_fail(HL_ECORRUPT,
                   "the record of model '%s' in the Controller's store is damaged and the model "
                   "can't be read; restore the store from a backup",
                   v->model->name);
}

static hl_status check_records(const struct hl_version_rec *v)
{
    char why[160];
    if (hl_version_has_all_records(v))
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "version %" PRId64 " of '%s' can't be read: %s; use another version (`helios "
                   "model show %s`), or restore the store from a backup",
                   v->number, v->model->name, hl_version_trouble(v, why, sizeof(why)),
                   v->model->name);
}

static hl_status check_found(const struct hl_version_rec *v, const struct hl_position *p)
{
    char key[HL_CATALOG_KEY_MAX];
    for (size_t i = 0; i < p->count; i++)
        if (p->parts[i].shard->lost)
            return hl_fail(HL_ENOENT,
                           "shard %s is lost: neither the pool nor the archive nor a node has it; "
                           "use another version (`helios model show %s`)",
                           hl_shard_key(p->parts[i].shard, key, sizeof(key)), v->model->name);
    return HL_OK;
}

static hl_status fail_position(const struct hl_version_rec *v, const struct hl_api_split *split,
                               int pp, int tp, int ep)
{
    char text[HL_SPLIT_TEXT_MAX];
    return hl_fail(HL_ENOENT,
                   "'%s' version %" PRId64
                   " has no shards at pp %d, tp %d, ep %d: it is sliced %s; for another layout "
                   "give its sizes too (--tp-size, tp_size=)",
                   v->model->name, v->number, pp, tp, ep, hl_split_text(split, text));
}

static void add_own(const struct hl_version_rec *v, int pp, int tp, int ep, struct hl_position *p)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        if (s->pp == pp && hl_split_reads(&p->split, tp, ep, s->part, s->tp, s->ep))
            p->parts[p->count++] = (struct hl_position_part){.shard = s};
    }
}

/* The shards that a position is a view of: either the version's own or those of a cut. */
struct viewed {
    struct hl_shard_rec *const *shards;
    size_t count;
    size_t own; /* shards of the split; those after them belong to every tensor rank */
};

/* Lists the cut's shards and the version's blobs, which need no cut. */
HL_CHECK static hl_status view_cut(const struct hl_version_rec *v, const struct hl_cut_rec *cut,
                                   struct hl_arena *arena, struct viewed *out)
{
    struct hl_shard_rec **list =
        hl_arena_array(arena, cut->shard_count + v->shard_count + 1, sizeof(struct hl_shard_rec *));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a position of a version");
    size_t n = cut->shard_count;
    memcpy(list, cut->shards, n * sizeof(struct hl_shard_rec *));
    for (size_t i = 0; i < v->shard_count; i++)
        if (v->shards[i]->tp == 0 && hl_shard_is_common(v, v->shards[i]))
            list[n++] = v->shards[i];
    *out = (struct viewed){list, n, cut->shard_count};
    return HL_OK;
}

/* NULL: the arena is out of memory. */
static struct hl_stored_part *stored_parts(const struct viewed *from, int tp,
                                           struct hl_arena *arena)
{
    struct hl_stored_part *stored = hl_arena_array(arena, from->count + 1, sizeof(*stored));
    for (size_t i = 0; i < from->count && stored != NULL; i++) {
        const struct hl_shard_rec *s = from->shards[i];
        stored[i] = (struct hl_stored_part){
            s->pp, i < from->own ? s->tp : tp, s->part, s->layout, s->ep, s->tensor_crcs};
    }
    return stored;
}

static hl_status add_view(const struct viewed *from, const struct hl_version_rec *v,
                          struct hl_view_want want, struct hl_arena *arena, struct hl_position *p)
{
    struct hl_view view;
    const struct viewed own = {v->shards, v->shard_count, v->shard_count};
    struct hl_stored_part *stored = stored_parts(from, want.tp, arena);
    p->parts = hl_arena_array(arena, 2 * from->count, sizeof(*p->parts));
    if (p->cut != NULL) {
        want.made_from = stored_parts(&own, 0, arena);
        want.made_from_count = v->shard_count;
    }
    if (stored == NULL || p->parts == NULL || (p->cut != NULL && want.made_from == NULL))
        return hl_fail(HL_ENOMEM, "out of memory for a position of a version");
    HL_TRY(hl_view_position(stored, from->count, &want, arena, &view));
    for (size_t i = 0; i < view.count; i++) {
        const struct hl_view_part *part = &view.parts[i];
        p->parts[p->count++] = (struct hl_position_part){.shard = from->shards[part->stored],
                                                         .renamed = !part->as_stored,
                                                         .names = part->names,
                                                         .count = part->count};
    }
    return HL_OK;
}

/* Only checks that sizes are positive: of an unsliced model every rank reads everything. */
static hl_status check_positive(const struct hl_api_split *want)
{
    if (want->tp < 1 || want->pp < 1)
        return hl_fail(HL_EINVAL, "TP%d x PP%d: sizes are at least 1", want->tp, want->pp);
    return HL_OK;
}

/* Another pipeline size is a view; another tensor parallel size needs a cut. */
hl_status hl_version_check_sizes(const struct hl_version_rec *v, const struct hl_api_split *wanted)
{
    char has[HL_SPLIT_TEXT_MAX];
    const struct hl_api_split own_split = hl_version_split(v), *own = &own_split;
    const struct hl_api_split resolved = hl_split_resolve(wanted, own), *want = &resolved;
    if (hl_split_equal(own, want))
        return HL_OK;
    if (v->model->shape.unsliced)
        return check_positive(want);
    if (v->model->shape.as_saved)
        return hl_fail(
            HL_EUNSUPPORTED,
            "'%s' was saved without a config, so nothing says how its tensors are cut: it "
            "can only be read as it was saved, %s",
            v->model->name, hl_split_text(own, has));
    if (v->model->shape.layers == 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "'%s' was imported by an earlier release, which did not record its layers: "
                       "it can only be read as it was sliced, %s; import it again",
                       v->model->name, hl_split_text(own, has));
    hl_status st = hl_split_check(want, v->model->shape.layers);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "model '%s': ", v->model->name);
}

/* Finds the shards that a position of another split is a view of. */
static hl_status find_viewed(const struct hl_version_rec *v, const struct hl_api_split *own,
                             struct hl_arena *arena, struct hl_position *p, struct viewed *out)
{
    char text[HL_SPLIT_TEXT_MAX];
    *out = (struct viewed){v->shards, v->shard_count, v->shard_count};
    if (hl_split_same_cut(own, &p->split))
        return HL_OK;
    p->cut = hl_version_find_cut(v, &p->split);
    if (p->cut == NULL)
        return hl_fail(HL_ENOENT, "'%s' version %" PRId64 " is not cut for %s yet", v->model->name,
                       v->number, hl_split_text(&p->split, text));
    return view_cut(v, p->cut, arena, out);
}

/* The position of a rank in its gang. */
struct place {
    int pp, tp, ep;
};

static hl_status check_place(const struct hl_version_rec *v, const struct hl_api_split *split,
                             struct place at)
{
    if (at.pp >= 0 && at.pp < split->pp && at.tp >= 0 && at.tp < split->tp && at.ep >= 0 &&
        at.ep < hl_split_ep(split))
        return HL_OK;
    return fail_position(v, split, at.pp, at.tp, at.ep);
}

static hl_status add_other(const struct hl_version_rec *v, const struct hl_api_split *own,
                           struct place at, struct hl_arena *arena, struct hl_position *p)
{
    const struct hl_partition_options options = hl_split_options(&p->split);
    const struct hl_model_shape *shape = &v->model->shape;
    struct viewed viewed;
    HL_TRY(check_records(v));
    HL_TRY(hl_version_check_sizes(v, &p->split));
    HL_TRY(check_place(v, &p->split, at));
    HL_TRY(find_viewed(v, own, arena, p, &viewed));
    const struct hl_view_want want = {.split = &options,
                                      .layers = shape->layers,
                                      .tied = shape->tied,
                                      .pp = at.pp,
                                      .tp = at.tp,
                                      .ep = at.ep};
    return add_view(&viewed, v, want, arena, p);
}

static hl_status add_unsliced(const struct hl_version_rec *v, struct place at,
                              struct hl_arena *arena, struct hl_position *p)
{
    p->parts = hl_arena_array(arena, v->shard_count, sizeof(*p->parts));
    if (p->parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a position of a version");
    HL_TRY(check_positive(&p->split));
    HL_TRY(check_place(v, &p->split, at));
    for (size_t i = 0; i < v->shard_count; i++)
        p->parts[p->count++] = (struct hl_position_part){.shard = v->shards[i]};
    HL_TRY(check_found(v, p));
    return check_records(v);
}

hl_status hl_version_position(const struct hl_version_rec *v, const struct hl_api_split *want,
                              int pp, int tp, int ep, struct hl_arena *arena,
                              struct hl_position *out)
{
    const struct hl_api_split own = hl_version_split(v);
    struct hl_position p = {.split = hl_split_resolve(want, &own)};
    const struct place at = {pp, tp, ep};
    HL_TRY(check_model(v));
    if (v->model->shape.unsliced) {
        HL_TRY(add_unsliced(v, at, arena, &p));
    } else if (hl_split_equal(&own, &p.split)) {
        p.parts = hl_arena_array(arena, v->shard_count, sizeof(*p.parts));
        if (p.parts == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for a position of a version");
        if (ep < 0 || ep >= hl_split_ep(&p.split)) /* dense parts alone are half a position */
            return fail_position(v, &p.split, pp, tp, ep);
        add_own(v, pp, tp, ep, &p);
        HL_TRY(check_found(v, &p)); /* shards lost at other positions do not matter here */
        HL_TRY(check_records(v));
    } else {
        HL_TRY(add_other(v, &own, at, arena, &p));
        HL_TRY(check_found(v, &p));
    }
    if (p.count == 0)
        return fail_position(v, &p.split, pp, tp, ep);
    *out = p;
    return HL_OK;
}
