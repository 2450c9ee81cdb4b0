/* A manifest as JSON and as a file. The JSON holds the records of the store, so that what is
 * restored is what was lost; the decoder trusts none of it. */
#include "core/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "core/catalog_private.h"
#include "core/json.h"
#include "core/safetensors.h"

#define TENSOR         "manifest"
#define PARALLEL_MAX   (1 << 16)
#define VERSION_MAX    INT64_C(9999999999) /* ten digits, as in the keys of the store */
#define FILE_ROOM      4096                /* header of the file */
#define DECODE_OPTIONS (JSON_REJECT_DUPLICATES)

/* ---- id -------------------------------------------------------------------------------------- */

/* The finalizer of splitmix64. */
static uint64_t mix_bits(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t mix_version(const char *model, int64_t number)
{
    uint64_t x = mix_bits((uint64_t)number);
    for (const char *p = model; *p != '\0'; p++)
        x = mix_bits(x ^ (unsigned char)*p);
    return x;
}

/* Sums do not depend on the order of the shards. */
static uint64_t mix_shard(struct hl_id id)
{
    return mix_bits(id.hi ^ mix_bits(id.lo));
}

struct hl_id hl_manifest_id(const struct hl_version_rec *v)
{
    uint64_t sum = mix_version(v->model->name, v->number);
    for (size_t i = 0; i < v->shard_count; i++)
        sum += mix_shard(v->shards[i]->id);
    return (struct hl_id){HL_MANIFEST_HI, sum};
}

/* ---- encode ---------------------------------------------------------------------------------- */

static json_t *shard_json(const struct hl_shard_rec *s)
{
    json_t *value = json_pack("{s:s s:i s:i s:i s:s s:I s:I s:I}", "id", hl_id_format(s->id).s,
                              "pp", s->pp, "tp", s->tp, "rank", s->rank, "part", s->part,
                              "sizeBytes", (json_int_t)s->size_bytes, "crc32", (json_int_t)s->crc32,
                              "tensors", (json_int_t)s->tensors);
    if (value != NULL && s->ep != 0)
        json_object_set_new(value, "ep", json_integer(s->ep));
    if (value != NULL && s->layout != NULL &&
        json_object_set_new(value, "layout", json_string(s->layout)) != 0) {
        json_decref(value);
        return NULL;
    }
    return value;
}

hl_status hl_manifest_encode(const struct hl_version_rec *v, struct hl_id cluster, char **out)
{
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return hl_fail(HL_EINVAL, "version %" PRId64 " of '%s' is not visible: it has no manifest",
                       v->number, v->model->name);
    json_t *shards = json_array();
    bool ok = shards != NULL;
    for (size_t i = 0; i < v->shard_count && ok; i++)
        ok = json_array_append_new(shards, shard_json(v->shards[i])) == 0;
    json_t *doc =
        ok ? json_pack("{s:i s:s s:s s:o s:o s:o}", "manifest", HL_MANIFEST_SCHEMA, "id",
                       hl_id_format(hl_manifest_id(v)).s, "cluster", hl_id_format(cluster).s,
                       "model", hl_model_rec_store(v->model), "version",
                       hl_version_rec_store(v, hl_version_stated(v)), "shards", shards)
           : NULL;
    if (!ok)
        json_decref(shards);
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the manifest of version %" PRId64 " of '%s'",
                       v->number, v->model->name);
    if (strlen(text) > HL_MANIFEST_MAX) {
        free(text);
        return hl_fail(HL_EINVAL, "the manifest of version %" PRId64 " of '%s' would pass %zu MiB",
                       v->number, v->model->name, HL_MANIFEST_MAX >> 20);
    }
    *out = text;
    return HL_OK;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static bool in_range(const json_t *obj, const char *key, int64_t low, int64_t high)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high;
}

static hl_status bad_manifest(const char *what)
{
    return hl_fail(HL_ECORRUPT, "manifest: %s", what);
}

