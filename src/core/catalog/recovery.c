/* Decides which versions are restored: those whose shards all exist with the size and the CRC of
 * their manifest.
 *
 *     candidates, by model and number; of two of one version the newer manifest first
 *
 *     skipped if   --discard                                 what is left is given up
 *                  the catalogue has the version             with other shards than the manifest
 *                  the catalogue's model is another one      other slices, other configuration
 *                  a newer manifest of it is restored
 *                  another version has one of its shards
 *                  a shard is missing, unreadable, or of another size or CRC
 *     otherwise it is restored and claims its shards: no later candidate can use them
 *
 * Each judgement starts again from the contents of the catalogue, so it can be repeated whenever
 * more has been read. */
#include "core/catalog/recovery.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/derived_id.h"

#define GROUPS_MAX 4096 /* lines of the answer about leftover shards */

/* ---- what there is --------------------------------------------------------------------------- */

struct hl_recovery_object *hl_recovery_object(struct hl_recovery *r, struct hl_id id)
{
    struct hl_recovery_object *o;
    HASH_FIND(hh, r->objects, &id, sizeof(id), o);
    if (o == NULL && (o = calloc(1, sizeof(*o))) != NULL) {
        o->id = id;
        HASH_ADD(hh, r->objects, id, sizeof(id), o);
    }
    return o;
}

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory for the objects of a recovery");
}

hl_status hl_recovery_note(struct hl_recovery *r, enum hl_recovery_place place, struct hl_id id,
                           uint64_t size, uint32_t crc)
{
    if (hl_id_is_derived(id))
        return HL_OK;
    struct hl_recovery_object *o = hl_recovery_object(r, id);
    if (o == NULL)
        return fail_memory();
    if (!o->pooled && !(place == HL_RECOVERY_TRASHED && o->archived))
        o->size = size;
    if (place == HL_RECOVERY_POOLED)
        o->crc = crc;
    *(place == HL_RECOVERY_POOLED     ? &o->pooled
      : place == HL_RECOVERY_ARCHIVED ? &o->archived
                                      : &o->trashed) = true;
    return HL_OK;
}

hl_status hl_recovery_found(struct hl_recovery *r, const struct hl_api_found *found,
                            struct hl_recovery_object **out)
{
    struct hl_id id;
    HL_TRY(hl_id_parse(found->id, &id));
    struct hl_recovery_object *o = hl_recovery_object(r, id);
    if (o == NULL)
        return fail_memory();
    snprintf(o->unreadable, sizeof(o->unreadable), "%s", found->error);
    if (found->tier == HL_API_TIER_UNSAID)
        o->pooled = o->archived = false; /* it was removed in the meantime */
    o->size = found->size_bytes;
    o->crc = found->crc32;
    if (found->model[0] != '\0' && o->model == NULL)
        o->model = strdup(found->model);
    o->version = found->version;
    *out = o;
    return HL_OK;
}

bool hl_recovery_reads(const struct hl_recovery_object *o, const struct hl_catalog *catalog)
{
    if (o->read || (!o->pooled && !o->archived))
        return false;
    if (hl_manifest_is(o->id))
        return true;
    return o->claimed != o->pooled && hl_catalog_shard(catalog, o->id) == NULL;
}

static bool is_only_trashed(const struct hl_recovery_object *o)
{
    return o->claimed && !o->pooled && !o->archived && o->trashed;
}

bool hl_recovery_untrashes(const struct hl_recovery_object *o, const struct hl_catalog *catalog)
{
    return is_only_trashed(o) && hl_catalog_shard(catalog, o->id) == NULL;
}

void hl_recovery_untrashed(struct hl_recovery *r)
{
    for (struct hl_recovery_object *o = r->objects; o != NULL; o = o->hh.next)
        if (is_only_trashed(o))
            o->archived = true;
}

static void candidate_fini(struct hl_recovery_candidate *x)
{
    hl_manifest_fini(&x->manifest);
    hl_arena_fini(&x->arena);
    x->shards = NULL;
    x->shard_count = 0;
}

void hl_recovery_fini(struct hl_recovery *r)
{
    struct hl_recovery_object *o, *next;
    for (size_t i = 0; i < r->count; i++)
        candidate_fini(&r->list[i]);
    HASH_ITER (hh, r->objects, o, next) {
        HASH_DEL(r->objects, o);
        free(o->model);
        free(o);
    }
    free(r->list);
}

/* Reads a manifest and its shards. The ids are parsed here once instead of at each judgement. Call
 * candidate_fini even if this fails. */
