/* The RPC methods of the archive. */
#include <stdlib.h>

#include "core/catalog/derived_id.h"
#include "l3d/l4_private.h"
#include "mem/pool/pool.h"

/* One call about many shards; it is answered when the last of them is done. */
struct batch {
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    enum l4_kind kind;
    size_t waiting;
    uint32_t count; /* number of shards that succeeded */
    uint64_t bytes;
    hl_status st; /* of the first shard that failed */
    char text[HL_ERROR_TEXT_MAX];
};

struct item {
    struct batch *batch;
    struct hl_id id;
};

static void batch_done(struct batch *b)
{
    if (--b->waiting > 0)
        return;
    if (b->st != HL_OK)
        hl_rpc_reject(b->call, b->st, b->text);
    else if (b->kind == L4_STORE)
        hl_reply_l3_archive(
            b->call, &(struct hl_api_l3_archive_results){.archived = b->count, .bytes = b->bytes});
    else if (b->kind == L4_UNTRASH)
        hl_reply_l3_untrash(b->call, &(struct hl_api_l3_untrash_results){.restored = b->count});
    else
        hl_reply_l3_drop_archived(b->call,
                                  &(struct hl_api_l3_drop_archived_results){.dropped = b->count});
    free(b);
}

/* A shard that does not exist need not be removed, and one that is stored already need not be
 * restored. */
static bool is_fine(enum l4_kind kind, hl_status st)
{
    return (st == HL_ENOENT && kind != L4_STORE) || (st == HL_EEXIST && kind == L4_UNTRASH);
}

static void on_item(void *arg, hl_status st, const char *text)
{
    struct item *it = arg;
    struct batch *b = it->batch;
    uint64_t size = 0;
    if (st == HL_OK) {
        b->count++;
        if (l4_has(b->d, it->id, &size))
            b->bytes += size;
    } else if (b->st == HL_OK && !is_fine(b->kind, st)) {
        b->st = st;
        snprintf(b->text, sizeof(b->text), "%s", text);
    }
    free(it);
    batch_done(b);
}

/* `cluster`: the caller's cluster, for calls that remove shards. `what` has no id. */
static void batch_start(struct hl_l3d *d, struct hl_rpc_call *call,
                        const struct hl_api_text_list *ids, const char *cluster,
                        const struct l4_asked *what)
{
    const enum l4_kind kind = what->kind;
    struct batch *b = calloc(1, sizeof(*b));
    struct hl_archive *a;
    hl_status ready =
        b != NULL ? l4_need(d, &a) : hl_fail(HL_ENOMEM, "out of memory allocating an archive call");
    if (ready == HL_OK && kind != L4_STORE)
        ready = claim_allows_archive(d, cluster);
    if (ready != HL_OK) {
        free(b);
        hl_rpc_reject(call, ready, NULL);
        return;
    }
    *b = (struct batch){.d = d, .call = call, .kind = kind, .waiting = 1};
    for (size_t i = 0; i < ids->count; i++) {
        struct item *it = calloc(1, sizeof(*it));
        hl_status st =
            it != NULL ? hl_id_parse(ids->items[i], &it->id)
                       : hl_fail(HL_ENOMEM, "out of memory allocating a shard of an archive call");
        if (st != HL_OK) {
            b->st = st;
            snprintf(b->text, sizeof(b->text), "%s", hl_error_text());
            free(it);
            break;
        }
        it->batch = b;
        b->waiting++;
        l4_ask(d, &(struct l4_asked){.kind = kind, .id = it->id, .order = what->order}, on_item,
               it);
    }
    batch_done(b);
}

void method_archive(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_l3_archive_params *params)
{
    struct l4_asked what = {.kind = L4_STORE};
    if (params->migration_id[0] != '\0' && hl_id_parse(params->migration_id, &what.order) != HL_OK)
        hl_rpc_reject(call, HL_EINVAL, NULL);
    else
        batch_start(arg, call, &params->ids, "", &what);
}

void method_stop(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_stop_params *params)
{
    struct hl_id order;
    hl_status st = hl_id_parse(params->migration_id, &order);
    if (st == HL_OK)
        hl_reply_l3_stop(call, &(struct hl_api_l3_stop_results){l4_stop_order(arg, order)});
    else
        hl_rpc_reject(call, st, NULL);
}

void method_drop_archived(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_l3_drop_archived_params *params)
{
    const struct l4_asked what = {.kind = params->trash ? L4_TRASH : L4_DROP};
    batch_start(arg, call, &params->ids, params->cluster, &what);
}

void method_untrash(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_l3_untrash_params *params)
{
    batch_start(arg, call, &params->ids, params->cluster, &(struct l4_asked){.kind = L4_UNTRASH});
}

/* A call that evicts; its ids are memory of the call. */
struct evict {
    struct work work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_api_text_list ids;
    struct hl_api_l3_evict_results r;
};

/* In a worker, because a look at the archive takes time. */
static void evict_run(struct work *w)
{
    struct evict *e = (struct evict *)w;
    struct hl_l3d *d = e->d;
    for (size_t i = 0; i < e->ids.count; i++) {
        struct hl_id id;
        struct hl_pool_ref ref;
        if (atomic_load_explicit(&d->stopping, memory_order_relaxed))
            break;
        if (hl_id_parse(e->ids.items[i], &id) != HL_OK || hl_pool_find(d->pool, id, &ref) != HL_OK)
            continue;
        if ((!hl_id_is_derived(id) && !l4_holds(d, &ref)) || !hl_pool_evict_one(d->pool, &ref)) {
            e->r.kept++;
            continue;
        }
        e->r.evicted++;
        e->r.bytes += ref.size;
    }
    hl_error_clear();
}

