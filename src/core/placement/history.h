/* core/placement/history.h - a shard's state in its life cycle, and the changes that led to it.
 *
 * The newest change of a shard is stored with the shard. Older changes are in a ring that all
 * shards share, each with a link to the one before it. So memory is bounded, and a shard that
 * changes often overwrites only older changes of others, never their newest.
 *
 * Owns:    the ring.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM; HL_ECONFLICT: the life cycle has no such transition.
 * Units:   ms; stored with a resolution of HL_CHANGE_TICK_MS.
 * Limits:  2^32 ticks (2 years), of which HL_HISTORY_BACK_MS are before the start; the
 *          HL_CHANGES_MAX newest changes of a shard.
 */
#ifndef HL_CORE_PLACEMENT_HISTORY_H
#define HL_CORE_PLACEMENT_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "core/placement/lifecycle.h"

#define HL_CHANGES_MAX    16
#define HL_CHANGE_TICK_MS 16

/* A whole number of ticks; anything older counts as this old. */
#define HL_HISTORY_BACK_MS (INT64_C(30) * 24 * 3600 * 1000)

/* A change as it is stored. */
struct hl_change_rec {
    uint32_t at_ticks;
    float value, limit;
    uint16_t node;
    uint8_t states; /* from * 16 + to */
    uint8_t event;
};

/* Zeroed: created, without a history. */
struct hl_life {
    struct hl_change_rec latest;
    uint32_t older; /* number of the previous change in the ring; 0 = none */
    uint8_t state, before;
    bool lost; /* no copy of the shard can be read */
};

struct hl_history_entry {
    struct hl_change_rec change;
    uint32_t shard, older;
};

struct hl_history {
    struct hl_history_entry *ring;
    uint32_t room;    /* a power of two */
    uint32_t written; /* number of the newest change; wraps to 1 */
    bool wrapped;
    int64_t start_ms;
};

/* A change, and the two numbers on which the decision was based (hl_life_event_numbers). */
struct hl_change {
    int64_t at_ms;
    enum hl_life_event event;
    enum hl_life_state from, to;
    uint16_t node; /* where the shard goes, or is; UINT16_MAX = on no node */
    double value, limit;
};

/* room: number of changes, rounded down to a power of two. */
hl_status hl_history_init(struct hl_history *h, uint32_t room, int64_t start_ms) HL_CHECK;
void hl_history_fini(struct hl_history *h);
uint64_t hl_history_bytes(const struct hl_history *h);

/* change: event, time, node and numbers are used; the states come from the life cycle. If it
 * refuses, nothing changes. */
hl_status hl_life_change(struct hl_life *life, struct hl_history *h, uint32_t shard,
                         const struct hl_change *change) HL_CHECK;
/* Adds a change that is not checked against the life cycle: one that an earlier process made, or
 * one of HL_LIFE_ON_LOST and HL_LIFE_ON_FOUND. Oldest first. */
void hl_life_restore(struct hl_life *life, struct hl_history *h, uint32_t shard,
                     const struct hl_change *change);
/* Lists the changes, newest first; returns how many. */
unsigned hl_life_history(const struct hl_life *life, const struct hl_history *h, uint32_t shard,
                         struct hl_change out[HL_CHANGES_MAX]);

#endif
