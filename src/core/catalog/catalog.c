/* A change is built aside, committed by the caller's store, and only then linked into the
 * catalogue. So a failed commit leaves the catalogue as it was. */
#include "core/catalog/catalog.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/model/part.h"

/* Takes the reference. A record that could not be built (NULL) must not be mistaken for a
 * deletion. */
static hl_status add_value(struct hl_records *r, json_t *value, const char *key)
{
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating record %s", key);
    return hl_records_add(r, value, "%s", key);
}

static hl_status add_model(struct hl_records *r, const struct hl_model_rec *m)
{
    char key[HL_CATALOG_KEY_MAX];
    snprintf(key, sizeof(key), "model/%s", m->name);
    struct hl_api_model_record record = hl_model_rec_store(m);
    return add_value(r, hl_api_to_json(&hl_api_model_record_type, &record), key);
}

static void version_record_key(const struct hl_version_rec *v, char *key, size_t cap)
{
    snprintf(key, cap, "version/%s/%010" PRId64, v->model->name, v->number);
}

static hl_status add_version(struct hl_records *r, const struct hl_version_rec *v,
                             struct hl_shards_stated stated)
{
    char key[HL_CATALOG_KEY_MAX];
    version_record_key(v, key, sizeof(key));
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_version_record record = hl_version_rec_store(v, stated, &arena);
    return add_value(
        r, !hl_arena_failed(&arena) ? hl_api_to_json(&hl_api_version_record_type, &record) : NULL,
        key);
}

static void shard_record_key(const struct hl_shard_rec *s, char *key, size_t cap)
{
    snprintf(key, cap, "shard/%s/%010" PRId64 "/%s", s->version->model->name, s->version->number,
             hl_id_format(s->id).s);
}

hl_status hl_shard_describe_removal(struct hl_records *r, const struct hl_shard_rec *s)
{
    char key[HL_CATALOG_KEY_MAX];
    shard_record_key(s, key, sizeof(key));
    return hl_records_add(r, NULL, "%s", key);
}

static hl_status add_shard(struct hl_records *r, const struct hl_shard_rec *s)
{
    char key[HL_CATALOG_KEY_MAX];
    shard_record_key(s, key, sizeof(key));
    return add_value(r, hl_shard_rec_to_json(s), key);
}

void hl_catalog_fini(struct hl_catalog *c)
{
    struct hl_model_rec *m, *next;
    HASH_CLEAR(hh, c->shards);
    HASH_ITER (hh, c->models, m, next) {
        HASH_DEL(c->models, m);
        hl_model_rec_free(m);
    }
}

hl_status hl_model_name_check(const char *name)
{
    size_t n = strlen(name);
    if (n == 0)
        return hl_fail(HL_EINVAL, "the model name is empty");
    if (n > HL_MODEL_NAME_MAX)
        return hl_fail(HL_EINVAL, "model name '%.140s' has %zu characters; at most %d are allowed",
                       name, n, HL_MODEL_NAME_MAX);
    if (!isalnum((unsigned char)name[0]))
        return hl_fail(HL_EINVAL, "model name '%.140s' does not start with a letter or digit",
                       name);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && strchr("._-", name[i]) == NULL)
            return hl_fail(
                HL_EINVAL,
                "model name '%s': '%c' is not allowed, use letters, digits, '.', '_', '-'", name,
                name[i]);
    return HL_OK;
}

hl_status hl_catalog_model(const struct hl_catalog *c, const char *name, struct hl_model_rec **out)
{
    struct hl_model_rec *m;
    HASH_FIND_STR(c->models, name, m);
    if (m == NULL)
        return hl_fail(HL_ENOENT, "model '%.140s' does not exist; `helios model ls` lists %u", name,
                       HASH_COUNT(c->models));
    *out = m;
    return HL_OK;
}

