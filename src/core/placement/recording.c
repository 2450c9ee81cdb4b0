#include "core/placement/recording.h"

#include <stdlib.h>

hl_status hl_recording_start(struct hl_recording *r)
{
    if (hl_recording_is_on(r))
        return HL_OK;
    r->entries = calloc(HL_RECORDING_ROOM, sizeof(*r->entries));
    if (r->entries == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the last accesses of shards");
    r->next = 0;
    return HL_OK;
}

void hl_recording_stop(struct hl_recording *r)
{
    free(r->entries);
    *r = (struct hl_recording){0};
}

void hl_recording_add(struct hl_recording *r, const struct hl_recorded *entry)
{
    if (hl_recording_is_on(r))
        r->entries[r->next++ % HL_RECORDING_ROOM] = *entry;
}

const struct hl_recorded *hl_recording_take(const struct hl_recording *r, uint64_t *cursor,
                                            uint64_t *lost)
{
    uint64_t oldest = r->next > HL_RECORDING_ROOM ? r->next - HL_RECORDING_ROOM : 0;
    if (*cursor > r->next)
        *cursor = r->next;
    if (*cursor < oldest) {
        *lost += oldest - *cursor;
        *cursor = oldest;
    }
    return *cursor < r->next ? &r->entries[(*cursor)++ % HL_RECORDING_ROOM] : NULL;
}

uint32_t hl_recorded_span(int64_t before_ms, int64_t at_ms)
{
    int64_t span = before_ms < 0 ? HL_RECORDED_SPAN_MS : at_ms - before_ms;
    if (span < 0)
        return 0;
    return span < HL_RECORDED_SPAN_MS ? (uint32_t)span : HL_RECORDED_SPAN_MS;
}
