#include "core/copies/copy_attempt.h"

enum hl_copy_reading hl_copy_reading(const struct hl_copy_source *source)
{
    bool on_node = source->tier == HL_API_TIER_L1 || source->tier == HL_API_TIER_L2;
    if (on_node && source->own_node)
        return HL_COPY_FROM_OWN;
    if (source->tier == HL_API_TIER_L1)
        return HL_COPY_FROM_NONE;
    return source->mappable ? HL_COPY_FROM_MAPPED : HL_COPY_FROM_NET;
}

bool hl_copy_reads_by_net(const struct hl_copy_source *source, hl_status mapped)
{
    return source->has_data && mapped != HL_OK && mapped != HL_ENOENT && mapped != HL_ETIMEDOUT;
}

bool hl_copy_blames_path(hl_status st)
{
    return st != HL_OK && st != HL_ECANCELED && st != HL_ENOENT && st != HL_ESTALE &&
           st != HL_ECORRUPT;
}

bool hl_copy_room_may_come(hl_status refused, const struct hl_copy_room *room)
{
    if (refused != HL_ENOSPC)
        return refused == HL_EEXIST;
    bool fits =
        room->quota == 0 || (room->size <= room->quota && room->used <= room->quota - room->size);
    return room->quarantined > 0 && fits;
}

enum hl_copy_send hl_copy_send_after(enum hl_api_route_path path, hl_status st, bool has_backbone)
{
    if (path != HL_API_ROUTE_PATH_ZMQ)
        return st == HL_EEXIST ? HL_COPY_SEND_LATER : HL_COPY_SEND_ENDS;
    if (st != HL_EUNAVAIL && st != HL_ETIMEDOUT) /* the network and the peer are not at fault */
        return HL_COPY_SEND_ENDS;
    return has_backbone ? HL_COPY_SEND_BACKBONE : HL_COPY_SEND_LATER;
}