static void evict_done(struct work *w)
{
    struct evict *e = (struct evict *)w;
    hl_reply_l3_evict(e->call, &e->r);
    free(e);
}

void method_evict(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_evict_params *params)
{
    struct hl_l3d *d = arg;
    hl_status st = claim_allows(d, params->cluster);
    struct evict *e = st == HL_OK ? calloc(1, sizeof(*e)) : NULL;
    if (e == NULL) {
        if (st == HL_OK)
            st = hl_fail(HL_ENOMEM, "out of memory evicting shards");
        hl_rpc_reject(call, st, NULL);
        return;
    }
    *e = (struct evict){
        .work = {.run = evict_run, .done = evict_done}, .d = d, .call = call, .ids = params->ids};
    l4_run(d, &e->work);
}

void method_order_eviction(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_order_eviction_params *params)
{
    struct hl_l3d *d = arg;
    hl_status st = claim_allows(d, params->cluster);
    if (st == HL_OK)
        st = l4_order_give(d, &params->ids, params->ttl_ms);
    if (st == HL_OK)
        hl_reply_l3_order_eviction(call, &(struct hl_api_l3_order_eviction_results){0});
    else
        hl_rpc_reject(call, st, NULL);
}

void method_touch(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_touch_params *params)
{
    struct hl_l3d *d = arg;
    for (size_t i = 0; i < params->ids.count; i++) {
        struct hl_id id;
        struct hl_pool_ref ref;
        if (hl_id_parse(params->ids.items[i], &id) == HL_OK &&
            hl_pool_find(d->pool, id, &ref) == HL_OK)
            hl_pool_touch(d->pool, &ref);
    }
    hl_reply_l3_touch(call, &(struct hl_api_l3_touch_results){0});
}

void method_list_archived(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_l3_list_archived_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_api_l3_list_archived_results r = {.next = params->cursor};
    struct hl_arena *arena = hl_rpc_call_arena(call);
    size_t limit = params->limit, n = 0;
    if (limit == 0 || limit > INVENTORY_MAX)
        limit = INVENTORY_MAX;
    HL_AUTO(hl_freep) struct hl_archive_ref *refs = calloc(limit, sizeof(*refs));
    if (refs == NULL) {
        hl_rpc_reject(
            call, hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu shards", limit), NULL);
        return;
    }
    struct hl_archive *a = l4_archive(d);
    if (params->cursor == 0) /* a sweep: the next one sees what is missing now */
        l4_check_soon(d);
    if (l4_is_unreachable(d)) { /* an empty list would make shards look lost */
        hl_rpc_reject(call, l4_need(d, &a), NULL);
        return;
    }
    if (a != NULL)
        n = hl_archive_page(a, &r.next, refs, limit);
    else
        r.next = 0;
    r.extents.items = hl_arena_array(arena, n, sizeof(*r.extents.items));
    for (size_t i = 0; r.extents.items != NULL && i < n; i++)
        if (!l4_bad_has(d, refs[i].id))
            r.extents.items[r.extents.count++] =
                (struct hl_api_extent){.id = hl_id_print(refs[i].id, arena),
                                       .size_bytes = refs[i].size,
                                       .crc32 = refs[i].crc};
    hl_reply_l3_list_archived(call, &r);
}

void method_state_archived(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_state_archived_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_archive *a;
    hl_status st = l4_need(d, &a);
    if (st == HL_OK)
        st = claim_allows_archive(d, params->cluster);
    for (size_t i = 0; st == HL_OK && i < params->extents.count; i++) {
        const struct hl_api_extent *x = &params->extents.items[i];
        struct hl_id id;
        st = hl_id_parse(x->id, &id);
        if (st == HL_OK)
            hl_archive_state_crc(a, id, x->crc32);
    }
    if (st == HL_OK)
        hl_reply_l3_state_archived(call, &(struct hl_api_l3_state_archived_results){0});
    else
        hl_rpc_reject(call, st, NULL);
}

enum hl_api_archive_mode l4_mode(const struct hl_l3d *d)
{
    if (d->l4->opener == NULL)
        return HL_API_ARCHIVE_MODE_NONE;
    return d->l4->mode;
}

bool l4_tier(struct hl_l3d *d, struct hl_api_tier_info *out)
{
    struct hl_archive_info info = {.scheme = "unreachable"};
    struct hl_archive *a = l4_archive(d);
    if (d->l4->opener == NULL)
        return false;
    if (a != NULL)
        hl_archive_stat(a, &info);
    /* No watermarks: nothing is evicted from the archive. */
    *out = (struct hl_api_tier_info){.tier = HL_API_TIER_L4,
                                     .name = d->l4->url,
                                     .quota_bytes = info.quota_bytes,
                                     .used_bytes = info.used_bytes,
                                     .writing_bytes = info.writing_bytes,
                                     .shards = info.count - info.manifests,
                                     .numa_id = -1,
                                     .backing = info.scheme};
    return true;
}
