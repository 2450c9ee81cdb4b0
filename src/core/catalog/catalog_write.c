/* A version from its first rank's begin to its last rank's commit, or until a rank abandons it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "core/catalog/catalog_private.h"

#define REASON_MAX 512

/* ---- failed versions ------------------------------------------------------------------------- */

/* Writes the version's current record. */
static hl_status keep_version(const struct hl_version_rec *v, hl_catalog_commit_fn commit,
                              void *arg)
{
    struct hl_records records = {0};
    hl_status st = hl_version_describe(&records, v, NULL, 0);
    if (st == HL_OK)
        st = commit(arg, &records);
    hl_records_fini(&records);
    return st;
}

static hl_status forget_version(struct hl_catalog *c, struct hl_version_rec *v,
                                hl_catalog_commit_fn commit, void *arg)
{
    struct hl_id *ids;
    size_t n;
    uint64_t bytes = 0;
    HL_TRY(hl_catalog_remove(c, v->model, v->number, commit, arg, &ids, &n, &bytes));
    free(ids);
    return HL_OK;
}

/* Tells the rank that the version failed. After the last rank the version is removed, and *v can be
 * freed. */
static hl_status tell_failed(struct hl_catalog *c, struct hl_version_rec *v, int rank,
                             hl_catalog_commit_fn commit, void *arg)
{
    if (v->committed[rank])
        return HL_OK;
    if (v->committed_count + 1 == v->world)
        return forget_version(c, v, commit, arg);
    v->committed[rank] = 1;
    hl_status st = keep_version(v, commit, arg);
    if (st != HL_OK)
        v->committed[rank] = 0;
    else
        v->committed_count++;
    return st;
}

static hl_status fail_failed(struct hl_catalog *c, struct hl_version_rec *v, int rank,
                             hl_catalog_commit_fn commit, void *arg)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why),
             "version %" PRId64 " of '%s' at step %" PRId64 " was abandoned by %s", v->number,
             v->model->name, v->step, v->error != NULL ? v->error : "a rank");
    HL_TRY(tell_failed(c, v, rank, commit, arg));
    return hl_fail(HL_ECANCELED, "%s", why);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static bool version_is_of(const struct hl_version_rec *v, const struct hl_version_begin *b)
{
    return v->world > 0 && v->state != HL_API_VERSION_STATE_VISIBLE && v->step == b->step &&
           v->attempt == b->attempt && v->generation == b->generation &&
           strcmp(v->job, b->job) == 0;
}

static uint64_t token_of(const struct hl_version_rec *v, int rank)
{
    return v->begun != NULL && rank < v->world ? v->begun[rank] : 0;
}

/* NULL: this save of the rank belongs to no open version. */
static struct hl_version_rec *find_begun(struct hl_model_rec *m, const struct hl_version_begin *b)
{
    struct hl_version_rec *oldest = NULL;
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (!version_is_of(v, b) || (b->rank < v->world && v->committed[b->rank]))
            continue;
        uint64_t token = token_of(v, b->rank);
        if (token != 0 && token == b->token)
            return v;
        if (token == 0 || b->token == 0)
            oldest = v;
    }
    return oldest;
}

static hl_status check_begin(const struct hl_version_begin *b)
{
    if (b->world < 1 || b->world > 1000000 ||
        strlen(b->job) >= sizeof(((struct hl_version_rec *)0)->job))
        return hl_fail(HL_EINVAL,
                       "version of '%s': world %d must be 1..1000000, job id at most 95 bytes",
                       b->model, b->world);
    if (b->rank < 0 || b->rank >= b->world)
        return hl_fail(HL_EINVAL, "version of '%s': rank %d is outside a gang of %d", b->model,
                       b->rank, b->world);
    return HL_OK;
}

