/* Where shards lie. A shard that is only archived is loaded first, and the answer waits for it. */
#include <stdlib.h>

#include "core/copies/locate.h"
#include "l3d/l3d_private.h"
#include "l3d/l4_private.h"
#include "mem/pool/pool.h"

struct hl_api_extent extent_of(const struct hl_pool_ref *ref, struct hl_arena *arena)
{
    return (struct hl_api_extent){.id = hl_id_print(ref->id, arena),
                                  .offset = ref->offset,
                                  .size_bytes = ref->size,
                                  .crc32 = ref->crc32,
                                  .generation = ref->gen};
}

/* The extent, with the chunk CRCs against which a remote reader checks. */
static hl_status locate_one(struct hl_l3d *d, struct hl_id id, struct hl_arena *arena,
                            struct hl_api_extent *out)
{
    struct hl_pool_ref ref;
    HL_TRY(hl_pool_find(d->pool, id, &ref));
    uint64_t n = hl_chunk_count(ref.size);
    uint32_t *crcs = hl_arena_array(arena, n, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing the checksums of shard %s",
                       hl_id_format(id).s);
    HL_TRY(hl_pool_chunk_crcs(d->pool, &ref, crcs));
    *out = extent_of(&ref, arena);
    out->chunk_crcs = (struct hl_api_uint32_list){crcs, n};
    hl_pool_touch(d->pool, &ref);
    return HL_OK;
}

/* A call, all of it on the loop; core/copies/locate.h decides:
 *
 *     locate_step --all in the pool--> answered
 *        ^   '---------missing-------> l4_ask each, waiting = how many
 *        '--on_loaded, the last one---------'
 */
struct locate {
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_api_text_list ids; /* memory of the call */
    struct hl_id order;          /* likewise; none: it belongs to no order */
    bool gives_way;              /* likewise */
    struct hl_api_extent *extents;
    struct hl_locate rule;
    struct hl_id *loads; /* rule.loads of them */
    size_t waiting;      /* unanswered loads */
    hl_status st;        /* of the first load that failed */
    char text[HL_ERROR_TEXT_MAX];
};

static void locate_step(struct locate *l);

static void locate_end(struct locate *l)
{
    const struct hl_api_l3_locate_results r = {.extents = {l->extents, l->ids.count}};
    if (l->st == HL_OK)
        hl_reply_l3_locate(l->call, &r);
    else
        hl_rpc_reject(l->call, l->st, l->text);
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
        locate_end(l);
    else
        locate_step(l);
}

/* Handles a shard that the pool does not have: its look-up has just failed. */
static hl_status locate_missing(struct locate *l, struct hl_id id)
{
    uint64_t size = 0;
    bool archived = l4_has(l->d, id, &size);
    hl_status known = l4_knows(l->d, id);
    const struct hl_locate_found found = {.archived = archived,
                                          .away = known != HL_OK,
                                          .damaged = l4_bad_has(l->d, id),
                                          .in_bytes = hl_pool_units(size) * HL_POOL_UNIT};
    switch (hl_locate_missing(&l->rule, &found)) {
    case HL_LOCATE_LOAD:
        l->loads[l->rule.loads - 1] = id;
        return HL_OK;
    case HL_LOCATE_TOO_MUCH:
        return hl_fail(HL_ENOSPC,
                       "the shards requested at once are larger than the pool; request fewer");
    case HL_LOCATE_AWAY:
        return known;
    case HL_LOCATE_DAMAGED:
        return hl_fail(HL_ECORRUPT, "shard %s: the only copy, in the archive, is damaged",
                       hl_id_format(id).s);
    default:
        return HL_ENOENT;
    }
}

/* Stops at the first failure, l->st. */
static void locate_all(struct locate *l)
{
    struct hl_arena *arena = hl_rpc_call_arena(l->call);
    struct hl_pool_info info;
    hl_pool_info(l->d->pool, &info);
    hl_locate_begin(&l->rule, info.capacity);
    for (size_t i = 0; i < l->ids.count && l->st == HL_OK; i++) {
        struct hl_id id;
        hl_status st = hl_id_parse(l->ids.items[i], &id);
        if (st == HL_OK)
            st = locate_one(l->d, id, arena, &l->extents[i]);
        if (st == HL_ENOENT)
            st = locate_missing(l, id);
        if (st != HL_OK)
            note_failure(l, st, hl_error_text());
    }
}

static void locate_step(struct locate *l)
{
    enum hl_locate_turn turn = HL_LOCATE_ANSWER;
    if (l->st == HL_OK)
        locate_all(l);
    if (l->st == HL_OK)
        turn = hl_locate_next(&l->rule);
    if (turn == HL_LOCATE_BUSY)
        note_failure(l, HL_EBUSY,
                     "the requested shards evict each other from the pool; request fewer");
    if (turn != HL_LOCATE_WAIT) {
        locate_end(l);
        return;
    }
    l->waiting = l->rule.loads; /* none is answered before all are asked */
    for (size_t i = 0; i < l->rule.loads; i++)
        l4_ask(
            l->d,
            &(struct l4_asked){
                .kind = L4_LOAD, .id = l->loads[i], .order = l->order, .gives_way = l->gives_way},
            on_loaded, l);
}

void method_locate(void *arg, struct hl_rpc_call *call,
                   const struct hl_api_l3_locate_params *params)
{
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct locate *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        hl_rpc_reject(call, hl_fail(HL_ENOMEM, "out of memory locating shards"), NULL);
        return;
    }
    *l =
        (struct locate){.d = arg, .call = call, .ids = params->ids, .gives_way = params->gives_way};
    if (params->migration_id[0] != '\0') {
        hl_status st = hl_id_parse(params->migration_id, &l->order);
        if (st != HL_OK)
            note_failure(l, st, hl_error_text());
    }
    l->extents = hl_arena_array(arena, l->ids.count, sizeof(*l->extents));
    l->loads = hl_arena_array(arena, l->ids.count, sizeof(*l->loads));
    if (l->extents == NULL || l->loads == NULL)
        note_failure(l, HL_ENOMEM, "out of memory locating shards");
    locate_step(l);
}

static bool shard_look(struct hl_l3d *d, const char *text, struct hl_api_found_shard *out)
{
    struct hl_id id;
    struct hl_pool_ref ref;
    uint64_t size;
    if (hl_id_parse(text, &id) != HL_OK)
        return false;
    if (hl_pool_find(d->pool, id, &ref) == HL_OK) {
        *out = (struct hl_api_found_shard){.id = text,
                                           .size_bytes = ref.size,
                                           .crc32 = ref.crc32,
                                           .crc32_known = true,
                                           .tier = HL_API_TIER_L3};
        return true;
    }
    if (!l4_has(d, id, &size))
        return false;
    *out = (struct hl_api_found_shard){.id = text, .size_bytes = size, .tier = HL_API_TIER_L4};
    return true;
}

void method_look(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_look_params *params)
{
    struct hl_api_l3_look_results r = {0};
    r.shards.items =
        hl_arena_array(hl_rpc_call_arena(call), params->ids.count, sizeof(*r.shards.items));
    for (size_t i = 0; r.shards.items != NULL && i < params->ids.count; i++)
        r.shards.count += shard_look(arg, params->ids.items[i], &r.shards.items[r.shards.count]);
    hl_error_clear();
    hl_reply_l3_look(call, &r);
}
