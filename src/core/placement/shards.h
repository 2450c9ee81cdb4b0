/* core/placement/shards.h - the table of all placed shards: found by id, or by an index that does
 * not change while the shard is in the table.
 *
 * Owns:    its records, in pages that never move; a borrowed pointer is valid until its shard is
 *          removed.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM; HL_EEXIST for an id that is already in it; HL_ENOSPC beyond the limit.
 * Units:   bytes.
 * Limits:  the number given to init, at most HL_SHARDS_MAX.
 */
#ifndef HL_CORE_PLACEMENT_SHARDS_H
#define HL_CORE_PLACEMENT_SHARDS_H

#include "api/types.h"
#include "base/id.h"
#include "core/placement/attributes.h"
#include "core/placement/history.h"

#define HL_SHARDS_MAX  (UINT32_C(1) << 29)
#define HL_SHARD_NONE  UINT32_MAX
#define HL_SHARDS_PAGE 32768 /* records per page: 6 MiB, three huge pages */

struct hl_place {
    uint16_t node; /* only for L1 and L2, else HL_READER_NONE */
    uint8_t tier;  /* enum hl_api_tier */
};

/* Lists of a node's shards, for its watermarks. */
enum hl_listed {
    HL_LISTED_NOWHERE,
    HL_LISTED_IN_L1,
    HL_LISTED_FOR_L1, /* in its L2, and better off in its L1 */
    HL_LISTED_KINDS
};

/* Three cache lines: first identity and what moves need; then what a pass looks at, beginning with
 * the state; then slices and readers, which only matter for shards that were read. */
struct hl_placed_shard {
    struct hl_id id;
    uint64_t size_bytes;
    uint32_t list_at;            /* position in its list; in a free record: the next free one */
    uint32_t set;                /* index + 1 of its set; 0 = none */
    struct hl_place goal;        /* destination of the copy while it moves */
    uint32_t set_prev, set_next; /* index + 1 of its neighbours in the set; 0 = none */
    struct hl_life life;
    struct hl_place place;             /* of its nearest copy */
    int64_t changed_ms : HL_TIME_BITS; /* newest change of its life, or its creation */
    uint16_t listed_node;
    /* when the policy looks at it at the latest; HL_TIME_MAX: no timer */
    int64_t timer_ms : HL_TIME_BITS;
    uint8_t listed;  /* enum hl_listed, of listed_node */
    bool used : 1;   /* if false, the record is free */
    bool pinned : 1; /* it is not moved away, because it or its set is pinned */
    bool pinned_itself : 1;
    bool touched : 1; /* to be judged in the next pass; in a free record: still in that list */
    bool crowded : 1; /* hl_rules_are_crowded */
    bool decided : 1; /* the last pass that judged it made a decision */
    bool unsaved : 1; /* saved.h: used or changed since its data was taken */
    bool kept : 1;    /* the data taken from it is stored somewhere */
    struct hl_attributes use;
};

struct hl_shard_table {
    struct hl_placed_shard **pages;
    uint32_t *slots; /* index + 1 by hash, linear probing; 0 = empty */
    uint32_t slot_bits, page_count, page_room;
    uint32_t count, limit;
    uint32_t end; /* records from there on were never used */
    uint32_t free;
    /* called for a new page before its first use; NULL: none */
    void (*advise)(void *memory, size_t bytes);
};

hl_status hl_shard_table_init(struct hl_shard_table *t, uint32_t limit) HL_CHECK;
void hl_shard_table_fini(struct hl_shard_table *t);
/* Adds a zeroed record with the id. */
hl_status hl_shard_table_add(struct hl_shard_table *t, struct hl_id id, uint32_t *index) HL_CHECK;
/* HL_SHARD_NONE: not found. */
uint32_t hl_shard_table_find(const struct hl_shard_table *t, struct hl_id id);
void hl_shard_table_remove(struct hl_shard_table *t, uint32_t index);
/* Prefetches for ids that will be looked up soon: first their slots, and somewhat later their
 * records, into the processor's cache. */
void hl_shard_table_fetch_slot(const struct hl_shard_table *t, struct hl_id id);
void hl_shard_table_fetch_record(const struct hl_shard_table *t, struct hl_id id);
/* All memory that it has allocated and used; records are counted by huge pages. */
uint64_t hl_shard_table_bytes(const struct hl_shard_table *t);

static inline struct hl_placed_shard *hl_shard_at(const struct hl_shard_table *t, uint32_t index)
{
    return &t->pages[index / HL_SHARDS_PAGE][index % HL_SHARDS_PAGE];
}

/* For functions that only prefetch. GCC 12 takes such a function for one without effects and
 * removes the calls, unless it inlined them before. */
#define HL_PREFETCHES static inline __attribute__((always_inline))

/* Prefetches for a pass: _head fetches what it looks at in every shard; _rest, somewhat later, the
 * readers of shards that are read. hl_shard_fetch fetches a whole record for writing. */
HL_PREFETCHES void hl_shard_fetch_head(const struct hl_shard_table *t, uint32_t index)
{
    __builtin_prefetch(&hl_shard_at(t, index)->life.state);
}

HL_PREFETCHES void hl_shard_fetch_rest(const struct hl_shard_table *t, uint32_t index)
{
    const struct hl_placed_shard *s = hl_shard_at(t, index);
    if (s->use.last_ms >= 0)
        __builtin_prefetch(s->use.slices);
}

HL_PREFETCHES void hl_shard_fetch(const struct hl_shard_table *t, uint32_t index)
{
    struct hl_placed_shard *s = hl_shard_at(t, index);
    __builtin_prefetch(s, 1);
    __builtin_prefetch(&s->life.state, 1);
    __builtin_prefetch(s->use.slices, 1);
}

/* index < t->end */
static inline bool hl_shard_is_used(const struct hl_shard_table *t, uint32_t index)
{
    return hl_shard_at(t, index)->used;
}

#endif
