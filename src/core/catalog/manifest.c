/* A manifest as JSON and as a file. The JSON holds the store's records, so that a restore gets back
 * exactly what was lost. The decoder trusts none of it. */
#include "core/catalog/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "core/catalog/catalog_private.h"
#include "core/safetensors/safetensors.h"

#define TENSOR         "manifest"
#define PARALLEL_MAX   (1 << 16)
#define VERSION_MAX    INT64_C(9999999999) /* ten digits, as in the store's keys */
#define FILE_ROOM      4096                /* bytes of the file's header */
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

/* Adds up, so that the result does not depend on the order of the shards. */
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

static struct hl_api_manifest_shard_list shards_store(const struct hl_version_rec *v,
                                                      struct hl_arena *arena)
{
    struct hl_api_manifest_shard_list list = {
        .items = hl_arena_array(arena, v->shard_count, sizeof(*list.items))};
    for (size_t i = 0; i < v->shard_count && list.items != NULL; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        list.items[list.count++] =
            (struct hl_api_manifest_shard){.id = hl_arena_strdup(arena, hl_id_format(s->id).s),
                                           .pp = s->pp,
                                           .tp = s->tp,
                                           .ep = s->ep,
                                           .rank = s->rank,
                                           .part = s->part,
                                           .size_bytes = s->size_bytes,
                                           .crc32 = s->crc32,
                                           .tensors = s->tensors,
                                           .layout = s->layout,
                                           .tensor_crcs = s->tensor_crcs};
    }
    return list;
}

hl_status hl_manifest_encode(const struct hl_version_rec *v, struct hl_id cluster, char **out)
{
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return hl_fail(HL_EINVAL, "version %" PRId64 " of '%s' is not visible: it has no manifest",
                       v->number, v->model->name);
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_manifest manifest = {
        .manifest = HL_MANIFEST_SCHEMA,
        .id = hl_arena_strdup(&arena, hl_id_format(hl_manifest_id(v)).s),
        .cluster = hl_arena_strdup(&arena, hl_id_format(cluster).s),
        .model = hl_model_rec_store(v->model),
        .version = hl_version_rec_store(v, hl_version_stated(v), &arena),
        .shards = shards_store(v, &arena),
    };
    json_t *doc =
        !hl_arena_failed(&arena) ? hl_api_to_json(&hl_api_manifest_type, &manifest) : NULL;
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the manifest of version %" PRId64 " of '%s'",
                       v->number, v->model->name);
    if (strlen(text) > HL_MANIFEST_MAX) {
        free(text);
        return hl_fail(HL_EINVAL,
                       "the manifest of version %" PRId64 " of '%s' would exceed %zu MiB",
                       v->number, v->model->name, HL_MANIFEST_MAX >> 20);
    }
    *out = text;
    return HL_OK;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static hl_status bad_manifest(const char *what)
{
    return hl_fail(HL_ECORRUPT, "manifest: %s", what);
}

static bool in_range(int64_t value, int64_t low, int64_t high)
{
    return value >= low && value <= high;
}

