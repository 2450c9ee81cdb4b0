/* core/copies/locate.h - a call that asks where shards lie in the pool: what is archived only is
 * loaded first, in rounds, for a load may evict what an earlier one has brought.
 *
 *     hl_locate_begin --> hl_locate_missing for each that the pool does not have --> hl_locate_next
 *        ^                                                                             |
 *        '--------------------------- all are loaded ----------------------------------'
 *
 * Owns:    nothing.
 * Threads: one owner. Pure.
 * Errors:  none.
 * Units:   bytes, as the pool allocates them.
 * Limits:  HL_LOCATE_ROUNDS of loading.
 */
#ifndef HL_CORE_COPIES_LOCATE_H
#define HL_CORE_COPIES_LOCATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_LOCATE_ROUNDS 4

/* All zero at first. */
struct hl_locate {
    uint64_t capacity; /* of the pool */
    uint64_t bytes;    /* what this round loads */
    size_t loads;
    unsigned rounds; /* that have loaded */
};

/* Of a shard that the pool does not have. */
struct hl_locate_found {
    bool archived;     /* a copy that was not found damaged */
    bool away;         /* the archive does not answer, and may have it */
    bool damaged;      /* the archived copy */
    uint64_t in_bytes; /* that it takes in the pool */
};

enum hl_locate_fate {
    HL_LOCATE_LOAD,
    HL_LOCATE_TOO_MUCH, /* with the others of the round it is more than the pool holds */
    HL_LOCATE_AWAY,
    HL_LOCATE_DAMAGED,
    HL_LOCATE_NOWHERE,
};

enum hl_locate_turn {
    HL_LOCATE_ANSWER, /* the pool has all of them */
    HL_LOCATE_WAIT,   /* for the loads of this round, then look again */
    HL_LOCATE_BUSY,   /* they evict each other, or others evict them */
};

void hl_locate_begin(struct hl_locate *l, uint64_t capacity);
enum hl_locate_fate hl_locate_missing(struct hl_locate *l, const struct hl_locate_found *found);
/* Once all shards of the round were looked at, and none has failed the call. */
enum hl_locate_turn hl_locate_next(struct hl_locate *l);

#endif
