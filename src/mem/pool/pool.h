/* mem/pool/pool.h - the L3 pool: immutable shards in one named file of memory that many processes
 * map.
 *
 * One process owns the pool and writes (struct hl_pool); any process that was given a descriptor
 * reads it without asking anybody (struct hl_pool_view). The file outlives its owner: the next
 * owner adopts it by its index. Sealed shards are kept; what was being written is dropped.
 *
 * Owns:    hl_pool owns the mapping, the lock on the file and its heartbeat thread; the file stays
 *          when it is closed. A view owns a read-only mapping, counted by references.
 * Threads: hl_pool: any; one mutex. Views: any number of readers, no locks. The bytes of an extent
 *          between alloc and seal belong to the caller of alloc.
 * Errors:  HL_ENOSPC (no room, or the index is full), HL_ENOENT (no such shard), HL_EBUSY (another
 *          owner; or an entry that stays half-changed), HL_ESTALE (the shard was freed or the owner
 *          restarted since the reference was taken: find again), HL_ECORRUPT, HL_EINVAL.
 * Units:   bytes; offsets count from the start of the pool file; milliseconds.
 * Limits:  shards of 1 byte to the capacity; at most 3/4 of the index's slots are used.
 *          1 to 32 regions, together the capacity; a shard may lie across a border. An owner that
 *          has shown no sign of life for HL_POOL_SILENT_MS is taken for dead.
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

/* Readers look at the heartbeat every 50 ms at least, so death is noticed within a second. */
#define HL_POOL_SILENT_MS 700
/* Bytes leased from an owner that ended are kept so long for their borrower whatever happens, and
 * then, up to lease_ms, as long as the room is not needed. */
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
    const char *path;       /* on tmpfs or hugetlbfs */
    uint64_t capacity;      /* bytes for shards, rounded up to units; 0 = the sum of the regions */
    uint64_t index_slots;   /* 0 = by capacity; else a power of two. Only when the pool is made */
    uint32_t quarantine_ms; /* freed bytes are reused no sooner; 0 = 2000 */
    uint32_t lease_ms;      /* see above; 0 = HL_POOL_LEASE_MS */
    uint32_t beat_ms;       /* of the heartbeat thread; 0 = no thread: call hl_pool_beat */
    bool prefault;          /* make all pages now, on all CPUs, huge ones where the kernel can */
    /* Only when the pool is made; an adopted one keeps its own. Borders are moved to whole pages,
     * the last region takes what is left. Memory that can't be bound is used all the same. */
    const struct hl_pool_region_options *regions;
    size_t region_count; /* 0 = one, of any node */
};

/* l3.prefault, l3.quarantine, l3.lease, l3.beat. */
extern const struct hl_option_rows hl_pool_rows;

/* What hl_pool_open found. */
struct hl_pool_found {
    bool adopted; /* false: made anew */
    uint64_t kept;
    uint64_t kept_bytes;
    uint64_t unfinished; /* dropped: were being written */
    uint64_t freed;      /* were freed and still in quarantine; they begin it again */
    uint64_t corrupt;    /* dropped: the entry or the chunk table fails its CRC */
    uint64_t leased;     /* wait for their borrowers */
};

/* Make the pool, or adopt the one at `path`. HL_EBUSY when a living process owns it, HL_ENOSPC with
 * asked and free bytes, HL_EINVAL for a file that is not a pool or has another capacity. `found`
 * may be NULL. */
hl_status hl_pool_open(const struct hl_pool_options *options, struct hl_pool_found *found,
                       struct hl_pool **out) HL_CHECK;
/* The file stays and can be adopted. NULL is fine. */
void hl_pool_close(struct hl_pool *pool);
/* Close and remove the file. */
void hl_pool_remove(struct hl_pool *pool);
/* Write the heartbeat and end quarantines that are over. */
void hl_pool_beat(struct hl_pool *pool);

struct hl_pool_info {
    struct hl_id uuid;
    uint64_t incarnation;
    uint64_t capacity;
    uint64_t used;        /* sealed or being written, in whole units */
    uint64_t writing;     /* the part of `used` that is being written */
    uint64_t quarantined; /* in whole units */
    uint64_t free;        /* in whole units; used + quarantined + free = capacity; with leases that
                             their borrowers have not come back for, once they may go */
    uint64_t largest;     /* longest free extent */
    uint64_t shards;      /* sealed */
    uint64_t manifests;   /* of these, not shards but manifests (core/catalog/manifest.h) */
    uint64_t derived;     /* of these, cut from others (core/catalog/derived_id.h) */
    uint64_t kept;        /* the part of `used` that hl_pool_evict_kept frees, in whole units */
    uint64_t kept_shards; /* not among `shards` */
    char backing[64];     /* what was really got: "4 KiB pages, 93 % in huge ones" */
};

