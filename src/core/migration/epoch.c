#include "core/migration/epoch.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t hl_epoch_next(uint64_t last, int64_t wall_s)
{
    return wall_s > 0 && (uint64_t)wall_s > last ? (uint64_t)wall_s : last + 1;
}

hl_status hl_epoch_hear(struct hl_epoch *newest, const struct hl_epoch *told)
{
    if (told->number == 0)
        return HL_OK;
    if (!hl_id_is_none(told->cluster) && !hl_id_equal(told->cluster, newest->cluster)) {
        *newest = *told;
        return HL_OK;
    }
    if (told->number < newest->number)
        return hl_fail(HL_EPERM,
                       "this belongs to Controller epoch %" PRIu64 ", and epoch %" PRIu64
                       " has begun; end the Controller that was replaced",
                       told->number, newest->number);
    newest->number = told->number;
    return HL_OK;
}

void hl_epoch_print(const struct hl_epoch *epoch, char text[HL_EPOCH_TEXT_MAX])
{
    snprintf(text, HL_EPOCH_TEXT_MAX, "%s %" PRIu64 "\n", hl_id_format(epoch->cluster).s,
             epoch->number);
}

hl_status hl_epoch_parse(const char *text, struct hl_epoch *out)
{
    char id[33], more;
    struct hl_epoch epoch;
    if (sscanf(text, "%32s %" SCNu64 " %c", id, &epoch.number, &more) != 2 ||
        hl_id_parse(id, &epoch.cluster) != HL_OK)
        return hl_fail(HL_EINVAL, "'%.64s' is not an epoch of a Controller", text);
    *out = epoch;
    return HL_OK;
}
