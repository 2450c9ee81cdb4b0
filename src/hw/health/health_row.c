/* Adds one row to a health report; the first failed row becomes the report's reason. */
#include "hw/health/health_private.h"

void hl_health_row(struct hl_health_run *r, const char *name, enum hl_api_health_state state,
                   const char *value, const char *text)
{
    struct hl_api_health *h = r->out;
    if (h->rows.count == HL_HEALTH_ROWS_MAX)
        return;
    h->rows.items[h->rows.count++] =
        (struct hl_api_health_row){.name = name,
                                   .state = state,
                                   .value = hl_arena_strdup(r->arena, value),
                                   .text = hl_arena_strdup(r->arena, text)};
    if (state != HL_API_HEALTH_STATE_FAILED || h->state == HL_API_HEALTH_STATE_FAILED)
        return;
    h->state = HL_API_HEALTH_STATE_FAILED;
    h->reason = hl_arena_printf(r->arena, "%s: %s", name, text);
}
