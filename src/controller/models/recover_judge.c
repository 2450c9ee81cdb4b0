/* Which versions come back: those whose shards are all there, with the size and the CRC that their
 * manifest says.
 *
 *     candidates, by model and number; of two of one version the newer manifest first
 *
 *     skipped if   --discard                                 what is left is given up
 *                  the catalogue has the version             with other shards than the manifest
 *                  the catalogue's model is another one      other slices, other configuration
 *                  a newer manifest of it comes back
 *                  another version has one of its shards
 *                  a shard is missing, unreadable, or of another size or CRC
 *     else it comes back, and its shards are claimed: no later candidate gets them
 *
 * Pure but for `r`: nothing is asked and nothing is changed outside of it. Judging again after more
 * was read begins anew with what the catalogue holds; so it may be repeated at every step. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/models/recover_private.h"

#define GROUPS_MAX 4096 /* lines of what is left */

/* The object of that id, made where there is none. NULL without memory. */
struct object *recover_object(struct recovery *r, struct hl_id id)
{
    struct object *o;
    HASH_FIND(hh, r->objects, &id, sizeof(id), o);
    if (o == NULL && (o = calloc(1, sizeof(*o))) != NULL) {
        o->id = id;
        HASH_ADD(hh, r->objects, id, sizeof(id), o);
    }
    return o;
}

void candidate_fini(struct candidate *x)
{
    hl_manifest_fini(&x->manifest);
    hl_arena_fini(&x->arena);
    x->shards = NULL;
    x->shard_count = 0;
}

/* Manifest and shards, whose ids are parsed once here and not at each judgement; candidate_fini
 * also after a failure. */
static hl_status candidate_read(struct candidate *x, const char *text)
{
    HL_TRY(hl_manifest_decode(text, strlen(text), &x->manifest));
    const struct hl_api_manifest_shard_list *list = &x->manifest.doc.shards;
    x->shards = hl_arena_array(&x->arena, list->count, sizeof(*x->shards));
    if (x->shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the shards of a version");
    for (size_t i = 0; i < list->count; i++) {
        const struct hl_api_manifest_shard *from = &list->items[i];
        struct stated_shard *to = &x->shards[x->shard_count++];
        *to =
            (struct stated_shard){.size = from->size_bytes, .crc = from->crc32, .part = from->part};
        HL_TRY(hl_id_parse(from->id, &to->id));
    }
    return HL_OK;
}

void recover_add_manifest(struct recovery *r, struct hl_id id, const char *text)
{
    struct candidate x = {0};
    hl_status st = candidate_read(&x, text);
    if (st == HL_OK && !hl_id_equal(x.manifest.id, id))
        st = hl_fail(HL_ECORRUPT, "it is the manifest of another version");
    if (st == HL_OK && r->count == r->cap) {
        size_t cap = r->cap * 2 + 64;
        struct candidate *list = realloc(r->list, cap * sizeof(*list));
        if (list == NULL) {
            st = hl_fail(HL_ENOMEM, "out of memory for a list of versions");
        } else {
            r->list = list;
            r->cap = cap;
        }
    }
    if (st != HL_OK) {
        r->damaged++;
        hl_error("a manifest is not read id=%s error=\"%s\"", hl_id_format(id).s, hl_error_text());
        candidate_fini(&x);
        return;
    }
    r->list[r->count++] = x;
}

/* People read the reason: in the answer, one line for each version. */
HL_PRINTF(2, 3) static void candidate_skip(struct candidate *x, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->reason, sizeof(x->reason), fmt, ap);
    va_end(ap);
    x->skipped = true;
}

/* By model and version; of two of one version the newer first. */
static int compare_candidates(const void *a, const void *b)
{
    const struct hl_manifest *x = &((const struct candidate *)a)->manifest;
    const struct hl_manifest *y = &((const struct candidate *)b)->manifest;
    int names = strcmp(x->model, y->model);
    if (names != 0)
        return names;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->visible_ms < y->visible_ms) - (x->visible_ms > y->visible_ms);
}