static hl_status candidate_read(struct hl_recovery_candidate *x, const char *text)
{
    HL_TRY(hl_manifest_decode(text, strlen(text), &x->manifest));
    const struct hl_api_manifest_shard_list *list = &x->manifest.doc.shards;
    x->shards = hl_arena_array(&x->arena, list->count, sizeof(*x->shards));
    if (x->shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the shards of a version");
    for (size_t i = 0; i < list->count; i++) {
        const struct hl_api_manifest_shard *from = &list->items[i];
        struct hl_recovery_shard *to = &x->shards[x->shard_count++];
        *to = (struct hl_recovery_shard){
            .size = from->size_bytes, .crc = from->crc32, .part = from->part};
        HL_TRY(hl_id_parse(from->id, &to->id));
    }
    return HL_OK;
}

HL_CHECK static hl_status list_reserve(struct hl_recovery *r)
{
    size_t cap = r->cap * 2 + 64;
    if (r->count < r->cap)
        return HL_OK;
    struct hl_recovery_candidate *list = realloc(r->list, cap * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of versions");
    r->list = list;
    r->cap = cap;
    return HL_OK;
}

hl_status hl_recovery_add_manifest(struct hl_recovery *r, struct hl_id id, const char *text)
{
    struct hl_recovery_candidate x = {0};
    hl_status st = candidate_read(&x, text);
    if (st == HL_OK && !hl_id_equal(x.manifest.id, id))
        st = hl_fail(HL_ECORRUPT, "it is the manifest of another version");
    if (st == HL_OK)
        st = list_reserve(r);
    if (st != HL_OK) {
        r->damaged++;
        candidate_fini(&x);
        return st;
    }
    r->list[r->count++] = x;
    return HL_OK;
}

/* ---- which come back ------------------------------------------------------------------------- */

/* The reason is for people: the answer has one line for each version. */
HL_PRINTF(2, 3) static void candidate_skip(struct hl_recovery_candidate *x, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->reason, sizeof(x->reason), fmt, ap);
    va_end(ap);
    x->skipped = true;
}

/* By model and version; of two candidates of one version the newer comes first. */
static int compare_candidates(const void *a, const void *b)
{
    const struct hl_manifest *x = &((const struct hl_recovery_candidate *)a)->manifest;
    const struct hl_manifest *y = &((const struct hl_recovery_candidate *)b)->manifest;
    int names = strcmp(x->model, y->model);
    if (names != 0)
        return names;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->visible_ms < y->visible_ms) - (x->visible_ms > y->visible_ms);
}

/* The version, if it is visible. An open or failed version is replaced by the restored one. */
static struct hl_version_rec *in_catalogue(const struct hl_catalog *catalog,
                                           const struct hl_manifest *m)
{
    struct hl_model_rec *model;
    struct hl_version_rec *v;
    if (hl_catalog_model(catalog, m->model, &model) == HL_OK &&
        hl_catalog_version(model, m->number, &v) == HL_OK &&
        v->state == HL_API_VERSION_STATE_VISIBLE)
        return v;
    hl_error_clear();
    return NULL;
}

/* A version can't be added to a model that is sliced differently. A model that is not in the
 * catalogue is restored, too. */
static bool same_model(const struct hl_catalog *catalog, const struct hl_manifest *m)
{
    struct hl_model_rec *model;
    if (hl_catalog_model(catalog, m->model, &model) != HL_OK) {
        hl_error_clear();
        return true;
    }
    return model->tp == m->tp && model->pp == m->pp && model->virtual_stages == m->virtual_stages &&
           strcmp(model->config, m->config) == 0;
}

/* NULL: L3 did not list it. */
static struct hl_recovery_object *find_object(const struct hl_recovery *r, struct hl_id id)
{
    struct hl_recovery_object *o;
    HASH_FIND(hh, r->objects, &id, sizeof(id), o);
    return o;
}

/* Returns true if every shard is there; otherwise `x` names the reason. The first wrong shard ends
 * the check. Missing shards are counted, because their number shows whether a repair is worthwhile.
 * The CRC is compared where it is known: always for shards in the pool, for others once L3 has read
 * them. */
