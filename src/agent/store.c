/* The store of a node: opening and closing it, and the calls that concern all its tiers: describe,
 * list, locate, verify and drop.
 *
 *     tiers[0]    the L2, a pool in shared memory that outlives the Agent (if the node has one)
 *     tiers[1..]  an L1 for each device, gone with the Agent
 *
 * The parts are opened in order of dependency, and closed in reverse:
 *
 *     L2 --> devices --> what they keep --> servers (store_serve) --> threads (store_jobs_start)
 *
 *     store_stop      `stopping` is set; threads that wait or copy end at their next check
 *     (the loop runs until no job is left: hl_agent_stop)
 *     store_close     copy threads joined, servers stopped, connections closed, tiers, pool
 *
 * Threads: the loop opens and closes. Everything else is also called from libuv's pool, while
 * copies come and go: by then `tiers` is constant, and each tier has a lock of its own. Nothing
 * here is a snapshot; a thread that reads a copy's bytes pins it first.
 *
 * `epoch` grows with every copy that comes or goes (store_changed). The heartbeat reports it, and
 * the Controller lists the store again when it differs from the last one it knows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "os/cond.h"

#define LIST_MAX   4096
#define TIER_SHIFT 56 /* of a list's cursor: which tier; below, its own cursor */

/* ---- opening and closing --------------------------------------------------------------------- */

/* No regions unless all nodes are of this machine. */
static size_t l2_regions(const struct store_opts *o, struct hl_pool_region_options *out)
{
    size_t n = 0;
    if (o->l2_nodes == NULL || o->l2_nodes[0] == '\0')
        hl_info("L2 is not bound to a NUMA node: this node's NUMA nodes are unknown");
    else if (hl_pool_regions_parse(o->l2_nodes, o->l2_size, out, &n) != HL_OK)
        hl_info("L2 is not bound to a NUMA node: %s", hl_error_text());
    return n;
}

static hl_status open_l2(struct store *s, const struct store_opts *o)
{
    struct hl_pool_found found = {0};
    struct hl_pool_region_options regions[HL_POOL_REGIONS_MAX];
    struct store_tier *t = &s->tiers[s->tier_count];
    if (s->opts.l2_size == 0)
        return HL_OK;
    struct hl_pool_options pool = o->pool;
    pool.path = s->pool_path;
    pool.capacity = o->l2_size;
    pool.regions = regions;
    pool.region_count = l2_regions(o, regions);
    HL_TRY(hl_pool_open(&pool, &found, &s->pool));
    size_t len;
    s->base = hl_pool_base(s->pool, &len);
    if (found.adopted)
        hl_info("L2 adopted path=%s shards=%llu bytes=%llu unfinished=%llu corrupt=%llu",
                s->pool_path, (unsigned long long)found.kept, (unsigned long long)found.kept_bytes,
                (unsigned long long)found.unfinished, (unsigned long long)found.corrupt);
    HL_TRY(hl_tier_over_pool(s->pool, HL_API_TIER_L2, "host", &o->limits, &t->t));
    t->tier = HL_API_TIER_L2;
    t->numa = -1;
    s->tier_count++;
    return HL_OK;
}

/* Copies the caller's texts. A chunk of a migration must be a power of two (net/zmq/migrate.h), so
 * other sizes are rounded down to one. */
static hl_status keep_texts(struct store *s, const struct store_opts *o)
{
    s->opts = *o;
    s->opts.machine = NULL;
    if (s->opts.data == NULL)
        s->opts.data = hl_net_conf_default();
    if (o->migrate.zstd != NULL && hl_migrate_zstd_parse(o->migrate.zstd, &s->zstd) != HL_OK)
        return hl_fail_prefix(HL_EINVAL, "migrate.zstd: ");
    while ((s->opts.migrate.chunk_size & (s->opts.migrate.chunk_size - 1)) != 0)
        s->opts.migrate.chunk_size &= s->opts.migrate.chunk_size - 1; /* its highest bit stays */
    snprintf(s->node, sizeof(s->node), "%s", o->node);
    snprintf(s->host_id, sizeof(s->host_id), "%s", o->host_id);
    s->pool_path = strdup(o->l2_pool);
    if (s->pool_path == NULL || asprintf(&s->socket_path, "%s.sock", o->l2_pool) < 0)
        return hl_fail(HL_ENOMEM, "out of memory allocating the store of node %s", o->node);
    return HL_OK;
}