hl_status hl_catalog_version(const struct hl_model_rec *m, int64_t number,
                             struct hl_version_rec **out)
{
    struct hl_version_rec *v = number == -1 ? hl_catalog_newest(m) : m->versions;
    while (v != NULL && number != -1 && v->number != number)
        v = v->next;
    if (v != NULL) {
        *out = v;
        return HL_OK;
    }
    char why[512];
    if (number == -1 && hl_catalog_skipped(m, why, sizeof(why))[0] != '\0')
        return hl_fail(HL_ENOENT, "no version of model '%s' is whole: %s", m->name, why);
    if (number == -1)
        return hl_fail(HL_ENOENT, "model '%s' has no visible version yet", m->name);
    return hl_fail(HL_ENOENT,
                   "model '%s' has no version %" PRId64 "; `helios model show %s` lists them",
                   m->name, number, m->name);
}

bool hl_catalog_names_job(const struct hl_catalog *c, const char *job)
{
    for (const struct hl_model_rec *m = c->models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (strcmp(v->job, job) == 0)
                return true;
    return false;
}

struct hl_shard_rec *hl_catalog_shard(const struct hl_catalog *c, struct hl_id id)
{
    struct hl_shard_rec *s;
    HASH_FIND(hh, c->shards, &id, sizeof(id), s);
    return s;
}

const char *hl_shard_key(const struct hl_shard_rec *s, char *buf, size_t cap)
{
    char place[HL_PART_PLACE_MAX];
    snprintf(buf, cap, "%s@%" PRId64 "/%s", s->version->model->name, s->version->number,
             hl_part_place(s->pp, s->tp, s->ep, s->part, place));
    return buf;
}

static int shard_order(const void *a, const void *b)
{
    const struct hl_shard_rec *x = *(struct hl_shard_rec *const *)a;
    const struct hl_shard_rec *y = *(struct hl_shard_rec *const *)b;
    return hl_part_at_order(&(struct hl_part_at){x->pp, x->tp, x->ep, x->part},
                            &(struct hl_part_at){y->pp, y->tp, y->ep, y->part});
}

hl_status hl_version_reserve(struct hl_version_rec *v, size_t n)
{
    struct hl_shard_rec **list = realloc(v->shards, (v->shard_count + n + 1) * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu shards",
                       v->shard_count + n);
    v->shards = list;
    return HL_OK;
}

void hl_version_link(struct hl_catalog *c, struct hl_version_rec *v, struct hl_shard_rec **list,
                     size_t n)
{
    for (size_t i = 0; i < n; i++) {
        v->shards[v->shard_count++] = list[i];
        HASH_ADD(hh, c->shards, id, sizeof(struct hl_id), list[i]);
    }
    qsort(v->shards, v->shard_count, sizeof(*v->shards), shard_order);
    v->shares_state = 0;
}

void hl_shard_recs_free(struct hl_shard_rec **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hl_shard_rec_free(list[i]);
    free(list);
}

static int id_order(const void *a, const void *b)
{
    const struct hl_id x = (*(struct hl_shard_rec *const *)a)->id;
    const struct hl_id y = (*(struct hl_shard_rec *const *)b)->id;
    return x.hi != y.hi ? (x.hi > y.hi) - (x.hi < y.hi) : (x.lo > y.lo) - (x.lo < y.lo);
}

hl_status hl_shards_check(const struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n)
{
    HL_AUTO(hl_freep) struct hl_shard_rec **by_id = calloc(n + 1, sizeof(*by_id));
    if (by_id == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of %zu shards", n);
    for (size_t i = 0; i < n; i++) {
        HL_TRY(hl_part_name_check(list[i]->part));
        if (hl_catalog_shard(c, list[i]->id) != NULL)
            return hl_fail(HL_EEXIST, "shard %s is in the catalogue already",
                           hl_id_format(list[i]->id).s);
        by_id[i] = list[i];
    }
    qsort(by_id, n, sizeof(*by_id), id_order);
    for (size_t i = 1; i < n; i++)
        if (hl_id_equal(by_id[i - 1]->id, by_id[i]->id))
            return hl_fail(HL_EEXIST, "shard %s is in the list already",
                           hl_id_format(by_id[i]->id).s);
    return HL_OK;
}

hl_status hl_shards_parse(const struct hl_catalog *c, struct hl_version_rec *v,
                          const struct hl_api_shard_list *shards, int rank,
                          struct hl_shard_rec ***out)
{
    size_t n = 0;
    struct hl_shard_rec **list = calloc(shards->count + 1, sizeof(*list));
    hl_status st =
        list != NULL ? HL_OK
                     : hl_fail(HL_ENOMEM, "out of memory for a list of %zu shards", shards->count);
    while (st == HL_OK && n < shards->count) {
        list[n] = hl_shard_rec_new(&shards->items[n]);
        if (list[n] == NULL) {
            st = HL_EINVAL;
            break;
        }
        list[n]->version = v;
        list[n++]->rank = rank;
    }
    if (st == HL_OK)
        st = hl_shards_check(c, list, n);
    if (st != HL_OK) {
        hl_shard_recs_free(list, n);
        return st;
    }
    *out = list;
    return HL_OK;
}

/* Rejects a record that was moved or edited, so that it does not stand for another object. */
static hl_status fail_key(const char *own)
{
    return hl_fail(HL_ECORRUPT, "it is the record of %s", own);
}

static hl_status load_version(struct hl_catalog *c, const char *key, const json_t *value)
{
    const char *slash = strrchr(key, '/');
    char name[HL_MODEL_NAME_MAX + 1], own[HL_CATALOG_KEY_MAX];
    snprintf(name, sizeof(name), "%.*s", (int)(slash - key - 8), key + 8);
    struct hl_model_rec *m;
    HL_TRY(hl_catalog_model(c, name, &m));
    struct hl_version_rec *v;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_version_record record;
    HL_TRY(hl_api_record_from_json(&hl_api_version_record_type, value, &arena, &record));
    HL_TRY(hl_version_rec_from(&record, &v));
    v->model = m;
    version_record_key(v, own, sizeof(own));
    hl_status st = strcmp(own, key) == 0 ? HL_OK : fail_key(own);
    if (st == HL_OK && m->versions != NULL && v->number <= m->versions->number)
        st = hl_fail(HL_EEXIST, "version %" PRId64 " does not follow version %" PRId64, v->number,
                     m->versions->number);
    if (st != HL_OK) {
        hl_version_rec_free(v);
        return st;
    }
    v->next = m->versions; /* keys come in ascending order */
    m->versions = v;
    return HL_OK;
}

static hl_status load_shard(struct hl_catalog *c, const char *key, const json_t *value)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    char own[HL_CATALOG_KEY_MAX];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard_record r;
    HL_TRY(hl_api_record_from_json(&hl_api_shard_record_type, value, &arena, &r));
    HL_TRY(hl_catalog_model(c, r.model, &m));
    HL_TRY(hl_catalog_version(m, r.version, &v));
    struct hl_shard_rec *s =
        hl_shard_rec_from(&(struct hl_api_manifest_shard){.id = r.id,
                                                          .pp = r.pp,
                                                          .tp = r.tp,
                                                          .ep = r.ep,
                                                          .rank = r.rank,
                                                          .part = r.part,
                                                          .size_bytes = r.size_bytes,
                                                          .crc32 = r.crc32,
                                                          .tensors = r.tensors,
                                                          .layout = r.layout,
                                                          .tensor_crcs = r.tensor_crcs});
    if (s == NULL)
        return HL_ECORRUPT;
    s->version = v;
    shard_record_key(s, own, sizeof(own));
    hl_status st = strcmp(own, key) == 0 ? HL_OK : fail_key(own);
    if (st == HL_OK && hl_catalog_shard(c, s->id) != NULL)
        st = hl_fail(HL_EEXIST, "shard %s exists already", hl_id_format(s->id).s);
    if (st == HL_OK)
        st = hl_version_reserve(v, 1);
    if (st != HL_OK) {
        hl_shard_rec_free(s);
        return st;
    }
    hl_version_link(c, v, &s, 1);
    return HL_OK;
}

static hl_status load_model(struct hl_catalog *c, const char *key, const json_t *value)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model_record record;
    HL_TRY(hl_api_record_from_json(&hl_api_model_record_type, value, &arena, &record));
    struct hl_model_rec *twin, *m;
    HL_TRY(hl_model_rec_from(&record, &m));
    HASH_FIND_STR(c->models, m->name, twin);
    if (twin != NULL || strcmp(key + strlen("model/"), m->name) != 0) {
        hl_status st = hl_fail(HL_ECORRUPT, "it is the record of model '%s'", m->name);
        hl_model_rec_free(m);
        return st;
    }
    HASH_ADD_STR(c->models, name, m);
    return HL_OK;
}

