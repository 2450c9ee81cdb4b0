/* core/catalog/sweep.h - what a sweep decides: of a stored shard that no version holds, of a
 * version's shard that is not stored or not archived, of manifests, and of nodes' copies of unknown
 * shards.
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

#define HL_SWEEP_LOST_MISSES 2 /* inventories in a row */

/* A stored shard that the catalogue does not know. All zero: not seen yet. */
struct hl_orphan {
    uint64_t since_ns;
    int64_t since_ms;
    unsigned first_round; /* the sweep that saw it first */
    unsigned round;       /* the last one that saw it */
    bool archived;        /* that one saw it in the archive */
};

/* The sweep that ends. */
struct hl_sweep {
    unsigned round;
    uint64_t now_ns;
    int64_t now_ms;
    uint64_t grace_ns; /* ranks put shards before they commit them */
    bool importing;    /* an import runs, whose shards are in no version yet */
};

enum hl_orphan_fate {
    HL_ORPHAN_WAITS,
    HL_ORPHAN_FORGOTTEN, /* it is known by now, or gone */
    HL_ORPHAN_FREED,
};

/* The sweep of these numbers sees it, in the pool or in the archive. */
void hl_orphan_see(struct hl_orphan *orphan, const struct hl_sweep *sweep, bool archived);

bool hl_sweep_has_open_version(const struct hl_catalog *catalog);
/* An open version was begun before its first shard was put; until it is committed, whatever came
 * later may be its. */
bool hl_sweep_being_written(const struct hl_catalog *catalog, int64_t since_ms, int64_t now_ms);
/* is_known: the catalogue has it now. Shards are put for imports and open versions only: where
 * there is neither, what two rounds have seen is an orphan, without any grace. */
enum hl_orphan_fate hl_sweep_orphan(const struct hl_orphan *orphan, bool is_known,
                                    const struct hl_sweep *sweep, const struct hl_catalog *catalog);

/* A node's copy of a shard that the catalogue has not known since unknown_ns. removed: with its
 * version, so that no rank can be writing it. */
bool hl_sweep_copy_goes(bool removed, uint64_t unknown_ns, bool has_open_version,
                        const struct hl_sweep *sweep);

/* ---- shards of versions ---- */

/* As far as inventories and our own orders tell. */
bool hl_shard_is_pooled(const struct hl_shard_rec *s);
bool hl_shard_is_archived(const struct hl_shard_rec *s);
/* L3 has, or has no more, a copy in its pool (L3) or archive (L4), by our own order. `round` is the
 * last sweep that has begun: its inventory may be older than the copy. */
void hl_sweep_made(struct hl_shard_rec *s, enum hl_api_tier tier, unsigned round);
void hl_sweep_dropped(struct hl_shard_rec *s, enum hl_api_tier tier);
/* The inventories of the round are complete: counts a miss of the pool, and sets `archived`. True:
 * who looks for the shard at L3 finds it elsewhere than before. */
bool hl_sweep_count(struct hl_shard_rec *s, unsigned round);

enum hl_sweep_turn {
    HL_SWEEP_SAME,
    HL_SWEEP_LOST, /* from now on; not said of a cut's shard, which can be made again */
    HL_SWEEP_FOUND,
};

/* After hl_sweep_count: sets `lost`. One miss may be a commit that came while the inventory was
 * read; more are a loss, unless another tier has a copy. An unusable shard stays lost. */
enum hl_sweep_turn hl_sweep_settle(struct hl_shard_rec *s, bool has_copies);
/* Write-behind brings it into the archive. */
bool hl_sweep_archives(const struct hl_shard_rec *s);

/* ---- manifests ---- */

/* The last sweep that met it in each place; 0 = none. */
struct hl_manifest_seen {
    unsigned pool, archive;
    unsigned wanted; /* a version has it */
};

enum hl_manifest_fate {
    HL_MANIFEST_KEPT,
    HL_MANIFEST_POOLED,  /* kept, and not in the archive yet */
    HL_MANIFEST_MISSING, /* it is to be written */
    HL_MANIFEST_ORPHAN,
    HL_MANIFEST_GONE,
};

enum hl_manifest_fate hl_sweep_manifest(const struct hl_manifest_seen *seen, unsigned round);

#endif
