/* core/replace/slow.h - which rank is slower than it was, or than those that do the same, while the
 * others are not?
 *
 * Ranks of a gang wait for each other in every step, so the steps of all take the time of the
 * slowest. A rank is therefore judged by its own time: what of a step it did not wait for others.
 * That is held against its best one, or where that is less against the median of the other ranks of
 * its stage, who do the same work. The gang as a whole may become slower, by the data or by the
 * machine: what counts is how much more than the median of the others a rank does.
 *
 * A rank is slow once it was above a limit for hold_ms more than it was below; it is so until the
 * time below a lower limit has used that up again.
 *
 * Owns:    nothing; hl_slow_seen is the caller's, zero-initialised.
 * Threads: one owner. Pure: time is an argument.
 * Errors:  HL_ENOMEM.
 * Units:   ms of any clock that does not step.
 * Limits:  gangs of one rank are not judged.
 */
#ifndef HL_CORE_REPLACE_SLOW_H
#define HL_CORE_REPLACE_SLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A rank of now. */
struct hl_slow_rank {
    int stage;         /* ranks of one do the same work */
    uint32_t process;  /* counts the processes that had its place */
    uint64_t reported; /* steps; no judgement without a new one */
    double own_ms;     /* median own time; 0 = not known yet */
};

/* What is remembered of it. */
struct hl_slow_seen {
    bool slow;
    uint32_t process;
    uint64_t reported;
    double best_ms;  /* the least own time of this process; 0 = not known */
    double factor;   /* how much slower than it should be, more than the others are; 0 = unjudged */
    int64_t at_ms;   /* of the last judgement; 0 = there was none */
    int64_t slow_ms; /* how much more time it was slow than not, up to hold_ms */
};

struct hl_slow_rule {
    double enter, leave; /* factors; enter > leave > 1 */
    double floor_ms;     /* nobody is slow who is by less than that */
    int64_t hold_ms;
};

/* One look at the gang; *worst becomes the slow rank of the highest factor, -1 = none is. */
hl_status hl_slow_look(struct hl_slow_seen *seen, const struct hl_slow_rank *ranks, size_t count,
                       const struct hl_slow_rule *rule, int64_t now_ms, int *worst) HL_CHECK;

#endif
