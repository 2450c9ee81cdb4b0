/* core/placement/timers.h - when shards are to be looked at: a heap of times, the earliest first.
 *
 * Times are rounded down to HL_TIMER_TICK_MS, so that one of a shard takes 8 bytes. Many are added
 * at once, and put in order after that.
 *
 * Owns:    its entries; zero-initialise, end with hl_timers_fini.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOMEM.
 * Units:   ms.
 * Limits:  2^32 ticks after base_ms (8 years): see hl_timers_are_old.
 */
#ifndef HL_CORE_PLACEMENT_TIMERS_H
#define HL_CORE_PLACEMENT_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_TIMER_TICK_MS 64

struct hl_timer {
    uint32_t tick, shard;
};

struct hl_timers {
    struct hl_timer *entries;
    uint32_t count, room;
    uint32_t ordered; /* the first ones are a heap */
    int64_t base_ms;
};

void hl_timers_fini(struct hl_timers *t);
/* Empty, with its room. */
void hl_timers_clear(struct hl_timers *t, int64_t base_ms);
/* Half of its ticks are over: clear it, and add all anew. */
bool hl_timers_are_old(const struct hl_timers *t, int64_t now_ms);
uint32_t hl_timers_tick(const struct hl_timers *t, int64_t at_ms);
hl_status hl_timers_add(struct hl_timers *t, int64_t at_ms, uint32_t shard) HL_CHECK;
/* After adding, before taking. */
void hl_timers_order(struct hl_timers *t);
/* The earliest one that is due; false: there is none. */
bool hl_timers_take(struct hl_timers *t, int64_t now_ms, struct hl_timer *out);

#endif