/* The version, where it is visible; one that is open or failed is replaced by what comes back. */
static struct hl_version_rec *in_catalogue(const struct recovery *r, const struct hl_manifest *m)
{
    struct hl_model_rec *model;
    struct hl_version_rec *v;
    if (hl_catalog_model(&r->c->catalog, m->model, &model) == HL_OK &&
        hl_catalog_version(model, m->number, &v) == HL_OK &&
        v->state == HL_API_VERSION_STATE_VISIBLE)
        return v;
    hl_error_clear();
    return NULL;
}

/* A version can't be added to a model that is sliced in another way. No model: it comes, too. */
static bool same_model(const struct recovery *r, const struct hl_manifest *m)
{
    struct hl_model_rec *model;
    if (hl_catalog_model(&r->c->catalog, m->model, &model) != HL_OK) {
        hl_error_clear();
        return true;
    }
    return model->tp == m->tp && model->pp == m->pp && model->virtual_stages == m->virtual_stages &&
           strcmp(model->config, m->config) == 0;
}

/* NULL: no list of L3 has it. */
static struct object *find_object(const struct recovery *r, struct hl_id id)
{
    struct object *o;
    HASH_FIND(hh, r->objects, &id, sizeof(id), o);
    return o;
}

/* Every shard is there; false: `x` says which is not. The first one that is wrong ends it, and
 * those that are missing are counted: how many says whether a repair is worth while. The CRC is
 * compared where it is known: of the pool's shards always, of others once L3 has read them. */