static bool check_shards(const struct hl_recovery *r, struct hl_recovery_candidate *x)
{
    size_t missing = 0;
    for (size_t i = 0; i < x->shard_count; i++) {
        const struct hl_recovery_shard *s = &x->shards[i];
        const struct hl_recovery_object *o = find_object(r, s->id);
        if (o == NULL || (!o->pooled && !o->archived && !o->trashed)) {
            missing++;
            continue;
        }
        if (o->size != s->size)
            candidate_skip(x, "shard %s (%s) has %" PRIu64 " bytes, not %" PRIu64,
                           hl_id_format(s->id).s, s->part, o->size, s->size);
        else if (o->unreadable[0] != '\0')
            candidate_skip(x, "shard %s (%s): %s", hl_id_format(s->id).s, s->part, o->unreadable);
        else if ((o->pooled || o->read) && o->crc != s->crc)
            candidate_skip(x, "shard %s (%s) has CRC %08" PRIx32 ", not %08" PRIx32,
                           hl_id_format(s->id).s, s->part, o->crc, s->crc);
        else
            continue;
        return false;
    }
    if (missing > 0)
        candidate_skip(x, "%zu of %zu shards are neither in the pool nor in the archive", missing,
                       x->shard_count);
    return missing == 0;
}

/* The version is restored: its shards can belong to no other version. */
static void take_shards(struct hl_recovery *r, const struct hl_recovery_candidate *x)
{
    for (size_t i = 0; i < x->shard_count; i++) {
        struct hl_recovery_object *o = find_object(r, x->shards[i].id);
        if (o != NULL)
            o->claimed = true;
    }
}

/* A shard belongs to an earlier candidate or to another version of the catalogue. Shards of a
 * version with the same number that never became visible count as its own. */
static bool shards_taken(const struct hl_recovery *r, const struct hl_catalog *catalog,
                         const struct hl_recovery_candidate *x)
{
    const struct hl_manifest *m = &x->manifest;
    for (size_t i = 0; i < x->shard_count; i++) {
        const struct hl_recovery_object *o = find_object(r, x->shards[i].id);
        const struct hl_shard_rec *s = hl_catalog_shard(catalog, x->shards[i].id);
        if ((o != NULL && o->claimed && s == NULL) ||
            (s != NULL &&
             (s->version->state == HL_API_VERSION_STATE_VISIBLE ||
              s->version->number != m->number || strcmp(s->version->model->name, m->model) != 0)))
            return true;
    }
    return false;
}

/* before: the previous candidate; NULL: this is the first. */
static void judge_one(struct hl_recovery *r, const struct hl_catalog *catalog,
                      struct hl_recovery_candidate *x, const struct hl_recovery_candidate *before)
{
    struct hl_manifest *m = &x->manifest;
    bool twin = before != NULL && !before->skipped && before->manifest.number == m->number &&
                strcmp(before->manifest.model, m->model) == 0;
    x->skipped = false;
    if (r->discard)
        candidate_skip(x, "discarded by --discard");
    else if (in_catalogue(catalog, m) != NULL)
        candidate_skip(x, "the catalogue has this version with other shards");
    else if (!same_model(catalog, m))
        candidate_skip(x, "the catalogue has a model of this name with another configuration");
    else if (twin)
        candidate_skip(x, "a newer manifest names other shards for this version");
    else if (shards_taken(r, catalog, x))
        candidate_skip(x, "a shard of it belongs to another version");
    else if (check_shards(r, x))
        take_shards(r, x);
}

/* Shards in the catalogue are claimed from the start. judge_one compares each candidate with the
 * previous one, so the list must be sorted: candidates of one version are then adjacent. */
void hl_recovery_judge(struct hl_recovery *r, const struct hl_catalog *catalog)
{
    size_t n = 0;
    for (struct hl_recovery_object *o = r->objects; o != NULL; o = o->hh.next)
        o->claimed = !hl_manifest_is(o->id) && hl_catalog_shard(catalog, o->id) != NULL;
    for (size_t i = 0; i < r->count; i++) { /* a version that the catalogue has needs no recovery */
        struct hl_version_rec *v = in_catalogue(catalog, &r->list[i].manifest);
        if (v != NULL && hl_id_equal(hl_manifest_id(v), r->list[i].manifest.id)) {
            candidate_fini(&r->list[i]);
            r->known++;
            continue;
        }
        r->list[n++] = r->list[i];
    }
    r->count = n;
    if (n > 0)
        qsort(r->list, n, sizeof(*r->list), compare_candidates);
    for (size_t i = 0; i < n; i++)
        judge_one(r, catalog, &r->list[i], i > 0 ? &r->list[i - 1] : NULL);
}

const struct hl_manifest **hl_recovery_list(const struct hl_recovery *r, size_t *count)
{
    const struct hl_manifest **list = calloc(r->count + 1, sizeof(*list));
    *count = 0;
    for (size_t i = 0; i < r->count && list != NULL; i++)
        if (!r->list[i].skipped)
            list[(*count)++] = &r->list[i].manifest;
    return list;
}