static hl_status check_model(const json_t *model)
{
    HL_TRY(hl_model_name_check(hl_json_str(model, "name", "")));
    if (!in_range(model, "tp", 1, PARALLEL_MAX) || !in_range(model, "pp", 1, PARALLEL_MAX) ||
        !in_range(model, "virtualStages", 0, PARALLEL_MAX) ||
        !in_range(model, "nextVersion", 1, VERSION_MAX + 1) ||
        !in_range(model, "createdMs", 0, INT64_MAX) ||
        !json_is_string(json_object_get(model, "config")) ||
        !json_is_string(json_object_get(model, "source")))
        return bad_manifest("its model lacks a member, or one is out of range");
    return HL_OK;
}

static hl_status check_version(const json_t *version)
{
    size_t i;
    const json_t *rank;
    if (!in_range(version, "version", 1, VERSION_MAX) ||
        !in_range(version, "world", 0, HL_MANIFEST_SHARDS_MAX) ||
        !in_range(version, "step", INT64_MIN, INT64_MAX) ||
        !in_range(version, "attempt", INT32_MIN, INT32_MAX) ||
        !in_range(version, "createdMs", 0, INT64_MAX) ||
        !in_range(version, "visibleMs", 0, INT64_MAX) ||
        !json_is_string(json_object_get(version, "meta")) ||
        !json_is_array(json_object_get(version, "committed")) ||
        strcmp(hl_json_str(version, "state", ""), "visible") != 0)
        return bad_manifest("its version lacks a member, or one is out of range");
    json_array_foreach (hl_json_list(version, "committed"), i, rank) {
        if (!json_is_integer(rank))
            return bad_manifest("a rank that its version names is not a number");
    }
    return HL_OK;
}

static hl_status check_shard(const json_t *shard, uint64_t *sum, uint64_t *bytes)
{
    if (!in_range(shard, "pp", 0, PARALLEL_MAX) || !in_range(shard, "tp", 0, PARALLEL_MAX) ||
        (json_object_get(shard, "ep") != NULL && !in_range(shard, "ep", 0, PARALLEL_MAX)) ||
        !in_range(shard, "rank", -1, HL_MANIFEST_SHARDS_MAX) ||
        !in_range(shard, "tensors", 0, UINT32_MAX) ||
        !in_range(shard, "sizeBytes", 1, INT64_MAX >> 8))
        return bad_manifest("a shard lacks a member, or one is out of range");
    struct hl_shard_rec *s = hl_shard_rec_from_json(shard);
    if (s == NULL)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    hl_status st = hl_manifest_is(s->id) || hl_id_is_none(s->id)
                       ? bad_manifest("a shard has no shard's id")
                       : HL_OK;
    *sum += mix_shard(s->id);
    *bytes += s->size_bytes; /* at most 2^20 shards of 2^55 bytes wrap: a sum to show */
    hl_shard_rec_free(s);
    return st;
}

