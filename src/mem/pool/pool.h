/* mem/pool/pool.h - the L3 pool: immutable shards in one named file of memory that many processes
 * map.
 *
 * One process owns the pool and writes (struct hl_pool); any process that has a descriptor reads it
 * without involving the owner (struct hl_pool_view). The file outlives its owner: the next owner
 * adopts it from its index, keeps the sealed shards and drops what was being written.
 *
 * Owns:    hl_pool owns the mapping, the lock on the file and its heartbeat thread; the file stays
 *          when it is closed. A view owns a read-only mapping, counted by references.
 * Threads: hl_pool: any; one mutex. Views: any number of readers, no locks. The bytes of an extent
 *          between alloc and seal belong to the caller of alloc.
 * Errors:  HL_ENOSPC (no room, or the index is full), HL_ENOENT (no such shard), HL_EBUSY (another
 *          owner, or an entry that stays half-changed), HL_ESTALE (the shard was freed or the owner
 *          restarted since the reference was taken: find it again), HL_ECORRUPT, HL_EINVAL.
 * Units:   bytes; offsets count from the start of the pool file; milliseconds.
 * Limits:  shards of 1 byte to the capacity; at most 3/4 of the index's slots are used.
 *          1 to 32 regions, together the capacity; a shard may lie across a border. An owner whose
 *          heartbeat is older than HL_POOL_SILENT_MS is considered dead.
 * See:     mem/pool/layout.h
 */
#ifndef HL_MEM_POOL_H
#define HL_MEM_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"
#include "mem/pool/layout.h"
#include "mem/pool/rest.h"

/* Readers check the heartbeat at least every 50 ms, so a death is noticed within a second. */
#define HL_POOL_SILENT_MS 700
/* After an owner has ended, its leased bytes are kept for their borrower unconditionally for
 * HL_POOL_LEASE_SURE_MS, and then, up to lease_ms, as long as the room is not needed. */
#define HL_POOL_LEASE_SURE_MS 10000
#define HL_POOL_LEASE_MS      600000

struct hl_pool;
struct hl_pool_view;

/* ---- the owner ------------------------------------------------------------------------------- */

/* Memory of one NUMA node. */
struct hl_pool_region_options {
    int numa_id; /* -1 = any */
    uint64_t bytes;
};

struct hl_pool_options {
    const char *path;     /* on tmpfs or hugetlbfs */
    uint64_t capacity;    /* bytes for shards, rounded up to units; 0 = the sum of the regions */
    uint64_t index_slots; /* 0 = derived from capacity; else a power of two. Used only when the pool
                             is created */
    uint32_t quarantine_ms; /* freed bytes are not reused before this time; 0 = 2000 */
    uint32_t lease_ms;      /* see above; 0 = HL_POOL_LEASE_MS */
    uint32_t beat_ms;       /* heartbeat interval; 0 = no heartbeat thread: call hl_pool_beat */
    bool prefault; /* allocate all pages now, on all CPUs, as huge pages if the kernel can */
    /* Used only when the pool is created; an adopted one keeps its regions. Borders are rounded to
     * whole pages, and the last region takes the rest. Memory that can't be bound is used
     * anyway. */
    const struct hl_pool_region_options *regions;
    size_t region_count; /* 0 = one region, on any node */
};

/* l3.prefault, l3.quarantine, l3.lease, l3.beat. */
extern const struct hl_option_rows hl_pool_rows;

/* What hl_pool_open found. */
struct hl_pool_found {
    bool adopted; /* false: newly created */
    uint64_t kept;
    uint64_t kept_bytes;
    uint64_t unfinished; /* dropped because they were being written */
    uint64_t freed;      /* were freed and still in quarantine, which starts again */
    uint64_t corrupt;    /* dropped because the entry or the chunk table fails its CRC */
    uint64_t leased;     /* leases that wait for their borrowers */
};

/* Creates the pool, or adopts the one at `path`. HL_EBUSY when a living process owns it, HL_ENOSPC
 * with requested and free bytes, HL_EINVAL for a file that is not a pool or has another capacity.
 * `found` may be NULL. */
