#include "core/copies/repair.h"

struct hl_repair_want hl_repair_want(const struct hl_repair_known *known)
{
    bool pooled = known->pool_size > 0;
    return (struct hl_repair_want){.size = pooled                    ? known->pool_size
                                           : known->archive_size > 0 ? known->archive_size
                                                                     : known->stated_size,
                                   .crc = pooled ? known->pool_crc : known->stated_crc,
                                   .crc_known = pooled || known->stated_size > 0};
}

enum hl_repair_answer hl_repair_judge(const struct hl_repair_want *want, hl_status st, uint32_t crc)
{
    switch (st) {
    case HL_OK:
        return !want->crc_known || crc == want->crc ? HL_REPAIR_GOOD : HL_REPAIR_BAD;
    case HL_ECORRUPT:
        return HL_REPAIR_BAD;
    case HL_ENOENT:
        return HL_REPAIR_NONE;
    default:
        return HL_REPAIR_UNASKED;
    }
}

enum hl_repair_copy hl_repair_copy(hl_status st, bool is_whole, bool has_other)
{
    if (st == HL_OK && is_whole)
        return HL_REPAIR_COPY_IS_GOOD;
    if (st != HL_OK && st != HL_ENOENT)
        return HL_REPAIR_COPY_UNKNOWN;
    if (!has_other)
        return HL_REPAIR_COPY_LOST;
    return st == HL_OK ? HL_REPAIR_COPY_REPLACE : HL_REPAIR_COPY_AGAIN;
}
