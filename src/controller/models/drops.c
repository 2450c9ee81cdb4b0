/* Versions that are dropped without a request: old ones of a job that continues to write, and those
 * that no rank completes any more (core/catalog/version_drop.h decides which).
 *
 * A version is dropped with its shards: the records are deleted first. Whatever is then not freed
 * in pool and archive, the sweep finds as orphans. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/models/models_private.h"
#include "core/catalog/version_drop.h"

struct drop {
    struct change change; /* must be first */
    char *model;
    int64_t number;
    int64_t touched_ms; /* the version's value when the drop was decided */
    struct hl_id *ids, *manifests;
    size_t id_count, manifest_count;
};

static void drop_free(struct drop *d)
{
    free(d->model);
    free(d->ids);
    free(d->manifests);
    free(d);
}

/* Called twice, like every make, so the second call replaces what the first one found. */
static hl_status drop_make(struct change *ch)
{
    struct drop *d = (struct drop *)ch;
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    uint64_t bytes;
    HL_TRY(hl_catalog_model(&ch->c->catalog, d->model, &m));
    HL_TRY(hl_catalog_version(m, d->number, &v));
    if (v->touched_ms != d->touched_ms) /* changed by an earlier change */
        return hl_fail(HL_EBUSY, "version %" PRId64 " of '%s' is written again", v->number,
                       d->model);
    free(d->manifests);
    d->manifests = manifests_of(v->model, d->number, &d->manifest_count);
    return hl_catalog_remove(&ch->c->catalog, v->model, d->number, commit_records, ch->c, &d->ids,
                             &d->id_count, &bytes);
}

static void drop_done(struct change *ch, hl_status st)
{
    struct drop *d = (struct drop *)ch;
    if (st == HL_OK) {
        pool_free(ch->c, d->manifests, d->manifest_count);
        pool_free(ch->c, d->ids, d->id_count);
    } else if (st == HL_EBUSY) {
        hl_info("version stays model=%s version=%" PRId64 " reason=\"%s\"", d->model, d->number,
                hl_error_text());
    } else if (st != HL_ENOENT && st != HL_ECANCELED) { /* removed meanwhile, or stopped */
        hl_error("version not removed model=%s version=%" PRId64 " error=\"%s\"", d->model,
                 d->number, hl_error_text());
    }
    drop_free(d);
}

/* A drop that waits for the disk must not be ordered again by the next round. */
static bool is_being_dropped(void *controller, const struct hl_version_rec *v)
{
    const struct hl_controller *c = controller;
    for (const struct change *ch = c->changes; ch != NULL; ch = ch->next) {
        const struct drop *d = (const struct drop *)ch;
        if (ch->make == drop_make && d->number == v->number &&
            strcmp(d->model, v->model->name) == 0)
            return true;
    }
    return false;
}

static bool is_written_by_job(void *controller, const struct hl_version_rec *v)
{
    const struct hl_controller *c = controller;
    struct version_user j;
    return c->models->users->find_writer(c, v->job, &j) && !j.over;
}

static struct hl_version_watch version_watch(struct hl_controller *c)
{
    return (struct hl_version_watch){is_being_dropped, is_written_by_job, c};
}

/* Starts the removal, which waits for the disk. False: a later round finds the version again. */
static bool drop_version(struct hl_controller *c, struct hl_version_rec *v)
{
    struct drop *d = calloc(1, sizeof(*d));
    char *model = strdup(v->model->name);
    if (d == NULL || model == NULL || c->closing || c->claim.state == CLAIM_REFUSED) {
        free(d);
        free(model);
        return false;
    }
    d->model = model;
    d->number = v->number;
    d->touched_ms = v->touched_ms;
    d->change = (struct change){.make = drop_make, .done = drop_done};
    change_start(c, &d->change);
    return is_being_dropped(c, v); /* otherwise it was refused at once */
}

void drop_old_versions(struct hl_controller *c, const struct hl_version_rec *newest)
{
    const struct hl_version_watch watch = version_watch(c);
    struct hl_version_rec *v;
    do {
        v = hl_version_surplus(newest, c->opts.versions_keep, &watch);
        if (v != NULL)
            hl_info("old version is removed model=%s version=%" PRId64, v->model->name, v->number);
    } while (v != NULL && drop_version(c, v));
}

/* Drops what the gang of `v` left unfinished before it met again. */
void drop_overtaken_versions(struct hl_controller *c, const struct hl_version_rec *v)
{
    const struct hl_version_watch watch = version_watch(c);
    struct hl_version_rec *old;
    do {
        old = hl_version_overtaken(v, &watch);
        if (old != NULL)
            hl_info(
                "unfinished version is dropped, its gang has re-formed model=%s version=%" PRId64
                " job=%s",
                v->model->name, old->number, v->job);
    } while (old != NULL && drop_version(c, old));
}

void drop_open_versions(struct hl_controller *c, const char *job, int attempt)
{
    const struct hl_version_watch watch = version_watch(c);
    struct hl_version_rec *v;
    do {
        v = hl_version_incomplete(&c->catalog, job, attempt, &watch);
        if (v != NULL)
            hl_info("incomplete version is dropped model=%s version=%" PRId64
                    " job=%s committed=%d/%d",
                    v->model->name, v->number, job, v->committed_count, v->world);
    } while (v != NULL && drop_version(c, v));
}

/* At most one per model: the next round comes soon. */
void drop_stale_versions(struct hl_controller *c)
{
    const struct hl_version_watch watch = version_watch(c);
    struct hl_model_rec *m, *next;
    layouts_forget(c);
    if (c->claim.state == CLAIM_REFUSED)
        return;
    HASH_ITER (hh, c->catalog.models, m, next) {
        struct hl_version_rec *v = hl_version_stale(m, hl_wall_ms(), c->opts.gc_grace_ms, &watch);
        if (v == NULL)
            continue;
        hl_warn(
            "incomplete version is dropped, its writer no longer exists model=%s version=%" PRId64
            " job=%s committed=%d/%d",
            m->name, v->number, v->job, v->committed_count, v->world);
        drop_version(c, v);
    }
}
