/* core/replace/stalls.h - finds out whether a gang still makes steps, and if not, which rank holds
 * it up.
 *
 * The ranks of a gang wait for each other in every step, so one rank that stalls stalls them all.
 * The culprit is the rank whose process is stopped, or else the one whose step count is behind the
 * others'. If neither applies, the gang is reported without naming a rank.
 *
 * While some ranks still make steps, a rank only counts as stalled after twice the time.
 *
 * A rank that still waits within a step while all others re-form the gang has not noticed that a
 * rank was lost, and the others wait for it: it is named, too, once the last of them has waited
 * that long. Its own silence says nothing then, because it includes the time until the loss was
 * found.
 *
 * A gang that forms, loads or saves makes no steps and is not judged. Nor is a rank that has not
 * made two steps of its generation, because the first step may take long. Only a process that was
 * seen stopped at every look is named whatever its rank was doing.
 *
 * Owns:    nothing.
 * Threads: any. Pure: a rank's values are a snapshot of one moment.
 * Errors:  none.
 * Units:   ms.
 * Limits:  none.
 */
#ifndef HL_CORE_REPLACE_STALLS_H
#define HL_CORE_REPLACE_STALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"

struct hl_stall_rank {
    int rank;
    enum hl_api_rank_activity activity;
    bool stopped;       /* its process is stopped, by a signal or a debugger */
    int64_t stopped_ms; /* for how long every look has seen it stopped */
    int64_t joining_ms; /* for how long every look has seen it re-form the gang */
    int64_t step;       /* the last completed step; -1 = none */
    uint64_t steps;     /* completed in this generation */
    int64_t since_ms;   /* time since the last step was completed */
    int64_t median_ms;  /* median time of a step */
};

struct hl_stall_rule {
    int64_t floor_ms; /* a shorter silence is never a stall, */
    int factor;       /* nor is one shorter than this many median steps */
};

enum hl_stall_kind {
    HL_STALL_NONE,
    HL_STALL_STOPPED,
    HL_STALL_BEHIND,
    HL_STALL_LEFT, /* the others re-form the gang without it */
    HL_STALL_ALL
};

struct hl_stall {
    enum hl_stall_kind kind;
    int rank; /* -1 = no rank stands out */
    int64_t since_ms;
    int64_t limit_ms;
};

struct hl_stall hl_stall_find(const struct hl_stall_rank *ranks, size_t count,
                              const struct hl_stall_rule *rule);

#endif
