/* Room in a full pool. Derived shards are evicted first, because they can be cut again; then
 * archived ones, in the order that the Controller has set (l4_order.c), and after that the least
 * recently used. Their extents go into quarantine like every freed one, so a caller that needs the
 * room waits for its end. In mode write-behind, a shard that is not archived yet is archived on the
 * spot: the pool is then a cache of the archive.
 *
 *     l4_alloc, in a worker:
 *     try --HL_ENOSPC--> evict, under room_lock --> wait for a change of the pool --> try
 *      |                   '--nothing can go, comes or has changed; the deadline--> one last try
 *      '--success, or another failure--> end
 *
 * hl_pool_changes is read before the try, so a change between the try and the wait ends the wait at
 * once. A thread that must not wait calls l4_try_alloc, which has a worker evict and answers
 * HL_EBUSY. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/catalog/derived_id.h"
#include "core/copies/room.h"
#include "l3d/l4_private.h"
#include "mem/pool/pool.h"
#include "os/loop.h"

/* Longest wait before the next check, for things that no change of the pool announces: a recently
 * used shard may go after hold_ms; no caller waits any more; the daemon is shutting down. */
#define LOOK_MS 20

#define EXTRA_NS (50 * HL_NS_PER_MS)
#define NONE_NS  HL_NS_PER_S

/* One search for shards to evict. */
struct making {
    struct hl_l3d *d;
    uint64_t need, taken; /* bytes */
    uint64_t until_ns;    /* for what exceeds the need */
};

static uint64_t pool_bytes(uint64_t size)
{
    return hl_pool_units(size) * HL_POOL_UNIT;
}

/* True for a derived shard of a cut that is not being made now. */
static bool is_derived(void *arg, const struct hl_pool_ref *ref)
{
    const struct hl_l3d *d = ((struct making *)arg)->d;
    if (!hl_id_is_derived(ref->id))
        return false;
    for (size_t i = 0; i < HL_ARRAY_LEN(d->running_cuts); i++)
        if (atomic_load(&d->running_cuts[i]) == hl_id_cut(ref->id))
            return false;
    return true;
}

/* The archive's index alone does not count: the object may have been taken away. What exceeds the
 * need is only evicted while the looks are quick. */
static bool is_archived(void *arg, const struct hl_pool_ref *ref)
{
    struct making *m = arg;
    if (m->taken >= m->need && hl_now_ns() >= m->until_ns)
        return false;
    if (!l4_holds(m->d, ref))
        return false;
    m->taken += pool_bytes(ref->size);
    return true;
}

/* A shard that can't be archived (no room there, not a safetensors file) stays in the pool. */
static bool is_archived_now(void *arg, const struct hl_pool_ref *ref)
{
    struct hl_l3d *d = ((struct making *)arg)->d;
    if (atomic_load_explicit(&d->stopping, memory_order_relaxed) || hl_id_is_derived(ref->id))
        return false;
    if (l4_store_now(d, ref->id) == HL_OK && l4_holds(d, ref))
        return true;
    hl_debug("full pool: shard not archived: %s", hl_error_text());
    return false;
}

static uint64_t rank_of(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns)
{
    return l4_order_rank(((struct making *)arg)->d, ref, used_ns);
}

static struct hl_room room_now(const struct hl_l3d *d)
{
    struct hl_pool_info info;
    hl_pool_info(d->pool, &info);
    return (struct hl_room){.capacity = info.capacity,
                            .used = info.used,
                            .free = info.free,
                            .quarantined = info.quarantined,
                            .has_derived = info.derived > 0,
                            .has_archive = l4_archive(d) != NULL,
                            .writes_behind = d->l4->mode == HL_API_ARCHIVE_MODE_WRITE_BEHIND};
}

/* Frees at least what an extent of `size` bytes needs and, if more can be evicted, continues down
 * to the low watermark. `spill`: shards may be archived for it, which takes time. */
