/* The id of a manifest is derived from its content, so nothing has to be remembered: the sweep
 * checks for each visible version whether its manifest was seen. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/copies/copies_private.h"
#include "core/catalog/manifest.h"

#define MANIFEST_PUTS 16

struct kept_manifest {
    struct hl_id id;
    struct hl_manifest_seen seen;
    UT_hash_handle hh;
};

static struct kept_manifest *manifest_find(struct hl_controller *c, struct hl_id id)
{
    struct kept_manifest *k;
    HASH_FIND(hh, c->copies->manifests, &id, sizeof(id), k);
    if (k == NULL && (k = calloc(1, sizeof(*k))) != NULL) {
        k->id = id;
        HASH_ADD(hh, c->copies->manifests, id, sizeof(id), k);
    }
    return k;
}

struct manifest_put {
    struct hl_controller *c;
    struct hl_id id;
    int64_t number;
    char model[HL_MODEL_NAME_MAX + 1];
};

/* Frees the manifest if its version was removed meanwhile: at that time the manifest did not exist
 * yet, so it could not be freed. */
static void manifest_settle_removed(const struct manifest_put *put)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (hl_catalog_model(&put->c->catalog, put->model, &m) != HL_OK ||
        hl_catalog_version(m, put->number, &v) != HL_OK || !hl_id_equal(hl_manifest_id(v), put->id))
        pool_free(put->c, &put->id, 1);
}

static void on_written(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_put_manifest_results *r)
{
    HL_AUTO(hl_freep) struct manifest_put *put = arg;
    struct hl_controller *c = put->c;
    (void)r;
    if (controller_stopped(c))
        return;
    c->copies->manifest_puts--;
    manifest_settle_removed(put);
    if (trouble_is_new(&c->copies->manifest_trouble, st))
        hl_warn("a manifest was not written, each sweep tries again error=\"%s\"", text);
    if (st == HL_OK && pool_has_archive(c))
        c->copies->sweep_ns = 0; /* so that it is archived, if it has to be */
}

void manifest_write(struct hl_controller *c, const struct hl_version_rec *v)
{
    HL_AUTO(hl_freep) char *text = NULL;
    if (!claim_ok(c, NULL, 0) || c->copies->pool == NULL ||
        c->copies->manifest_puts >= MANIFEST_PUTS)
        return; /* the next sweep writes it */
    if (hl_manifest_encode(v, c->claim.cluster, &text) != HL_OK) {
        hl_error("no manifest of %s@%" PRId64 ": %s", v->model->name, v->number, hl_error_text());
        return;
    }
    struct manifest_put *put = calloc(1, sizeof(*put));
    if (put == NULL)
        return; /* the next sweep writes it */
    const struct hl_id_text cluster = claim_cluster(c);
    const struct hl_api_l3_put_manifest_params p = {.manifest = text, .cluster = cluster.s};
    *put = (struct manifest_put){.c = c, .id = hl_manifest_id(v), .number = v->number};
    snprintf(put->model, sizeof(put->model), "%s", v->model->name);
    c->copies->manifest_puts++;
    controller_hold(c);
    hl_call_l3_put_manifest_async(c->l3, &p, c->opts.rpc_timeout_ms, c->opts.loop, on_written, put);
}

void manifests_note(struct hl_controller *c, struct hl_id id, bool archived)
{
    struct kept_manifest *k = manifest_find(c, id);
    if (k != NULL)
        *(archived ? &k->seen.archive : &k->seen.pool) = c->copies->sweep_round;
}

static void settle_version(struct hl_controller *c, const struct hl_version_rec *v)
{
    struct kept_manifest *k = manifest_find(c, hl_manifest_id(v));
    if (k == NULL)
        return;
    k->seen.wanted = c->copies->sweep_round;
    if (hl_sweep_manifest(&k->seen, c->copies->sweep_round) == HL_MANIFEST_MISSING)
        manifest_write(c, v);
}

void manifests_settle(struct hl_controller *c)
{
    struct kept_manifest *k, *next;
    bool all_known = true;
    for (struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
            bool known = !m->damaged && hl_version_has_all_records(v);
            all_known = all_known && known;
            if (known && v->state == HL_API_VERSION_STATE_VISIBLE && v->shard_count > 0)
                settle_version(c, v);
        }
    if (!all_known) /* a manifest of no known version may be all that is left of a damaged record */
        return;
    HASH_ITER (hh, c->copies->manifests, k, next) {
        enum hl_manifest_fate fate = hl_sweep_manifest(&k->seen, c->copies->sweep_round);
        if (fate == HL_MANIFEST_ORPHAN) {
            orphan_note(c, k->id, k->seen.archive == c->copies->sweep_round);
        } else if (fate == HL_MANIFEST_GONE) {
            HASH_DEL(c->copies->manifests, k);
            free(k);
        }
    }
}

void manifests_not_archived(const struct hl_controller *c, struct hl_api_text_list *ids, size_t max,
                            struct hl_arena *arena)
{
    for (const struct kept_manifest *k = c->copies->manifests; k != NULL && ids->count < max;
         k = k->hh.next)
        if (hl_sweep_manifest(&k->seen, c->copies->sweep_round) == HL_MANIFEST_POOLED)
            ids->items[ids->count++] = hl_id_print(k->id, arena);
}

struct hl_id *manifests_of(const struct hl_model_rec *m, int64_t number, size_t *count)
{
    size_t n = 0;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        n++;
    struct hl_id *ids = calloc(n + 1, sizeof(*ids));
    *count = 0;
    for (const struct hl_version_rec *v = m->versions; v != NULL && ids != NULL; v = v->next)
        if (v->state == HL_API_VERSION_STATE_VISIBLE && (number == -1 || v->number == number))
            ids[(*count)++] = hl_manifest_id(v);
    return ids;
}

void manifests_fini(struct hl_controller *c)
{
    struct kept_manifest *k, *next;
    HASH_ITER (hh, c->copies->manifests, k, next) {
        HASH_DEL(c->copies->manifests, k);
        free(k);
    }
}
