/* core/placement/pool_order.h - the order in which archived versions leave a full pool: as a whole,
 * because a rank waits for its slowest shard.
 *
 *     first   older versions of a model, least recently used first
 *     then    the newest one of each model, which a restart reads, in the same order
 *     never   pinned ones: they are not in the order
 *
 * A version counts as used when a process reads one of its shards, from wherever, and when it is
 * saved. L3 itself sees neither: reads go through mappings and through copies on nodes.
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
    int64_t used_ms;     /* time of its last use */
    uint64_t sequence;   /* breaks ties of used_ms: the lower one leaves first */
    bool is_newest;      /* of its model */
    bool is_pinned;
};

/* Below 0: `a` leaves first. Pinned ones come last. */
int hl_pool_version_compare(const struct hl_pool_version *a, const struct hl_pool_version *b);
/* Sorts those that may leave to the front, in the order of leaving; returns how many. */
size_t hl_pool_order(struct hl_pool_version *versions, size_t count);

#endif
