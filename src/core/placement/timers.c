#include "core/placement/timers.h"

#include <stdlib.h>

#define ROOM_MIN 64
#define ROOM_MAX (UINT32_C(1) << 31)
/* With more than one new entry of so many, all are put in order at once. */
#define FEW 8

void hl_timers_fini(struct hl_timers *t)
{
    free(t->entries);
    *t = (struct hl_timers){0};
}

void hl_timers_clear(struct hl_timers *t, int64_t base_ms)
{
    t->count = t->ordered = 0;
    t->base_ms = base_ms;
}

uint32_t hl_timers_tick(const struct hl_timers *t, int64_t at_ms)
{
    int64_t ticks = (at_ms - t->base_ms) / HL_TIMER_TICK_MS;
    return ticks < 0 ? 0 : ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

bool hl_timers_are_old(const struct hl_timers *t, int64_t now_ms)
{
    return hl_timers_tick(t, now_ms) > UINT32_MAX / 2;
}

hl_status hl_timers_add(struct hl_timers *t, int64_t at_ms, uint32_t shard)
{
    if (t->count == t->room) {
        uint32_t room = t->room == 0 ? ROOM_MIN : t->room * 2;
        struct hl_timer *entries =
            t->room == ROOM_MAX ? NULL : realloc(t->entries, (size_t)room * sizeof(*entries));
        if (entries == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating timers of %u shards", room);
        t->entries = entries;
        t->room = room;
    }
    t->entries[t->count++] = (struct hl_timer){.tick = hl_timers_tick(t, at_ms), .shard = shard};
    return HL_OK;
}

/* Its way to the root. */
static void raise_timer(struct hl_timers *t, uint32_t at)
{
    struct hl_timer x = t->entries[at];
    for (; at > 0 && x.tick < t->entries[(at - 1) / 2].tick; at = (at - 1) / 2)
        t->entries[at] = t->entries[(at - 1) / 2];
    t->entries[at] = x;
}

/* Its way to a leaf, in the first `count`. */
static void sink_timer(struct hl_timers *t, uint32_t at, uint32_t count)
{
    struct hl_timer x = t->entries[at];
    for (uint64_t child; (child = 2 * (uint64_t)at + 1) < count; at = (uint32_t)child) {
        child += child + 1 < count && t->entries[child + 1].tick < t->entries[child].tick;
        if (t->entries[child].tick >= x.tick)
            break;
        t->entries[at] = t->entries[child];
    }
    t->entries[at] = x;
}

void hl_timers_order(struct hl_timers *t)
{
    if (t->count - t->ordered > t->count / FEW)
        for (uint32_t i = t->count / 2; i > 0; i--)
            sink_timer(t, i - 1, t->count);
    else
        for (uint32_t i = t->ordered; i < t->count; i++)
            raise_timer(t, i);
    t->ordered = t->count;
}

bool hl_timers_take(struct hl_timers *t, int64_t now_ms, struct hl_timer *out)
{
    if (t->count == 0 || t->entries[0].tick > hl_timers_tick(t, now_ms))
        return false;
    *out = t->entries[0];
    t->entries[0] = t->entries[--t->count];
    t->ordered = t->count;
    if (t->count > 0)
        sink_timer(t, 0, t->count);
    return true;
}