static hl_status check_manifest(const json_t *doc, struct hl_manifest *m)
{
    size_t i;
    const json_t *shard;
    m->model_rec = json_object_get(doc, "model");
    m->version_rec = json_object_get(doc, "version");
    m->shards = hl_json_list(doc, "shards");
    if (!json_is_object(doc) || !json_is_integer(json_object_get(doc, "manifest")))
        return bad_manifest("it is none");
    if (hl_json_int(doc, "manifest", 0) != HL_MANIFEST_SCHEMA)
        return hl_fail(HL_EUNSUPPORTED,
                       "manifest: its form is %" PRId64 ", this release reads form %d",
                       hl_json_int(doc, "manifest", 0), HL_MANIFEST_SCHEMA);
    if (hl_id_parse(hl_json_str(doc, "id", ""), &m->id) != HL_OK ||
        hl_id_parse(hl_json_str(doc, "cluster", ""), &m->cluster) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    if (check_model(m->model_rec) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    HL_TRY(check_version(m->version_rec));
    if (json_array_size(m->shards) == 0 || json_array_size(m->shards) > HL_MANIFEST_SHARDS_MAX)
        return bad_manifest("it names no shards, or too many");
    m->model = hl_json_str(m->model_rec, "name", "");
    m->number = hl_json_int(m->version_rec, "version", 0);
    uint64_t sum = mix_version(m->model, m->number);
    json_array_foreach (m->shards, i, shard) {
        HL_TRY(check_shard(shard, &sum, &m->bytes));
    }
    if (m->id.hi != HL_MANIFEST_HI || m->id.lo != sum)
        return bad_manifest("its id is not that of what it names");
    return HL_OK;
}

hl_status hl_manifest_decode(const char *text, size_t len, struct hl_manifest *out)
{
    struct hl_manifest m = {0};
    json_error_t error;
    if (len > HL_MANIFEST_MAX)
        return bad_manifest("it is too long");
    json_t *doc = json_loadb(text, len, DECODE_OPTIONS, &error);
    if (doc == NULL)
        return hl_fail(HL_ECORRUPT, "manifest: line %d: %s", error.line, error.text);
    hl_status st = check_manifest(doc, &m);
    if (st == HL_OK) {
        json_incref(m.model_rec);
        json_incref(m.version_rec);
        json_incref(m.shards);
        m.config = hl_json_str(m.model_rec, "config", "{}");
        m.tp = (int)hl_json_int(m.model_rec, "tp", 1);
        m.pp = (int)hl_json_int(m.model_rec, "pp", 1);
        m.virtual_stages = (int)hl_json_int(m.model_rec, "virtualStages", 1);
        m.step = hl_json_int(m.version_rec, "step", 0);
        m.visible_ms = hl_json_int(m.version_rec, "visibleMs", 0);
        *out = m;
    }
    json_decref(doc);
    return st;
}

void hl_manifest_fini(struct hl_manifest *m)
{
    json_decref(m->model_rec);
    json_decref(m->version_rec);
    json_decref(m->shards);
    memset(m, 0, sizeof(*m));
}

/* ---- the file -------------------------------------------------------------------------------- */

hl_status hl_manifest_wrap(const char *text, size_t len, void **out, size_t *size)
{
    const struct hl_safetensors_meta meta = {"helios.manifest", "1"};
    struct hl_tensor tensor = {.name = TENSOR, .dtype = HL_DTYPE_U8, .rank = 1, .shape = {len}};
    struct hl_safetensors_layout layout = {
        .tensors = &tensor, .count = 1, .meta = &meta, .meta_count = 1, .crc_fields = 1};
    struct hl_safetensors_image image;
    if (len == 0 || len > HL_MANIFEST_MAX)
        return hl_fail(HL_EINVAL, "a manifest of %zu bytes: it has 1 to %zu", len, HL_MANIFEST_MAX);
    HL_TRY(hl_safetensors_write(&layout, &image));
    char *file = malloc(image.size + len);
    if (file == NULL) {
        hl_safetensors_image_fini(&image);
        return hl_fail(HL_ENOMEM, "out of memory for a manifest of %zu bytes", len);
    }
    memcpy(file, image.bytes, image.size);
    memcpy(file + image.size, text, len);
    hl_safetensors_patch_crc(&image, file, 0, hl_crc32(0, text, len));
    *out = file;
    *size = image.size + len;
    hl_safetensors_image_fini(&image);
    return HL_OK;
}

static hl_status find_text(const struct hl_safetensors *st, const char *file, const char **text,
                           size_t *len)
{
    uint32_t crc = 0;
    const struct hl_tensor *t = hl_safetensors_find(st, TENSOR);
    if (hl_safetensors_meta(st, "helios.manifest") == NULL || st->count != 1 || t == NULL ||
        t->dtype != HL_DTYPE_U8 || t->size == 0 || t->size > HL_MANIFEST_MAX)
        return bad_manifest("the file holds none");
    if (hl_safetensors_crc(st, TENSOR, &crc) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    const char *at = file + st->data_offset + t->offset;
    if (hl_crc32(0, at, t->size) != crc)
        return bad_manifest("its checksum is not that of its text");
    *text = at;
    *len = t->size;
    return HL_OK;
}

hl_status hl_manifest_unwrap(const void *file, size_t size, const char **text, size_t *len)
{
    struct hl_safetensors st;
    if (size > HL_MANIFEST_MAX + FILE_ROOM)
        return bad_manifest("the file is too long");
    if (hl_safetensors_parse(file, size, size, &st) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    hl_status status = find_text(&st, file, text, len);
    hl_safetensors_fini(&st);
    return status;
}
