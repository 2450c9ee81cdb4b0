/* base/log_limit.h - at most one log line a second about what peers can cause at will.
 *
 * Owns:    nothing; the struct is the caller's, all zero at first.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  none.
 * Units:   ns of hl_now_ns.
 * Limits:  none.
 */
#ifndef HL_BASE_LOG_LIMIT_H
#define HL_BASE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct hl_log_limit {
    uint64_t next_ns; /* no line before this time */
    uint64_t held;    /* events without a line since the last one */
};

/* Whether this event gets a line; *others: how many before it got none. */
static inline bool hl_log_limit_passes(struct hl_log_limit *l, uint64_t now_ns, uint64_t *others)
{
    if (now_ns < l->next_ns) {
        l->held++;
        return false;
    }
    *others = l->held;
    *l = (struct hl_log_limit){now_ns + HL_NS_PER_S, 0};
    return true;
}

#endif
