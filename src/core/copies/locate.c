#include "core/copies/locate.h"

void hl_locate_begin(struct hl_locate *l, uint64_t capacity)
{
    l->capacity = capacity;
    l->bytes = 0;
    l->loads = 0;
}

enum hl_locate_fate hl_locate_missing(struct hl_locate *l, const struct hl_locate_found *found)
{
    if (!found->archived && found->away)
        return HL_LOCATE_AWAY;
    if (!found->archived)
        return found->damaged ? HL_LOCATE_DAMAGED : HL_LOCATE_NOWHERE;
    if (found->in_bytes > l->capacity - l->bytes)
        return HL_LOCATE_TOO_MUCH;
    l->bytes += found->in_bytes;
    l->loads++;
    return HL_LOCATE_LOAD;
}

enum hl_locate_turn hl_locate_next(struct hl_locate *l)
{
    if (l->loads == 0)
        return HL_LOCATE_ANSWER;
    return l->rounds++ < HL_LOCATE_ROUNDS ? HL_LOCATE_WAIT : HL_LOCATE_BUSY;
}
