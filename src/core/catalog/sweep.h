/* core/catalog/sweep.h - the decisions of a sweep: about stored shards that no version has, shards
 * of versions that are not stored or not archived, manifests, and nodes' copies of unknown shards.
 *
 * Owns:    nothing.
 * Threads: any. Pure: times are arguments.
 * Errors:  none.
 * Units:   ns of a monotonic clock, ms of the wall clock.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_SWEEP_H
#define HL_CORE_CATALOG_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"

struct hl_catalog;
struct hl_shard_rec;

#define HL_SWEEP_LOST_MISSES 2 /* consecutive inventories */

/* A stored shard that the catalogue does not know. All zero: not seen yet. */
struct hl_orphan {
    uint64_t since_ns;
    int64_t since_ms;
    unsigned first_round; /* the sweep that saw it first */
    unsigned round;       /* the last sweep that saw it */
    bool archived;        /* that sweep saw it in the archive */
};

/* The sweep that is ending. */
struct hl_sweep {
    unsigned round;
    uint64_t now_ns;
    int64_t now_ms;
    uint64_t grace_ns; /* needed because ranks put shards before they commit them */
    bool importing;    /* an import is running; its shards are in no version yet */
};

enum hl_orphan_fate {
    HL_ORPHAN_WAITS,
    HL_ORPHAN_FORGOTTEN, /* it is known now, or gone */
    HL_ORPHAN_FREED,
};

/* This sweep sees the shard, in the pool or in the archive. */
void hl_orphan_see(struct hl_orphan *orphan, const struct hl_sweep *sweep, bool archived);

bool hl_sweep_has_open_version(const struct hl_catalog *catalog);
/* An open version begins before its first shard is put; until it is committed, any shard that came
 * later may belong to it. */
bool hl_sweep_being_written(const struct hl_catalog *catalog, int64_t since_ms, int64_t now_ms);
/* is_known: the catalogue has it now. Shards are only put for imports and open versions. If there
 * is neither, a shard that two rounds have seen is an orphan, without a grace period. */
enum hl_orphan_fate hl_sweep_orphan(const struct hl_orphan *orphan, bool is_known,
                                    const struct hl_sweep *sweep, const struct hl_catalog *catalog);

/* Whether to drop a node's copy of a shard that has been unknown to the catalogue since unknown_ns.
 * removed: it was removed with its version, so no rank can be writing it. */
bool hl_sweep_copy_goes(bool removed, uint64_t unknown_ns, bool has_open_version,
                        const struct hl_sweep *sweep);

/* ---- shards of versions ---- */

/* According to inventories and our own orders. */
bool hl_shard_is_pooled(const struct hl_shard_rec *s);
bool hl_shard_is_archived(const struct hl_shard_rec *s);
/* On our own order, L3 has made or dropped a copy in its pool (L3) or archive (L4). `round` is the
 * last sweep that has begun: its inventory may be older than the copy. */
void hl_sweep_made(struct hl_shard_rec *s, enum hl_api_tier tier, unsigned round);
void hl_sweep_dropped(struct hl_shard_rec *s, enum hl_api_tier tier);
/* Call it when the inventories of the round are complete: counts a miss in the pool, and sets
 * `archived`. True: L3's copies of the shard have changed, so lookups now give another result. */
bool hl_sweep_count(struct hl_shard_rec *s, unsigned round);

enum hl_sweep_turn {
    HL_SWEEP_SAME,
    /* it is lost from now on; not used for a cut's shard, which can be made again */
    HL_SWEEP_LOST,
    HL_SWEEP_FOUND,
};

/* Call it after hl_sweep_count: sets `lost`. A single miss may be due to a commit during the
 * inventory; more misses are a loss, unless another tier has a copy. An unusable shard stays
 * lost. */
enum hl_sweep_turn hl_sweep_settle(struct hl_shard_rec *s, bool has_copies);
/* Write-behind should archive the shard. */
bool hl_sweep_archives(const struct hl_shard_rec *s);

/* ---- manifests ---- */

/* The last sweep that saw the manifest in each place; 0 = none. */
struct hl_manifest_seen {
    unsigned pool, archive;
    unsigned wanted; /* a version needs it */
};

enum hl_manifest_fate {
    HL_MANIFEST_KEPT,
    HL_MANIFEST_POOLED,  /* kept, but not in the archive yet */
    HL_MANIFEST_MISSING, /* it must be written */
    HL_MANIFEST_ORPHAN,
    HL_MANIFEST_GONE,
};

enum hl_manifest_fate hl_sweep_manifest(const struct hl_manifest_seen *seen, unsigned round);

#endif