hl_status hl_catalog_load(struct hl_catalog *c, const char *key, const json_t *value)
{
    hl_status st = HL_OK;
    if (strncmp(key, "model/", 6) == 0) {
        st = load_model(c, key, value);
    } else if (strncmp(key, "version/", 8) == 0) {
        st = load_version(c, key, value);
    } else if (strncmp(key, "shard/", 6) == 0) {
        st = load_shard(c, key, value);
    }
    if (st == HL_OK)
        return HL_OK;
    return hl_fail_prefix(st == HL_ENOMEM ? st : HL_ECORRUPT, "record %s: ", key);
}

hl_status hl_version_describe(struct hl_records *r, const struct hl_version_rec *v,
                              struct hl_shard_rec **list, size_t n)
{
    struct hl_shards_stated stated = hl_version_stated(v);
    if (n > 0 && list != v->shards) {
        stated.count += n;
        if (stated.sum >= 0)
            stated.sum = (uint32_t)(stated.sum + hl_shards_sum(list, n));
    }
    if (!v->model->damaged) /* not rewritten if damaged: what it held would be lost */
        HL_TRY(add_model(r, v->model));
    HL_TRY(add_version(r, v, stated));
    for (size_t i = 0; i < n; i++)
        HL_TRY(add_shard(r, list[i]));
    return HL_OK;
}