/* Models of some formats can only have versions of one split. */
static hl_status check_fixed(const struct hl_model_rec *m, const struct hl_version_begin *b)
{
    char text[HL_SPLIT_TEXT_MAX], has[HL_SPLIT_TEXT_MAX];
    const struct hl_api_split own = hl_model_split(m);
    const struct hl_api_split split = hl_split_resolve(&b->split, &own);
    if ((!m->shape.unsliced && !m->shape.as_saved) || hl_split_equal(&split, &own))
        return HL_OK;
    if (m->shape.as_saved)
        return hl_fail(
            HL_EUNSUPPORTED,
            "'%s' was first saved without a config as %s and can't be saved as %s: nothing "
            "says how its tensors are cut; save under another name",
            m->name, hl_split_text(&own, has), hl_split_text(&split, text));
    return hl_fail(
        HL_EUNSUPPORTED,
        "'%s' is stored unsliced and can't be saved as %s: save the whole tensors on the "
        "rank at pp 0, tp 0 and nothing on the others, all with tp_size=1 and pp_size=1",
        m->name, hl_split_text(&split, text));
}

/* The split to record: none if the version is split like its model. */
static struct hl_api_split split_begun(const struct hl_model_rec *m,
                                       const struct hl_version_begin *b)
{
    const struct hl_api_split own = hl_model_split(m);
    const struct hl_api_split split = hl_split_resolve(&b->split, &own);
    return hl_split_equal(&split, &own) ? (struct hl_api_split){0} : split;
}

