/* core/placement/shards.h - the table of the shards whose place is decided: by id, and by an index
 * that stays the same while the shard is in it.
 *
 * Owns:    its records, in pages that never move; a borrowed pointer lives until its shard is
 *          removed.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM; HL_EEXIST for an id that is in it; HL_ENOSPC beyond the limit.
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
#define HL_SHARDS_PAGE 32768 /* records of a page: 6 MiB, three huge pages */

struct hl_place {
    uint16_t node; /* of L1 and L2, else HL_READER_NONE */
    uint8_t tier;  /* enum hl_api_tier */
};

/* Lists of a node's shards that its watermarks look at. */
enum hl_listed {
    HL_LISTED_NOWHERE,
    HL_LISTED_IN_L1,
    HL_LISTED_FOR_L1, /* of its L2, and better off in its L1 */
    HL_LISTED_KINDS
};

/* Three cache lines: who it is, and what its moves need; what a pass looks at, which begins with
 * the state; slices and readers, for those that were read. */
struct hl_placed_shard {
    struct hl_id id;
    uint64_t size_bytes;
    uint32_t list_at;            /* in the list that it is in; of a free record: the next one */
    uint32_t set;                /* index + 1 of the set that it is in; 0 = none */
    struct hl_place goal;        /* where its copy goes while it moves */
    uint32_t set_prev, set_next; /* index + 1 of others in its set; 0 = none */
    struct hl_life life;
    struct hl_place place;             /* of its nearest copy */
    int64_t changed_ms : HL_TIME_BITS; /* of its life's newest change, or when it was created */
    uint16_t listed_node;
    int64_t timer_ms : HL_TIME_BITS; /* the policy looks at it then at the latest; HL_TIME_MAX:
                                      * no timer */
    uint8_t listed;                  /* enum hl_listed, of listed_node */
    bool used : 1;                   /* else the record is free */
    bool pinned : 1;                 /* it is not moved away: itself, or as all of its set */
    bool pinned_itself : 1;
    bool touched : 1; /* it is to be judged in the next pass; of a free one: its list has it */
    bool crowded : 1; /* hl_rules_are_crowded */
    bool decided : 1; /* the last one that has judged it has decided on it */
    bool unsaved : 1; /* saved.h: it was used, or lived, since it was taken */
    bool kept : 1;    /* what was taken is kept somewhere */
    struct hl_attributes use;
};

struct hl_shard_table {
    struct hl_placed_shard **pages;
    uint32_t *slots; /* index + 1 by hash, linear probing; 0 = empty */
    uint32_t slot_bits, page_count, page_room;
    uint32_t count, limit;
    uint32_t end; /* records from there on were never used */
    uint32_t free;
    void (*advise)(void *memory, size_t bytes); /* of a page before it is used; NULL: none */
};

hl_status hl_shard_table_init(struct hl_shard_table *t, uint32_t limit) HL_CHECK;
void hl_shard_table_fini(struct hl_shard_table *t);
/* A zeroed record with the id. */
hl_status hl_shard_table_add(struct hl_shard_table *t, struct hl_id id, uint32_t *index) HL_CHECK;
/* HL_SHARD_NONE: it is not in it. */
uint32_t hl_shard_table_find(const struct hl_shard_table *t, struct hl_id id);
void hl_shard_table_remove(struct hl_shard_table *t, uint32_t index);
/* Hints for ids that will be searched soon: their slots, and somewhat later their records, come
 * into the processor's cache. */
void hl_shard_table_fetch_slot(const struct hl_shard_table *t, struct hl_id id);
void hl_shard_table_fetch_record(const struct hl_shard_table *t, struct hl_id id);
/* Everything it has allocated and used; of records by huge pages. */
uint64_t hl_shard_table_bytes(const struct hl_shard_table *t);

static inline struct hl_placed_shard *hl_shard_at(const struct hl_shard_table *t, uint32_t index)
{
    return &t->pages[index / HL_SHARDS_PAGE][index % HL_SHARDS_PAGE];
}

/* For a pass: what it looks at in each; somewhat later, of those that are read, also their
 * readers. All of a record: of one that is written to. */
static inline void hl_shard_fetch_head(const struct hl_shard_table *t, uint32_t index)
{
    __builtin_prefetch(&hl_shard_at(t, index)->life.state);
}

static inline void hl_shard_fetch_rest(const struct hl_shard_table *t, uint32_t index)
{
    const struct hl_placed_shard *s = hl_shard_at(t, index);
    if (s->use.last_ms >= 0)
        __builtin_prefetch(s->use.slices);
}

static inline void hl_shard_fetch(const struct hl_shard_table *t, uint32_t index)
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
