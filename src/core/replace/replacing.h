/* core/replace/replacing.h - a rank's process, or a whole gang, has failed: is another one started
 * in its place, and when?
 *
 * Owns:    nothing.
 * Threads: any. Pure: time is an argument.
 * Errors:  none.
 * Units:   ms of any clock that does not step.
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
    int64_t stable_ms; /* without a loss for so long, they count from 0 again; 0 = never */
    int64_t backoff_ms, backoff_max_ms; /* 0 = HL_REPLACE_WAIT_MS, HL_REPLACE_WAIT_MAX_MS */
};

/* Zero-initialise. */
struct hl_replace_count {
    int losses;
    int used;        /* of the budget: losses that count */
    int fruitless;   /* losses in a row with no step between, but the first */
    int64_t last_ms; /* of the last loss; of a gang also: since when all of it runs */
};

/* True: replace it after *wait_ms. The first time at once, also when it had made steps; from then
 * on each wait is twice the one before. Without steps nothing counts as stable. */
bool hl_replace_next(struct hl_replace_count *count, const struct hl_replace_rule *rule,
                     enum hl_failure_then then, bool made_steps, int64_t now_ms, int64_t *wait_ms);

#endif
