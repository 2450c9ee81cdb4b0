#include "core/catalog/retention.h"

#include <stdlib.h>

#define READER_NS UINT64_C(60000000000) /* between two requests of a client that reads a log */

static int compare_ended(const void *x, const void *y)
{
    const struct hl_ended *a = x, *b = y;
    if (a->since_ms != b->since_ms)
        return a->since_ms < b->since_ms ? -1 : 1;
    if (a->second_ms != b->second_ms)
        return a->second_ms < b->second_ms ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

size_t hl_retention_choose(struct hl_ended *list, size_t count, const struct hl_retention *rule,
                           int64_t now_ms, bool (*is_needed)(void *arg, const void *item),
                           void *arg)
{
    size_t over = rule->keep > 0 && count > rule->keep ? count - rule->keep : 0, n = 0;
    if (count > 0)
        qsort(list, count, sizeof(*list), compare_ended);
    for (size_t i = 0; i < count && n < rule->round; i++) {
        bool old = rule->age_ms > 0 && now_ms - list[i].since_ms > rule->age_ms;
        if (i >= over && !old)
            break; /* sorted by age: all others are younger */
        if (!is_needed(arg, list[i].item)) {
            struct hl_ended goes = list[i];
            list[i] = list[n];
            list[n++] = goes;
        }
    }
    return n;
}

#define LOOK_MIN_MS 50
#define LOOK_MAX_MS 60000

uint64_t hl_trash_look_ms(uint64_t keep_ms)
{
    uint64_t look = keep_ms / 4;
    if (keep_ms == 0)
        return 0;
    return look < LOOK_MIN_MS ? LOOK_MIN_MS : look > LOOK_MAX_MS ? LOOK_MAX_MS : look;
}

bool hl_job_in_use(const struct hl_job_uses *uses)
{
    return uses->unsaved || uses->holds_slots || uses->names_version || uses->has_executor ||
           (uses->was_read && uses->unread_ns < READER_NS);
}