hl_status hl_pool_open(const struct hl_pool_options *options, struct hl_pool_found *found,
                       struct hl_pool **out) HL_CHECK;
/* The file stays and can be adopted. NULL is fine. */
void hl_pool_close(struct hl_pool *pool);
/* Close and remove the file. */
void hl_pool_remove(struct hl_pool *pool);
/* Writes the heartbeat and ends the quarantines that are over. */
void hl_pool_beat(struct hl_pool *pool);

struct hl_pool_info {
    struct hl_id uuid;
    uint64_t incarnation;
    uint64_t capacity;
    uint64_t used;        /* sealed or being written, in whole units */
    uint64_t writing;     /* the part of `used` that is being written */
    uint64_t quarantined; /* in whole units */
    uint64_t free; /* in whole units; used + quarantined + free = capacity. Includes leases that no
                      borrower has reclaimed, once they may be dropped */
    uint64_t largest;     /* longest free extent */
    uint64_t shards;      /* sealed */
    uint64_t manifests;   /* of these, not shards but manifests (core/catalog/manifest.h) */
    uint64_t derived;     /* of these, cut from other shards (core/catalog/derived_id.h) */
    uint64_t kept;        /* the part of `used` that hl_pool_evict_kept frees, in whole units */
    uint64_t kept_shards; /* not counted in `shards` */
    char backing[64];     /* what the kernel really gave: "4 KiB pages, 93 % in huge ones" */
};

struct hl_pool_region {
    int numa_id; /* -1 = unknown */
    uint64_t bytes;
    uint64_t used; /* everything that is not free, quarantined bytes included */
    bool bound;    /* its pages were found on that node, or were bound to it and can't be checked */
};

void hl_pool_info(struct hl_pool *pool, struct hl_pool_info *out);

/* For callers that wait for room: a counter that grows whenever an extent is sealed, freed,
 * unpinned for the last time, or leaves quarantine (which happens at heartbeats). */
uint64_t hl_pool_changes(struct hl_pool *pool);
/* Waits until the counter differs from `seen`, or hl_now_ns reaches until_ns. Read the counter
 * before looking for room: any later change then ends the wait at once. */
void hl_pool_wait_change(struct hl_pool *pool, uint64_t seen, uint64_t until_ns);

/* Which cluster the shards belong to. */
struct hl_pool_claim {
    struct hl_id cluster; /* no id: unclaimed */
    uint64_t revision;    /* newest known revision of its catalogue */
};

void hl_pool_claimed(struct hl_pool *pool, struct hl_pool_claim *out);
/* Replaces the claim, which outlives the owner. An owner that dies in this call leaves the pool
 * with the old claim, the new one, or unclaimed. */
void hl_pool_claim(struct hl_pool *pool, const struct hl_pool_claim *claim);
/* Parses a description of regions for a pool of `capacity` bytes: "auto" = one for each node that
 * has memory, "off" = none, "0,2-3" = these nodes; all of the same size. `out` has room for
 * HL_POOL_REGIONS_MAX. HL_EINVAL names a node without memory. */
hl_status hl_pool_regions_parse(const char *text, uint64_t capacity,
                                struct hl_pool_region_options *out, size_t *count) HL_CHECK;
/* Writes the regions, at most `max`, in the order of their offsets; returns how many there are. */
size_t hl_pool_regions(struct hl_pool *pool, struct hl_pool_region *out, size_t max);
/* NUMA node of the region in which that byte lies; -1 = unknown. */
int hl_pool_numa_of(const struct hl_pool *pool, uint64_t offset);
const char *hl_pool_path(const struct hl_pool *pool);
/* The whole mapping, for registration with a network; writable. */
void *hl_pool_base(const struct hl_pool *pool, size_t *len);
/* A new read-only descriptor of the pool. The caller closes it. */
hl_status hl_pool_reopen(const struct hl_pool *pool, int *fd) HL_CHECK;

