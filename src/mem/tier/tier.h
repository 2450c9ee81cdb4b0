/* mem/tier/tier.h - one interface to the four tiers: reserve, fill, seal, read, drop.
 *
 * A tier holds whole, sealed, immutable shards under their ids. A copy is made in steps: reserve
 * takes the room, the caller fills it (through `host` if the tier's memory is addressable, or
 * through hl_tier_fill in any tier), and seal makes it visible. Room that is reserved but neither
 * sealed nor aborted is dropped when the tier is closed or adopted again.
 *
 * Owns:    the tier owns its accounting and its index. The function that makes a tier says whether
 *          it owns the pool, device or archive below.
 * Threads: any. The bytes of a slot between reserve and seal belong to the caller of reserve.
 * Errors:  HL_ENOSPC (quota or medium, with requested and free bytes; nothing changed), HL_EEXIST
 *          (the shard is here, or being written here), HL_ENOENT, HL_ECORRUPT (bytes do not match
 *          the CRC; after a failed seal the caller still has to abort the slot), HL_EBUSY (pinned),
 *          HL_EUNSUPPORTED, HL_EIO.
 * Units:   bytes; CRC-32 as in base/crc32.h; chunk CRCs are of every started MiB.
 * Limits:  shards of 1 byte to the quota.
 */
#ifndef HL_MEM_TIER_H
#define HL_MEM_TIER_H

#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"
#include "base/status.h"
#include "core/copies/route.h"

struct hl_tier_store;
struct hl_pool;
struct hl_device;
struct hl_device_share;
struct hl_archive;
struct hl_device_block;

/* Room that is being filled. */
struct hl_tier_slot {
    struct hl_id id;
    uint64_t size;
    void *host;      /* `size` writable bytes; NULL: only through hl_tier_fill */
    uint64_t offset; /* in the tier's mapping or device */
    uint64_t tag;    /* the back end's own */
    void *handle;    /* the back end's own; L1: the struct hl_device_block to copy into */
    bool kept;       /* of a pool: seal it with hl_pool_seal_kept */
};

/* A sealed copy. */
struct hl_tier_ref {
    struct hl_id id;
    uint64_t size;
    uint64_t offset; /* in the tier's mapping or device; 0 in an archive */
    uint32_t crc32;
    uint32_t gen; /* changes when the room is reused */
    int numa_id;  /* of the memory; -1 = unknown */
    uint64_t tag; /* the back end's own */
};

struct hl_tier_limits {
    uint64_t quota;  /* bytes; 0 = the whole medium */
    double high_pct; /* pressure is high above this; 0 = 85 */
    double low_pct;  /* pressure is low below this; 0 = 70 */
};

extern const struct hl_option_rows hl_tier_rows; /* tier.*: high_pct, low_pct */

struct hl_tier_usage {
    enum hl_api_tier tier;
    char name[96];        /* "emu:0", "host", "pool", "dir:/archive" */
    uint64_t quota;       /* 0 = no limit but the medium's */
    uint64_t used;        /* sealed and reserved, in the medium's whole units; without `kept` */
    uint64_t writing;     /* the reserved part of `used` */
    uint64_t quarantined; /* dropped but not yet reusable; not in `used` */
    uint64_t shards;      /* sealed */
    uint64_t kept;        /* copies that are evicted when room is needed (hl_pool_evict_kept) */
    uint64_t kept_shards; /* not among `shards` */
    uint64_t high, low;   /* watermarks in bytes */
    enum hl_api_pressure pressure;
    char backing[64]; /* what the system really gave: "2 MiB pages", "4 KiB pages", "memfd", "cuda
                         vmm" */
};

/* The pool is borrowed; it serves as L3 and as a node's L2. */
hl_status hl_tier_over_pool(struct hl_pool *pool, enum hl_api_tier tier, const char *name,
                            const struct hl_tier_limits *limits,
                            struct hl_tier_store **out) HL_CHECK;
/* L1; the device is borrowed. */
hl_status hl_tier_over_device(struct hl_device *device, const char *name,
                              const struct hl_tier_limits *limits,
                              struct hl_tier_store **out) HL_CHECK;
/* L4; the archive is borrowed, and nothing else may put into it or remove from it meanwhile. Shards
 * that already lie in it are found. Their chunk CRCs are learned by the first read, which reads the
 * whole shard. */
hl_status hl_tier_over_archive(struct hl_archive *archive, const char *name,
                               const struct hl_tier_limits *limits,
                               struct hl_tier_store **out) HL_CHECK;
/* Reserved slots are aborted. NULL is fine. */
void hl_tier_close(struct hl_tier_store *t);

/* numa_node: the preferred node, -1 = any. */
hl_status hl_tier_reserve(struct hl_tier_store *t, struct hl_id id, uint64_t size, int numa_node,
                          struct hl_tier_slot *out) HL_CHECK;
/* The room that a shard of that size takes in the tier, in the medium's whole units. */
uint64_t hl_tier_room(const struct hl_tier_store *t, uint64_t size);
hl_status hl_tier_fill(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint64_t offset,
                       const void *src, size_t len) HL_CHECK;
/* The chunk CRCs must add up to crc32. `ref` may be NULL. */
hl_status hl_tier_seal(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint32_t crc32,
                       const uint32_t *chunk_crcs, size_t chunks, struct hl_tier_ref *ref) HL_CHECK;
void hl_tier_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot);

hl_status hl_tier_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out) HL_CHECK;
/* Finds the shard and keeps its bytes in place until unpin. */
hl_status hl_tier_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out) HL_CHECK;
void hl_tier_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref);
/* Copies [offset, offset + len) into dst and checks every started MiB that the range touches. */
hl_status hl_tier_read(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint64_t offset,
                       void *dst, size_t len) HL_CHECK;
/* L1: the block in which a copy lies, to map, export or copy it; pin the copy first. Other tiers:
 * HL_EUNSUPPORTED. */
hl_status hl_tier_device_block(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                               struct hl_device_block *out) HL_CHECK;
/* `out` has one entry per started MiB. */
hl_status hl_tier_chunk_crcs(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                             uint32_t *out) HL_CHECK;
/* What another process needs to map a pinned copy in a device (mem/device/device.h); the descriptor
 * is new. HL_EUNSUPPORTED if it is not in a device. */
hl_status hl_tier_share(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                        struct hl_device_share *out) HL_CHECK;
/* HL_EBUSY while the copy is pinned, in a tier without quarantine. */
hl_status hl_tier_drop(struct hl_tier_store *t, struct hl_id id) HL_CHECK;
/* Sealed copies, at most `max` from *cursor (0 = start); *cursor is 0 at the end. */
size_t hl_tier_list(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out, size_t max);
void hl_tier_usage(struct hl_tier_store *t, struct hl_tier_usage *out);
/* The usage and the regions, in the form of the RPC schema; lists and texts live in the arena,
 * which remembers HL_ENOMEM. */
struct hl_api_tier_info hl_tier_info(struct hl_tier_store *t, struct hl_arena *arena);

/* Called once per change of pressure, on the thread that caused it, with no lock held. If a pool is
 * also used without its tier, it is called on the thread that next calls hl_tier_usage. */
typedef void (*hl_tier_watch_fn)(void *arg, const struct hl_tier_usage *usage);
void hl_tier_watch(struct hl_tier_store *t, hl_tier_watch_fn fn, void *arg);
/* Compares the sums over the index with the counters; HL_ECORRUPT names both. Builds with
 * HELIOS_AUDIT call it after every change. */
hl_status hl_tier_audit(struct hl_tier_store *t) HL_CHECK;

#endif