HL_CHECK static hl_status model_new(const struct hl_import_done *done, struct hl_model_rec **out)
{
    const struct hl_api_model_record r = {.name = done->name,
                                          .tp = done->tp,
                                          .pp = done->pp,
                                          .virtual_stages = done->virtual_stages,
                                          .config = done->config,
                                          .source = done->source,
                                          .created_ms = done->now_ms,
                                          .next_version = 2};
    hl_status st = hl_model_rec_from(&r, out);
    return st == HL_OK ? st : hl_fail_prefix(st, "model '%s': ", done->name);
}

/* The iteration of the Megatron checkpoint that the model was imported from; 0 for other models. */
static int64_t step_of(const char *config)
{
    struct hl_model_config c;
    if (hl_model_config_read(config, &c) != HL_OK) {
        hl_error_clear();
        return 0;
    }
    int64_t step = c.own.megatron.iteration;
    hl_model_config_fini(&c);
    return step;
}

HL_CHECK static hl_status take_meta(struct hl_version_rec *v, const char *text)
{
    char *meta = hl_text_copy(text);
    if (meta == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a model");
    free(v->meta);
    v->meta = meta;
    return HL_OK;
}

hl_status hl_catalog_import(struct hl_catalog *c, const struct hl_import_done *done,
                            hl_catalog_commit_fn commit, void *arg, struct hl_version_rec **out)
{
    struct hl_model_rec *m;
    HL_TRY(hl_model_name_check(done->name));
    if (hl_catalog_model(c, done->name, &m) == HL_OK)
        return hl_fail(HL_EEXIST,
                       "model '%s' exists already; remove it or import under another name",
                       done->name);
    HL_TRY(model_new(done, &m));
    struct hl_version_rec *v = hl_version_rec_new(1, 0);
    struct hl_shard_rec **list = NULL;
    size_t n = done->shards.count;
    struct hl_records records = {0};
    hl_status st = HL_OK;
    if (v == NULL) {
        st = hl_fail(HL_ENOMEM, "out of memory allocating a model");
        goto fail;
    }
    if (done->meta != NULL && done->meta[0] != '\0' && (st = take_meta(v, done->meta)) != HL_OK)
        goto fail;
    v->model = m;
    v->state = HL_API_VERSION_STATE_VISIBLE;
    v->check = HL_API_LAYOUT_CHECK_UNCHECKED; /* this version defines the layout */
    v->step = step_of(m->config);
    v->created_ms = v->visible_ms = done->now_ms;
    v->import_seconds = done->seconds;
    v->proved = done->proof != NULL && done->proof->proved;
    if (done->proof != NULL && !done->proof->proved)
        v->unproved = hl_text_copy(done->proof->unproved);
    st = hl_shards_parse(c, v, &done->shards, -1, &list);
    if (st != HL_OK)
        goto fail;
    if ((st = hl_version_reserve(v, n)) != HL_OK ||
        (st = hl_version_describe(&records, v, list, n)) != HL_OK ||
        (st = commit(arg, &records)) != HL_OK)
        goto fail_shards;
    HASH_ADD_STR(c->models, name, m);
    m->versions = v;
    hl_version_link(c, v, list, n);
    hl_shards_came(c, v->shards, v->shard_count);
    free(list);
    hl_records_fini(&records);
    *out = v;
    return HL_OK;

fail_shards:
    hl_shard_recs_free(list, n);
fail:
    hl_records_fini(&records);
    hl_version_rec_free(v);
    hl_model_rec_free(m);
    return st;
}

void hl_version_unlink_shards(struct hl_catalog *c, struct hl_version_rec *v)
{
    hl_shards_unlink(c, v->shards, v->shard_count);
    for (size_t i = 0; i < v->shard_count; i++)
        hl_shard_rec_free(v->shards[i]);
    v->shard_count = 0;
    hl_cuts_unlink(c, v);
}

void hl_version_remove(struct hl_catalog *c, struct hl_model_rec *m, struct hl_version_rec *v)
{
    struct hl_version_rec **at = &m->versions;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    hl_version_unlink_shards(c, v);
    hl_version_rec_free(v);
}

/* Describes the deletion of the versions that `number` selects, and collects the ids of their
 * shards. */
static hl_status describe_removal(struct hl_records *r, const struct hl_model_rec *m,
                                  int64_t number, struct hl_id *ids, size_t *n, uint64_t *bytes,
                                  int *left)
{
    *n = 0;
    *left = 0;
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (number != -1 && v->number != number) {
            (*left)++;
            continue;
        }
        for (size_t i = 0; i < v->shard_count; i++) {
            HL_TRY(hl_shard_describe_removal(r, v->shards[i]));
            ids[(*n)++] = v->shards[i]->id;
            *bytes += v->shards[i]->size_bytes;
        }
        HL_TRY(hl_cuts_describe_removal(r, v, ids, n, bytes));
        HL_TRY(hl_records_add(r, NULL, "version/%s/%010" PRId64, m->name, v->number));
    }
    if (*left == 0)
        HL_TRY(hl_records_add(r, NULL, "model/%s", m->name));
    return HL_OK;
}

hl_status hl_catalog_remove(struct hl_catalog *c, struct hl_model_rec *m, int64_t number,
                            hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                            size_t *id_count, uint64_t *bytes)
{
    struct hl_version_rec *v, *next;
    if (number != -1)
        HL_TRY(hl_catalog_version(m, number, &v));
    size_t most = 1;
    for (v = m->versions; v != NULL; v = v->next)
        most += v->shard_count + hl_cuts_shards(v);
    struct hl_id *list = calloc(most, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu ids", most);
    struct hl_records records = {0};
    size_t n;
    uint64_t total = 0;
    int left;
    hl_status st = describe_removal(&records, m, number, list, &n, &total, &left);
    if (st == HL_OK)
        st = commit(arg, &records);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(list);
        return st;
    }
    for (v = m->versions; v != NULL; v = next) {
        next = v->next;
        if (number == -1 || v->number == number)
            hl_version_remove(c, m, v);
    }
    if (left == 0) {
        HASH_DEL(c->models, m);
        hl_model_rec_free(m);
    }
    *ids = list;
    *id_count = n;
    *bytes = total;
    return HL_OK;
}