/* An extent that is being written. */
struct hl_pool_extent {
    struct hl_id id;
    void *ptr; /* `size` bytes, content undefined */
    uint64_t offset;
    uint64_t size;
    uint32_t slot;
};

/* A sealed shard. */
struct hl_pool_ref {
    struct hl_id id;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t table_crc;
    uint32_t gen;
    uint32_t slot;
    bool kept; /* it may be evicted at any time; set when the reference was just found */
};

/* Allocates an extent under a new id, in any region. */
hl_status hl_pool_alloc(struct hl_pool *pool, uint64_t size, struct hl_pool_extent *out) HL_CHECK;
/* The same under the caller's id: HL_EEXIST when that shard is here or being written. numa_node:
 * the preferred node, -1 = the one with the most room; if its region is full the others are
 * used. */
hl_status hl_pool_alloc_at(struct hl_pool *pool, struct hl_id id, uint64_t size, int numa_node,
                           struct hl_pool_extent *out) HL_CHECK;
/* Makes the shard visible. HL_ECORRUPT when the chunk CRCs do not add up to crc32; the extent then
 * still belongs to the caller. `ref` may be NULL. */
hl_status hl_pool_seal(struct hl_pool *pool, const struct hl_pool_extent *extent, uint32_t crc32,
                       const uint32_t *chunk_crcs, size_t chunks, struct hl_pool_ref *ref) HL_CHECK;
/* Seals the extent for one borrower alone, who holds one pin from the start. It is never found,
 * listed or evicted, and the last unpin frees its bytes. After an adoption it waits for its
 * borrower to pin it again, by its offset. */
hl_status hl_pool_seal_leased(struct hl_pool *pool, const struct hl_pool_extent *extent,
                              uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                              struct hl_pool_ref *ref) HL_CHECK;
/* Seals the extent as a copy that its owner may evict at any time. Readers and hl_pool_pin find it
 * like any other shard; hl_pool_find and hl_pool_list don't, so that it is never mistaken for a
 * lasting copy. */
hl_status hl_pool_seal_kept(struct hl_pool *pool, const struct hl_pool_extent *extent,
                            uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                            struct hl_pool_ref *ref) HL_CHECK;
void hl_pool_abort(struct hl_pool *pool, const struct hl_pool_extent *extent);
/* Allocates room for different bytes of a sealed shard, which stays until hl_pool_replace.
 * HL_ESTALE when `old` is no longer valid, HL_EEXIST when another replacement is in progress. */
hl_status hl_pool_alloc_beside(struct hl_pool *pool, const struct hl_pool_ref *old,
                               struct hl_pool_extent *out) HL_CHECK;
/* Seals the extent in place of `old`; its bytes must have the CRC of `old`. Readers find one or the
 * other; a search that passed the new entry before this finds neither and has to be repeated. The
 * old extent goes into quarantine, and stays while it is pinned. On failure the extent still
 * belongs to the caller. `ref` may be NULL. */
hl_status hl_pool_replace(struct hl_pool *pool, const struct hl_pool_ref *old,
                          const struct hl_pool_extent *extent, const uint32_t *chunk_crcs,
                          size_t chunks, struct hl_pool_ref *ref) HL_CHECK;
/* After this readers no longer find the shard. Its bytes stay through the quarantine, and while it
 * is pinned. */
hl_status hl_pool_free(struct hl_pool *pool, struct hl_id id) HL_CHECK;

hl_status hl_pool_find_kept(struct hl_pool *pool, struct hl_id id,
                            struct hl_pool_ref *out) HL_CHECK;
/* Turns a kept copy into an ordinary shard; does nothing to one that already is. */
hl_status hl_pool_place(struct hl_pool *pool, struct hl_id id) HL_CHECK;

enum hl_pool_kept { HL_POOL_KEPT_NOT, HL_POOL_KEPT_PINNED, HL_POOL_KEPT_EVICTED };

/* Frees a kept copy that is not pinned. Its bytes are free at once: readers without a pin see by
 * its generation that it is gone. */
