/* core/replace/stalls.h - does a gang make steps, and if not, who keeps it from that?
 *
 * Ranks of a gang wait for each other in every step, so all of them stand still when one does. It
 * is the one whose process is stopped, or else the one whose steps are behind the others'. Where
 * neither is so, the gang is named without a rank.
 *
 * Where some ranks go on, one is a stall after twice the time.
 *
 * A rank that still waits within a step while all others come together again has not heard of
 * their loss, and they wait for it: it is named, too.
 *
 * A gang that comes together, loads or saves makes no steps, and is not judged; nor is a rank that
 * has not made two steps of its generation, for the first one may take long. Only a process that
 * was seen stopped all the time is named whatever its rank was busy with.
 *
 * Owns:    nothing.
 * Threads: any. Pure: what is said of a rank is of one moment.
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
    bool stopped;       /* its process does not run: a stop signal, a debugger */
    int64_t stopped_ms; /* so long it was seen like that at every look */
    int64_t step;       /* the last one that ended; -1 = none */
    uint64_t steps;     /* of this generation */
    int64_t since_ms;   /* how long ago that was */
    int64_t median_ms;  /* of a step */
};

struct hl_stall_rule {
    int64_t floor_ms; /* no shorter silence is a stall */
    int factor;       /* nor one of fewer median steps than this */
};

enum hl_stall_kind {
    HL_STALL_NONE,
    HL_STALL_STOPPED,
    HL_STALL_BEHIND,
    HL_STALL_LEFT, /* the others come together again without it */
    HL_STALL_ALL
};

struct hl_stall {
    enum hl_stall_kind kind;
    int rank; /* -1 = nothing tells them apart */
    int64_t since_ms;
    int64_t limit_ms;
};

struct hl_stall hl_stall_find(const struct hl_stall_rank *ranks, size_t count,
                              const struct hl_stall_rule *rule);

#endif
