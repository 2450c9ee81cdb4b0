/* core/placement/leaving.h - in which order shards leave a node's L1, or come to it: by whole sets,
 * for a rank waits for its slowest shard.
 *
 * Sets that are not whole there come first: what is left of them saves nobody any waiting. Then
 * versions, in them the sets of their ranks, in these the shards, each by its order; a version or a
 * set counts as the shard that it would keep longest. A shard in no set is a version of its own.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_LEAVING_H
#define HL_CORE_PLACEMENT_LEAVING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/id.h"

struct hl_leaving {
    struct hl_id id;
    uint32_t shard;
    uint32_t set, version;           /* HL_SET_NONE: none */
    bool stays;                      /* it is there, but does not leave */
    bool is_part;                    /* worked out: of a set that is not whole there */
    double order;                    /* the lower, the earlier */
    double set_order, version_order; /* worked out */
};

/* `whole` says of how many shards each set is; NULL: no set counts as a part. */
void hl_leaving_sort(struct hl_leaving *items, size_t count,
                     uint32_t (*whole)(const void *arg, uint32_t set), const void *arg);

#endif
