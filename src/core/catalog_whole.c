/* Which versions are whole: every record can be read, every shard is somewhere. Of a record that
 * can't be read its key is left, which names the object: the rest stands there empty, so that its
 * ids and numbers are not given away again and its shards are nobody's garbage. */
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "core/catalog_private.h"

#define SKIPPED_TOLD 8 /* versions named in one sentence */

/* ---- records that can't be read -------------------------------------------------------------- */

/* The model of that name, made as a damaged one where its record is missing. */
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
        v->state = HL_VERSION_VISIBLE;
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
        return hl_fail(HL_ENOENT, "record %s: the key names nothing of the catalogue", key);
    HL_TRY(model_of_key(c, name, &m));
    if (n == 2)
        return HL_OK;
    HL_TRY(version_of_key(m, number, &v));
    return n == 3 ? HL_OK : shard_of_key(c, v, id);
}

static size_t damaged_records(const struct hl_version_rec *v)
{
    size_t n = v->records_missing + v->damaged;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->damaged;
    return n;
}

static void check_loaded(struct hl_version_rec *v)
{
    v->records_missing =
        v->stated_shards > (int64_t)v->shard_count ? (size_t)v->stated_shards - v->shard_count : 0;
    v->records_differ = damaged_records(v) == 0 && v->state == HL_VERSION_VISIBLE &&
                        v->stated_sum >= 0 &&
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

uint32_t hl_shards_sum(struct hl_shard_rec *const *list, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        const uint64_t words[] = {
            htole64(s->id.hi),
            htole64(s->id.lo),
            htole64((uint64_t)(uint32_t)s->pp << 32 | (uint32_t)s->tp),
            htole64(s->size_bytes),
            htole64((uint64_t)s->crc32 << 32 | s->tensors),
        };
        sum += hl_crc32(hl_crc32(0, words, sizeof(words)), s->part, strlen(s->part));
    }
    return sum;
}

struct hl_shards_stated hl_version_stated(const struct hl_version_rec *v)
{
    size_t n = v->state == HL_VERSION_FAILED ? 0 : v->shard_count;
    return (struct hl_shards_stated){
        .count = n,
        .sum = v->state == HL_VERSION_VISIBLE ? (int64_t)hl_shards_sum(v->shards, n) : -1,
    };
}

/* ---- versions -------------------------------------------------------------------------------- */

size_t hl_version_lost(const struct hl_version_rec *v)
{
    size_t n = v->records_missing;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->lost || v->shards[i]->damaged;
    return n;
}

bool hl_version_has_all_records(const struct hl_version_rec *v)
{
    return damaged_records(v) == 0 && !v->records_differ;
}

bool hl_version_whole(const struct hl_version_rec *v)
{
    return hl_version_has_all_records(v) && hl_version_lost(v) == 0;
}

const char *hl_version_trouble(const struct hl_version_rec *v, char *buf, size_t cap)
{
    size_t damaged = damaged_records(v), lost = hl_version_lost(v);
    if (v->damaged)
        snprintf(buf, cap, "its record in the Controller's store is damaged");
    else if (damaged > 0)
        snprintf(buf, cap, "the records of %zu of its %zu shards are damaged or missing", damaged,
                 v->shard_count + v->records_missing);
    else if (v->records_differ)
        snprintf(buf, cap, "the records of its shards are not those that were stored with it");
    else if (lost > 0)
        snprintf(buf, cap, "%zu of its %zu shards are lost", lost, v->shard_count);
    else
        snprintf(buf, cap, "%s", "");
    return buf;
}

hl_status hl_version_readable(const struct hl_version_rec *v, int pp, int tp)
{
    char why[160], key[HL_CATALOG_KEY_MAX];
    if (v->model->damaged) /* how it is sliced and named is not known */
        return hl_fail(HL_ECORRUPT,
                       "the record of model '%s' in the Controller's store is damaged: nothing of "
                       "it can be read; restore the store from a backup",
                       v->model->name);
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        if (s->lost && s->pp == pp && s->tp == tp)
            return hl_fail(HL_ENOENT,
                           "shard %s is lost: neither the pool nor the archive nor a node has it; "
                           "use another version (`helios model show %s`)",
                           hl_shard_key(s, key, sizeof(key)), v->model->name);
    }
    if (hl_version_has_all_records(v)) /* shards lost elsewhere do not concern this position */
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "version %" PRId64 " of '%s' can't be read: %s; use another version (`helios "
                   "model show %s`), or restore the store from a backup",
                   v->number, v->model->name, hl_version_trouble(v, why, sizeof(why)),
                   v->model->name);
}

struct hl_version_rec *hl_catalog_newest(const struct hl_model_rec *m)
{
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        if (v->state == HL_VERSION_VISIBLE && hl_version_whole(v))
            return v;
    return NULL;
}

const char *hl_catalog_skipped(const struct hl_model_rec *m, char *buf, size_t cap)
{
    size_t at = 0;
    int told = 0;
    char why[160];
    buf[0] = '\0';
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (v->state != HL_VERSION_VISIBLE)
            continue;
        if (hl_version_whole(v))
            break;
        if (told++ == SKIPPED_TOLD || at >= cap)
            break;
        at += (size_t)snprintf(buf + at, cap - at, "%sversion %" PRId64 ": %s", at > 0 ? ", " : "",
                               v->number, hl_version_trouble(v, why, sizeof(why)));
    }
    return buf;
}