enum hl_pool_kept hl_pool_evict_kept(struct hl_pool *pool, struct hl_id id);
/* As hl_pool_list, for kept copies. */
size_t hl_pool_list_kept(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out,
                         size_t max);

hl_status hl_pool_find(struct hl_pool *pool, struct hl_id id, struct hl_pool_ref *out) HL_CHECK;
/* Finds the shard and keeps its bytes in place until hl_pool_unpin. A borrower that lost its pin
 * with the old owner passes the offset that it has mapped; this also finds a shard that was freed
 * meanwhile but whose bytes are still there. offset 0: only a sealed shard. */
hl_status hl_pool_pin(struct hl_pool *pool, struct hl_id id, uint64_t offset,
                      struct hl_pool_ref *out) HL_CHECK;
void hl_pool_unpin(struct hl_pool *pool, const struct hl_pool_ref *ref);

/* A pin that its borrower may let rest (mem/pool/rest.h): the pool takes a resting pin back when it
 * needs the shard's room. The caller provides the memory from add to end; the fields belong to the
 * pool. */
struct hl_pool_rest {
    hl_rest_word *word;
    struct hl_pool_rest *next; /* of the same slot */
    uint32_t slot;
    bool taken; /* the pool took it back; it is no longer a pin */
};

/* From now on the pin of `ref` may rest; it starts as held. */
void hl_pool_rest_add(struct hl_pool *pool, const struct hl_pool_ref *ref,
                      struct hl_pool_rest *rest, hl_rest_word *word);
/* From now on it may not rest. True: it is still a pin, and the caller has to unpin it. */
bool hl_pool_rest_end(struct hl_pool *pool, struct hl_pool_rest *rest) HL_CHECK;
/* Whether its borrower is using it: it neither rests nor was taken back. */
bool hl_pool_rest_used(struct hl_pool *pool, const struct hl_pool_rest *rest);
/* Sealed shards, at most `max` from *cursor (0 = start); *cursor is 0 at the end. A shard that is
 * present throughout is listed exactly once. */
size_t hl_pool_list(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out, size_t max);
/* Copies the chunk table; `out` has hl_chunk_count(ref->size) entries. */
hl_status hl_pool_chunk_crcs(struct hl_pool *pool, const struct hl_pool_ref *ref,
                             uint32_t *out) HL_CHECK;
/* Reads and checks the whole shard. HL_ECORRUPT: *bad (free()) has the numbers of the bad chunks. A
 * true *cancel (may be NULL) ends it with HL_ECANCELED. */
hl_status hl_pool_verify(struct hl_pool *pool, struct hl_id id, const atomic_bool *cancel,
                         uint32_t **bad, size_t *bad_count) HL_CHECK;

/* Copies [offset, offset + len) and checks every started MiB that the range touches. A freed shard
 * can be read as long as its bytes are still there. */
hl_status hl_pool_read(struct hl_pool *pool, const struct hl_pool_ref *ref, uint64_t offset,
                       void *dst, size_t len) HL_CHECK;
/* Compares the sums over the index with the counters; HL_ECORRUPT names both. */
hl_status hl_pool_audit(struct hl_pool *pool) HL_CHECK;

/* ---- eviction (evict.c) ---------------------------------------------------------------------- */

/* For shards that also lie elsewhere; the least recently used go first. The owner knows only the
 * uses that it is told of, because a read through a mapping makes no call. */

/* Records that the shard was used now. Does nothing if it was freed meanwhile. */
void hl_pool_touch(struct hl_pool *pool, const struct hl_pool_ref *ref);

struct hl_pool_eviction {
    uint64_t bytes;   /* how much to free */
    uint64_t hold_ns; /* shards used more recently than this stay, so that the reader that asked for
                         one gets it */
    /* Whether this shard may be evicted. Called without a lock, at most once per shard. */
    bool (*may_go)(void *arg, const struct hl_pool_ref *ref);
    /* Shards of lower rank go first, among equals the least recently used; NULL: all are equal.
     * used_ns: time of its last use, 0 = none known. Also called without a lock, once per shard. */
    uint64_t (*rank)(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns);
    void *arg;
};