/* Checks that the rank can write to this version, and records who began it. */
static hl_status join_version(struct hl_version_rec *v, const struct hl_version_begin *b)
{
    const struct hl_api_split split = split_begun(v->model, b);
    if (v->world != b->world)
        return hl_fail(HL_ECONFLICT, "version %" PRId64 " of '%s' was begun with world %d, not %d",
                       v->number, v->model->name, v->world, b->world);
    if (v->check != b->check)
        return hl_fail(HL_ECONFLICT,
                       "version %" PRId64
                       " of '%s' was begun with layout check '%s', and rank %d wants '%s': use the "
                       "same strict and any_dtype on every rank",
                       v->number, v->model->name, hl_api_layout_check_name(v->check), b->rank,
                       hl_api_layout_check_name(b->check));
    if (!hl_split_equal(&v->split, &split)) {
        char has[HL_SPLIT_TEXT_MAX], wants[HL_SPLIT_TEXT_MAX];
        const struct hl_api_split own = hl_version_split(v);
        return hl_fail(HL_ECONFLICT,
                       "version %" PRId64 " of '%s' was begun with split %s, and rank %d has %s",
                       v->number, v->model->name, hl_split_text(&own, has), b->rank,
                       hl_split_text(&b->split, wants));
    }
    if (v->begun == NULL)
        v->begun = calloc((size_t)v->world, sizeof(*v->begun));
    if (v->begun == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of a version");
    v->begun[b->rank] = b->token;
    v->touched_ms = b->now_ms;
    return HL_OK;
}

static hl_status version_new(struct hl_model_rec *m, const struct hl_version_begin *b,
                             struct hl_version_rec **out)
{
    struct hl_version_rec *v = hl_version_rec_new(m->next_version, b->world);
    if (v == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a version");
    v->model = m;
    v->step = b->step;
    v->attempt = b->attempt;
    v->generation = b->generation;
    v->check = b->check;
    v->split = split_begun(m, b);
    v->created_ms = b->now_ms;
    snprintf(v->job, sizeof(v->job), "%s", b->job);
    hl_status st = join_version(v, b);
    if (st != HL_OK) {
        hl_version_rec_free(v);
        return st;
    }
    *out = v;
    return HL_OK;
}

static hl_status begin_version(struct hl_catalog *c, struct hl_model_rec *m,
                               const struct hl_version_begin *b, hl_catalog_commit_fn commit,
                               void *arg, struct hl_version_rec **out)
{
    HL_TRY(check_begin(b));
    if (m->damaged) /* a new record would overwrite what the damaged one held */
        return hl_fail(HL_ECORRUPT,
                       "the record of model '%s' in the Controller's store is damaged: nothing can "
                       "be saved to it; restore the store from a backup",
                       m->name);
    HL_TRY(check_fixed(m, b));
    struct hl_version_rec *v = find_begun(m, b);
    if (v != NULL && v->state == HL_API_VERSION_STATE_FAILED && b->rank < v->world)
        return fail_failed(c, v, b->rank, commit, arg);
    if (v != NULL) {
        HL_TRY(join_version(v, b));
        *out = v;
        return HL_OK;
    }
    HL_TRY(version_new(m, b, &v));
    m->next_version++;
    hl_status st = keep_version(v, commit, arg);
    if (st != HL_OK) {
        m->next_version--;
        hl_version_rec_free(v);
        return st;
    }
    v->next = m->versions;
    m->versions = v;
    *out = v;
    return HL_OK;
}

hl_status hl_catalog_begin(struct hl_catalog *c, const struct hl_version_begin *b,
                           hl_catalog_commit_fn commit, void *arg, struct hl_version_rec **out)
{
    struct hl_model_rec *m;
    hl_status st = hl_catalog_model(c, b->model, &m);
    if (st != HL_ENOENT || b->create.tp == 0) {
        HL_TRY(st);
        HL_TRY(hl_model_check_create(m, b));
        return begin_version(c, m, b, commit, arg, out);
    }
    hl_error_clear();
    HL_TRY(hl_model_create(b, &m));
    HASH_ADD_STR(c->models, name, m);
    st = begin_version(c, m, b, commit, arg, out);
    if (st != HL_OK) {
        HASH_DEL(c->models, m);
        hl_model_rec_free(m);
    }
    return st;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* For a rank that has already committed: none of the shards it names can be lost. */
static hl_status check_repeated(const struct hl_catalog *c, const struct hl_version_commit *p)
{
    for (size_t i = 0; i < p->shards.count; i++) {
        struct hl_id id;
        HL_TRY(hl_id_parse(p->shards.items[i].id, &id));
        const struct hl_shard_rec *s = hl_catalog_shard(c, id);
        if (s == NULL || s->version != p->version || s->rank != p->rank)
            return hl_fail(HL_ECONFLICT,
                           "rank %d has committed its part of version %" PRId64
                           " of '%s' already, without shard %s (part %s)",
                           p->rank, p->version->number, p->version->model->name, hl_id_format(id).s,
                           p->shards.items[i].part);
    }
    return HL_OK;
}

/* Applies the commit and stores it; undoes it if the store fails. */
static hl_status commit_shards(struct hl_catalog *c, const struct hl_version_commit *p,
                               struct hl_shard_rec **list, size_t n, hl_catalog_commit_fn commit,
                               void *arg)
{
    struct hl_version_rec *v = p->version;
    char *meta =
        p->rank == 0 && p->meta != NULL && p->meta[0] != '\0' ? hl_text_copy(p->meta) : NULL;
    char *old_meta = v->meta;
    char *unproved =
        p->proof != NULL && !p->proof->proved ? hl_text_copy(p->proof->unproved) : NULL;
    struct hl_records records = {0};
    v->committed[p->rank] = 1;
    v->committed_count++;
    if (meta != NULL)
        v->meta = meta;
    if (v->committed_count == v->world) {
        v->state = HL_API_VERSION_STATE_VISIBLE;
        v->visible_ms = p->now_ms;
        v->proved = p->proof != NULL && p->proof->proved;
        v->unproved = unproved;
    }
    hl_status st = hl_version_describe(&records, v, list, n);
    if (st == HL_OK)
        st = commit(arg, &records);
    hl_records_fini(&records);
    if (st != HL_OK) {
        v->committed[p->rank] = 0;
        v->committed_count--;
        v->state = HL_API_VERSION_STATE_OPEN;
        v->meta = old_meta;
        v->proved = false;
        v->unproved = NULL;
        free(unproved);
        free(meta);
        return st;
    }
    if (meta != NULL)
        free(old_meta);
    hl_version_link(c, v, list, n);
    if (v->state == HL_API_VERSION_STATE_VISIBLE)
        hl_shards_came(c, v->shards, v->shard_count);
    return HL_OK;
}

/* Commits the last part, together with the model's config if this version settles it and no other
 * version has done so. */
static hl_status commit_last(struct hl_catalog *c, const struct hl_version_commit *p,
                             struct hl_shard_rec **list, size_t n, hl_catalog_commit_fn commit,
                             void *arg)
{
    struct hl_model_rec *m = p->version->model;
    const struct hl_model_shape shape = m->shape;
    char *old = m->config;
    if (p->config == NULL || !shape.as_saved)
        return commit_shards(c, p, list, n, commit, arg);
    char *config = hl_text_copy(p->config);
    if (config == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the config of a model");
    m->config = config;
    hl_status st = hl_model_rec_read_shape(m);
    if (st == HL_OK)
        st = commit_shards(c, p, list, n, commit, arg);
    if (st != HL_OK) {
        m->config = old;
        m->shape = shape;
        old = config;
    }
    free(old);
    return st;
}

void hl_catalog_shift(struct hl_catalog *c, int64_t stepped_ms)
{
    for (struct hl_model_rec *m = stepped_ms != 0 ? c->models : NULL; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            v->touched_ms += v->touched_ms != 0 ? stepped_ms : 0;
}

bool hl_catalog_completes(const struct hl_version_rec *v, int rank)
{
    return v->state == HL_API_VERSION_STATE_OPEN && rank >= 0 && rank < v->world &&
           !v->committed[rank] && v->committed_count + 1 == v->world;
}

hl_status hl_catalog_commit_part(struct hl_catalog *c, const struct hl_version_commit *p,
                                 hl_catalog_commit_fn commit, void *arg)
{
    struct hl_version_rec *v = p->version;
    struct hl_shard_rec **list;
    size_t n = p->shards.count;
    if (v->world == 0)
        return hl_fail(HL_ECONFLICT,
                       "version %" PRId64 " of '%s' was imported, no rank can commit to it",
                       v->number, v->model->name);
    if (p->rank < 0 || p->rank >= v->world)
        return hl_fail(HL_EINVAL, "rank %d is outside the %d ranks of version %" PRId64, p->rank,
                       v->world, v->number);
    if (v->state == HL_API_VERSION_STATE_FAILED)
        return fail_failed(c, v, p->rank, commit, arg);
    if (v->committed[p->rank])
        return check_repeated(c, p);
    if (!hl_version_has_all_records(v))
        return hl_fail(HL_ECORRUPT,
                       "version %" PRId64 " of '%s' can't become visible: records of shards that "
                       "were committed are damaged in the Controller's store; save again",
                       v->number, v->model->name);
    HL_TRY(hl_shards_parse(c, v, &p->shards, p->rank, &list));
    bool last = v->committed_count + 1 == v->world;
    hl_status st = hl_version_check(p, list, last);
    if (st == HL_OK)
        st = hl_version_reserve(v, n);
    if (st == HL_OK)
        st = last ? commit_last(c, p, list, n, commit, arg)
                  : commit_shards(c, p, list, n, commit, arg);
    if (st != HL_OK) {
        hl_shard_recs_free(list, n);
        return st;
    }
    free(list);
    v->touched_ms = p->now_ms;
    if (v->state == HL_API_VERSION_STATE_VISIBLE) {
        free(v->begun);
        v->begun = NULL;
    }
    return HL_OK;
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* Stores the failed version without its shards, as one change. */
static hl_status keep_failed(const struct hl_version_rec *v, hl_catalog_commit_fn commit, void *arg)
{
    struct hl_records records = {0};
    hl_status st = hl_version_describe(&records, v, NULL, 0);
    for (size_t i = 0; i < v->shard_count && st == HL_OK; i++)
        st = hl_shard_describe_removal(&records, v->shards[i]);
    if (st == HL_OK)
        st = commit(arg, &records);
    hl_records_fini(&records);
    return st;
}

/* A map of the ranks that do not have to be told any more; release with free(). */
static unsigned char *ranks_that_heard(const struct hl_version_abandon *a)
{
    unsigned char *heard = calloc((size_t)a->version->world, 1);
    if (heard != NULL && !a->refuted)
        memcpy(heard, a->version->committed, (size_t)a->version->world);
    if (heard != NULL)
        heard[a->rank] = 1;
    return heard;
}

static int count_ranks(const unsigned char *ranks, int world)
{
    int n = 0;
    for (int i = 0; i < world; i++)
        n += ranks[i] != 0;
    return n;
}

static hl_status fail_version(struct hl_catalog *c, const struct hl_version_abandon *a, char *error,
                              hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                              size_t *id_count)
{
    struct hl_version_rec *v = a->version;
    struct hl_id *list = calloc(v->shard_count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu ids", v->shard_count);
    unsigned char *had_committed = v->committed, *heard = ranks_that_heard(a);
    if (heard == NULL) {
        free(list);
        return hl_fail(HL_ENOMEM, "out of memory for %d ranks", v->world);
    }
    v->state = HL_API_VERSION_STATE_FAILED;
    v->error = error;
    v->committed = heard;
    hl_status st = keep_failed(v, commit, arg);
    if (st != HL_OK) {
        v->state = HL_API_VERSION_STATE_OPEN;
        v->error = NULL;
        v->committed = had_committed;
        free(heard);
        free(list);
        return st;
    }
    free(had_committed);
    v->committed_count = count_ranks(heard, v->world);
    for (size_t i = 0; i < v->shard_count; i++)
        list[i] = v->shards[i]->id;
    *ids = list;
    *id_count = v->shard_count;
    hl_version_unlink_shards(c, v);
    free(v->begun);
    v->begun = NULL;
    return HL_OK;
}

/* "rank 3: why". A long text is truncated between two UTF-8 characters. */
static char *reason_text(const struct hl_version_abandon *a)
{
    char text[REASON_MAX];
    int len = snprintf(text, sizeof(text), "rank %d: %s", a->rank, a->reason);
    if (len >= (int)sizeof(text))
        text[hl_utf8_fit(text, sizeof(text) - 2)] = '\0';
    return strdup(text);
}

hl_status hl_catalog_abandon(struct hl_catalog *c, const struct hl_version_abandon *a,
                             hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                             size_t *id_count)
{
    struct hl_version_rec *v = a->version;
    uint64_t bytes = 0;
    if (v->state == HL_API_VERSION_STATE_VISIBLE)
        return hl_fail(HL_ECONFLICT,
                       "version %" PRId64 " of '%s' is visible and can't be abandoned", v->number,
                       v->model->name);
    if (a->rank < 0 || a->rank >= v->world)
        return hl_fail(HL_EINVAL, "rank %d is outside the %d ranks of version %" PRId64, a->rank,
                       v->world, v->number);
    if (v->state == HL_API_VERSION_STATE_FAILED) {
        *ids = NULL;
        *id_count = 0;
        return tell_failed(c, v, a->rank, commit, arg);
    }
    int others = a->refuted ? v->world - 1 : v->world - v->committed_count - !v->committed[a->rank];
    if (others == 0) /* no other rank has to be told */
        return hl_catalog_remove(c, v->model, v->number, commit, arg, ids, id_count, &bytes);
    char *copy = reason_text(a);
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the reason of a failed save");
    hl_status st = fail_version(c, a, copy, commit, arg, ids, id_count);
    if (st != HL_OK)
        free(copy);
    return st;
}
