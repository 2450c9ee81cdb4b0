/* core/placement/pool_order.h - in which order versions leave a full pool, where the archive has
 * them, too: as wholes, for a rank waits for its slowest shard.
 *
 *     first   older versions of a model, in the order of their last use
 *     then    the newest one of each model, which a restart reads, in the same order
 *     never   pinned ones: they are not in the order
 *
 * A version is used when a process reads one of its shards, wherever it finds it, and when it is
 * saved. L3 itself knows neither: reads go through mappings and through copies of nodes.
 *
 * Owns:    nothing; works in the caller's array.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms of any clock; bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_POOL_ORDER_H
#define HL_CORE_PLACEMENT_POOL_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hl_pool_version {
    const void *version; /* the caller's */
    int64_t used_ms;     /* of its newest use */
    uint64_t sequence;   /* among those that were used at the same time, the lower leaves first */
    bool is_newest;      /* of its model */
    bool is_pinned;
};

/* Below 0: `a` leaves first. Pinned ones come last. */
int hl_pool_version_compare(const struct hl_pool_version *a, const struct hl_pool_version *b);
/* Those that may leave come to the front, the first one first; returns how many. */
size_t hl_pool_order(struct hl_pool_version *versions, size_t count);

#endif
