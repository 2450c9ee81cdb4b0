/* core/placement/budget.h - how many bytes moves may transfer on each path now: a token bucket per
 * path. No move begins while a gang starts or a save commits.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL names the path and what is allowed; nothing changes then.
 * Units:   ms, bytes, bytes per second.
 * Limits:  a move may take more than the bucket holds: the bucket goes into debt, and the next move
 *          waits.
 */
#ifndef HL_CORE_PLACEMENT_BUDGET_H
#define HL_CORE_PLACEMENT_BUDGET_H

#include "core/placement/rules.h"

/* Reasons to pause moves; each begins and ends independently. */
enum hl_rest {
    HL_REST_GANG_STARTS = 1,
    HL_REST_SAVE_COMMITS = 2,
};

struct hl_budget_limits {
    double rates[HL_MOVE_PATHS]; /* 0: no move takes this path; HUGE_VAL: no limit */
    int64_t burst_ms;            /* a bucket's capacity is what flows in during this time */
};

struct hl_budget {
    struct hl_budget_limits limits;
    double bytes[HL_MOVE_PATHS]; /* below 0: debt */
    int64_t at_ms;               /* the buckets are filled up to this time */
    unsigned rests;              /* enum hl_rest */
};

/* Starts with full buckets. */
hl_status hl_budget_init(struct hl_budget *b, const struct hl_budget_limits *limits,
                         int64_t now_ms) HL_CHECK;
/* Debt is kept. */
hl_status hl_budget_configure(struct hl_budget *b, const struct hl_budget_limits *limits,
                              int64_t now_ms) HL_CHECK;
void hl_budget_rest(struct hl_budget *b, enum hl_rest why, bool rests);
/* Fills the buckets and reads them, for struct hl_policy_limits. A clock that goes back adds
 * nothing; one that jumps ahead fills them at most. */
void hl_budget_look(struct hl_budget *b, int64_t now_ms, int64_t out[HL_MOVE_PATHS]);
/* A move begins on that path. A cancelled move gives back what it did not send (negative bytes). */
void hl_budget_take(struct hl_budget *b, enum hl_move_path path, int64_t bytes);

#endif
