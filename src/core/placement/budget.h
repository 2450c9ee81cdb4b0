/* core/placement/budget.h - how many bytes moves may take on each path now: a bucket that fills at
 * a rate, and that moves empty. While a gang starts or a save commits no move begins.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL names the path and what is allowed; nothing has changed then.
 * Units:   ms, bytes, bytes per second.
 * Limits:  a move may take more than there is: the bucket owes it, and the next one waits.
 */
#ifndef HL_CORE_PLACEMENT_BUDGET_H
#define HL_CORE_PLACEMENT_BUDGET_H

#include "core/placement/rules.h"

/* Why moves rest; each begins and ends by itself. */
enum hl_rest {
    HL_REST_GANG_STARTS = 1,
    HL_REST_SAVE_COMMITS = 2,
};

struct hl_budget_limits {
    double rates[HL_MOVE_PATHS]; /* 0: no move takes this path; HUGE_VAL: no limit */
    int64_t burst_ms;            /* a bucket holds what comes in this time */
};

struct hl_budget {
    struct hl_budget_limits limits;
    double bytes[HL_MOVE_PATHS]; /* below 0: owed */
    int64_t at_ms;               /* filled up to then */
    unsigned rests;              /* enum hl_rest */
};

/* Full buckets. */
hl_status hl_budget_init(struct hl_budget *b, const struct hl_budget_limits *limits,
                         int64_t now_ms) HL_CHECK;
/* What is owed stays owed. */
hl_status hl_budget_configure(struct hl_budget *b, const struct hl_budget_limits *limits,
                              int64_t now_ms) HL_CHECK;
void hl_budget_rest(struct hl_budget *b, enum hl_rest why, bool rests);
/* For struct hl_policy_limits. A clock that goes back fills nothing, one that jumps ahead no more
 * than a bucket holds. */
void hl_budget_look(struct hl_budget *b, int64_t now_ms, int64_t out[HL_MOVE_PATHS]);
/* A move begins on that path; one that was cancelled gives back what it did not send (bytes below
 * 0). */
void hl_budget_take(struct hl_budget *b, enum hl_move_path path, int64_t bytes);

#endif
