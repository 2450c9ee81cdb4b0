/* Changing the pool under its lock, with stores in an order that is safe both for readers without a
 * lock and for an adopter after a crash (mem/pool/layout.h).
 *
 * A freed extent goes through the quarantine queue. A pinned one leaves the queue and enters it
 * again with its last unpin. A released slot becomes DELETED, and EMPTY once the slot after it is
 * EMPTY: a search then stops there as if the slot had never been used. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/plane.h"
#include "base/text.h"
#include "mem/chunks.h"
#include "mem/pool/pool_private.h"
#include "os/cond.h"
#include "os/map_guard.h"

#define SCRUB_SLOTS 4096

/* ---- entries --------------------------------------------------------------------------------- */

/* Marks the entry as being changed. Functions here that take a slot number are called with the lock
 * held; only this process writes the entry in the file, and only between entry_begin and entry_end.
 *
 * Relaxed order is enough: each store that follows is a release (POOL_SET), so a reader that
 * acquires one of them also sees the odd generation. A reader that loads the odd generation tries
 * again; one that has loaded the even one notices the difference afterwards. If the owner dies
 * here, the next owner discards the entry. */
static void entry_begin(struct hl_pool *pool, uint32_t slot)
{
    atomic_store_explicit(&pool->index[slot].gen, pool->notes[slot].gen | 1, memory_order_relaxed);
}

/* The generation only grows, so references to the former content become stale. */
static void entry_end(struct hl_pool *pool, uint32_t slot)
{
    struct slot_note *n = &pool->notes[slot];
    n->gen = (n->gen | 1) + 1;
    POOL_SET(pool->index[slot].gen, n->gen);
}

/* Writes the note to the entry, between begin and end. */
static void entry_store(struct hl_pool *pool, uint32_t slot)
{
    const struct slot_note *n = &pool->notes[slot];
    struct hl_pool_entry *e = &pool->index[slot];
    POOL_SET(e->id_hi, n->id.hi);
    POOL_SET(e->id_lo, n->id.lo);
    POOL_SET(e->offset, n->offset);
    POOL_SET(e->size, n->size);
    POOL_SET(e->crc32, n->crc32);
    POOL_SET(e->table_crc, n->table_crc);
    POOL_SET(e->entry_crc, n->entry_crc);
    POOL_SET(e->state, n->state);
}

/* The note is changed first: the owner decides by it, and its readers hold the lock. */
static void entry_set_state(struct hl_pool *pool, uint32_t slot, uint32_t state)
{
    pool->notes[slot].state = state;
    entry_begin(pool, slot);
    POOL_SET(pool->index[slot].state, state);
    entry_end(pool, slot);
}

void pool_slot_learn(struct hl_pool *pool, uint32_t slot)
{
    struct slot_note *n = &pool->notes[slot];
    const struct hl_pool_entry *e = &pool->index[slot];
    n->id = (struct hl_id){POOL_GET(e->id_hi), POOL_GET(e->id_lo)};
    n->offset = POOL_GET(e->offset);
    n->size = POOL_GET(e->size);
    n->crc32 = POOL_GET(e->crc32);
    n->table_crc = POOL_GET(e->table_crc);
    n->entry_crc = POOL_GET(e->entry_crc);
    n->state = POOL_GET(e->state);
    n->gen = POOL_GET(e->gen);
}

bool pool_slot_repair(struct hl_pool *pool, uint32_t slot)
{
    const struct slot_note *n = &pool->notes[slot];
    const struct hl_pool_entry *e = &pool->index[slot];
    if (POOL_GET(e->state) == n->state && POOL_GET(e->gen) == n->gen &&
        (n->state == HL_POOL_EMPTY || n->state == HL_POOL_DELETED ||
         (POOL_GET(e->id_hi) == n->id.hi && POOL_GET(e->id_lo) == n->id.lo &&
          POOL_GET(e->offset) == n->offset && POOL_GET(e->size) == n->size &&
          POOL_GET(e->crc32) == n->crc32 && POOL_GET(e->table_crc) == n->table_crc &&
          POOL_GET(e->entry_crc) == n->entry_crc)))
        return false;
    hl_warn("damaged index entry of the pool was rewritten pool=%s slot=%" PRIu32 " shard=%s",
            pool->path, slot, hl_id_format(n->id).s);
    hl_fault_count("corrupt", "pool-index");
    entry_begin(pool, slot);
    entry_store(pool, slot);
    POOL_SET(pool->index[slot].gen, n->gen); /* the bytes are the same, so references stay valid */
    return true;
}