hl_status store_open(const struct store_opts *opts, struct store **out)
{
    struct store *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the store of node %s", opts->node);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->queue_lock, NULL);
    s->conns.max = HL_CONN_POOL_MAX;
    pthread_mutex_init(&s->keep.lock, NULL);
    hl_cond_init(&s->keep.load_over);
    for (int i = 0; i < STORE_WORKS; i++)
        pthread_cond_init(&s->queues[i].cond, NULL);
    atomic_store_explicit(&s->epoch, 1, memory_order_relaxed);
    hl_status st = keep_texts(s, opts);
    if (st == HL_OK)
        st = open_l2(s, opts);
    if (st == HL_OK)
        st = store_devices_open(s, opts->machine);
    if (st == HL_OK)
        st = store_keep_open(s);
    if (st == HL_OK)
        st = store_serve(s);
    if (st == HL_OK)
        st = store_jobs_start(s);
    if (st != HL_OK) {
        store_close(s);
        return st;
    }
    *out = s;
    return HL_OK;
}

/* Does not wait for anything, so that the loop can continue and answer the calls that this ends. */
void store_stop(struct store *s)
{
    atomic_store_explicit(&s->stopping, true, memory_order_relaxed);
    store_jobs_cancel(s);
}

static void free_tables(struct store *s)
{
    struct store_note *n, *next_n;
    struct store_health *h, *next_h;
    HASH_ITER (hh, s->notes, n, next_n) {
        HASH_DEL(s->notes, n);
        free(n);
    }
    HASH_ITER (hh, s->health, h, next_h) {
        HASH_DEL(s->health, h);
        free(h);
    }
}

/* Also closes a partly opened store. */
void store_close(struct store *s)
{
    if (s == NULL)
        return;
    store_stop(s);
    store_jobs_join(s);
    store_unserve(s);
    store_conns_close(s);
    store_keep_close(s);
    for (size_t i = 0; i < s->tier_count; i++) {
        hl_tier_close(s->tiers[i].kept);
        hl_tier_close(s->tiers[i].t);
    }
    store_devices_close(s);
    hl_pool_close(s->pool);
    free_tables(s);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->queue_lock);
    pthread_cond_destroy(&s->keep.load_over);
    pthread_mutex_destroy(&s->keep.lock);
    for (int i = 0; i < STORE_WORKS; i++)
        pthread_cond_destroy(&s->queues[i].cond);
    free(s->pool_path);
    free(s->socket_path);
    free(s);
}

const char *store_socket(const struct store *s)
{
    return s->local != NULL ? s->socket_path : "";
}

uint64_t store_epoch(const struct store *s)
{
    return atomic_load_explicit(&s->epoch, memory_order_relaxed);
}

/* ---- contents -------------------------------------------------------------------------------- */

/* One page. The cursor of the list is that of one tier, with the tier's number above it:
 *
 *     63      56 55                          0
 *     |  tier   |  cursor in that tier        |      0: the beginning, and as `next` the end
 *
 * A tier is done when its own cursor is 0 again. */
