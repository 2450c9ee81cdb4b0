/* controller/planned.h - gangs that run, start, or are about to, and what their ranks will read
 * where: what the wing of jobs tells the wing that places shards, which fetches that ahead.
 *
 * Owns:    nothing; all of a gang is borrowed for the call.
 * Threads: the Controller's loop.
 * Errors:  none.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_PLANNED_H
#define HL_CONTROLLER_PLANNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"

struct hl_controller;

struct planned_rank {
    uint32_t rank;
    int pp, tp, dp, ep;
    const char *node;
};

struct planned_gang {
    const char *job;
    int attempt;
    const char *model;
    int64_t version; /* that it loads */
    struct hl_api_split split;
    int dp_size;
    const struct planned_rank *ranks; /* none of a gang that runs and was told of before */
    size_t rank_count;
    bool starts; /* it has its slots */
    bool runs;   /* all of its containers do */
};

/* Of the wing of jobs. */
struct gang_source {
    void (*each)(struct hl_controller *c,
                 void (*visit)(struct hl_controller *c, const struct planned_gang *g));
    /* An event of that job, in words; not within `each`. */
    void (*tell)(struct hl_controller *c, const char *job, const char *kind, const char *text);
};

/* Of the wing of placement. */
struct gang_watch {
    /* A gang was placed: look at all of them now. */
    void (*look)(struct hl_controller *c);
    /* The containers of the attempt may start: what they read is there, or they have waited for it
     * as long as they are to. */
    bool (*may_start)(struct hl_controller *c, const char *job, int attempt);
};

#endif
