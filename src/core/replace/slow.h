/* core/replace/slow.h - which rank is slower than those that do the same, or than it was, while the
 * others are not?
 *
 * Ranks of a gang wait for each other in every step, so the steps of all take the time of the
 * slowest. A rank is therefore judged by its own time: what of a step it did not wait for others.
 * That is held against the median of the other ranks of its stage at the same moment, who do the
 * same work on machines that are as busy. A rank that is alone in its stage is held against what
 * it usually needs, the lower quartile of its last looks that were not far above that; as it is of
 * another moment, more is asked for. The gang as a whole may become slower, by the data or
 * by the machine: what counts is how much more than the median of the others a rank does. Nobody is
 * slow whose excess is a small part of a step.
 *
 * A rank is slow once it was above a limit for hold_ms and for some steps more than it was below;
 * it is so until the time below a lower limit has used that up again.
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
    uint32_t process;  /* which has its place: another number for each */
    uint64_t reported; /* steps; no judgement without a new one */
    double own_ms;     /* median own time; 0 = not known yet */
    double step_ms;    /* median of whole steps; 0 = not known */
};

#define HL_SLOW_LOOKS 32

/* What is remembered of it. */
struct hl_slow_seen {
    bool slow;
    uint32_t process;
    uint64_t reported;
    double looks_ms[HL_SLOW_LOOKS]; /* own times of this process, the last ones */
    uint64_t looks;                 /* that were taken */
    uint64_t news;                  /* steps since the look before */
    double factor;   /* how much slower than it should be, more than the others are; 0 = unjudged */
    int64_t at_ms;   /* of the last judgement; 0 = there was none */
    int64_t slow_ms; /* how much more time it was slow than not, up to hold_ms */
    uint64_t slow_steps; /* that were made in that time */
};

struct hl_slow_rule {
    double enter, leave; /* factors; enter > leave > 1 */
    double floor_ms;     /* nobody is slow who is by less than that */
    double floor_share;  /* nor by less than this part of a step */
    int64_t hold_ms;
    uint64_t hold_steps; /* nor before so many steps */
};

/* One look at the gang; *worst becomes the slow rank of the highest factor, -1 = none is. */
hl_status hl_slow_look(struct hl_slow_seen *seen, const struct hl_slow_rank *ranks, size_t count,
                       const struct hl_slow_rule *rule, int64_t now_ms, int *worst) HL_CHECK;

#endif
