#include "core/copies/room.h"

#include <string.h>

/* -1 = not suitable. */
static int offer_score(const struct hl_tier_offer *o, const struct hl_tier_need *need)
{
    if (o->tier != need->tier)
        return -1;
    if (need->device[0] != '\0')
        return strcmp(o->device, need->device) == 0 ? 0 : -1;
    bool has_room = o->quota == 0 || (need->size <= o->quota && o->used <= o->quota - need->size);
    bool is_near = need->numa >= 0 && o->numa == need->numa;
    return 2 * has_room + is_near;
}

int hl_tier_choose(const struct hl_tier_offer *offers, size_t count,
                   const struct hl_tier_need *need)
{
    int best = -1, best_score = -1;
    for (size_t i = 0; i < count; i++) {
        int score = offer_score(&offers[i], need);
        if (score > best_score) {
            best = (int)i;
            best_score = score;
        }
    }
    return best;
}

uint64_t hl_room_to_free(const struct hl_room *room, uint64_t need, double low_pct)
{
    uint64_t low = (uint64_t)((double)room->capacity * low_pct / 100);
    uint64_t above = room->used > low ? room->used - low : 0;
    return above > need ? above : need;
}

bool hl_room_comes(const struct hl_room *room, uint64_t need)
{
    return room->quarantined > 0 && room->free + room->quarantined >= need;
}

bool hl_room_may_come(const struct hl_room *room, uint64_t need)
{
    return need <= room->capacity &&
           (room->has_archive || room->has_derived || room->quarantined > 0);
}

bool hl_room_takes_import(const struct hl_room *room, uint64_t bytes)
{
    if (room->has_archive && room->writes_behind)
        return true;
    return bytes <= room->capacity && (room->has_archive || room->has_derived);
}

bool hl_room_gives(const struct hl_room *room, enum hl_room_kind kind, bool may_wait)
{
    if (kind == HL_ROOM_DERIVED)
        return true;
    return room->has_archive && (kind == HL_ROOM_ARCHIVED || (room->writes_behind && may_wait));
}