/* Checks a part of the index with every heartbeat. */
static void pool_scrub(struct hl_pool *pool)
{
    uint64_t share = pool->slots < SCRUB_SLOTS ? pool->slots : SCRUB_SLOTS;
    for (uint64_t i = 0; i < share; i++, pool->scrubbed++)
        (void)pool_slot_repair(pool, (uint32_t)(pool->scrubbed & (pool->slots - 1)));
}

uint32_t pool_slot_of(const struct hl_pool *pool, struct hl_id id, uint32_t state, uint32_t other)
{
    uint64_t slot = hl_pool_home(id, pool->slots);
    for (uint64_t i = 0; i < pool->slots; i++, slot = (slot + 1) & (pool->slots - 1)) {
        const struct slot_note *n = &pool->notes[slot];
        if (n->state == HL_POOL_EMPTY)
            break;
        if ((n->state == state || n->state == other) && hl_id_equal(n->id, id))
            return (uint32_t)slot;
    }
    return NO_SLOT;
}

/* Finds the slot of a readable shard. With an offset, a leased extent is found too, or a freed one
 * whose bytes are still there: the same id may have been written again elsewhere. */
static uint32_t slot_at(const struct hl_pool *pool, struct hl_id id, uint64_t offset)
{
    if (offset == 0)
        return pool_slot_readable(pool, id);
    uint64_t slot = hl_pool_home(id, pool->slots);
    for (uint64_t i = 0; i < pool->slots; i++, slot = (slot + 1) & (pool->slots - 1)) {
        const struct slot_note *n = &pool->notes[slot];
        if (n->state == HL_POOL_EMPTY)
            break;
        if ((pool_is_readable(n->state) || n->state == HL_POOL_FREED ||
             n->state == HL_POOL_LEASED) &&
            hl_id_equal(n->id, id) && n->offset == offset)
            return (uint32_t)slot;
    }
    return NO_SLOT;
}

/* Always finds a slot: the index is at most three quarters full (alloc_locked). */
static uint32_t slot_for(const struct hl_pool *pool, struct hl_id id)
{
    uint64_t slot = hl_pool_home(id, pool->slots);
    for (uint64_t i = 0; i < pool->slots; i++, slot = (slot + 1) & (pool->slots - 1)) {
        uint32_t state = pool->notes[slot].state;
        if (state == HL_POOL_EMPTY || state == HL_POOL_DELETED)
            return (uint32_t)slot;
    }
    return NO_SLOT;
}

/* A DELETED slot lets searches that began at another home continue. In front of an EMPTY slot there
 * is nothing more to find, so a whole run of DELETED slots there becomes EMPTY too, which keeps
 * searches for missing shards short. */
void pool_slot_delete(struct hl_pool *pool, uint32_t slot)
{
    uint64_t mask = pool->slots - 1;
    pool->taken--;
    entry_set_state(pool, slot, HL_POOL_DELETED);
    if (pool->notes[(slot + 1) & mask].state != HL_POOL_EMPTY)
        return;
    for (uint64_t i = slot; pool->notes[i].state == HL_POOL_DELETED; i = (i - 1) & mask)
        entry_set_state(pool, (uint32_t)i, HL_POOL_EMPTY);
}

static struct hl_pool_ref ref_of(const struct hl_pool *pool, uint32_t slot)
{
    const struct slot_note *n = &pool->notes[slot];
    return (struct hl_pool_ref){.id = n->id,
                                .offset = n->offset,
                                .size = n->size,
                                .crc32 = n->crc32,
                                .table_crc = n->table_crc,
                                .gen = n->gen,
                                .slot = slot};
}

static uint64_t first_unit(const struct hl_pool *pool, uint64_t offset)
{
    return (offset - pool->super->data_offset) / HL_POOL_UNIT;
}

/* ---- waiting for room ------------------------------------------------------------------------ */

/* With the lock held, after a change that may let a waiter continue: a free, an unpin, or a
 * seal. */
