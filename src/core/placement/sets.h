/* core/placement/sets.h - sets of shards: what a rank reads before it can go on, and above these
 * what is read together as a version.
 *
 * A rank waits for its slowest shard, so a set is worth its memory only as a whole.
 *
 * Owns:    the table of sets; zero-initialise, end with hl_set_table_fini.
 * Threads: one at a time. Pure.
 * Errors:  HL_EINVAL, HL_ENOENT, HL_ENOMEM; HL_ECONFLICT for a set that is not empty.
 * Units:   bytes.
 * Limits:  2^31 sets of two levels: a set is in none, or in one that is in none.
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
    uint32_t above;                    /* HL_SET_NONE: none; of a free one: the next free one */
    uint32_t shards;                   /* its own */
    uint32_t first;                    /* index + 1 of one of them, which links to the others */
    uint32_t sets;                     /* below it */
    uint32_t below, prev, next;        /* index + 1 of one of those, and of its neighbours there */
    bool used, pinned;
};

struct hl_set_table {
    struct hl_shard_set *sets;
    uint32_t end, room; /* those from `end` on were never used */
    uint32_t free;      /* index + 1; 0 = none */
};

void hl_set_table_fini(struct hl_set_table *t);
uint64_t hl_set_table_bytes(const struct hl_set_table *t);
/* Borrowed until the next one is added; NULL: there is none. */
struct hl_shard_set *hl_set_table_find(const struct hl_set_table *t, uint32_t set);
/* An empty one, in `above` or in none. */
hl_status hl_set_table_add(struct hl_set_table *t, uint32_t above, uint32_t *set) HL_CHECK;
hl_status hl_set_table_remove(struct hl_set_table *t, uint32_t set) HL_CHECK;
/* The version of a set: itself where nothing is above it. HL_SET_NONE: there is none. */
uint32_t hl_set_table_top(const struct hl_set_table *t, uint32_t set);
/* It or its version is pinned. */
bool hl_set_table_is_pinned(const struct hl_set_table *t, uint32_t set);

#endif