static hl_status make_room(struct hl_l3d *d, uint64_t size, bool spill,
                           struct hl_pool_evicted *evicted)
{
    static bool (*const may_go[HL_ROOM_KINDS])(void *arg, const struct hl_pool_ref *ref) = {
        [HL_ROOM_DERIVED] = is_derived,
        [HL_ROOM_ARCHIVED] = is_archived,
        [HL_ROOM_SPILLED] = is_archived_now,
    };
    const struct hl_room room = room_now(d);
    uint64_t need = pool_bytes(size), more = hl_room_to_free(&room, need, d->l4->opts.low_pct);
    struct making m = {.d = d, .need = need, .until_ns = hl_now_ns() + EXTRA_NS};
    for (int kind = 0; kind < HL_ROOM_KINDS && evicted->bytes + evicted->held == 0; kind++) {
        const struct hl_pool_eviction what = {.bytes = kind == HL_ROOM_SPILLED ? need : more,
                                              .hold_ns = d->l4->opts.hold_ms * HL_NS_PER_MS,
                                              .may_go = may_go[kind],
                                              .rank = rank_of,
                                              .arg = &m};
        if (hl_room_gives(&room, (enum hl_room_kind)kind, spill))
            HL_TRY(hl_pool_evict(d->pool, &what, evicted));
    }
    atomic_fetch_add_explicit(&d->l4->evicted_ordered, evicted->ranked, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->l4->evicted_unused, evicted->shards - evicted->ranked,
                              memory_order_relaxed);
    if (evicted->shards > 0)
        hl_debug("pool is full: evicted shards=%llu by_order=%llu bytes=%llu",
                 (unsigned long long)evicted->shards, (unsigned long long)evicted->ranked,
                 (unsigned long long)evicted->bytes);
    return HL_OK;
}

static hl_status alloc_extent(struct hl_l3d *d, const struct l4_want *w, struct hl_pool_extent *out)
{
    if (w->beside != NULL)
        return hl_pool_alloc_beside(d->pool, w->beside, out);
    return hl_pool_alloc_at(d->pool, hl_id_is_none(w->id) ? hl_id_random() : w->id, w->size,
                            w->near, out);
}

/* A load's room is counted at the moment it is taken, so it always counts either as free room or as
 * a shard to be. */
static hl_status alloc_once(struct hl_l3d *d, const struct l4_want *w, struct hl_pool_extent *out)
{
    if (!w->fills)
        return alloc_extent(d, w, out);
    pthread_mutex_lock(&d->l4->filling_lock);
    hl_status st = alloc_extent(d, w, out);
    d->l4->filling += st == HL_OK;
    pthread_mutex_unlock(&d->l4->filling_lock);
    return st;
}

void l4_filled(struct hl_l3d *d)
{
    atomic_fetch_add(&d->l4->evictable, 1);
    pthread_mutex_lock(&d->l4->filling_lock);
    d->l4->filling--;
    pthread_mutex_unlock(&d->l4->filling_lock);
}

static bool loads_fill(struct hl_l3d *d)
{
    pthread_mutex_lock(&d->l4->filling_lock);
    bool fill = d->l4->filling > 0;
    pthread_mutex_unlock(&d->l4->filling_lock);
    return fill;
}

/* True: room is on its way, try again. May be called from any thread that may wait. Under room_lock
 * only one thread at a time looks and evicts: with two, each would evict shards although the
 * extents that the other has put into quarantine are enough. */
static bool room_comes(struct hl_l3d *d, uint64_t size, bool spill)
{
    struct hl_pool_evicted evicted = {0};
    pthread_mutex_lock(&d->l4->room_lock);
    /* Checked both before and after looking for shards to evict, so that neither a load that ends
     * in between nor one that begins is missed. */
    bool filling = loads_fill(d);
    struct hl_room room = room_now(d);
    bool comes = hl_room_comes(&room, pool_bytes(size));
    if (!comes)
        comes = make_room(d, size, spill, &evicted) == HL_OK && evicted.bytes + evicted.held > 0;
    room = room_now(d);
    comes = comes || filling || loads_fill(d) || room.quarantined > 0;
    pthread_mutex_unlock(&d->l4->room_lock);
    return comes;
}

bool l4_makes_room(struct hl_l3d *d, uint64_t bytes)
{
    const struct hl_room room = room_now(d);
    return hl_room_takes_import(&room, bytes);
}

void l4_discard(struct hl_l3d *d, struct hl_id id)
{
    bool gone = hl_pool_free(d->pool, id) == HL_OK;
    struct hl_archive *a = l4_archive(d);
    uint64_t size;
    if (a != NULL && hl_archive_size(a, id, &size) == HL_OK) { /* a damaged copy is found, too */
        gone = hl_archive_remove(a, id) == HL_OK;
        l4_bad_clear(d, id);
    }
    if (!gone)
        hl_warn("shard not discarded id=%s error=\"%s\"", hl_id_format(id).s, hl_error_text());
}

static bool can_make_room(struct hl_l3d *d, uint64_t size)
{
    const struct hl_room room = room_now(d);
    return size <= room.capacity && hl_room_may_come(&room, pool_bytes(size));
}