void pool_note_change(struct hl_pool *pool)
{
    pool->changes++;
    pthread_cond_broadcast(&pool->changed);
}

/* A waiter reads this number, tries, and waits only while it is the same: no change is missed. */
uint64_t hl_pool_changes(struct hl_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t changes = pool->changes;
    pthread_mutex_unlock(&pool->lock);
    return changes;
}

void hl_pool_wait_change(struct hl_pool *pool, uint64_t seen, uint64_t until_ns)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->changes == seen && hl_now_ns() < until_ns)
        (void)hl_cond_wait_until(&pool->changed, &pool->lock, until_ns);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- quarantine of freed extents ---------------------------------------------------------------
 */

/* Appends to the queue. All extents stay equally long, so the head is always the next to leave. */
void pool_quarantine(struct hl_pool *pool, uint32_t slot, uint64_t now_ns)
{
    struct slot_note *note = &pool->notes[slot];
    note->freed_ns = now_ns;
    note->next = NO_SLOT;
    note->queued = 1;
    if (pool->quarantine_tail != NO_SLOT)
        pool->notes[pool->quarantine_tail].next = slot;
    else
        pool->quarantine_head = slot;
    pool->quarantine_tail = slot;
}

void pool_reap(struct hl_pool *pool, uint64_t now_ns)
{
    while (pool->quarantine_head != NO_SLOT) {
        uint32_t slot = pool->quarantine_head;
        struct slot_note *note = &pool->notes[slot];
        if (now_ns < note->freed_ns + pool->quarantine_ns)
            return;
        pool->quarantine_head = note->next;
        if (pool->quarantine_head == NO_SLOT)
            pool->quarantine_tail = NO_SLOT;
        note->queued = 0;
        if (!pool_slot_unpinned(pool, slot))
            continue; /* the last unpin queues it again */
        struct hl_pool_ref r = ref_of(pool, slot);
        uint64_t units = hl_pool_units(r.size);
        pool_slot_delete(pool, slot);
        hl_extents_give(pool->extents, first_unit(pool, r.offset), units);
        pool->quarantined_units -= units;
        pool_note_change(pool);
    }
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* A LEASED extent skips the quarantine, because a reader without a pin never finds it in the index.
 * A KEPT one skips it too, see hl_pool_evict_kept. */
void pool_give(struct hl_pool *pool, uint32_t slot)
{
    struct hl_pool_ref r = ref_of(pool, slot);
    uint64_t units = hl_pool_units(r.size);
    pool_slot_delete(pool, slot);
    hl_extents_give(pool->extents, first_unit(pool, r.offset), units);
    pool->used_units -= units;
    pool_note_change(pool);
}

void pool_end_leases(struct hl_pool *pool, uint64_t now_ns)
{
    if (pool->leases_end_ns == 0 || now_ns < pool->leases_end_ns)
        return;
    pool->leases_end_ns = 0;
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        if (pool->notes[slot].state == HL_POOL_LEASED && pool->notes[slot].pins == 0)
            pool_give(pool, (uint32_t)slot);
}

void pool_listen(struct hl_pool *pool, uint64_t now_ns)
{
    struct hl_listening_gap gap = hl_listening_check(&pool->listening, now_ns, hl_wall_ms());
    if (gap.paused_ns == 0 || pool->leases_end_ns == 0)
        return;
    pool->leases_end_ns += gap.paused_ns;
    pool->leases_sure_ns += gap.paused_ns;
}

/* Units of adopted leases that alloc can take back now; 0 while the leases are guaranteed. */
uint64_t pool_abandoned(const struct hl_pool *pool, uint64_t now_ns)
{
    uint64_t units = 0;
    if (pool->leases_end_ns == 0 || now_ns < pool->leases_sure_ns)
        return 0;
    for (uint64_t slot = 0; slot < pool->slots; slot++)
        if (pool->notes[slot].state == HL_POOL_LEASED && pool->notes[slot].pins == 0)
            units += hl_pool_units(pool->notes[slot].size);
    return units;
}

/* Room is short: ends unclaimed adopted leases if they were kept long enough. */
static bool end_abandoned(struct hl_pool *pool)
{
    pool_listen(pool, hl_now_ns());
    if (pool->leases_end_ns == 0 || hl_now_ns() < pool->leases_sure_ns)
        return false;
    pool_end_leases(pool, UINT64_MAX);
    return true;
}

/* A truncated pool loses what is written to it and has lost what was in it, so nothing may be
 * served from it. After a restart the daemon has what is left in the file. */
static void end_if_damaged(const struct hl_pool *pool)
{
    struct stat sb;
    if (!hl_map_guard_check(pool->guard))
        return;
    if (fstat(pool->fd, &sb) != 0)
        sb.st_size = 0;
    hl_error("pool file was truncated by another program, this process exits path=%s has=%lld "
             "had=%" PRIu64,
             pool->path, (long long)sb.st_size, pool->file_size);
    _exit(1);
}

/* Called by the heartbeat thread or a test, with the lock held. All work that depends on time is
 * done here, so no call waits for a timer of its own. */
void pool_beat(struct hl_pool *pool)
{
    uint64_t now = hl_now_ns();
    POOL_SET(pool->super->heartbeat_ns, now);
    end_if_damaged(pool);
    pool_reap(pool, now);
    pool_listen(pool, now);
    pool_end_leases(pool, now);
    pool_scrub(pool);
}

void hl_pool_beat(struct hl_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool_beat(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- a new shard ----------------------------------------------------------------------------- */

static hl_status fail_no_room(const struct hl_pool *pool, uint64_t size)
{
    char asked[32], left[32], longest[32], quarantined[32];
    return hl_fail(
        HL_ENOSPC,
        "pool %s has no room for a shard of %s: %s are free (longest piece %s), %s are in "
        "quarantine after being freed; remove what is not needed, or make the pool larger",
        pool->path, hl_format_bytes(size, asked, sizeof(asked)),
        hl_format_bytes(hl_extents_free(pool->extents) * HL_POOL_UNIT, left, sizeof(left)),
        hl_format_bytes(hl_extents_largest(pool->extents) * HL_POOL_UNIT, longest, sizeof(longest)),
        hl_format_bytes(pool->quarantined_units * HL_POOL_UNIT, quarantined, sizeof(quarantined)));
}

/* The slot is taken and marked WRITING before the caller writes a byte. If the owner dies
 * meanwhile, the next owner drops the entry and its units are free again. */
static hl_status alloc_locked(struct hl_pool *pool, struct hl_id id, uint64_t size,
                              uint32_t regions, struct hl_pool_extent *out)
{
    uint64_t units = hl_pool_units(size), first;
    pool_reap(pool, hl_now_ns());
    if (pool->taken >= pool->slots / 4 * 3)
        (void)end_abandoned(pool);
    if (pool->taken >= pool->slots / 4 * 3)
        return hl_fail(HL_ENOSPC,
                       "the index of pool %s is full: %" PRIu64 " of %" PRIu64
                       " slots are taken; remove versions",
                       pool->path, pool->taken, pool->slots);
    hl_status st = hl_extents_take_in(pool->extents, units, regions, &first);
    if (st != HL_OK && end_abandoned(pool))
        st = hl_extents_take_in(pool->extents, units, regions, &first);
    if (st != HL_OK)
        return fail_no_room(pool, size);
    uint32_t slot = slot_for(pool, id);
    assert(slot != NO_SLOT);
    uint64_t offset = pool->super->data_offset + first * HL_POOL_UNIT;
    pool->notes[slot] = (struct slot_note){.id = id,
                                           .offset = offset,
                                           .size = size,
                                           .state = HL_POOL_WRITING,
                                           .gen = pool->notes[slot].gen,
                                           .next = NO_SLOT};
    entry_begin(pool, slot);
    entry_store(pool, slot);
    entry_end(pool, slot);
    pool->taken++;
    pool->used_units += units;
    pool->writing_units += units;
    *out = (struct hl_pool_extent){
        .id = id, .ptr = pool->base + offset, .offset = offset, .size = size, .slot = slot};
    return HL_OK;
}

hl_status hl_pool_alloc(struct hl_pool *pool, uint64_t size, struct hl_pool_extent *out)
{
    return hl_pool_alloc_at(pool, hl_id_random(), size, -1, out);
}

/* Two writers of the same id can't both get an extent: the look-up and the WRITING entry are one
 * step under the lock. */
hl_status hl_pool_alloc_at(struct hl_pool *pool, struct hl_id id, uint64_t size, int numa_node,
                           struct hl_pool_extent *out)
{
    if (size == 0)
        return hl_fail(HL_EINVAL, "a shard of 0 bytes can't be stored");
    pthread_mutex_lock(&pool->lock);
    hl_status st;
    if (pool_slot_readable(pool, id) != NO_SLOT ||
        pool_slot_of(pool, id, HL_POOL_WRITING, HL_POOL_WRITING) != NO_SLOT)
        st = hl_fail(HL_EEXIST, "shard %s is in pool %s, or being written there",
                     hl_id_format(id).s, pool->path);
    else if (size > pool->super->capacity)
        st = fail_no_room(pool, size);
    else
        st = alloc_locked(pool, id, size, pool_regions_preferred(pool, numa_node), out);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

/* With the lock held. The generation distinguishes this shard from a later one in the same slot. */
bool pool_ref_stands(const struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    if (ref->slot >= pool->slots)
        return false;
    const struct slot_note *n = &pool->notes[ref->slot];
    return n->state == HL_POOL_SEALED && n->gen == ref->gen && hl_id_equal(n->id, ref->id);
}

static hl_status fail_gone(const struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    return hl_fail(HL_ESTALE, "shard %s in pool %s was replaced or freed meanwhile",
                   hl_id_format(ref->id).s, pool->path);
}

hl_status hl_pool_alloc_beside(struct hl_pool *pool, const struct hl_pool_ref *old,
                               struct hl_pool_extent *out)
{
    pthread_mutex_lock(&pool->lock);
    hl_status st;
    if (!pool_ref_stands(pool, old))
        st = fail_gone(pool, old);
    else if (pool_slot_of(pool, old->id, HL_POOL_WRITING, HL_POOL_WRITING) != NO_SLOT)
        st = hl_fail(HL_EEXIST, "shard %s is being replaced already", hl_id_format(old->id).s);
    else
        st = alloc_locked(pool, old->id, old->size,
                          pool_regions_preferred(pool, hl_pool_numa_of(pool, old->offset)), out);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

/* Whether alloc returned this extent and it was neither sealed nor aborted yet. */
static bool is_open(const struct hl_pool *pool, const struct hl_pool_extent *x)
{
    if (x->slot >= pool->slots)
        return false;
    const struct slot_note *n = &pool->notes[x->slot];
    return n->state == HL_POOL_WRITING && hl_id_equal(n->id, x->id) && n->offset == x->offset &&
           n->size == x->size;
}

/* Writes the entry of a written extent, between begin and end. */
static void seal_entry(struct hl_pool *pool, const struct hl_pool_extent *x, uint32_t state,
                       uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                       struct hl_pool_ref *out)
{
    struct slot_note *n = &pool->notes[x->slot];
    size_t bytes = chunks * sizeof(uint32_t);
    memcpy(pool->base + x->offset + hl_pool_table_offset(x->size), chunk_crcs, bytes);
    *out = (struct hl_pool_ref){.id = x->id,
                                .offset = x->offset,
                                .size = x->size,
                                .crc32 = crc32,
                                .table_crc = hl_crc32(0, chunk_crcs, bytes),
                                .slot = x->slot};
    n->crc32 = out->crc32;
    n->table_crc = out->table_crc;
    n->entry_crc = pool_entry_crc(out);
    n->state = state;
    entry_begin(pool, x->slot);
    entry_store(pool, x->slot);
    pool->shards += state == HL_POOL_SEALED;
    pool->manifests += state == HL_POOL_SEALED && hl_manifest_is(x->id);
    pool->derived += state == HL_POOL_SEALED && hl_id_is_derived(x->id);
    pool->kept += state == HL_POOL_KEPT;
    pool->kept_units += state == HL_POOL_KEPT ? hl_pool_units(x->size) : 0;
    pool->writing_units -= hl_pool_units(x->size);
}

static hl_status fail_not_open(const struct hl_pool_extent *x)
{
    return hl_fail(HL_EINVAL, "shard %s is not being written", hl_id_format(x->id).s);
}

/* After the entry was written: what a truncated file has lost must not be acknowledged. The next
 * heartbeat ends this process. */
static hl_status check_whole(const struct hl_pool *pool)
{
    if (!hl_map_guard_check(pool->guard))
        return HL_OK;
    return hl_fail(HL_EUNAVAIL,
                   "pool %s was truncated by another program; repeat this once it is recreated",
                   pool->path);
}

/* The chunk CRCs are combined before the lock is taken. The extent is WRITING and belongs to the
 * caller, so no other thread can have sealed or freed it; is_open catches a caller that seals it
 * twice. */
static hl_status seal_shard(struct hl_pool *pool, const struct hl_pool_extent *extent,
                            uint32_t state, uint32_t crc32, const uint32_t *chunk_crcs,
                            size_t chunks, struct hl_pool_ref *ref)
{
    struct hl_pool_ref r;
    HL_TRY(hl_chunks_check(extent->id, extent->size, crc32, chunk_crcs, chunks));
    pthread_mutex_lock(&pool->lock);
    bool open = is_open(pool, extent);
    if (open) {
        seal_entry(pool, extent, state, crc32, chunk_crcs, chunks, &r);
        entry_end(pool, extent->slot);
        r.gen = pool->notes[extent->slot].gen;
        pool->notes[extent->slot].pins += state == HL_POOL_LEASED;
        pool_note_change(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!open)
        return fail_not_open(extent);
    HL_TRY(check_whole(pool));
    if (ref != NULL)
        *ref = r;
    return HL_OK;
}

hl_status hl_pool_seal(struct hl_pool *pool, const struct hl_pool_extent *extent, uint32_t crc32,
                       const uint32_t *chunk_crcs, size_t chunks, struct hl_pool_ref *ref)
{
    return seal_shard(pool, extent, HL_POOL_SEALED, crc32, chunk_crcs, chunks, ref);
}

hl_status hl_pool_seal_leased(struct hl_pool *pool, const struct hl_pool_extent *extent,
                              uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                              struct hl_pool_ref *ref)
{
    return seal_shard(pool, extent, HL_POOL_LEASED, crc32, chunk_crcs, chunks, ref);
}

hl_status hl_pool_seal_kept(struct hl_pool *pool, const struct hl_pool_extent *extent,
                            uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                            struct hl_pool_ref *ref)
{
    return seal_shard(pool, extent, HL_POOL_KEPT, crc32, chunk_crcs, chunks, ref);
}

/* Both entries are marked as being changed at once: if the owner dies in between, the new entry is
 * left or none, never both. */
hl_status hl_pool_replace(struct hl_pool *pool, const struct hl_pool_ref *old,
                          const struct hl_pool_extent *extent, const uint32_t *chunk_crcs,
                          size_t chunks, struct hl_pool_ref *ref)
{
    struct hl_pool_ref r;
    HL_TRY(hl_chunks_check(extent->id, extent->size, old->crc32, chunk_crcs, chunks));
    pthread_mutex_lock(&pool->lock);
    hl_status st = !is_open(pool, extent) ? fail_not_open(extent)
                   : !pool_ref_stands(pool, old) || extent->size != old->size ? fail_gone(pool, old)
                                                                              : HL_OK;
    if (st == HL_OK) {
        entry_begin(pool, old->slot);
        seal_entry(pool, extent, HL_POOL_SEALED, old->crc32, chunk_crcs, chunks, &r);
        POOL_SET(pool->index[old->slot].state, HL_POOL_FREED);
        entry_end(pool, extent->slot);
        r.gen = pool->notes[extent->slot].gen;
        pool_slot_free(pool, old->slot, hl_now_ns());
    }
    pthread_mutex_unlock(&pool->lock);
    if (st == HL_OK)
        st = check_whole(pool);
    if (st == HL_OK && ref != NULL)
        *ref = r;
    return st;
}

/* No quarantine is needed: readers never see a WRITING entry. */
void hl_pool_abort(struct hl_pool *pool, const struct hl_pool_extent *extent)
{
    pthread_mutex_lock(&pool->lock);
    if (is_open(pool, extent)) {
        uint64_t units = hl_pool_units(extent->size);
        pool_slot_delete(pool, extent->slot);
        hl_extents_give(pool->extents, first_unit(pool, extent->offset), units);
        pool->used_units -= units;
        pool->writing_units -= units;
        pool_note_change(pool);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* ---- sealed shards --------------------------------------------------------------------------- */

hl_status pool_fail_missing(const struct hl_pool *pool, struct hl_id id)
{
    return hl_fail(HL_ENOENT, "shard %s is not in pool %s", hl_id_format(id).s, pool->path);
}

/* Bytes move from `used` to `quarantined` in one step under the lock, so their sum never jumps. */
void pool_slot_free(struct hl_pool *pool, uint32_t slot, uint64_t now_ns)
{
    uint64_t units = hl_pool_units(pool->notes[slot].size);
    pool_count_readable(pool, slot, -1);
    entry_set_state(pool, slot, HL_POOL_FREED);
    pool->used_units -= units;
    pool->quarantined_units += units;
    pool_quarantine(pool, slot, now_ns);
    pool_note_change(pool);
}

hl_status hl_pool_free(struct hl_pool *pool, struct hl_id id)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t slot = pool_slot_readable(pool, id);
    if (slot != NO_SLOT)
        pool_slot_free(pool, slot, hl_now_ns());
    pthread_mutex_unlock(&pool->lock);
    return slot != NO_SLOT ? HL_OK : pool_fail_missing(pool, id);
}

/* The entry is repaired before its reference is returned, because the reader will check it. */
hl_status pool_find(struct hl_pool *pool, uint32_t state, struct hl_id id, struct hl_pool_ref *out)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t slot = pool_slot_of(pool, id, state, state);
    if (slot != NO_SLOT) {
        (void)pool_slot_repair(pool, slot);
        *out = ref_of(pool, slot);
    }
    pthread_mutex_unlock(&pool->lock);
    return slot != NO_SLOT ? HL_OK : pool_fail_missing(pool, id);
}

hl_status hl_pool_find(struct hl_pool *pool, struct hl_id id, struct hl_pool_ref *out)
{
    return pool_find(pool, HL_POOL_SEALED, id, out);
}

hl_status hl_pool_pin(struct hl_pool *pool, struct hl_id id, uint64_t offset,
                      struct hl_pool_ref *out)
{
    pthread_mutex_lock(&pool->lock);
    uint32_t slot = slot_at(pool, id, offset);
    struct hl_pool_ref r = {0};
    if (slot != NO_SLOT) {
        (void)pool_slot_repair(pool, slot);
        pool->notes[slot].pins++;
        r = ref_of(pool, slot);
    }
    pthread_mutex_unlock(&pool->lock);
    if (slot == NO_SLOT)
        return pool_fail_missing(pool, id);
    *out = r;
    return HL_OK;
}

/* On the last unpin, a freed shard starts its quarantine again (a reader without a pin may have
 * found it since), and a leased one is free at once, since only its borrower could find it. */
void hl_pool_unpin(struct hl_pool *pool, const struct hl_pool_ref *ref)
{
    pthread_mutex_lock(&pool->lock);
    struct slot_note *note = &pool->notes[ref->slot];
    assert(note->pins > 0);
    note->pins--;
    uint32_t state = note->state;
    if (note->pins == 0 && !note->queued && state == HL_POOL_FREED)
        pool_quarantine(pool, ref->slot, hl_now_ns());
    else if (note->pins == 0 && state == HL_POOL_LEASED)
        pool_give(pool, ref->slot);
    if (note->pins == 0)
        pool_note_change(pool); /* it can be evicted now */
    pthread_mutex_unlock(&pool->lock);
}

/* The cursor is a slot number; a page continues after the last slot. A shard that is sealed
 * meanwhile in an earlier slot is not listed. */
size_t pool_list(struct hl_pool *pool, uint32_t state, uint64_t *cursor, struct hl_pool_ref *out,
                 size_t max)
{
    size_t n = 0;
    uint64_t slot = *cursor;
    pthread_mutex_lock(&pool->lock);
    for (; slot < pool->slots && n < max; slot++)
        if (pool->notes[slot].state == state)
            out[n++] = ref_of(pool, (uint32_t)slot);
    pthread_mutex_unlock(&pool->lock);
    *cursor = slot < pool->slots ? slot : 0;
    return n;
}

size_t hl_pool_list(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out, size_t max)
{
    return pool_list(pool, HL_POOL_SEALED, cursor, out, max);
}