/* The shard belongs to no version. Objects that are only in the trash are deleted anyway. */
static bool is_left(const struct hl_recovery_object *o)
{
    return !o->claimed && !hl_manifest_is(o->id) && (o->pooled || o->archived);
}

static uint64_t count_left(const struct hl_recovery *r)
{
    uint64_t n = 0;
    for (const struct hl_recovery_object *o = r->objects; o != NULL; o = o->hh.next)
        n += is_left(o);
    return n;
}

/* If shards are left that no version holds, versions are restored but the pool is not claimed: a
 * claim would delete those shards. */
struct hl_recovery_decision hl_recovery_decide(const struct hl_recovery *r, bool dry)
{
    size_t restored = 0;
    for (size_t i = 0; i < r->count; i++)
        restored += !r->list[i].skipped;
    struct hl_recovery_decision d = {.left = count_left(r)};
    d.takes = r->discard || d.left == 0;
    d.changes = !dry && (d.takes || restored > 0);
    return d;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Leftover shards, as one line of the answer. */
struct group {
    char key[HL_MODEL_NAME_MAX + 64]; /* first */
    const struct hl_recovery_object *first;
    uint64_t shards, bytes;
    UT_hash_handle hh;
};

/* Groups by model, version and place, so that people see a line and not thousands of ids. */
static void group_add(struct group **groups, const struct hl_recovery_object *o)
{
    char key[sizeof((*groups)->key)];
    struct group *g;
    snprintf(key, sizeof(key), "%s/%" PRId64 "/%d", o->model != NULL ? o->model : "",
             o->model != NULL ? o->version : 0, o->pooled);
    HASH_FIND_STR(*groups, key, g);
    if (g == NULL && HASH_COUNT(*groups) < GROUPS_MAX && (g = calloc(1, sizeof(*g))) != NULL) {
        memcpy(g->key, key, sizeof(key));
        g->first = o;
        HASH_ADD_STR(*groups, key, g);
    }
    if (g != NULL) {
        g->shards++;
        g->bytes += o->size;
    }
}

/* Borrowed from `o`, or a literal. */
static const char *reason_left(const struct hl_recovery *r, const struct hl_recovery_object *o)
{
    for (size_t i = 0; i < r->count; i++)
        if (o->model != NULL && r->list[i].skipped &&
            strcmp(r->list[i].manifest.model, o->model) == 0 &&
            r->list[i].manifest.number == o->version)
            return "of a version that is skipped";
    if (o->unreadable[0] != '\0')
        return o->unreadable;
    return "no manifest names them, so their model's configuration and meta are unknown: a save "
           "that not all ranks committed, or one whose manifest was not written yet";
}

struct hl_api_left_shards_list hl_recovery_left(const struct hl_recovery *r, struct hl_arena *arena)
{
    struct group *groups = NULL, *g, *next;
    for (const struct hl_recovery_object *o = r->objects; o != NULL; o = o->hh.next)
        if (is_left(o))
            group_add(&groups, o);
    struct hl_api_left_shards_list list = {
        .items = hl_arena_array(arena, HASH_COUNT(groups), sizeof(*list.items))};
    HASH_ITER (hh, groups, g, next) {
        const struct hl_recovery_object *o = g->first;
        if (list.items != NULL)
            list.items[list.count++] =
                (struct hl_api_left_shards){.model = o->model != NULL ? o->model : "",
                                            .version = o->model != NULL ? o->version : 0,
                                            .shards = g->shards,
                                            .bytes = g->bytes,
                                            .tier = o->pooled ? HL_API_TIER_L3 : HL_API_TIER_L4,
                                            .reason = reason_left(r, o)};
        HASH_DEL(groups, g);
        free(g);
    }
    return list;
}

struct hl_api_recovered_version_list hl_recovery_versions(const struct hl_recovery *r,
                                                          struct hl_arena *arena)
{
    struct hl_api_recovered_version_list list = {
        .items = hl_arena_array(arena, r->count, sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < r->count; i++) {
        const struct hl_recovery_candidate *x = &r->list[i];
        const struct hl_manifest *m = &x->manifest;
        list.items[list.count++] = (struct hl_api_recovered_version){
            .model = m->model,
            .version = m->number,
            .step = m->step,
            .visible_ms = m->visible_ms,
            .shards = x->shard_count,
            .bytes = m->bytes,
            .state = x->skipped ? HL_API_RECOVERY_STATE_SKIPPED : HL_API_RECOVERY_STATE_RESTORED,
            .reason = x->skipped ? x->reason : ""};
    }
    return list;
}
