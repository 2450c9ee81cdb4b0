/* core/replace/recoveries.h - finds out which losses and recoveries of a rank are new since the
 * last look.
 *
 * A node reports how often a rank was replaced, and whether the last replacement has made a step
 * since. A rank that is lost again before such a step was reported gets no recovery of its own:
 * that replacement is merged into the next one. So each replacement counts exactly once, as a
 * recovery or as merged.
 *
 * Owns:    nothing; hl_recovery_seen is the caller's, zero-initialised.
 * Threads: one owner. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  whatever happened before the first look is not reported, except a recovery that is still
 *          in progress then.
 */
#ifndef HL_CORE_REPLACE_RECOVERIES_H
#define HL_CORE_REPLACE_RECOVERIES_H

#include <stdbool.h>
#include <stdint.h>

struct hl_recovery_seen {
    bool known;
    uint32_t replaced; /* count at the last look */
    uint32_t settled;  /* replacements counted as recovered or merged */
};

struct hl_recovery_news {
    uint32_t lost;   /* losses since the previous look */
    uint32_t merged; /* replacements that made no step before the rank was lost again */
    bool recovered;  /* the last replacement has made a step */
};

struct hl_recovery_news hl_recovery_look(struct hl_recovery_seen *seen, uint32_t replaced,
                                         bool stepped);

#endif
