/* Records of the catalogue: as JSON for the store, as structs of the schema for everybody else. */
#include "core/catalog_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

char *hl_text_copy(const char *s)
{
    return strdup(s != NULL ? s : "");
}

struct hl_version_rec *hl_version_rec_new(int64_t number, int world)
{
    struct hl_version_rec *v = calloc(1, sizeof(*v));
    if (v == NULL)
        return NULL;
    v->number = number;
    v->world = world;
    v->stated_shards = v->stated_sum = -1;
    v->committed = calloc((size_t)(world > 0 ? world : 1), 1);
    v->meta = hl_text_copy("{}");
    if (v->committed == NULL || v->meta == NULL) {
        hl_version_rec_free(v);
        return NULL;
    }
    return v;
}

void hl_shard_rec_free(struct hl_shard_rec *s)
{
    if (s != NULL) {
        free(s->layout);
        free(s->tensor_crcs);
    }
    free(s);
}

void hl_version_rec_free(struct hl_version_rec *v)
{
    if (v == NULL)
        return;
    for (size_t i = 0; i < v->shard_count; i++)
        hl_shard_rec_free(v->shards[i]);
    free(v->shards);
    free(v->committed);
    free(v->begun);
    free(v->error);
    free(v->unproved);
    free(v->meta);
    free(v);
}

void hl_model_rec_free(struct hl_model_rec *m)
{
    if (m == NULL)
        return;
    while (m->versions != NULL) {
        struct hl_version_rec *v = m->versions;
        m->versions = v->next;
        hl_version_rec_free(v);
    }
    free(m->config);
    free(m->source);
    free(m);
}

json_t *hl_shard_rec_to_json(const struct hl_shard_rec *s)
{
    return json_pack("{s:s s:s s:I s:i s:i s:s s:I s:I s:i s:s s:s s:I s:I}", "id",
                     hl_id_format(s->id).s, "model", s->version->model->name, "version",
                     (json_int_t)s->version->number, "pp", s->pp, "tp", s->tp, "part", s->part,
                     "sizeBytes", (json_int_t)s->size_bytes, "crc32", (json_int_t)s->crc32,
                     "tensors", (int)s->tensors, "state",
                     s->damaged ? "damaged"
                     : s->lost  ? "lost"
                                : "sealed",
                     "location", s->archived && s->missed > 0 ? "L4" : "L3", "accesses",
                     (json_int_t)s->accesses, "lastAccessMs", (json_int_t)s->last_access_ms);
}

struct hl_api_shard hl_shard_rec_info(const struct hl_shard_rec *s, struct hl_arena *arena)
{
    return (struct hl_api_shard){
        .id = hl_id_print(s->id, arena),
        .model = s->version->model->name,
        .version = s->version->number,
        .pp = s->pp,
        .tp = s->tp,
        .part = s->part,
        .size_bytes = s->size_bytes,
        .crc32 = s->crc32,
        .tensors = s->tensors,
        .state = s->damaged ? HL_API_SHARD_STATE_DAMAGED
                 : s->lost  ? HL_API_SHARD_STATE_LOST
                            : HL_API_SHARD_STATE_SEALED,
        .location = s->archived && s->missed > 0 ? HL_API_TIER_L4 : HL_API_TIER_L3,
        .accesses = s->accesses,
        .last_access_ms = s->last_access_ms,
    };
}

HL_CHECK static hl_status take_layout(struct hl_shard_rec *s, const struct hl_api_shard *shard)
{
    const char *crcs = shard->tensor_crcs != NULL ? shard->tensor_crcs : "";
    HL_TRY(hl_layout_verify(shard->layout));
    if (crcs[0] != '\0')
        HL_TRY(hl_layout_verify_crcs(shard->layout, crcs));
    s->layout = strdup(shard->layout);
    s->tensor_crcs = crcs[0] != '\0' ? strdup(crcs) : NULL;
    if (s->layout == NULL || (crcs[0] != '\0' && s->tensor_crcs == NULL))
        return hl_fail(HL_ENOMEM, "out of memory for a shard record");
    return HL_OK;
}

struct hl_shard_rec *hl_shard_rec_new(const struct hl_api_shard *shard)
{
    struct hl_shard_rec *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        (void)hl_fail(HL_ENOMEM, "out of memory for a shard record");
        return NULL;
    }
    if (hl_id_parse(shard->id, &s->id) != HL_OK || shard->part[0] == '\0' ||
        strlen(shard->part) >= HL_PART_MAX || shard->size_bytes == 0 ||
        shard->size_bytes > INT64_MAX) {
        (void)hl_fail(HL_EINVAL, "shard record needs id, part (1-%d bytes), sizeBytes and crc32",
                      HL_PART_MAX - 1);
        free(s);
        return NULL;
    }
    snprintf(s->part, sizeof(s->part), "%s", shard->part);
    s->size_bytes = shard->size_bytes;
    s->crc32 = shard->crc32;
    s->pp = shard->pp;
    s->tp = shard->tp;
    s->rank = -1;
    s->tensors = shard->tensors;
    if (shard->layout == NULL || shard->layout[0] == '\0')
        return s;
    if (take_layout(s, shard) != HL_OK) {
        hl_shard_rec_free(s);
        return NULL;
    }
    return s;
}

