/* core/replace/slow.h - finds the rank that is slower than its peers, or slower than it used to be,
 * while the others are not.
 *
 * The ranks of a gang wait for each other in every step, so every rank's step takes as long as the
 * slowest one's. A rank is therefore judged by its own time: the part of a step in which it did not
 * wait for others. Own time is compared with the median of the other ranks of its stage at the same
 * moment, because they do the same work on equally busy machines. A rank that is alone in its stage
 * is compared with its own usual time: the lower quartile of its recent looks, leaving out looks
 * far above that. Because those looks come from other moments, the threshold is higher there. The
 * whole gang may get slower, because of the data or the machines; what counts is how far a rank
 * exceeds the median of the others' ratios. A rank whose excess is only a small part of a step is
 * never slow.
 *
 * A rank becomes slow once the time it spent above a limit exceeds the time below by hold_ms, with
 * enough steps made meanwhile. It stays slow until time below a lower limit has used up that
 * balance again.
 *
 * Owns:    nothing; hl_slow_seen is the caller's, zero-initialised.
 * Threads: one owner. Pure: time is an argument.
 * Errors:  HL_ENOMEM.
 * Units:   ms of any clock that does not jump.
 * Limits:  gangs of one rank are not judged.
 */
#ifndef HL_CORE_REPLACE_SLOW_H
#define HL_CORE_REPLACE_SLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A rank's current measurements. */
struct hl_slow_rank {
    int stage;         /* ranks of one stage do the same work */
    uint32_t process;  /* the process that is the rank now; each replacement has another number */
    uint64_t reported; /* steps reported so far; without a new one the rank is not judged */
    double own_ms;     /* median own time per step; 0 = not known yet */
    double step_ms;    /* median time of whole steps; 0 = not known */
};

#define HL_SLOW_LOOKS 32

/* What is remembered about a rank between looks. */
struct hl_slow_seen {
    bool slow;
    uint32_t process;
    uint64_t reported;
    double looks_ms[HL_SLOW_LOOKS]; /* the last own times of this process; a ring */
    uint64_t looks;                 /* looks taken so far */
    uint64_t news;                  /* steps since the previous look */
    /* its slowdown, relative to the median slowdown of the others; 0 = not judged yet */
    double factor;
    int64_t at_ms;       /* time of the last judgement; 0 = none yet */
    int64_t slow_ms;     /* balance of slow time over time that was not slow, at most hold_ms */
    uint64_t slow_steps; /* steps made in that slow time */
};

struct hl_slow_rule {
    double enter, leave; /* factors; enter > leave > 1 */
    double floor_ms;     /* a rank is not slow if its excess is less than this, */
    double floor_share;  /* or less than this fraction of a step */
    int64_t hold_ms;
    uint64_t hold_steps; /* nor before it made this many slow steps */
};

/* Takes one look at the gang. *worst becomes the slow rank with the highest factor; -1 = no rank is
 * slow. */
hl_status hl_slow_look(struct hl_slow_seen *seen, const struct hl_slow_rank *ranks, size_t count,
                       const struct hl_slow_rule *rule, int64_t now_ms, int *worst) HL_CHECK;

#endif
