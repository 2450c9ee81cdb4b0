/* core/copies/room.h - room for a shard: which tier of a node takes it, and how much a full pool
 * gives up for it.
 *
 * Owns:    nothing; texts are borrowed.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes; watermarks in percent of the capacity.
 * Limits:  none.
 */
#ifndef HL_CORE_COPIES_ROOM_H
#define HL_CORE_COPIES_ROOM_H

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
    bool has_derived;     /* shards that can be cut again */
    bool has_archive;
    bool writes_behind; /* what is not archived yet may be, on the spot */
};

/* What a full pool gives up for `need` bytes: those, and if there is more above the low watermark,
 * down to it, so that the next one need not evict again. */
uint64_t hl_room_to_free(const struct hl_room *room, uint64_t need, double low_pct);
/* The quarantine alone makes the room. */
bool hl_room_comes(const struct hl_room *room, uint64_t need);
/* A pool that is full now may ever have that room: it is worth looking for. */
bool hl_room_may_come(const struct hl_room *room, uint64_t need);
/* What is larger than the pool may pass through it: an import that is archived as it goes. */
bool hl_room_takes_import(const struct hl_room *room, uint64_t bytes);

/* What a full pool gives up, in this order; the next kind only where the one before gave nothing.
 */
enum hl_room_kind {
    HL_ROOM_DERIVED,  /* can be cut again */
    HL_ROOM_ARCHIVED, /* can be loaded again */
    HL_ROOM_SPILLED,  /* is archived first, which takes time: no more than is needed */
    HL_ROOM_KINDS
};

/* may_wait: the caller can wait for the archive. */
bool hl_room_gives(const struct hl_room *room, enum hl_room_kind kind, bool may_wait);

#endif