hl_status store_list(struct store *s, const struct hl_api_agent_store_list_params *p,
                     struct hl_arena *arena, struct hl_api_agent_store_list_results *out)
{
    uint64_t cursor = p->cursor;
    size_t limit = p->limit == 0 || p->limit > LIST_MAX ? LIST_MAX : p->limit, n = 0;
    struct hl_tier_ref *refs = hl_arena_array(arena, limit, sizeof(*refs));
    struct hl_api_copy *copies = hl_arena_array(arena, limit, sizeof(*copies));
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing %zu copies", limit);
    size_t tier = (size_t)(cursor >> TIER_SHIFT);
    uint64_t at = cursor & ((UINT64_C(1) << TIER_SHIFT) - 1);
    while (tier < s->tier_count && n < limit) {
        struct store_tier *t = &s->tiers[tier];
        size_t got = hl_tier_list(t->t, &at, refs, limit - n);
        for (size_t i = 0; i < got; i++) {
            struct store_result r;
            store_describe(s, t, &refs[i], &r);
            copies[n + i] = store_copy_info(s, refs[i].id, &r, arena);
        }
        n += got;
        tier += at == 0;
    }
    cursor = tier < s->tier_count ? (uint64_t)tier << TIER_SHIFT | at : 0;
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing %zu copies", n);
    *out = (struct hl_api_agent_store_list_results){.copies = {copies, n}, .next = cursor};
    return HL_OK;
}

