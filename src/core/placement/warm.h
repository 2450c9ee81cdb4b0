/* core/placement/warm.h - which versions are loaded out of the archive into a pool that has room,
 * before anybody reads them: a pool that starts empty makes the first reader of each wait for the
 * archive.
 *
 * What would leave a full pool last (pool_order.h) comes first, and pinned versions before all. A
 * version comes as a whole or not at all, for a rank waits for its slowest shard.
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
    uint64_t bytes; /* of it, that are in the archive alone */
};

/* What may be loaded without making anything leave: as much as there is below the low watermark. */
uint64_t hl_warm_room(uint64_t low_bytes, uint64_t used_bytes);
/* Those that are loaded come to the front, the first one first; returns how many. Together they
 * have `room`. */
size_t hl_warm_choose(struct hl_warm_version *versions, size_t count, uint64_t room);

#endif