struct hl_pool_evicted {
    uint64_t shards;
    uint64_t bytes;  /* go into quarantine like every freed extent, then are free */
    uint64_t held;   /* bytes that could be freed had they not been used just now */
    uint64_t ranked; /* the part of `shards` that had a rank below UINT64_MAX */
};

/* Frees sealed, unpinned shards that may go, until enough bytes are freed. */
hl_status hl_pool_evict(struct hl_pool *pool, const struct hl_pool_eviction *what,
                        struct hl_pool_evicted *out) HL_CHECK;
/* Evicts this shard. False when it is pinned, or no longer what `ref` says. */
bool hl_pool_evict_one(struct hl_pool *pool, const struct hl_pool_ref *ref);

/* ---- readers --------------------------------------------------------------------------------- */

/* Maps the pool behind `fd` for reading; a copy of fd is kept. */
hl_status hl_pool_view_open(int fd, struct hl_pool_view **out) HL_CHECK;
struct hl_pool_view *hl_pool_view_get(struct hl_pool_view *view);
/* Drop a reference; the last one unmaps. NULL is fine. */
void hl_pool_view_put(struct hl_pool_view *view);

struct hl_pool_view_info {
    struct hl_id uuid;
    uint64_t incarnation; /* when the view was opened */
    uint64_t capacity;
    uint64_t heartbeat_age_ns; /* now */
};

void hl_pool_view_info(const struct hl_pool_view *view, struct hl_pool_view_info *out);
/* HL_OK; HL_ESTALE when the owner has changed since the view was opened (open a new one);
 * HL_EUNAVAIL when its heartbeat is older than HL_POOL_SILENT_MS. */
hl_status hl_pool_view_alive(const struct hl_pool_view *view) HL_CHECK;

hl_status hl_pool_view_find(const struct hl_pool_view *view, struct hl_id id,
                            struct hl_pool_ref *out) HL_CHECK;
/* Copies [offset, offset + len) of the shard. Every started MiB that the range touches is checked
 * by its CRC, and the generation is checked before and after. HL_ECORRUPT names the chunk; buf then
 * holds an undefined mix. */
hl_status hl_pool_view_read(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                            uint64_t offset, void *buf, size_t len) HL_CHECK;
/* The same check of the whole shard in place. *bad_chunk (may be NULL) is set on HL_ECORRUPT. */
hl_status hl_pool_view_verify(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                              uint32_t *bad_chunk) HL_CHECK;
/* The same check of bytes that lie elsewhere. */
hl_status hl_pool_view_verify_at(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                 const void *data, uint32_t *bad_chunk) HL_CHECK;
/* HL_OK while the reference is valid, else HL_ESTALE. */
hl_status hl_pool_view_check(const struct hl_pool_view *view,
                             const struct hl_pool_ref *ref) HL_CHECK;
/* HL_EPROTO unless the extent lies inside the mapping. For references that came from another
 * process. */
hl_status hl_pool_view_bounds(const struct hl_pool_view *view,
                              const struct hl_pool_ref *ref) HL_CHECK;
/* The shard's bytes in the mapping: pin it first (mem/socket). */
const void *hl_pool_view_data(const struct hl_pool_view *view, const struct hl_pool_ref *ref);

/* The shard's bytes in a separate, writable (copy-on-write) mapping: writes go to the caller's
 * copy, and the pool never changes. Pin the shard first, and keep it pinned while it is mapped,
 * because pages that were not written are still the pool's. */
struct hl_pool_private {
    void *data;
    void *base; /* start of the mapping, in whole pages */
    uint64_t len;
};

hl_status hl_pool_view_map_private(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                   struct hl_pool_private *out) HL_CHECK;
void hl_pool_view_unmap_private(struct hl_pool_private *mapping);
/* Its chunk table in the mapping. */
const uint32_t *hl_pool_view_chunk_crcs(const struct hl_pool_view *view,
                                        const struct hl_pool_ref *ref);

#endif
