/* mem/pool/pool_private.h - what the owner's files share, and the one way to read an index entry.
 *
 * The owner keeps the index twice: in the file, for readers and for the next owner, and in private
 * notes, which alone its decisions rely on.
 *
 *     this process only                    the file, mapped by every reader
 *     .--------------------------.         .------------------------------------.
 *     | struct hl_pool           |         | superblock: incarnation, heartbeat |
 *     |  notes[slot] ------ stored into -->| index[slot]: gen, state, id, where |
 *     |  extents: free units     |         | data: |extent + table|extent|free| |
 *     |  quarantine_head .. tail |         '------------------------------------'
 *     '--------------------------'            ^ read without a lock (view.c)
 *
 * States of a slot (enum hl_pool_state). Each arrow is taken under hl_pool.lock, and between two
 * stores of the entry's generation, which is odd while the entry changes:
 *
 *     EMPTY or DELETED --alloc--> WRITING --seal--> SEALED --free, evict, replace--> FREED
 *           ^                      |   |                                              |
 *           |<-------abort---------'   |--seal_leased--> LEASED                       |
 *           |<----last unpin, or its time is over -------'                            |
 *           |                          '--seal_kept--> KEPT --place--> SEALED         |
 *           |<---------------evict_kept: not pinned-----'  '--free------------------->|
 *           '<---------reap: the quarantine is over and it is not pinned----------'
 *
 * FREED extents wait in the quarantine queue, oldest first. An extent that is still pinned when its
 * time comes leaves the queue; its last unpin queues it again.
 *
 * Threads: any thread of the owner allocates, seals, frees and pins; the heartbeat's thread reaps,
 * ends leases and repairs entries. The lock is held for the stores of an entry, never while a
 * shard's bytes are copied or verified: readers and writers of bytes do not wait for each other.
 */
#ifndef HL_MEM_POOL_PRIVATE_H
#define HL_MEM_POOL_PRIVATE_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "core/catalog/derived_id.h"
#include "core/catalog/manifest_id.h"
#include "core/listening.h"
#include "mem/extents.h"
#include "mem/pool/pool.h"

#define NO_SLOT               UINT32_MAX
#define DEFAULT_QUARANTINE_MS 2000
#define HEARTBEAT_OLD_NS      (HL_POOL_SILENT_MS * HL_NS_PER_MS)
#define ENTRY_SPINS           64
#define ENTRY_YIELDS          2000

/* What the owner knows about a slot; it is lost with the owner. The first half is a copy of the
 * slot's index entry. The owner decides by this copy, which no other process can reach, and
 * rewrites the entry when the two differ: a flipped bit in shared memory must not lead it to other
 * bytes. */
struct slot_note {
    struct hl_id id;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t table_crc;
    uint32_t entry_crc;
    uint32_t state;
    uint32_t gen;
    uint64_t freed_ns;
    uint64_t used_ns; /* last use the owner was told of; 0 = none */
    uint32_t pins;
    uint32_t next;              /* in the quarantine queue */
    uint32_t queued;            /* 1: is in that queue */
    struct hl_pool_rest *rests; /* those of its pins that may rest */
};

struct hl_pool {
    char *path;
    int fd;
    int guard; /* of the mapping */
    uint8_t *base;
    uint64_t file_size;
    struct hl_pool_super *super;
    struct hl_pool_entry *index;
    uint64_t slots;
    uint64_t quarantine_ns;
    uint32_t beat_ms;
    char backing[64];
    struct hl_pool_region regions[HL_POOL_REGIONS_MAX]; /* `used` is not kept */
    uint64_t region_ends[HL_POOL_REGIONS_MAX];          /* in units */
    size_t region_count;

    pthread_mutex_t lock; /* guards everything below and every change of the index */
    struct hl_extents *extents;
    struct slot_note *notes;
    uint32_t quarantine_head, quarantine_tail; /* the quarantine queue, in the order of freeing */
    uint64_t taken;                            /* slots in use */
    uint64_t used_units;
    uint64_t writing_units; /* the part of used_units that is being written */
    uint64_t quarantined_units;
    uint64_t shards;
    uint64_t manifests;        /* of these */
    uint64_t derived;          /* of these */
    uint64_t kept, kept_units; /* extents in the state KEPT; the part of used_units */
    uint64_t lease_ns;
    uint64_t leases_sure_ns,
        leases_end_ns; /* for adopted leases that no borrower has pinned; 0 = none */

    struct hl_listening listening;

    uint64_t scrubbed; /* next slot to be compared with its note */

    uint64_t changes; /* see hl_pool_changes */
    pthread_cond_t changed;

    pthread_t beat;
    pthread_cond_t beat_wake;
    bool beat_running;
    bool beat_stop;
};

