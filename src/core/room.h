/* core/room.h - room for a shard: which tier of a node takes it, and how much a full pool gives up
 * for it.
 *
 * Owns:    nothing; texts are borrowed.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes; watermarks in percent of the capacity.
 * Limits:  none.
 */
#ifndef HL_CORE_ROOM_H
#define HL_CORE_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"

struct hl_tier_offer {
    enum hl_api_tier tier;
    const char *device; /* "emu:0"; "" for memory of the host */
    int numa;           /* -1 = several or none */
    uint64_t quota;     /* 0 = no limit but the medium's */
    uint64_t used;
};

struct hl_tier_need {
    enum hl_api_tier tier;
    const char *device; /* "" = any */
    int numa;           /* wanted; -1 = any */
    uint64_t size;
};

/* Index of the offer that takes the copy, -1 = none is of that tier and device. One with room comes
 * before one near the wanted NUMA node, for a tier without room has to drop something first; among
 * equals the first. */
int hl_tier_choose(const struct hl_tier_offer *offers, size_t count,
                   const struct hl_tier_need *need);

struct hl_room {
    uint64_t capacity;
    uint64_t used;
    uint64_t free;
    uint64_t quarantined; /* freed, not yet to be used again */
};

/* What a full pool gives up for `need` bytes: those, and if there is more above the low watermark,
 * down to it, so that the next one need not evict again. */
uint64_t hl_room_to_free(const struct hl_room *room, uint64_t need, double low_pct);
/* The quarantine alone makes the room. */
bool hl_room_comes(const struct hl_room *room, uint64_t need);

#endif
