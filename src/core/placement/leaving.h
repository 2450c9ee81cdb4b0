/* core/placement/leaving.h - the order in which shards leave a node's L1, or enter it: as whole
 * sets, because a rank waits for its slowest shard.
 *
 * Incomplete sets come first, because the rest of such a set saves no rank any waiting. Then come
 * versions, within them the sets of their ranks, and within those the shards, each level sorted by
 * `order`; the order of a version or a set is that of the shard that it would keep longest. A shard
 * in no set counts as a version of its own.
 *
 * Usually only the first few of thousands are needed, so only those get sorted: the items are a
 * heap, and what was taken out of it lies behind it, the first one at the end.
 *
 * Owns:    its items and its notes about sets; zero-initialise, end with hl_leaving_fini.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_LEAVING_H
#define HL_CORE_PLACEMENT_LEAVING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/id.h"
#include "core/placement/sets.h"

struct hl_leaving {
    struct hl_id id;
    uint32_t shard;
    uint32_t set, version;           /* HL_SET_NONE: none */
    bool stays;                      /* it is in L1, but does not leave */
    bool is_part;                    /* computed: its set is incomplete in L1 */
    double order;                    /* lower comes earlier */
    double set_order, version_order; /* computed */
};

struct hl_leaving_set;

struct hl_leaving_list {
    struct hl_leaving *items;
    size_t count, room;
    size_t heap;                 /* number of items that are still in the heap */
    struct hl_leaving_set *sets; /* by index of the set */
    uint32_t set_room, round;
};

void hl_leaving_fini(struct hl_leaving_list *list);
uint64_t hl_leaving_bytes(const struct hl_leaving_list *list);
/* Removes all items, but keeps the memory. */
void hl_leaving_clear(struct hl_leaving_list *list);
hl_status hl_leaving_add(struct hl_leaving_list *list, const struct hl_leaving *item) HL_CHECK;
/* Call it after the last item was added. by_parts: incomplete sets come first. */
hl_status hl_leaving_order(struct hl_leaving_list *list, const struct hl_set_table *sets,
                           bool by_parts) HL_CHECK;
/* The i-th item, i < list->count; borrowed until the next call. */
const struct hl_leaving *hl_leaving_at(struct hl_leaving_list *list, size_t i);

#endif