/* A consistent snapshot of an entry. */
struct entry_copy {
    struct hl_pool_ref ref;
    uint32_t state;
    uint32_t entry_crc;
};

/* Orders loads before it ahead of loads after it. */
static inline void pool_acquire_fence(void)
{
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
    atomic_thread_fence(memory_order_acquire);
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic pop
#endif
}

#define POOL_GET(field) atomic_load_explicit(&(field), memory_order_acquire)
/* A release store, so that a thread that sees the value also sees the odd generation stored
 * before. */
#define POOL_SET(field, value) atomic_store_explicit(&(field), (value), memory_order_release)

/* True when `out` is consistent; false when the entry stays half-changed (its writer died or is
 * asleep). */
static inline bool pool_entry_read(const struct hl_pool_entry *e, uint32_t slot,
                                   struct entry_copy *out)
{
    out->entry_crc = 0;
    for (int i = 0; i < ENTRY_SPINS + ENTRY_YIELDS; i++) {
        uint32_t gen = POOL_GET(e->gen);
        if ((gen & 1) == 0) {
            out->state = POOL_GET(e->state);
            if (out->state == HL_POOL_EMPTY || out->state == HL_POOL_DELETED) {
                out->ref = (struct hl_pool_ref){.gen = gen, .slot = slot};
                return true;
            }
            out->ref.id.hi = POOL_GET(e->id_hi);
            out->ref.id.lo = POOL_GET(e->id_lo);
            out->ref.offset = POOL_GET(e->offset);
            out->ref.size = POOL_GET(e->size);
            out->ref.crc32 = POOL_GET(e->crc32);
            out->ref.table_crc = POOL_GET(e->table_crc);
            out->entry_crc = POOL_GET(e->entry_crc);
            out->ref.gen = gen;
            out->ref.slot = slot;
            if (POOL_GET(e->gen) == gen)
                return true;
        }
        if (i >= ENTRY_SPINS)
            sched_yield();
    }
    out->ref = (struct hl_pool_ref){.slot = slot};
    return false;
}

static inline uint32_t pool_entry_crc(const struct hl_pool_ref *r)
{
    uint64_t words[5] = {r->id.hi, r->id.lo, r->offset, r->size,
                         (uint64_t)r->crc32 << 32 | r->table_crc};
    return hl_crc32(0, words, sizeof(words));
}

/* Whether readers find an entry in this state. */
static inline bool pool_is_readable(uint32_t state)
{
    return state == HL_POOL_SEALED || state == HL_POOL_KEPT;
}

/* Finds a readable shard. HL_ENOENT, HL_EBUSY and HL_ECORRUPT (its entry fails its CRC) set no
 * error text. */
static inline hl_status pool_lookup(const struct hl_pool_entry *index, uint64_t slots,
                                    struct hl_id id, struct hl_pool_ref *out)
{
    hl_status missing = HL_ENOENT;
    uint64_t slot = hl_pool_home(id, slots);
    for (uint64_t i = 0; i < slots; i++, slot = (slot + 1) & (slots - 1)) {
        struct entry_copy e;
        if (!pool_entry_read(&index[slot], (uint32_t)slot, &e)) {
            missing = HL_EBUSY;
            continue;
        }
        if (e.state == HL_POOL_EMPTY)
            break;
        if (pool_is_readable(e.state) && hl_id_equal(e.ref.id, id)) {
            if (e.entry_crc != pool_entry_crc(&e.ref))
                return HL_ECORRUPT;
            *out = e.ref;
            out->kept = e.state == HL_POOL_KEPT;
            return HL_OK;
        }
    }
    return missing;
}

/* True when the extent is unit-aligned and lies inside the data area. */
static inline bool pool_extent_fits(const struct hl_pool_super *s, uint64_t offset, uint64_t size)
{
    if (size == 0 || size > s->capacity || offset < s->data_offset ||
        (offset - s->data_offset) % HL_POOL_UNIT != 0)
        return false;
    uint64_t units = hl_pool_units(size);
    uint64_t first = (offset - s->data_offset) / HL_POOL_UNIT;
    uint64_t all = s->capacity / HL_POOL_UNIT;
    return units <= all && first <= all - units;
}

/* Checks that a superblock is valid and ours; `file_size` is the real size of the file. */
hl_status pool_super_check(const struct hl_pool_super *s, uint64_t file_size,
                           const char *name) HL_CHECK;
uint32_t pool_super_crc(const struct hl_pool_super *s);
/* regions.c: where the regions of a new pool end; HL_EINVAL. */
hl_status pool_regions_plan(struct hl_pool *pool, const struct hl_pool_options *o,
                            uint64_t capacity, uint64_t data_offset, uint64_t granule) HL_CHECK;
