/* Records of the catalogue: as JSON for the store, as the schema's structs for all other
 * callers. */
#include "core/catalog/catalog_cut.h"
#include "core/catalog/catalog_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void hl_cut_rec_free(struct hl_cut_rec *cut)
{
    if (cut == NULL)
        return;
    for (size_t i = 0; i < cut->shard_count; i++)
        hl_shard_rec_free(cut->shards[i]);
    free(cut->shards);
    free(cut->left_out);
    free(cut);
}

void hl_version_rec_free(struct hl_version_rec *v)
{
    if (v == NULL)
        return;
    for (size_t i = 0; i < v->shard_count; i++)
        hl_shard_rec_free(v->shards[i]);
    free(v->shards);
    while (v->cuts != NULL) {
        struct hl_cut_rec *cut = v->cuts;
        v->cuts = cut->next;
        hl_cut_rec_free(cut);
    }
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

static enum hl_api_shard_state shard_state(const struct hl_shard_rec *s)
{
    if (s->damaged)
        return HL_API_SHARD_STATE_DAMAGED;
    return s->lost ? HL_API_SHARD_STATE_LOST : HL_API_SHARD_STATE_SEALED;
}

static enum hl_api_tier shard_location(const struct hl_shard_rec *s)
{
    return s->archived && s->missed > 0 ? HL_API_TIER_L4 : HL_API_TIER_L3;
}

json_t *hl_shard_rec_to_json(const struct hl_shard_rec *s)
{
    return hl_api_to_json(&hl_api_shard_record_type,
                          &(struct hl_api_shard_record){.id = hl_id_format(s->id).s,
                                                        .model = s->version->model->name,
                                                        .version = s->version->number,
                                                        .pp = s->pp,
                                                        .tp = s->tp,
                                                        .ep = s->ep,
                                                        .part = s->part,
                                                        .size_bytes = s->size_bytes,
                                                        .crc32 = s->crc32,
                                                        .tensors = s->tensors,
                                                        .state = shard_state(s),
                                                        .location = shard_location(s),
                                                        .accesses = s->accesses,
                                                        .last_access_ms = s->last_access_ms,
                                                        .rank = s->rank,
                                                        .layout = s->layout,
                                                        .tensor_crcs = s->tensor_crcs});
}

static const char *derived_split(const struct hl_shard_rec *s, struct hl_arena *arena)
{
    char text[HL_SPLIT_TEXT_MAX];
    if (s->cut == NULL)
        return "";
    hl_split_cut_text(&s->cut->split, text);
    return hl_arena_text(arena, text, strlen(text));
}

struct hl_api_shard hl_shard_rec_info(const struct hl_shard_rec *s, struct hl_arena *arena)
{
    return (struct hl_api_shard){
        .id = hl_id_print(s->id, arena),
        .model = s->version->model->name,
        .version = s->version->number,
        .pp = s->pp,
        .tp = s->tp,
        .ep = s->ep,
        .part = s->part,
        .size_bytes = s->size_bytes,
        .crc32 = s->crc32,
        .tensors = s->tensors,
        .state = shard_state(s),
        .location = shard_location(s),
        .accesses = s->accesses,
        .last_access_ms = s->last_access_ms,
        .derived = s->cut != NULL,
        .derived_split = derived_split(s, arena),
    };
}

HL_CHECK static hl_status take_layout(struct hl_shard_rec *s, const struct hl_api_shard *shard)
{
    const char *layout = shard->layout != NULL ? shard->layout : "";
    const char *crcs = shard->tensor_crcs != NULL ? shard->tensor_crcs : "";
    HL_TRY(hl_layout_verify(layout));
    if (crcs[0] != '\0')
        HL_TRY(hl_layout_verify_crcs(layout, crcs));
    s->layout = strdup(layout);
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
    s->ep = shard->ep;
    s->rank = -1;
    s->tensors = shard->tensors;
    if (shard->tensors > 0 && (shard->layout == NULL || shard->layout[0] == '\0'))
        return s; /* an earlier release did not record it */
    if (take_layout(s, shard) != HL_OK) {
        hl_shard_rec_free(s);
        return NULL;
    }
    return s;
}

struct hl_shard_rec *hl_shard_rec_from(const struct hl_api_manifest_shard *r)
{
    struct hl_shard_rec *s =
        hl_shard_rec_new(&(struct hl_api_shard){.id = r->id,
                                                .part = r->part,
                                                .size_bytes = r->size_bytes,
                                                .crc32 = r->crc32,
                                                .pp = r->pp,
                                                .tp = r->tp,
                                                .ep = r->ep,
                                                .tensors = r->tensors,
                                                .layout = r->layout,
                                                .tensor_crcs = r->tensor_crcs});
    if (s != NULL)
        s->rank = r->rank;
    return s;
}

struct hl_api_version_record hl_version_rec_store(const struct hl_version_rec *v,
                                                  struct hl_shards_stated stated,
                                                  struct hl_arena *arena)
{
    struct hl_api_version_record r = {
        .version = v->number,
        .state = v->state,
        .step = v->step,
        .job = v->job,
        .attempt = v->attempt,
        .generation = v->generation,
        .world = v->world,
        .check = v->check,
        .created_ms = v->created_ms,
        .visible_ms = v->visible_ms,
        .import_seconds = v->import_seconds,
        .meta = v->meta,
        .error = v->error,
        .shards = (int64_t)stated.count,
        .shards_sum = stated.sum,
        .split = v->split,
        .proved = v->proved,
        .unproved = v->unproved,
    };
    size_t n = v->committed_count > 0 ? (size_t)v->world : 0;
    r.committed.items = hl_arena_array(arena, n, sizeof(*r.committed.items));
    for (int i = 0; i < (int)n && r.committed.items != NULL; i++)
        if (v->committed[i])
            r.committed.items[r.committed.count++] = i;
    return r;
}

HL_CHECK static hl_status read_committed(const struct hl_api_version_record *r,
                                         struct hl_version_rec *v)
{
    for (size_t i = 0; i < r->committed.count; i++) {
        int rank = r->committed.items[i];
        if (rank < 0 || rank >= v->world)
            return hl_fail(HL_ECORRUPT, "field committed[%zu]: rank %d is outside 0..%d", i, rank,
                           v->world - 1);
        v->committed_count += !v->committed[rank];
        v->committed[rank] = 1;
    }
    return HL_OK;
}

hl_status hl_version_rec_from(const struct hl_api_version_record *r, struct hl_version_rec **out)
{
    struct hl_version_rec *v = hl_version_rec_new(r->version, r->world);
    if (v == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading the record of a version");
    v->state = r->state;
    v->check = r->check;
    v->split = r->split;
    v->stated_shards = r->shards;
    v->stated_sum = r->shards_sum;
    v->error = r->error[0] != '\0' ? hl_text_copy(r->error) : NULL;
    v->proved = r->proved;
    v->unproved = r->unproved != NULL ? hl_text_copy(r->unproved) : NULL;
    v->step = r->step;
    v->attempt = r->attempt;
    v->generation = r->generation;
    v->created_ms = r->created_ms;
    v->visible_ms = r->visible_ms;
    v->import_seconds = r->import_seconds;
    snprintf(v->job, sizeof(v->job), "%s", r->job);
    free(v->meta);
    v->meta = hl_text_copy(r->meta);
    hl_status st = read_committed(r, v);
    if (st != HL_OK) {
        hl_version_rec_free(v);
        return st;
    }
    *out = v;
    return HL_OK;
}

static struct hl_api_cut_list cuts_info(const struct hl_version_rec *v, struct hl_arena *arena)
{
    struct hl_api_cut_list list = {0};
    size_t n = 0;
    for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next)
        n++;
    list.items = hl_arena_array(arena, n, sizeof(*list.items));
    for (const struct hl_cut_rec *cut = v->cuts; list.items != NULL && cut != NULL; cut = cut->next)
        list.items[list.count++] = (struct hl_api_cut){.split = cut->split,
                                                       .shards = (uint32_t)cut->shard_count,
                                                       .bytes = hl_cut_bytes(cut),
                                                       .left_out = cut->left_out};
    return list;
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
        .cuts = cuts_info(v, arena),
        .proved = v->proved,
        .unproved = v->unproved != NULL ? v->unproved
                    : v->world == 0 && !v->proved
                        ? "it was imported by an earlier release: `helios model verify` proves it"
                        : "",
    };
}