struct hl_shard_rec *hl_shard_rec_from_json(const json_t *value)
{
    int64_t size = hl_json_int(value, "sizeBytes", 0), crc = hl_json_int(value, "crc32", -1);
    struct hl_shard_rec *s = hl_shard_rec_new(&(struct hl_api_shard){
        .id = hl_json_str(value, "id", ""),
        .part = crc >= 0 && crc <= UINT32_MAX ? hl_json_str(value, "part", "") : "",
        .size_bytes = size > 0 ? (uint64_t)size : 0,
        .crc32 = (uint32_t)crc,
        .pp = (int32_t)hl_json_int(value, "pp", 0),
        .tp = (int32_t)hl_json_int(value, "tp", 0),
        .tensors = (uint32_t)hl_json_int(value, "tensors", 0),
        .layout = hl_json_str(value, "layout", ""),
        .tensor_crcs = hl_json_str(value, "tensorCrcs", ""),
    });
    if (s != NULL)
        s->rank = (int)hl_json_int(value, "rank", -1);
    return s;
}

json_t *hl_version_rec_store(const struct hl_version_rec *v, struct hl_shards_stated stated)
{
    json_t *ranks = json_array();
    for (int i = 0; i < v->world; i++)
        if (v->committed[i])
            json_array_append_new(ranks, json_integer(i));
    /* A version without a split of its own has none in its record, as those of earlier releases. */
    json_t *split = hl_split_said(&v->split) ? hl_api_to_json(&hl_api_split_type, &v->split) : NULL;
    return json_pack("{s:I s:s s:I s:s s:i s:i s:s s:I s:I s:f s:s s:s s:I s:I s:o s:o* s:b s:s}",
                     "version", (json_int_t)v->number, "state", hl_api_version_state_name(v->state),
                     "step", (json_int_t)v->step, "job", v->job, "attempt", v->attempt, "world",
                     v->world, "check", hl_api_layout_check_name(v->check), "createdMs",
                     (json_int_t)v->created_ms, "visibleMs", (json_int_t)v->visible_ms,
                     "importSeconds", v->import_seconds, "meta", v->meta, "error",
                     v->error != NULL ? v->error : "", "shards", (json_int_t)stated.count,
                     "shardsSum", (json_int_t)stated.sum, "committed", ranks, "split", split,
                     "proved", v->proved, "unproved", v->unproved != NULL ? v->unproved : "");
}

/* Records without one are of versions that are split like their model. */
HL_CHECK static hl_status read_split(const json_t *value, struct hl_api_split *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0}; /* a split has no texts */
    *out = (struct hl_api_split){0};
    if (value == NULL)
        return HL_OK;
    if (hl_api_from_json(&hl_api_split_type, value, &arena, out) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of a version: split: ");
    return HL_OK;
}

