/* core/placement/leaving.h - in which order shards leave a node's L1, or come to it: by whole sets,
 * for a rank waits for its slowest shard.
 *
 * Sets that are not whole there come first: what is left of them saves nobody any waiting. Then
 * versions, in them the sets of their ranks, in these the shards, each by its order; a version or a
 * set counts as the shard that it would keep longest. A shard in no set is a version of its own.
 *
 * Of thousands mostly the first few are asked for, so that no more of them are put in order: they
 * are a heap, and what was taken out of it lies behind it, the first at the end.
 *
 * Owns:    its items and what it notes of sets; zero-initialise, end with hl_leaving_fini.
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
    bool stays;                      /* it is there, but does not leave */
    bool is_part;                    /* worked out: of a set that is not whole there */
    double order;                    /* the lower, the earlier */
    double set_order, version_order; /* worked out */
};

struct hl_leaving_set;

struct hl_leaving_list {
    struct hl_leaving *items;
    size_t count, room;
    size_t heap;                 /* so many of them are not in order yet */
    struct hl_leaving_set *sets; /* by their indices */
    uint32_t set_room, round;
};

void hl_leaving_fini(struct hl_leaving_list *list);
uint64_t hl_leaving_bytes(const struct hl_leaving_list *list);
/* Empty, with its memory. */
void hl_leaving_clear(struct hl_leaving_list *list);
hl_status hl_leaving_add(struct hl_leaving_list *list, const struct hl_leaving *item) HL_CHECK;
/* After the last one was added. by_parts: sets that are not whole come first. */
hl_status hl_leaving_order(struct hl_leaving_list *list, const struct hl_set_table *sets,
                           bool by_parts) HL_CHECK;
/* i < list->count; borrowed until the next is asked for. */
const struct hl_leaving *hl_leaving_at(struct hl_leaving_list *list, size_t i);

#endif
