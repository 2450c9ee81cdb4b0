/* core/placement/timers.h - when to look at shards again: a hierarchical timer wheel.
 *
 * Times are rounded down to HL_TIMER_TICK_MS, so a shard's timer takes 8 bytes.
 *
 *     level 0    256 slots of a tick: the rest of this round
 *     level 1    256 slots of a round of level 0
 *     level 2    256 slots of a round of level 1; so with level 3
 *
 * When a slot becomes due, its timers move to a lower level, at most 3 times each. All of that is
 * sequential reading and writing. A heap of a million timers would touch 20 places for each one,
 * half of which are in no cache.
 *
 * Owns:    its entries; zero-initialise, end with hl_timers_fini.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOMEM: nothing is lost.
 * Units:   ms.
 * Limits:  2^32 ticks after base_ms (8 years); see hl_timers_are_old.
 */
#ifndef HL_CORE_PLACEMENT_TIMERS_H
#define HL_CORE_PLACEMENT_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_TIMER_TICK_MS 64
#define HL_TIMER_LEVELS  4
#define HL_TIMER_SLOTS   256

struct hl_shard_timer {
    uint32_t tick, shard;
};

struct hl_timer_chunk;
struct hl_timer_block;

struct hl_timers {
    struct hl_timer_chunk *slots[HL_TIMER_LEVELS][HL_TIMER_SLOTS];
    uint32_t counts[HL_TIMER_LEVELS];
    uint32_t count; /* of all */
    uint32_t tick;  /* everything before this tick has been taken */
    struct hl_timer_chunk *free;
    uint32_t free_count;
    struct hl_timer_block *blocks; /* memory of all chunks */
    uint32_t block_count;
    int64_t base_ms;
};

void hl_timers_fini(struct hl_timers *t);
/* Removes all timers, but keeps the memory. */
void hl_timers_clear(struct hl_timers *t, int64_t base_ms);
uint64_t hl_timers_bytes(const struct hl_timers *t);
/* Half of the ticks are used up: clear the wheel and add all timers again. */
bool hl_timers_are_old(const struct hl_timers *t, int64_t now_ms);
uint32_t hl_timers_tick(const struct hl_timers *t, int64_t at_ms);
hl_status hl_timers_add(struct hl_timers *t, int64_t at_ms, uint32_t shard) HL_CHECK;
/* Takes timers that are due, in no particular order, at most `max`; *count 0: there are no more. */
hl_status hl_timers_take(struct hl_timers *t, int64_t now_ms, struct hl_shard_timer *out,
                         uint32_t max, uint32_t *count) HL_CHECK;
/* When the earliest one is due; INT64_MAX: there is none. */
int64_t hl_timers_next_ms(const struct hl_timers *t);

#endif
