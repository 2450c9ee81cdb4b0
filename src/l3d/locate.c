/* Where shards lie. What is only archived is loaded first: the answer waits for it. */
#include <stdlib.h>

#include "core/json.h"
#include "l3d/l3d_private.h"
#include "l3d/l4_private.h"
#include "mem/pool_evict.h"

#define ROUNDS 4 /* of loading what other loads have driven out meanwhile */

json_t *extent_json(const struct hl_pool_ref *ref)
{
    return json_pack("{s:s s:I s:I s:I s:I}", "id", hl_id_format(ref->id).s, "offset",
                     (json_int_t)ref->offset, "sizeBytes", (json_int_t)ref->size, "crc32",
                     (json_int_t)ref->crc32, "generation", (json_int_t)ref->gen);
}

/* Extent with the chunk CRCs a remote reader checks against. */
static hl_status locate_one(struct hl_l3d *d, const char *text, json_t **out)
{
    struct hl_id id;
    struct hl_pool_ref ref;
    HL_TRY(hl_id_parse(text, &id));
    HL_TRY(hl_pool_find(d->pool, id, &ref));
    uint64_t n = hl_pool_chunks(ref.size);
    uint32_t *crcs = calloc(n + 1, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "checksums of shard %s", text);
    hl_status st = hl_pool_chunk_crcs(d->pool, &ref, crcs);
    if (st == HL_OK) {
        json_t *list = json_array();
        for (uint64_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer((json_int_t)crcs[i]));
        *out = extent_json(&ref);
        json_object_set_new(*out, "chunkCrcs", list);
        hl_pool_touch(d->pool, &ref);
    }
    free(crcs);
    return st;
}

struct locate {
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    json_t *ids;
    int rounds;
    size_t waiting; /* loads not yet answered */
    hl_status st;   /* of the first that failed */
    char text[HL_ERROR_TEXT_MAX];
};

static void locate_step(struct locate *l);

static void locate_end(struct locate *l, json_t *extents)
{
    if (extents != NULL)
        hl_rpc_reply(l->call, json_pack("{s:o}", "extents", extents));
    else
        hl_rpc_reject(l->call, l->st, l->text);
    json_decref(l->ids);
    free(l);
}

static void note_failure(struct locate *l, hl_status st, const char *text)
{
    if (l->st != HL_OK)
        return;
    l->st = st;
    snprintf(l->text, sizeof(l->text), "%s", text);
}

static void on_loaded(void *arg, hl_status st, const char *text)
{
    struct locate *l = arg;
    if (st != HL_OK)
        note_failure(l, st, text);
    if (--l->waiting > 0)
        return;
    if (l->st != HL_OK)
        locate_end(l, NULL);
    else
        locate_step(l);
}

/* 1 when it has to be loaded: *bytes grows. Asks for too much at once and what is nowhere fail. */
static int must_load(struct locate *l, const char *text, struct hl_id *id, uint64_t *bytes)
{
    struct hl_pool_ref ref;
    struct hl_pool_info info;
    uint64_t size;
    if (hl_id_parse(text, id) != HL_OK || hl_pool_find(l->d->pool, *id, &ref) == HL_OK ||
        !l4_has(l->d, *id, &size))
        return 0;
    hl_pool_info(l->d->pool, &info);
    *bytes += hl_pool_units(size) * HL_POOL_UNIT;
    if (*bytes > info.capacity)
        note_failure(l, hl_fail(HL_ENOSPC, "the shards asked for are larger than the pool"),
                     "the shards asked for at once are larger than the pool; ask for fewer");
    return 1;
}

/* What is not in the pool may be in an archive that is away. */
static hl_status missing_for(const struct locate *l, hl_status st, const char *text)
{
    struct hl_id id;
    if (st != HL_ENOENT || hl_id_parse(text, &id) != HL_OK)
        return st;
    HL_TRY(l4_knows(l->d, id));
    if (l4_bad_has(l->d, id))
        return hl_fail(HL_ECORRUPT, "shard %s: the only copy, in the archive, is damaged", text);
    return st;
}

/* Everything is in the pool: answer. Something is archived only: load it and come back. */
static void locate_step(struct locate *l)
{
    json_t *extents = json_array(), *id_text;
    size_t i;
    struct hl_id id;
    uint64_t bytes = 0;
    hl_status st = HL_OK;
    int missing = 0;
    json_array_foreach (l->ids, i, id_text) {
        json_t *extent = NULL;
        st = locate_one(l->d, json_string_value(id_text), &extent);
        if (st == HL_OK)
            json_array_append_new(extents, extent);
        else if (st == HL_ENOENT && must_load(l, json_string_value(id_text), &id, &bytes))
            missing = 1;
        else
            note_failure(l, missing_for(l, st, json_string_value(id_text)), hl_error_text());
        if (l->st != HL_OK)
            break;
    }
    if (missing && l->st == HL_OK && l->rounds-- == 0)
        note_failure(l, HL_EBUSY,
                     "the shards asked for drive each other out of the pool; ask for fewer");
    if (!missing && l->st == HL_OK) {
        locate_end(l, extents);
        return;
    }
    json_decref(extents);
    if (l->st != HL_OK) {
        locate_end(l, NULL);
        return;
    }
    bytes = 0;
    l->waiting = 1; /* ours, so that none ends it before all are asked */
    json_array_foreach (l->ids, i, id_text) {
        if (!must_load(l, json_string_value(id_text), &id, &bytes))
            continue;
        l->waiting++;
        l4_ask(l->d, L4_LOAD, id, on_loaded, l);
    }
    on_loaded(l, HL_OK, NULL);
}

void method_locate(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    struct locate *l = calloc(1, sizeof(*l));
    json_t *ids = hl_json_list(params, "ids");
    if (l == NULL) {
        hl_rpc_reject(call, hl_fail(HL_ENOMEM, "locate"), NULL);
        return;
    }
    *l = (struct locate){.d = d,
                         .call = call,
                         .ids = ids != NULL ? json_incref(ids) : json_array(),
                         .rounds = ROUNDS};
    locate_step(l);
}

/* NULL: it is nowhere. */
static json_t *look_for(struct hl_l3d *d, const char *text)
{
    struct hl_id id;
    struct hl_pool_ref ref;
    uint64_t size;
    if (hl_id_parse(text, &id) != HL_OK)
        return NULL;
    if (hl_pool_find(d->pool, id, &ref) == HL_OK)
        return json_pack("{s:s s:I s:I s:b s:s}", "id", text, "sizeBytes", (json_int_t)ref.size,
                         "crc32", (json_int_t)ref.crc32, "crc32Known", 1, "tier", "L3");
    if (l4_has(d, id, &size))
        return json_pack("{s:s s:I s:b s:s}", "id", text, "sizeBytes", (json_int_t)size,
                         "crc32Known", 0, "tier", "L4");
    return NULL;
}

void method_look(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    json_t *shards = json_array(), *text;
    size_t i;
    json_array_foreach (hl_json_list(params, "ids"), i, text) {
        json_t *found = look_for(d, json_string_value(text));
        if (found != NULL)
            json_array_append_new(shards, found);
    }
    hl_error_clear();
    hl_rpc_reply(call, json_pack("{s:o}", "shards", shards));
}
