/* Restores versions from their manifests. They are built in a separate catalogue, where
 * contradictions show, and their records are described from there. Once the records are durable,
 * everything moves to the real catalogue. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/catalog/manifest.h"

static struct hl_model_rec *find_model(const struct hl_catalog *c, const char *name)
{
    struct hl_model_rec *m;
    HASH_FIND_STR(c->models, name, m);
    return m;
}

static struct hl_version_rec *find_version(const struct hl_model_rec *m, int64_t number)
{
    for (struct hl_version_rec *v = m != NULL ? m->versions : NULL; v != NULL; v = v->next)
        if (v->number == number)
            return v;
    return NULL;
}

/* Adds the model to `fresh`: as it is in the catalogue, otherwise as the manifest describes it. */
static hl_status fresh_model(const struct hl_catalog *c, struct hl_catalog *fresh,
                             const struct hl_manifest *from, struct hl_model_rec **out)
{
    const struct hl_model_rec *old = find_model(c, from->model);
    struct hl_model_rec *m = find_model(fresh, from->model);
    if (m == NULL) {
        struct hl_api_model_record record = old != NULL ? hl_model_rec_store(old) : from->doc.model;
        HL_TRY(hl_model_rec_from(&record, &m));
        HASH_ADD_STR(fresh->models, name, m);
    }
    int64_t next = from->doc.model.next_version;
    if (next <= from->number)
        next = from->number + 1;
    if (m->next_version < next)
        m->next_version = next;
    *out = m;
    return HL_OK;
}

static void insert_version(struct hl_model_rec *m, struct hl_version_rec *v)
{
    struct hl_version_rec **at = &m->versions;
    while (*at != NULL && (*at)->number > v->number)
        at = &(*at)->next;
    v->model = m;
    v->next = *at;
    *at = v;
}

/* A shard that is in the catalogue must belong to the version that is replaced. */
static hl_status check_owners(const struct hl_catalog *c, const struct hl_version_rec *v,
                              const struct hl_version_rec *old)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = hl_catalog_shard(c, v->shards[i]->id);
        if (s != NULL && s->version != old)
            return hl_fail(HL_EEXIST, "shard %s belongs to version %" PRId64 " of '%s'",
                           hl_id_format(s->id).s, s->version->number, s->version->model->name);
    }
    return HL_OK;
}

static hl_status make_shards(const struct hl_catalog *fresh, struct hl_version_rec *v,
                             const struct hl_api_manifest_shard_list *shards,
                             struct hl_shard_rec **list, size_t *made)
{
    for (size_t i = 0; i < shards->count; i++) {
        list[i] = hl_shard_rec_from(&shards->items[i]);
        if (list[i] == NULL)
            return HL_EINVAL;
        list[i]->version = v;
        ++*made;
    }
    HL_TRY(hl_shards_check(fresh, list, *made));
    return hl_version_reserve(v, *made);
}

static hl_status add_shards(struct hl_catalog *fresh, struct hl_version_rec *v,
                            const struct hl_api_manifest_shard_list *shards)
{
    size_t n = 0;
    struct hl_shard_rec **list = calloc(shards->count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of shards");
    hl_status st = make_shards(fresh, v, shards, list, &n);
    if (st != HL_OK) {
        hl_shard_recs_free(list, n);
        return st;
    }
    hl_version_link(fresh, v, list, n);
    free(list);
    return HL_OK;
}

static hl_status add_version(const struct hl_catalog *c, struct hl_catalog *fresh,
                             const struct hl_manifest *from)
{
    struct hl_model_rec *m = NULL;
    HL_TRY(fresh_model(c, fresh, from, &m));
    const struct hl_version_rec *old = find_version(find_model(c, from->model), from->number);
    if ((old != NULL && old->state == HL_API_VERSION_STATE_VISIBLE) ||
        find_version(m, from->number) != NULL)
        return hl_fail(HL_EEXIST, "version %" PRId64 " of '%s' exists already", from->number,
                       from->model);
    struct hl_version_rec *v;
    HL_TRY(hl_version_rec_from(&from->doc.version, &v));
    insert_version(m, v);
    HL_TRY(add_shards(fresh, v, &from->doc.shards));
    return check_owners(c, v, old);
}

/* A replaced version's record is overwritten; the records of its shards may have to be deleted. */
static hl_status describe_models(struct hl_records *r, const struct hl_catalog *c,
                                 const struct hl_catalog *fresh)
{
    for (const struct hl_model_rec *m = fresh->models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
            const struct hl_version_rec *old = find_version(find_model(c, m->name), v->number);
            for (size_t i = 0; old != NULL && i < old->shard_count; i++)
                HL_TRY(hl_shard_describe_removal(r, old->shards[i]));
            HL_TRY(hl_version_describe(r, v, v->shards, v->shard_count));
        }
    return HL_OK;
}

static void move_version(struct hl_catalog *c, struct hl_catalog *fresh, struct hl_model_rec *to,
                         struct hl_version_rec *v)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        HASH_DEL(fresh->shards, v->shards[i]);
        HASH_ADD(hh, c->shards, id, sizeof(struct hl_id), v->shards[i]);
    }
    insert_version(to, v);
    hl_shards_came(c, v->shards, v->shard_count);
}

static void move_models(struct hl_catalog *c, struct hl_catalog *fresh)
{
    struct hl_model_rec *m, *next;
    HASH_ITER (hh, fresh->models, m, next) {
        struct hl_model_rec *to = find_model(c, m->name);
        struct hl_version_rec *v = m->versions, *older;
        m->versions = NULL;
        HASH_DEL(fresh->models, m);
        if (to == NULL) {
            HASH_ADD_STR(c->models, name, m);
            to = m;
        }
        for (; v != NULL; v = older) {
            struct hl_version_rec *old = find_version(to, v->number);
            older = v->next;
            if (old != NULL)
                hl_version_remove(c, to, old);
            move_version(c, fresh, to, v);
        }
        to->next_version = m->next_version;
        if (to != m)
            hl_model_rec_free(m);
    }
}

hl_status hl_catalog_restore(struct hl_catalog *c, const struct hl_manifest *const *list,
                             size_t count, hl_catalog_commit_fn commit, void *arg)
{
    struct hl_catalog fresh = {0};
    struct hl_records records = {0};
    hl_status st = HL_OK;
    for (size_t i = 0; i < count && st == HL_OK; i++)
        st = add_version(c, &fresh, list[i]);
    if (st == HL_OK)
        st = describe_models(&records, c, &fresh);
    if (st == HL_OK)
        st = commit(arg, &records);
    if (st == HL_OK)
        move_models(c, &fresh);
    hl_records_fini(&records);
    hl_catalog_fini(&fresh);
    return st;
}
