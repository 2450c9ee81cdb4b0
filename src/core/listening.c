#include "core/listening.h"

#define NS_PER_MS 1000000

void hl_listening_init(struct hl_listening *l, uint64_t step_ns, uint64_t now_ns, int64_t wall_ms)
{
    *l = (struct hl_listening){.listened_ns = 1,
                               .step_ns = step_ns,
                               .checked_ns = now_ns,
                               .checked_wall_ms = wall_ms,
                               .started_ns = now_ns,
                               .started_wall_ms = wall_ms};
}

struct hl_listening_gap hl_listening_check(struct hl_listening *l, uint64_t now_ns, int64_t wall_ms)
{
    struct hl_listening_gap gap = {0};
    uint64_t passed = now_ns > l->checked_ns ? now_ns - l->checked_ns : 0;
    bool late = passed > l->step_ns;
    uint64_t counted = !late ? passed : l->late ? l->step_ns : 0;
    int64_t stepped = wall_ms - l->checked_wall_ms - (int64_t)(passed / NS_PER_MS);
    if (stepped >= HL_WALL_STEP_MS || stepped <= -HL_WALL_STEP_MS)
        gap.stepped_ms = stepped;
    gap.paused_ns = passed - counted;
    l->listened_ns += counted;
    l->late = late;
    l->checked_ns = now_ns;
    l->checked_wall_ms = wall_ms;
    return gap;
}

int64_t hl_listening_steady_ms(const struct hl_listening *l, uint64_t now_ns)
{
    return l->started_wall_ms + (int64_t)((now_ns - l->started_ns) / NS_PER_MS);
}