struct hl_api_model_record hl_model_rec_store(const struct hl_model_rec *m)
{
    return (struct hl_api_model_record){.name = m->name,
                                        .tp = m->tp,
                                        .pp = m->pp,
                                        .virtual_stages = m->virtual_stages,
                                        .config = m->config,
                                        .source = m->source,
                                        .created_ms = m->created_ms,
                                        .next_version = m->next_version};
}

hl_status hl_model_rec_read_shape(struct hl_model_rec *m)
{
    m->shape = (struct hl_model_shape){0};
    if (m->config == NULL || m->config[0] == '\0')
        return HL_OK;
    hl_status st = hl_model_shape_read(m->config, &m->shape);
    if (st != HL_EUNSUPPORTED)
        return st;
    hl_error_clear();
    return HL_OK;
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

hl_status hl_model_rec_from(const struct hl_api_model_record *r, struct hl_model_rec **out)
{
    struct hl_model_rec *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a model");
    snprintf(m->name, sizeof(m->name), "%s", r->name);
    m->tp = r->tp;
    m->pp = r->pp;
    m->virtual_stages = r->virtual_stages;
    m->created_ms = r->created_ms;
    m->next_version = r->next_version;
    m->config = hl_text_copy(r->config);
    m->source = hl_text_copy(r->source);
    hl_status st = m->config != NULL && m->source != NULL
                       ? hl_model_rec_read_shape(m)
                       : hl_fail(HL_ENOMEM, "out of memory allocating a model");
    if (st != HL_OK) {
        hl_model_rec_free(m);
        return st;
    }
    *out = m;
    return HL_OK;
}

static const char *text_of(const char *s)
{
    return s != NULL ? s : "";
}

struct hl_api_model hl_model_rec_info(const struct hl_model_rec *m, struct hl_arena *arena)
{
    const struct hl_version_rec *newest = hl_catalog_newest(m);
    HL_AUTO(hl_model_config_fini) struct hl_model_config config = {0};
    if (m->config != NULL && hl_model_config_read(m->config, &config) != HL_OK)
        hl_error_clear();
    struct hl_api_model info = {
        .name = m->name,
        .tp = m->tp,
        .pp = m->pp,
        .virtual_stages = m->virtual_stages,
        .architecture = hl_arena_strdup(arena, text_of(config.own.architecture)),
        .dtype = hl_arena_strdup(arena, text_of(config.own.dtype)),
        .parameters = config.own.parameters,
        .config = m->config,
        .source = m->source,
        .created_ms = m->created_ms,
        .latest = newest != NULL ? newest->number : -1,
    };
    size_t n = 0;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        n++;
    info.versions.items = hl_arena_array(arena, n, sizeof(*info.versions.items));
    for (const struct hl_version_rec *v = m->versions; v != NULL && info.versions.items != NULL;
         v = v->next)
        info.versions.items[info.versions.count++] = hl_version_rec_info(v, arena);
    return info;
}
