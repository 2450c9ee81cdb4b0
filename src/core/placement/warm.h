/* core/placement/warm.h - chooses the versions to load from the archive into a pool with free room
 * before anyone reads them. If a pool starts empty, the first reader of each version would have to
 * wait for the archive.
 *
 * Pinned versions come first, then the others in the reverse of the order in which they would leave
 * a full pool (pool_order.h). A version is loaded as a whole or not at all, because a rank waits
 * for its slowest shard.
 *
 * Owns:    nothing; works in the caller's array.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_WARM_H
#define HL_CORE_PLACEMENT_WARM_H

#include "core/placement/pool_order.h"

struct hl_warm_version {
    struct hl_pool_version version;
    uint64_t bytes; /* bytes of it that are only in the archive */
};

/* Bytes that may be loaded without evicting anything: the room below the low watermark. */
uint64_t hl_warm_room(uint64_t low_bytes, uint64_t used_bytes);
/* Sorts the versions to load to the front, in loading order; returns how many. Together they fit
 * into `room`. */
size_t hl_warm_choose(struct hl_warm_version *versions, size_t count, uint64_t room);

#endif
