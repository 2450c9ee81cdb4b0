/* controller/planned.h - gangs that run, start or are about to start, and what their ranks will
 * read where. The jobs wing tells this to the placement wing, which prefetches those shards.
 *
 * Owns:    nothing; everything in a gang is borrowed during the call.
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
    int64_t version; /* the version that it loads */
    struct hl_api_split split;
    int dp_size;
    const struct planned_rank *ranks; /* empty for a running gang that was reported before */
    size_t rank_count;
    bool starts; /* it has its slots */
    bool runs;   /* all of its containers run */
};

/* Implemented by the jobs wing. */
struct gang_source {
    void (*each)(struct hl_controller *c,
                 void (*visit)(struct hl_controller *c, const struct planned_gang *g));
    /* Adds an event in words to that job; not to be called within `each`. */
    void (*tell)(struct hl_controller *c, const char *job, const char *kind, const char *text);
};

/* Implemented by the placement wing. */
struct gang_watch {
    /* A gang was placed: look at all gangs now. */
    void (*look)(struct hl_controller *c);
    /* Whether the containers of the attempt may start: the shards that they read are there, or they
     * have waited for them long enough. */
    bool (*may_start)(struct hl_controller *c, const char *job, int attempt);
};

#endif