static hl_status check_model(const struct hl_api_model_record *m)
{
    if (hl_model_name_check(m->name) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    if (!in_range(m->tp, 1, PARALLEL_MAX) || !in_range(m->pp, 1, PARALLEL_MAX) ||
        !in_range(m->virtual_stages, 0, PARALLEL_MAX) ||
        !in_range(m->next_version, 1, VERSION_MAX + 1) || m->created_ms < 0)
        return bad_manifest("a number of its model is out of range");
    return HL_OK;
}

static hl_status check_version(const struct hl_api_version_record *v)
{
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return bad_manifest("its version is not visible");
    if (!in_range(v->version, 1, VERSION_MAX) || !in_range(v->world, 0, HL_MANIFEST_SHARDS_MAX) ||
        v->created_ms < 0 || v->visible_ms < 0)
        return bad_manifest("a number of its version is out of range");
    return HL_OK;
}

static hl_status check_shard(const struct hl_api_manifest_shard *shard, uint64_t *sum,
                             uint64_t *bytes)
{
    if (!in_range(shard->pp, 0, PARALLEL_MAX) || !in_range(shard->tp, 0, PARALLEL_MAX) ||
        !in_range(shard->ep, 0, PARALLEL_MAX) ||
        !in_range(shard->rank, -1, HL_MANIFEST_SHARDS_MAX) || shard->size_bytes == 0 ||
        shard->size_bytes > INT64_MAX >> 8)
        return bad_manifest("a number of a shard is out of range");
    struct hl_shard_rec *s = hl_shard_rec_from(shard);
    if (s == NULL)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    hl_status st = hl_manifest_is(s->id) || hl_id_is_none(s->id)
                       ? bad_manifest("the id of a shard is invalid")
                       : HL_OK;
    *sum += mix_shard(s->id);
    *bytes += s->size_bytes; /* can wrap at 2^20 shards of 2^55 bytes; it is only shown */
    hl_shard_rec_free(s);
    return st;
}

/* Checks the format first: another format can have other members. */
HL_CHECK static hl_status read_doc(const json_t *json, struct hl_arena *arena,
                                   struct hl_api_manifest *doc)
{
    struct hl_api_manifest_form form;
    hl_status st = hl_api_record_from_json(&hl_api_manifest_form_type, json, arena, &form);
    if (st == HL_OK && form.manifest != HL_MANIFEST_SCHEMA)
        return hl_fail(HL_EUNSUPPORTED, "manifest: its form is %d, this release reads form %d",
                       form.manifest, HL_MANIFEST_SCHEMA);
    if (st == HL_OK)
        st = hl_api_record_from_json(&hl_api_manifest_type, json, arena, doc);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st == HL_ENOMEM ? st : HL_ECORRUPT, "manifest: ");
}

static hl_status check_manifest(struct hl_manifest *m)
{
    const struct hl_api_manifest *doc = &m->doc;
    if (hl_id_parse(doc->id, &m->id) != HL_OK || hl_id_parse(doc->cluster, &m->cluster) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "manifest: ");
    HL_TRY(check_model(&doc->model));
    HL_TRY(check_version(&doc->version));
    if (doc->shards.count == 0 || doc->shards.count > HL_MANIFEST_SHARDS_MAX)
        return bad_manifest("it names no shards, or too many");
    uint64_t sum = mix_version(doc->model.name, doc->version.version);
    for (size_t i = 0; i < doc->shards.count; i++)
        HL_TRY(check_shard(&doc->shards.items[i], &sum, &m->bytes));
    if (m->id.hi != HL_MANIFEST_HI || m->id.lo != sum)
        return bad_manifest("its id does not match what it names");
    return HL_OK;
}

hl_status hl_manifest_decode(const char *text, size_t len, struct hl_manifest *out)
{
    struct hl_manifest m = {0};
    json_error_t error;
    if (len > HL_MANIFEST_MAX)
        return bad_manifest("it is too long");
    json_t *json = json_loadb(text, len, DECODE_OPTIONS, &error);
    if (json == NULL)
        return hl_fail(HL_ECORRUPT, "manifest: line %d: %s", error.line, error.text);
    hl_status st = read_doc(json, &m.arena, &m.doc);
    json_decref(json);
    if (st == HL_OK)
        st = check_manifest(&m);
    if (st != HL_OK) {
        hl_manifest_fini(&m);
        return st;
    }
    m.model = m.doc.model.name;
    m.config = m.doc.model.config;
    m.tp = m.doc.model.tp;
    m.pp = m.doc.model.pp;
    m.virtual_stages = m.doc.model.virtual_stages;
    m.number = m.doc.version.version;
    m.step = m.doc.version.step;
    m.visible_ms = m.doc.version.visible_ms;
    *out = m;
    return HL_OK;
}

void hl_manifest_fini(struct hl_manifest *m)
{
    hl_arena_fini(&m->arena);
    memset(m, 0, sizeof(*m));
}

/* ---- the file -------------------------------------------------------------------------------- */

hl_status hl_manifest_wrap(const char *text, size_t len, void **out, size_t *size)
{
    const struct hl_safetensors_meta meta = {"helios.manifest", "1"};
    struct hl_tensor tensor = {.name = TENSOR, .dtype = HL_DTYPE_U8, .rank = 1, .shape = {len}};
    struct hl_safetensors_layout layout = {
        .tensors = &tensor, .count = 1, .meta = &meta, .meta_count = 1, .crc_fields = true};
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
        return bad_manifest("its checksum does not match its text");
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
