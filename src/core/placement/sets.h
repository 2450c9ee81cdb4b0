/* core/placement/sets.h - sets of shards: what one rank must read before it can continue, and above
 * these, what belongs to one version.
 *
 * A rank waits for its slowest shard, so a set only justifies its memory as a whole.
 *
 * Owns:    the table of sets; zero-initialise, end with hl_set_table_fini.
 * Threads: one at a time. Pure.
 * Errors:  HL_EINVAL, HL_ENOENT, HL_ENOMEM; HL_ECONFLICT for a set that is not empty.
 * Units:   bytes.
 * Limits:  2^31 sets, in two levels: a set is in no other one, or in one that is itself in none.
 */
#ifndef HL_CORE_PLACEMENT_SETS_H
#define HL_CORE_PLACEMENT_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

#define HL_SET_NONE UINT32_MAX

struct hl_shard_set {
    uint64_t bytes[HL_API_TIER_COUNT]; /* of its own shards, by the tier of their nearest copy */
    uint32_t above;  /* the set above, or HL_SET_NONE; in a free record: the next free one */
    uint32_t shards; /* number of its own shards */
    uint32_t first;  /* index + 1 of one of its shards, which links to the others */
    uint32_t sets;   /* number of sets below it */
    uint32_t below, prev, next; /* index + 1 of one of those sets, and of its own neighbours */
    bool used, pinned;
};

struct hl_set_table {
    struct hl_shard_set *sets;
    uint32_t end, room; /* records from `end` on were never used */
    uint32_t free;      /* index + 1; 0 = none */
};

void hl_set_table_fini(struct hl_set_table *t);
uint64_t hl_set_table_bytes(const struct hl_set_table *t);
/* Borrowed until the next set is added; NULL: there is no such set. */
struct hl_shard_set *hl_set_table_find(const struct hl_set_table *t, uint32_t set);
/* Adds an empty set, inside `above` or in none. */
hl_status hl_set_table_add(struct hl_set_table *t, uint32_t above, uint32_t *set) HL_CHECK;
hl_status hl_set_table_remove(struct hl_set_table *t, uint32_t set) HL_CHECK;
/* The version of a set: the set itself if nothing is above it. HL_SET_NONE: there is no such
 * set. */
uint32_t hl_set_table_top(const struct hl_set_table *t, uint32_t set);
/* The set or its version is pinned. */
bool hl_set_table_is_pinned(const struct hl_set_table *t, uint32_t set);

#endif
