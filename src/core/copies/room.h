/* core/copies/room.h - room for a shard: which tier of a node takes it, and how much a full pool
 * evicts for it.
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
    uint64_t quota;     /* 0 = limited only by the medium */
    uint64_t used;
};

struct hl_tier_need {
    enum hl_api_tier tier;
    const char *device; /* "" = any */
    int numa;           /* preferred node; -1 = any */
    uint64_t size;
};

/* Index of the offer that takes the copy; -1 = none has that tier and device. An offer with room is
 * preferred to one on the preferred NUMA node, because a tier without room must drop something
 * first; among equals the first wins. */
int hl_tier_choose(const struct hl_tier_offer *offers, size_t count,
                   const struct hl_tier_need *need);

struct hl_room {
    uint64_t capacity;
    uint64_t used;
    uint64_t free;
    uint64_t quarantined; /* freed, but not reusable yet */
    bool has_derived;     /* it has shards that can be cut again */
    bool has_archive;
    bool writes_behind; /* shards that are not archived yet can be archived on demand */
};

/* How much a full pool evicts for `need` bytes: at least those, and if that leaves it above the low
 * watermark, down to the watermark, so that the next shard need not evict again. */
uint64_t hl_room_to_free(const struct hl_room *room, uint64_t need, double low_pct);
/* The end of the quarantine alone will make the room. */
bool hl_room_comes(const struct hl_room *room, uint64_t need);
/* A pool that is full now could have that room at some time, so it is worth trying to make it. */
bool hl_room_may_come(const struct hl_room *room, uint64_t need);
/* An import may be larger than the pool if it is archived while it runs. */
bool hl_room_takes_import(const struct hl_room *room, uint64_t bytes);

/* What a full pool evicts, in this order; a kind is only tried if the previous one yielded
 * nothing. */
enum hl_room_kind {
    HL_ROOM_DERIVED,  /* can be cut again */
    HL_ROOM_ARCHIVED, /* can be loaded again */
    HL_ROOM_SPILLED,  /* must be archived first, which takes time: no more than needed */
    HL_ROOM_KINDS
};

/* Whether the pool can evict shards of that kind. may_wait: the caller can wait for the archive. */
bool hl_room_gives(const struct hl_room *room, enum hl_room_kind kind, bool may_wait);

#endif