hl_status hl_version_rec_from_json(const json_t *value, struct hl_version_rec **out)
{
    enum hl_api_version_state state;
    if (hl_api_version_state_parse(hl_json_str(value, "state", ""), &state) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of a version: ");
    enum hl_api_layout_check check; /* records without one are older than it */
    if (hl_api_layout_check_parse(hl_json_str(value, "check", "unchecked"), &check) != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "record of a version: ");
    struct hl_api_split split;
    HL_TRY(read_split(json_object_get(value, "split"), &split));
    struct hl_version_rec *v =
        hl_version_rec_new(hl_json_int(value, "version", 0), (int)hl_json_int(value, "world", 0));
    if (v == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading the record of a version");
    v->state = state;
    v->check = check;
    v->split = split;
    v->stated_shards = hl_json_int(value, "shards", -1);
    v->stated_sum = hl_json_int(value, "shardsSum", -1);
    const char *error = hl_json_str(value, "error", "");
    v->error = error[0] != '\0' ? hl_text_copy(error) : NULL;
    v->proved = json_is_true(json_object_get(value, "proved"));
    const char *unproved = hl_json_str(value, "unproved", "");
    v->unproved = unproved[0] != '\0' ? hl_text_copy(unproved) : NULL;
    v->step = hl_json_int(value, "step", 0);
    v->attempt = (int)hl_json_int(value, "attempt", 0);
    v->created_ms = hl_json_int(value, "createdMs", 0);
    v->visible_ms = hl_json_int(value, "visibleMs", 0);
    v->import_seconds = hl_json_real(value, "importSeconds", 0);
    snprintf(v->job, sizeof(v->job), "%s", hl_json_str(value, "job", ""));
    free(v->meta);
    v->meta = hl_text_copy(hl_json_str(value, "meta", "{}"));
    size_t i;
    json_t *rank;
    json_array_foreach (hl_json_list(value, "committed"), i, rank) {
        json_int_t r = json_integer_value(rank);
        if (r >= 0 && r < v->world && !v->committed[r]) {
            v->committed[r] = 1;
            v->committed_count++;
        }
    }
    *out = v;
    return HL_OK;
}

struct hl_api_model_version hl_version_rec_info(const struct hl_version_rec *v,
                                                struct hl_arena *arena)
{
    uint64_t bytes = 0;
    char trouble[160];
    for (size_t i = 0; i < v->shard_count; i++)
        bytes += v->shards[i]->size_bytes;
    const char *error = v->error != NULL ? v->error : "";
    if (v->state == HL_API_VERSION_STATE_VISIBLE)
        error = hl_arena_strdup(arena, hl_version_trouble(v, trouble, sizeof(trouble)));
    return (struct hl_api_model_version){
        .version = v->number,
        .state = v->state,
        .step = v->step,
        .job = v->job,
        .created_ms = v->created_ms,
        .visible_ms = v->visible_ms,
        .shards = (uint32_t)v->shard_count,
        .bytes = bytes,
        .meta = v->meta,
        .error = error,
        .import_seconds = v->import_seconds,
        .committed_ranks =
            v->state == HL_API_VERSION_STATE_FAILED ? 0 : (uint32_t)v->committed_count,
        .world = (uint32_t)v->world,
        .lost_shards = (uint32_t)hl_version_lost(v),
        .split = hl_version_split(v),
        .proved = v->proved,
        .unproved = v->unproved != NULL ? v->unproved
                    : v->world == 0     ? "it was imported: `helios model verify` proves it"
                                        : "",
    };
}

json_t *hl_model_rec_store(const struct hl_model_rec *m)
{
    return json_pack("{s:s s:i s:i s:i s:s s:s s:I s:I}", "name", m->name, "tp", m->tp, "pp", m->pp,
                     "virtualStages", m->virtual_stages, "config", m->config, "source", m->source,
                     "createdMs", (json_int_t)m->created_ms, "nextVersion",
                     (json_int_t)m->next_version);
}

void hl_model_rec_read_shape(struct hl_model_rec *m)
{
    m->shape = (struct hl_model_shape){0};
    if (m->config != NULL && hl_model_shape_read(m->config, &m->shape) != HL_OK)
        hl_error_clear();
}

struct hl_api_split hl_model_split(const struct hl_model_rec *m)
{
    if (m->shape.layers > 0)
        return m->shape.split;
    return (struct hl_api_split){.tp = m->tp, .pp = m->pp, .virtual_stages = m->virtual_stages};
}

struct hl_api_split hl_version_split(const struct hl_version_rec *v)
{
    return hl_split_said(&v->split) ? v->split : hl_model_split(v->model);
}

struct hl_model_rec *hl_model_rec_from_json(const json_t *value)
{
    struct hl_model_rec *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    snprintf(m->name, sizeof(m->name), "%s", hl_json_str(value, "name", ""));
    m->tp = (int)hl_json_int(value, "tp", 1);
    m->pp = (int)hl_json_int(value, "pp", 1);
    m->virtual_stages = (int)hl_json_int(value, "virtualStages", 1);
    m->created_ms = hl_json_int(value, "createdMs", 0);
    m->next_version = hl_json_int(value, "nextVersion", 1);
    m->config = hl_text_copy(hl_json_str(value, "config", "{}"));
    m->source = hl_text_copy(hl_json_str(value, "source", ""));
    hl_model_rec_read_shape(m);
    return m;
}

struct hl_api_model hl_model_rec_info(const struct hl_model_rec *m, struct hl_arena *arena)
{
    const struct hl_version_rec *newest = hl_catalog_newest(m);
    json_t *config = json_loads(m->config, 0, NULL);
    struct hl_api_model info = {
        .name = m->name,
        .tp = m->tp,
        .pp = m->pp,
        .virtual_stages = m->virtual_stages,
        .architecture = hl_arena_strdup(arena, hl_json_str(config, "architecture", "")),
        .dtype = hl_arena_strdup(arena, hl_json_str(config, "dtype", "")),
        .parameters = (uint64_t)hl_json_int(config, "parameters", 0),
        .config = m->config,
        .source = m->source,
        .created_ms = m->created_ms,
        .latest = newest != NULL ? newest->number : -1,
    };
    json_decref(config);
    size_t n = 0;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        n++;
    info.versions.items = hl_arena_array(arena, n, sizeof(*info.versions.items));
    for (const struct hl_version_rec *v = m->versions; v != NULL && info.versions.items != NULL;
         v = v->next)
        info.versions.items[info.versions.count++] = hl_version_rec_info(v, arena);
    return info;
}
