/* core/copies/locate.h - answers a call that asks where shards are in the pool. Shards that are
 * only archived are loaded first, in rounds, because a load may evict what an earlier one has
 * loaded.
 *
 *     hl_locate_begin --> hl_locate_missing for each that the pool does not have --> hl_locate_next
 *        ^                                                                             |
 *        '--------------------------- all are loaded ----------------------------------'
 *
 * Owns:    nothing.
 * Threads: one owner. Pure.
 * Errors:  none.
 * Units:   bytes, as the pool allocates them.
 * Limits:  HL_LOCATE_ROUNDS rounds of loading.
 */
#ifndef HL_CORE_COPIES_LOCATE_H
#define HL_CORE_COPIES_LOCATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_LOCATE_ROUNDS 4

/* Zero-initialise. */
struct hl_locate {
    uint64_t capacity; /* of the pool */
    uint64_t bytes;    /* bytes that this round loads */
    size_t loads;
    unsigned rounds; /* rounds that have loaded something */
};

/* What is known about a shard that is not in the pool. */
struct hl_locate_found {
    bool archived;     /* the archive has a copy that is not known to be damaged */
    bool away;         /* the archive does not answer, so it may have a copy */
    bool damaged;      /* the archived copy is damaged */
    uint64_t in_bytes; /* room that it takes in the pool */
};

enum hl_locate_fate {
    HL_LOCATE_LOAD,
    HL_LOCATE_TOO_MUCH, /* together with the others of the round it exceeds the pool */
    HL_LOCATE_AWAY,
    HL_LOCATE_DAMAGED,
    HL_LOCATE_NOWHERE,
};

enum hl_locate_turn {
    HL_LOCATE_ANSWER, /* the pool has all of them: answer the call */
    HL_LOCATE_WAIT,   /* wait for the loads of this round, then look again */
    HL_LOCATE_BUSY,   /* give up: they evict each other, or others evict them */
};

void hl_locate_begin(struct hl_locate *l, uint64_t capacity);
enum hl_locate_fate hl_locate_missing(struct hl_locate *l, const struct hl_locate_found *found);
/* Call it once all shards of the round were checked and none has failed the call. */
enum hl_locate_turn hl_locate_next(struct hl_locate *l);

#endif