struct hl_pool_region {
    int numa_id; /* -1 = unknown */
    uint64_t bytes;
    uint64_t used; /* what is not free: quarantined too */
    bool bound;    /* its pages were found on that node, or were bound and can't be looked for */
};

void hl_pool_info(struct hl_pool *pool, struct hl_pool_info *out);

/* For callers that wait for room. A number that grows with every extent that is sealed, freed,
 * unpinned for the last time, or that ends its quarantine; quarantines end with heartbeats. */
uint64_t hl_pool_changes(struct hl_pool *pool);
/* Until it is another one than `seen`, or the time of hl_now_ns is until_ns. Read it before looking
 * for room: what changes after that ends the wait at once. */
void hl_pool_wait_change(struct hl_pool *pool, uint64_t seen, uint64_t until_ns);

/* Whose the shards are. */
struct hl_pool_claim {
    struct hl_id cluster; /* none: unclaimed */
    uint64_t revision;    /* of its catalogue, the newest that was heard of */
};

void hl_pool_claimed(struct hl_pool *pool, struct hl_pool_claim *out);
/* Replaces what was there, and outlives the owner. One that dies in here leaves the pool with the
 * old claim, the new one, or unclaimed. */
void hl_pool_claim(struct hl_pool *pool, const struct hl_pool_claim *claim);
/* Regions for a pool of `capacity` bytes, as a person says them: "auto" = one for each node that
 * has memory, "off" = none, "0,2-3" = these nodes; all of the same size. `out` has room for
 * HL_POOL_REGIONS_MAX. HL_EINVAL names a node without memory. */
hl_status hl_pool_regions_parse(const char *text, uint64_t capacity,
                                struct hl_pool_region_options *out, size_t *count) HL_CHECK;
/* The regions, at most `max`, in the order of their offsets; how many there are. */
size_t hl_pool_regions(struct hl_pool *pool, struct hl_pool_region *out, size_t max);
/* NUMA node of the region in which that byte lies; -1 = unknown. */
int hl_pool_numa_of(const struct hl_pool *pool, uint64_t offset);
const char *hl_pool_path(const struct hl_pool *pool);
/* The whole mapping, for registration with a network; writable. */
void *hl_pool_base(const struct hl_pool *pool, size_t *len);
/* A descriptor that can't be written through. The caller closes it. */
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
    bool kept; /* it may be evicted at any time; of a reference that was just found */
};

/* Under a fresh id, anywhere. */
hl_status hl_pool_alloc(struct hl_pool *pool, uint64_t size, struct hl_pool_extent *out) HL_CHECK;
/* Under the caller's id: HL_EEXIST when it is here or being written. numa_node: its memory is
 * preferred, -1 = the one with the most room; where its region is full the others are used. */
hl_status hl_pool_alloc_at(struct hl_pool *pool, struct hl_id id, uint64_t size, int numa_node,
                           struct hl_pool_extent *out) HL_CHECK;
/* Make it visible. HL_ECORRUPT when the chunk CRCs do not add up to crc32; the extent is then still
 * the caller's. `ref` may be NULL. */
hl_status hl_pool_seal(struct hl_pool *pool, const struct hl_pool_extent *extent, uint32_t crc32,
                       const uint32_t *chunk_crcs, size_t chunks, struct hl_pool_ref *ref) HL_CHECK;
/* Seal it for one borrower alone, which has it pinned once from the start. It is never found,
 * listed or evicted; its bytes are free with the last unpin. One that is adopted waits for its
 * borrower to pin it again, by its offset. */
hl_status hl_pool_seal_leased(struct hl_pool *pool, const struct hl_pool_extent *extent,
                              uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                              struct hl_pool_ref *ref) HL_CHECK;
/* Seal it as a copy that its owner may evict at any time: readers and hl_pool_pin find it as any
 * other. hl_pool_find and hl_pool_list don't, so that none is taken for a shard's lasting copy. */
