/* core/replace/replacing.h - decides whether a failed rank process, or a failed gang, is replaced,
 * and after which delay.
 *
 * Owns:    nothing.
 * Threads: any. Pure: time is an argument.
 * Errors:  none.
 * Units:   ms of any clock that does not jump.
 * Limits:  none.
 */
#ifndef HL_CORE_REPLACE_REPLACING_H
#define HL_CORE_REPLACE_REPLACING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/replace/exits.h"

#define HL_REPLACE_WAIT_MS     1000
#define HL_REPLACE_WAIT_MAX_MS 60000

struct hl_replace_rule {
    int max;           /* replacements within stable_ms; 0 = none */
    int64_t stable_ms; /* after this time without a loss, the count restarts at 0; 0 = never */
    int64_t backoff_ms, backoff_max_ms; /* 0 = HL_REPLACE_WAIT_MS, HL_REPLACE_WAIT_MAX_MS */
};

/* Zero-initialise. */
struct hl_replace_count {
    int losses;
    int used;      /* used of the budget: losses that count */
    int fruitless; /* consecutive losses without a step in between, not counting the first */
    /* time of the last loss; for a gang, also since when all of it has been running */
    int64_t last_ms;
};

/* True: replace it after *wait_ms. The first replacement is immediate, and so is one after the
 * process made steps; after that each wait is twice the previous one. A process that made no steps
 * never counts as stable. */
bool hl_replace_next(struct hl_replace_count *count, const struct hl_replace_rule *rule,
                     enum hl_failure_then then, bool made_steps, int64_t now_ms, int64_t *wait_ms);

#endif