uint64_t l4_room_wait_ns(const struct hl_l3d *d)
{
    return d->l4->opts.load_timeout_ms * HL_NS_PER_MS;
}

/* The pool's error advises how to get room. While the archive is unreachable the advice is beside
 * the point, so the error first names the archive. */
static hl_status explain_room(const struct hl_l3d *d, hl_status st)
{
    if (st == HL_ENOSPC && l4_is_away(d))
        return hl_fail_prefix(st,
                              "the archive %s is unreachable, so nothing is evicted: ", d->l4->url);
    return st;
}

hl_status l4_alloc(struct hl_l3d *d, const struct l4_want *want, struct hl_pool_extent *out)
{
    uint64_t deadline = hl_now_ns() + l4_room_wait_ns(d);
    for (;;) {
        uint64_t seen = hl_pool_changes(d->pool);
        hl_status st = alloc_once(d, want, out);
        if (st != HL_ENOSPC || want->takes_free_only || !can_make_room(d, want->size))
            return st;
        if (atomic_load_explicit(&d->stopping, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "the L3 daemon is shutting down");
        if (want->cancel != NULL && atomic_load_explicit(want->cancel, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "the request for room was cancelled");
        bool late = hl_now_ns() >= deadline;
        if (late || (!room_comes(d, want->size, true) && hl_pool_changes(d->pool) == seen))
            return explain_room(d, alloc_once(d, want, out));
        hl_pool_wait_change(d->pool, seen, hl_now_ns() + LOOK_MS * HL_NS_PER_MS);
    }
}

/* ---- for those who must not wait ------------------------------------------------------------- */

static void make_run(struct work *w)
{
    struct l4_maker *m = (struct l4_maker *)w;
    m->comes = !atomic_load_explicit(&m->d->stopping, memory_order_relaxed) &&
               room_comes(m->d, m->size, false);
    hl_error_clear();
}

static void maker_ends(struct l4_maker *m, bool comes)
{
    pthread_mutex_lock(&m->lock);
    m->running = false;
    if (!comes) {
        m->none_size = m->size;
        m->none_evictable = m->evictable;
        m->none_until_ns = hl_now_ns() + NONE_NS;
    }
    pthread_mutex_unlock(&m->lock);
}

static void make_done(struct work *w)
{
    struct l4_maker *m = (struct l4_maker *)w;
    maker_ends(m, m->comes);
}

static void make_begin(void *arg)
{
    struct hl_l3d *d = arg;
    struct l4_maker *m = &d->l4->maker;
    m->work = (struct work){.run = make_run, .done = make_done};
    if (d->stopping)
        maker_ends(m, false);
    else
        workers_add(d->l4->loads, &m->work);
}

/* False: an eviction for this size or less has just found nothing. The answer is remembered only
 * for a moment, because shards are used and unpinned, too. */
static bool maker_asked(struct hl_l3d *d, uint64_t size)
{
    struct l4_maker *m = &d->l4->maker;
    pthread_mutex_lock(&m->lock);
    const unsigned evictable = atomic_load(&d->l4->evictable);
    bool none =
        size >= m->none_size && evictable == m->none_evictable && hl_now_ns() < m->none_until_ns;
    if (!none && !m->running && !atomic_load_explicit(&d->stopping, memory_order_relaxed)) {
        m->running = true;
        m->d = d;
        m->size = size;
        m->evictable = evictable;
        hl_loop_post(d->loop, make_begin, d);
    }
    pthread_mutex_unlock(&m->lock);
    return !none;
}

static bool maker_runs(struct l4_maker *m)
{
    pthread_mutex_lock(&m->lock);
    bool runs = m->running;
    pthread_mutex_unlock(&m->lock);
    return runs;
}

void l4_room_stop(struct hl_l3d *d)
{
    while (maker_runs(&d->l4->maker))
        uv_run(hl_loop_uv(d->loop), UV_RUN_ONCE);
}

hl_status l4_try_alloc(struct hl_l3d *d, const struct l4_want *want, struct hl_pool_extent *out)
{
    hl_status st = alloc_once(d, want, out);
    if (st != HL_ENOSPC || !can_make_room(d, want->size) || !maker_asked(d, want->size))
        return explain_room(d, st);
    return hl_fail(
        HL_EBUSY,
        "the pool is full; archived shards are being evicted to free %llu bytes; try again",
        (unsigned long long)want->size);
}