hl_status hl_pool_seal_kept(struct hl_pool *pool, const struct hl_pool_extent *extent,
                            uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                            struct hl_pool_ref *ref) HL_CHECK;
void hl_pool_abort(struct hl_pool *pool, const struct hl_pool_extent *extent);
/* Room for other bytes of a sealed shard, which stays until they replace it. HL_ESTALE when `old`
 * no longer stands, HL_EEXIST when another replacement is under way. */
hl_status hl_pool_alloc_beside(struct hl_pool *pool, const struct hl_pool_ref *old,
                               struct hl_pool_extent *out) HL_CHECK;
/* Seal it in the place of `old`, whose CRC the bytes must have. Readers find the one or the other
 * (a search that passed the new entry before this finds none, and has to look again); the old
 * extent is in quarantine, and stays while it is pinned. On failure the extent is still the
 * caller's. `ref` may be NULL. */
hl_status hl_pool_replace(struct hl_pool *pool, const struct hl_pool_ref *old,
                          const struct hl_pool_extent *extent, const uint32_t *chunk_crcs,
                          size_t chunks, struct hl_pool_ref *ref) HL_CHECK;
/* Readers no longer find it; its bytes stay through the quarantine, and while it is pinned. */
hl_status hl_pool_free(struct hl_pool *pool, struct hl_id id) HL_CHECK;

hl_status hl_pool_find_kept(struct hl_pool *pool, struct hl_id id,
                            struct hl_pool_ref *out) HL_CHECK;
/* It is a shard like any other from now on; one that is so already stays so. */
hl_status hl_pool_place(struct hl_pool *pool, struct hl_id id) HL_CHECK;

enum hl_pool_kept { HL_POOL_KEPT_NOT, HL_POOL_KEPT_PINNED, HL_POOL_KEPT_EVICTED };

/* Free a kept copy that is not pinned. Its bytes are free at once: readers that have no pin see by
 * its generation that it has gone. */
enum hl_pool_kept hl_pool_evict_kept(struct hl_pool *pool, struct hl_id id);
/* As hl_pool_list, of the kept ones. */
size_t hl_pool_list_kept(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out,
                         size_t max);

hl_status hl_pool_find(struct hl_pool *pool, struct hl_id id, struct hl_pool_ref *out) HL_CHECK;
/* Find and keep its bytes in place until hl_pool_unpin. A borrower that lost its pin with the old
 * owner says the offset it has mapped: then a shard that was freed meanwhile, but whose bytes are
 * still there, is found too. offset 0: only a sealed shard. */
hl_status hl_pool_pin(struct hl_pool *pool, struct hl_id id, uint64_t offset,
                      struct hl_pool_ref *out) HL_CHECK;
void hl_pool_unpin(struct hl_pool *pool, const struct hl_pool_ref *ref);

/* A pin that the borrower may let rest (mem/pool/rest.h): the pool takes it back when it wants the
 * shard's room. The caller's memory from add to end; its fields are the pool's. */
struct hl_pool_rest {
    hl_rest_word *word;
    struct hl_pool_rest *next; /* of the same slot */
    uint32_t slot;
    bool taken; /* it is no pin any more */
};

/* The pin of `ref` may rest from now on; at first it is held. */
void hl_pool_rest_add(struct hl_pool *pool, const struct hl_pool_ref *ref,
                      struct hl_pool_rest *rest, hl_rest_word *word);
/* It may rest no longer. True: it is a pin still, and the caller's to unpin. */
bool hl_pool_rest_end(struct hl_pool *pool, struct hl_pool_rest *rest) HL_CHECK;
/* Its borrower uses it: it neither rests nor was taken. */
bool hl_pool_rest_used(struct hl_pool *pool, const struct hl_pool_rest *rest);
/* Sealed shards, at most `max` from *cursor (0 = start); *cursor is 0 at the end. A shard that was
 * there all the time is seen once. */
size_t hl_pool_list(struct hl_pool *pool, uint64_t *cursor, struct hl_pool_ref *out, size_t max);
/* Copy of the chunk table; `out` has hl_chunk_count(ref->size) entries. */
hl_status hl_pool_chunk_crcs(struct hl_pool *pool, const struct hl_pool_ref *ref,
                             uint32_t *out) HL_CHECK;
/* Read all of it. HL_ECORRUPT: *bad (free()) has the numbers of the bad chunks. A true *cancel
 * (may be NULL) ends it with HL_ECANCELED. */