hl_status store_kept(struct store *s, const struct hl_api_agent_store_kept_params *p,
                     struct hl_arena *arena, struct hl_api_agent_store_kept_results *out)
{
    struct hl_id id;
    struct hl_tier_ref ref;
    struct hl_api_copy_list list = {hl_arena_array(arena, s->tier_count + 1, sizeof(*list.items)),
                                    0};
    HL_TRY(hl_id_parse(p->id, &id));
    for (size_t i = 0; list.items != NULL && i < s->tier_count; i++) {
        const struct store_tier *t = &s->tiers[i];
        bool keeps = t->tier == HL_API_TIER_L2 || t->kept != NULL;
        if (!keeps || !store_keep_find(s, t, id, &ref))
            continue;
        struct store_result r = {.tier = t->tier, .size = ref.size, .crc32 = ref.crc32, .numa = -1};
        memcpy(r.device, t->device, sizeof(r.device));
        list.items[list.count] = store_copy_info(s, id, &r, arena);
        list.items[list.count++].kept = true;
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the copies of shard %s", p->id);
    out->copies = list;
    return HL_OK;
}

/* Drops from every tier of that kind, or from one device. A missing copy is not a failure: the
 * Controller may ask twice. */
hl_status store_drop(struct store *s, const struct hl_api_agent_store_drop_params *p,
                     struct hl_api_agent_store_drop_results *out)
{
    struct hl_id id;
    enum hl_api_tier tier = p->tier;
    bool dropped = false;
    const char *device = p->device;
    HL_TRY(hl_id_parse(p->id, &id));
    for (size_t i = 0; i < s->tier_count; i++) {
        struct store_tier *t = &s->tiers[i];
        if (t->tier != tier || (device[0] != '\0' && strcmp(device, t->device) != 0))
            continue;
        hl_status st = hl_tier_drop(t->t, id);
        if (st != HL_OK && st != HL_ENOENT)
            return st;
        store_keep_forget(s, t, id);
        if (st == HL_OK)
            store_note(s, t, id, NULL);
        dropped |= st == HL_OK;
    }
    if (dropped) {
        hl_info("copy dropped id=%s tier=%s", hl_id_format(id).s, hl_api_tier_name(tier));
        store_changed(s);
    }
    out->dropped = dropped;
    return HL_OK;
}

/* The extent of a copy in the L2, for readers over the network. It is not pinned: the reader checks
 * the bytes by these CRCs, and asks again if they differ. */
static hl_status locate_one(struct store *s, const char *text, struct hl_arena *arena,
                            struct hl_api_extent *out)
{
    struct hl_id id;
    struct hl_tier_ref ref;
    const struct store_tier *t = store_tier_find(s, HL_API_TIER_L2, "", -1, 0);
    HL_TRY(hl_id_parse(text, &id));
    if (t == NULL) /* an answer, which a move that is undone waits for */
        return hl_fail(HL_ENOENT, "node %s has no L2, so no copy of shard %s", s->node, text);
    HL_TRY(hl_tier_find(t->t, id, &ref));
    uint64_t n = hl_chunk_count(ref.size);
    uint32_t *crcs = hl_arena_array(arena, n, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the checksums of shard %s", text);
    HL_TRY(hl_tier_chunk_crcs(t->t, &ref, crcs));
    *out = (struct hl_api_extent){.id = text,
                                  .offset = ref.offset,
                                  .size_bytes = ref.size,
                                  .crc32 = ref.crc32,
                                  .generation = ref.gen,
                                  .chunk_crcs = {crcs, n}};
    return HL_OK;
}

hl_status store_locate(struct store *s, const struct hl_api_agent_store_locate_params *p,
                       struct hl_arena *arena, struct hl_api_agent_store_locate_results *out)
{
    struct hl_api_extent *extents = hl_arena_array(arena, p->ids.count, sizeof(*extents));
    if (extents == NULL)
        return hl_fail(HL_ENOMEM, "out of memory locating %zu copies", p->ids.count);
    for (size_t i = 0; i < p->ids.count; i++)
        HL_TRY(locate_one(s, p->ids.items[i], arena, &extents[i]));
    out->extents = (struct hl_api_extent_list){extents, p->ids.count};
    return HL_OK;
}

/* Adds those chunks of a pinned copy that fail their checksum to `bad`, which has room for them. */
static hl_status verify_pinned(struct store *s, struct store_tier *t, const struct hl_tier_ref *ref,
                               struct hl_api_uint32_list *bad)
{
    HL_AUTO(hl_freep) void *scratch = malloc(HL_CHUNK);
    if (scratch == NULL)
        return hl_fail(HL_ENOMEM, "out of memory verifying shard %s", hl_id_format(ref->id).s);
    for (uint64_t at = 0; at < ref->size; at += HL_CHUNK) {
        uint64_t n = ref->size - at < HL_CHUNK ? ref->size - at : HL_CHUNK;
        if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "the Agent of node %s is shutting down", s->node);
        hl_status st = hl_tier_read(t->t, ref, at, scratch, (size_t)n);
        if (st == HL_ECORRUPT)
            bad->items[bad->count++] = (uint32_t)(at / HL_CHUNK);
        else
            HL_TRY(st);
    }
    return HL_OK;
}

/* Adds the bad chunks of one copy. */
static hl_status verify_copy(struct store *s, struct store_tier *t, const struct hl_tier_ref *ref,
                             struct hl_arena *arena, struct hl_api_uint32_list *bad)
{
    struct hl_api_uint32_list all = {
        .items = hl_arena_array(arena, bad->count + hl_chunk_count(ref->size), sizeof(*all.items)),
        .count = bad->count};
    if (all.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory verifying shard %s", hl_id_format(ref->id).s);
    if (bad->count > 0)
        memcpy(all.items, bad->items, bad->count * sizeof(*all.items));
    HL_TRY(verify_pinned(s, t, ref, &all));
    *bad = all;
    return HL_OK;
}

/* Reads every byte, which may take seconds, so it runs in libuv's pool. The pin keeps the copy
 * meanwhile. */
hl_status store_verify(struct store *s, const struct hl_api_agent_store_verify_params *p,
                       struct hl_arena *arena, struct hl_api_agent_store_verify_results *out)
{
    struct hl_id id;
    enum hl_api_tier tier = p->tier;
    struct hl_tier_ref ref;
    const char *device = p->device;
    HL_TRY(hl_id_parse(p->id, &id));
    struct hl_api_uint32_list bad = {0};
    hl_status st = hl_fail(HL_ENOENT, "shard %s is not in %s of node %s", hl_id_format(id).s,
                           hl_api_tier_name(tier), s->node);
    for (size_t i = 0; i < s->tier_count && (st == HL_OK || st == HL_ENOENT); i++) {
        struct store_tier *t = &s->tiers[i];
        if (t->tier != tier || (device[0] != '\0' && strcmp(device, t->device) != 0) ||
            hl_tier_pin(t->t, id, &ref) != HL_OK)
            continue;
        st = verify_copy(s, t, &ref, arena, &bad);
        hl_tier_unpin(t->t, &ref);
    }
    HL_TRY(st);
    *out = (struct hl_api_agent_store_verify_results){.ok = bad.count == 0, .bad_chunks = bad};
    return HL_OK;
}