/* Binds the mapping to the nodes; call it before its pages are allocated. */
void pool_regions_bind(struct hl_pool *pool, uint64_t data_offset);
/* Collapse the pages of each region into huge ones, or touch all pages, each on its node. */
void pool_regions_collapse(struct hl_pool *pool, uint64_t data_offset);
void pool_regions_prefault(struct hl_pool *pool, uint64_t data_offset);
/* Store the table of regions in the superblock's unit, and load it from there. */
void pool_regions_store(const struct hl_pool *pool, struct hl_pool_super *s);
void pool_regions_load(struct hl_pool *pool, const struct hl_pool_super *s);
/* Finds out where the pages really are, and of what size. */
void pool_regions_look(struct hl_pool *pool, uint64_t data_offset, bool touched);
/* The regions of that node as a bit set, or else the region with the most room; call it with the
 * lock held. */
uint32_t pool_regions_preferred(const struct hl_pool *pool, int numa_id);

/* Fills the allocator and the counters from the index, and cleans the index up. */
hl_status pool_adopt(struct hl_pool *pool, struct hl_pool_found *found) HL_CHECK;

/* Find and list shards in that state; in write.c, for kept.c. */
hl_status pool_find(struct hl_pool *pool, uint32_t state, struct hl_id id,
                    struct hl_pool_ref *out) HL_CHECK;
size_t pool_list(struct hl_pool *pool, uint32_t state, uint64_t *cursor, struct hl_pool_ref *out,
                 size_t max);
/* Returns HL_ENOENT and sets its text. */
hl_status pool_fail_missing(const struct hl_pool *pool, struct hl_id id);

/* The functions below are called with the lock held. */
/* Slot of that id in one of the two states, NO_SLOT when there is none. */
uint32_t pool_slot_of(const struct hl_pool *pool, struct hl_id id, uint32_t state, uint32_t other);

static inline uint32_t pool_slot_readable(const struct hl_pool *pool, struct hl_id id)
{
    return pool_slot_of(pool, id, HL_POOL_SEALED, HL_POOL_KEPT);
}

/* Counts one slot more (1) or less (-1) in its state, which must be a readable one. */
static inline void pool_count_readable(struct hl_pool *pool, uint32_t slot, int64_t one)
{
    const struct slot_note *n = &pool->notes[slot];
    if (n->state == HL_POOL_KEPT) {
        pool->kept += (uint64_t)one;
        pool->kept_units += (uint64_t)one * hl_pool_units(n->size);
        return;
    }
    pool->shards += (uint64_t)one;
    pool->manifests += hl_manifest_is(n->id) ? (uint64_t)one : 0;
    pool->derived += hl_id_is_derived(n->id) ? (uint64_t)one : 0;
}

/* rests.c. Whether all of the slot's pins could be taken back; takes none back. */
bool pool_slot_may_go(const struct hl_pool *pool, uint32_t slot);
/* Takes back the pins that rest; true when the slot has no other pin. */
bool pool_slot_unpinned(struct hl_pool *pool, uint32_t slot);
/* Wakes callers that wait for room: there may be room now, or something to evict. */
void pool_note_change(struct hl_pool *pool);
/* Rewrites the entry of a slot if it is not what the owner wrote; true if it was damaged. */
bool pool_slot_repair(struct hl_pool *pool, uint32_t slot);
/* Copies the index entry of a slot into its note: at adoption, after the entry was checked. */
void pool_slot_learn(struct hl_pool *pool, uint32_t slot);
void pool_slot_delete(struct hl_pool *pool, uint32_t slot);
/* Whether the slot is sealed and still has the reference's generation. */
bool pool_ref_stands(const struct hl_pool *pool, const struct hl_pool_ref *ref);
/* Frees a readable slot: readers no longer find it, and its extent goes into quarantine. */
void pool_slot_free(struct hl_pool *pool, uint32_t slot, uint64_t now_ns);
void pool_quarantine(struct hl_pool *pool, uint32_t slot, uint64_t now_ns);
void pool_reap(struct hl_pool *pool, uint64_t now_ns);
/* One heartbeat: writes the sign of life and does the work that is due. */
void pool_beat(struct hl_pool *pool);
/* Frees the slot's extent at once, without quarantine. */
void pool_give(struct hl_pool *pool, uint32_t slot);
/* Ends adopted leases that no borrower has pinned in time. */
void pool_end_leases(struct hl_pool *pool, uint64_t now_ns);
/* Extends the leases by any time in which this process could not hear its borrowers. */
void pool_listen(struct hl_pool *pool, uint64_t now_ns);
/* Whether the bytes of a stable entry match their checksums. */
bool pool_bytes_are_good(const struct hl_pool *pool, const struct hl_pool_ref *ref);
/* Units of adopted leases that may be dropped when room is needed. */
uint64_t pool_abandoned(const struct hl_pool *pool, uint64_t now_ns);

#endif