hl_status hl_pool_verify(struct hl_pool *pool, struct hl_id id, const atomic_bool *cancel,
                         uint32_t **bad, size_t *bad_count) HL_CHECK;

/* Copy [offset, offset + len); every started MiB it touches is checked. A freed shard whose bytes
 * are still there can be read. */
hl_status hl_pool_read(struct hl_pool *pool, const struct hl_pool_ref *ref, uint64_t offset,
                       void *dst, size_t len) HL_CHECK;
/* The sums over the index against the counters; HL_ECORRUPT names both. */
hl_status hl_pool_audit(struct hl_pool *pool) HL_CHECK;

/* ---- eviction (evict.c) ---------------------------------------------------------------------- */

/* For shards that lie elsewhere too: the least recently used go first. The owner sees only the uses
 * that it is told of: a read through a mapping makes no call. */

/* The shard was used now. One that was freed meanwhile: nothing happens. */
void hl_pool_touch(struct hl_pool *pool, const struct hl_pool_ref *ref);

struct hl_pool_eviction {
    uint64_t bytes;   /* to be freed */
    uint64_t hold_ns; /* what was used more recently stays, so that the reader that asked for it
                         gets it */
    /* Whether this one may go. Called without a lock, for each shard at most once. */
    bool (*may_go)(void *arg, const struct hl_pool_ref *ref);
    /* The lower go first, among equals the least recently used; NULL: all are equal. used_ns: of
     * its last use, 0 = none is known. The same, without a lock and once for each. */
    uint64_t (*rank)(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns);
    void *arg;
};

struct hl_pool_evicted {
    uint64_t shards;
    uint64_t bytes;  /* in quarantine like every freed extent, then free */
    uint64_t held;   /* bytes that could go if they had not been used just now */
    uint64_t ranked; /* the part of `shards` that had a rank below UINT64_MAX */
};

/* Free sealed, unpinned shards that may go until enough of them are freed. */
hl_status hl_pool_evict(struct hl_pool *pool, const struct hl_pool_eviction *what,
                        struct hl_pool_evicted *out) HL_CHECK;
/* This one: false when it is pinned, or no longer what `ref` says. */
bool hl_pool_evict_one(struct hl_pool *pool, const struct hl_pool_ref *ref);

/* ---- readers --------------------------------------------------------------------------------- */

/* Map the pool behind `fd` for reading; a copy of fd is kept. */
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
/* Copy [offset, offset + len) of the shard. Every started MiB it touches is checked by its CRC, and
 * the generation before and after. HL_ECORRUPT names the chunk; buf then holds an undefined mix. */
hl_status hl_pool_view_read(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                            uint64_t offset, void *buf, size_t len) HL_CHECK;
/* The same check of the whole shard in place. *bad_chunk (may be NULL) is set on HL_ECORRUPT. */
hl_status hl_pool_view_verify(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                              uint32_t *bad_chunk) HL_CHECK;
/* The same check of bytes that lie elsewhere. */
hl_status hl_pool_view_verify_at(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                 const void *data, uint32_t *bad_chunk) HL_CHECK;
/* HL_OK while the reference still stands, else HL_ESTALE. */
hl_status hl_pool_view_check(const struct hl_pool_view *view,
                             const struct hl_pool_ref *ref) HL_CHECK;
/* HL_EPROTO unless the extent lies inside the mapping: for references that others have made. */
hl_status hl_pool_view_bounds(const struct hl_pool_view *view,
                              const struct hl_pool_ref *ref) HL_CHECK;
/* The shard's bytes in the mapping: pin it first (mem/socket). */
const void *hl_pool_view_data(const struct hl_pool_view *view, const struct hl_pool_ref *ref);

/* The shard's bytes in a mapping of their own that may be written: what is written is the caller's
 * copy, and the pool never changes. Pin it first, and keep it pinned while it is mapped: pages that
 * were not written are the pool's. */
struct hl_pool_private {
    void *data;
    void *base; /* of the mapping, whole pages */
    uint64_t len;
};

hl_status hl_pool_view_map_private(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                   struct hl_pool_private *out) HL_CHECK;
void hl_pool_view_unmap_private(struct hl_pool_private *mapping);
/* Its chunk table in the mapping. */
const uint32_t *hl_pool_view_chunk_crcs(const struct hl_pool_view *view,
                                        const struct hl_pool_ref *ref);

#endif