static bool check_shards(const struct recovery *r, struct candidate *x)
{
    size_t missing = 0;
    for (size_t i = 0; i < x->shard_count; i++) {
        const struct stated_shard *s = &x->shards[i];
        const struct object *o = find_object(r, s->id);
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

/* The version comes back: its shards belong to no other version. */
static void take_shards(struct recovery *r, const struct candidate *x)
{
    for (size_t i = 0; i < x->shard_count; i++) {
        struct object *o = find_object(r, x->shards[i].id);
        if (o != NULL)
            o->claimed = true;
    }
}

/* A shard belongs to a candidate before this one, or to another version of the catalogue. Those of
 * the same version that never became visible are its own. */
static bool shards_taken(const struct recovery *r, const struct candidate *x)
{
    const struct hl_manifest *m = &x->manifest;
    for (size_t i = 0; i < x->shard_count; i++) {
        const struct object *o = find_object(r, x->shards[i].id);
        const struct hl_shard_rec *s = hl_catalog_shard(&r->c->catalog, x->shards[i].id);
        if ((o != NULL && o->claimed && s == NULL) ||
            (s != NULL &&
             (s->version->state == HL_API_VERSION_STATE_VISIBLE ||
              s->version->number != m->number || strcmp(s->version->model->name, m->model) != 0)))
            return true;
    }
    return false;
}

/* before: the candidate in front of it; NULL: it is the first. */
static void judge_one(struct recovery *r, struct candidate *x, const struct candidate *before)
{
    struct hl_manifest *m = &x->manifest;
    bool twin = before != NULL && !before->skipped && before->manifest.number == m->number &&
                strcmp(before->manifest.model, m->model) == 0;
    x->skipped = false;
    if (r->discard)
        candidate_skip(x, "discarded by --discard");
    else if (in_catalogue(r, m) != NULL)
        candidate_skip(x, "the catalogue has this version with other shards");
    else if (!same_model(r, m))
        candidate_skip(x, "the catalogue has a model of this name with another configuration");
    else if (twin)
        candidate_skip(x, "a newer manifest names other shards for this version");
    else if (shards_taken(r, x))
        candidate_skip(x, "a shard of it belongs to another version");
    else if (check_shards(r, x))
        take_shards(r, x);
}

/* Shards of the catalogue count as claimed from the start. `twin` in judge_one looks at the
 * candidate before, so those of one version must stand together: the list is sorted first. */
void recover_judge(struct recovery *r)
{
    size_t n = 0;
    for (struct object *o = r->objects; o != NULL; o = o->hh.next)
        o->claimed = !hl_manifest_is(o->id) && hl_catalog_shard(&r->c->catalog, o->id) != NULL;
    for (size_t i = 0; i < r->count; i++) { /* what the catalogue has needs no recovery */
        struct hl_version_rec *v = in_catalogue(r, &r->list[i].manifest);
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
        judge_one(r, &r->list[i], i > 0 ? &r->list[i - 1] : NULL);
}

const struct hl_manifest **recover_list(const struct recovery *r, size_t *count)
{
    const struct hl_manifest **list = calloc(r->count + 1, sizeof(*list));
    *count = 0;
    for (size_t i = 0; i < r->count && list != NULL; i++)
        if (!r->list[i].skipped)
            list[(*count)++] = &r->list[i].manifest;
    return list;
}

/* A shard of no version. What is in the trash only is gone anyhow. */
static bool is_left(const struct object *o)
{
    return !o->claimed && !hl_manifest_is(o->id) && (o->pooled || o->archived);
}

uint64_t recover_left(struct recovery *r)
{
    uint64_t n = 0;
    for (const struct object *o = r->objects; o != NULL; o = o->hh.next)
        n += is_left(o);
    return n;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Shards that are left, as one line of the answer. */
struct group {
    char key[HL_MODEL_NAME_MAX + 64]; /* first */
    const struct object *first;
    uint64_t shards, bytes;
    UT_hash_handle hh;
};

/* By model, version and place: people see a line, not thousands of ids. */
static void group_add(struct group **groups, const struct object *o)
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
static const char *reason_left(const struct recovery *r, const struct object *o)
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

static struct hl_api_left_shards_list left_shards(struct recovery *r, struct hl_arena *arena)
{
    struct group *groups = NULL, *g, *next;
    for (struct object *o = r->objects; o != NULL; o = o->hh.next)
        if (is_left(o))
            group_add(&groups, o);
    struct hl_api_left_shards_list list = {
        .items = hl_arena_array(arena, HASH_COUNT(groups), sizeof(*list.items))};
    HASH_ITER (hh, groups, g, next) {
        const struct object *o = g->first;
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

/* The same for a dry run and for what was done: what is restored is what is not skipped. */
struct hl_api_recovery recover_info(struct recovery *r, struct hl_arena *arena)
{
    char why[sizeof(r->c->claim.why)] = "";
    (void)claim_ok(r->c, why, sizeof(why));
    struct hl_api_recovery info = {
        .claim = claim_state(r->c),
        .why = hl_arena_strdup(arena, why),
        .cluster = hl_id_print(r->cluster, arena),
        .known = r->known,
        .untrashed = r->untrashed,
        .left = left_shards(r, arena),
        .versions.items = hl_arena_array(arena, r->count, sizeof(*info.versions.items)),
    };
    for (size_t i = 0; info.versions.items != NULL && i < r->count; i++) {
        const struct candidate *x = &r->list[i];
        const struct hl_manifest *m = &x->manifest;
        info.restored += !x->skipped;
        info.restored_shards += x->skipped ? 0 : x->shard_count;
        info.versions.items[info.versions.count++] = (struct hl_api_recovered_version){
            .model = m->model,
            .version = m->number,
            .step = m->step,
            .visible_ms = m->visible_ms,
            .shards = x->shard_count,
            .bytes = m->bytes,
            .state = x->skipped ? HL_API_RECOVERY_STATE_SKIPPED : HL_API_RECOVERY_STATE_RESTORED,
            .reason = x->skipped ? x->reason : ""};
    }
    return info;
}
