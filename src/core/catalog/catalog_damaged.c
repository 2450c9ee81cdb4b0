/* Records that can't be read. Their key remains and names the object, so an empty object takes its
 * place. This keeps its ids and numbers from being assigned again and its shards from being treated
 * as orphans. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"

/* The model of that name; if its record is missing, it is created as a damaged one. */
static hl_status model_of_key(struct hl_catalog *c, const char *name, struct hl_model_rec **out)
{
    struct hl_model_rec *m;
    HASH_FIND_STR(c->models, name, m);
    if (m == NULL) {
        m = calloc(1, sizeof(*m));
        if (m == NULL || (m->config = hl_text_copy("{}")) == NULL ||
            (m->source = hl_text_copy("")) == NULL) {
            hl_model_rec_free(m);
            return hl_fail(HL_ENOMEM, "out of memory allocating a model record");
        }
        snprintf(m->name, sizeof(m->name), "%s", name);
        m->damaged = true;
        m->next_version = 1;
        HASH_ADD_STR(c->models, name, m);
    }
    *out = m;
    return HL_OK;
}

static hl_status version_of_key(struct hl_model_rec *m, int64_t number, struct hl_version_rec **out)
{
    struct hl_version_rec **at = &m->versions; /* newest first */
    while (*at != NULL && (*at)->number > number)
        at = &(*at)->next;
    if (*at == NULL || (*at)->number != number) {
        struct hl_version_rec *v = hl_version_rec_new(number, 0);
        if (v == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a version record");
        v->model = m;
        v->state = HL_API_VERSION_STATE_VISIBLE;
        v->damaged = true;
        v->next = *at;
        *at = v;
    }
    *out = *at;
    return HL_OK;
}

static hl_status shard_of_key(struct hl_catalog *c, struct hl_version_rec *v, struct hl_id id)
{
    if (hl_catalog_shard(c, id) != NULL)
        return HL_OK;
    struct hl_shard_rec *s = calloc(1, sizeof(*s));
    if (s == NULL || hl_version_reserve(v, 1) != HL_OK) {
        free(s);
        return hl_fail(HL_ENOMEM, "out of memory allocating a shard record");
    }
    s->id = id;
    s->version = v;
    s->rank = -1;
    s->damaged = true;
    snprintf(s->part, sizeof(s->part), "damaged-%.16s", hl_id_format(id).s);
    hl_version_link(c, v, &s, 1);
    return HL_OK;
}

/* "model/NAME", "version/NAME/NUMBER", "shard/NAME/NUMBER/ID". */
hl_status hl_catalog_damaged(struct hl_catalog *c, const char *key)
{
    char kind[8], name[HL_MODEL_NAME_MAX + 1], id_text[40];
    int64_t number;
    struct hl_model_rec *m = NULL;
    struct hl_version_rec *v = NULL;
    struct hl_id id = {0};
    int n = sscanf(key, "%7[a-z]/%128[^/]/%" SCNd64 "/%39s", kind, name, &number, id_text);
    int wanted = n < 1                          ? 0
                 : strcmp(kind, "model") == 0   ? 2
                 : strcmp(kind, "version") == 0 ? 3
                 : strcmp(kind, "shard") == 0   ? 4
                                                : 0;
    if (wanted == 0 || n != wanted || hl_model_name_check(name) != HL_OK ||
        (n == 4 && hl_id_parse(id_text, &id) != HL_OK))
        return hl_fail(HL_ENOENT, "record %s: the key names no object of the catalogue", key);
    HL_TRY(model_of_key(c, name, &m));
    if (n == 2)
        return HL_OK;
    HL_TRY(version_of_key(m, number, &v));
    return n == 3 ? HL_OK : shard_of_key(c, v, id);
}

static void check_loaded(struct hl_version_rec *v)
{
    v->records_missing =
        v->stated_shards > (int64_t)v->shard_count ? (size_t)v->stated_shards - v->shard_count : 0;
    v->records_differ = hl_version_damaged_records(v) == 0 &&
                        v->state == HL_API_VERSION_STATE_VISIBLE && v->stated_sum >= 0 &&
                        v->stated_sum != hl_shards_sum(v->shards, v->shard_count);
}

void hl_catalog_loaded(struct hl_catalog *c)
{
    for (struct hl_model_rec *m = c->models; m != NULL; m = m->hh.next) {
        if (m->versions != NULL && m->next_version <= m->versions->number)
            m->next_version = m->versions->number + 1;
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            check_loaded(v);
    }
}
