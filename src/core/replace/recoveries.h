/* core/replace/recoveries.h - which losses and recoveries of a rank are news.
 *
 * A node tells how often a rank was replaced, and of the last replacement whether it has made a
 * step since. A rank that is lost again before that was told has no recovery of its own: it is
 * merged into the next one. So each replacement is a recovery or merged, once.
 *
 * Owns:    nothing; hl_recovery_seen is the caller's, zero-initialised.
 * Threads: one owner. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  what was before the first look is no news, but for a recovery that goes on then.
 */
#ifndef HL_CORE_REPLACE_RECOVERIES_H
#define HL_CORE_REPLACE_RECOVERIES_H

#include <stdbool.h>
#include <stdint.h>

struct hl_recovery_seen {
    bool known;
    uint32_t replaced; /* as it was told */
    uint32_t settled;  /* replacements that are recovered or merged */
};

struct hl_recovery_news {
    uint32_t lost;   /* times since the look before */
    uint32_t merged; /* replacements that made no step before the rank was lost again */
    bool recovered;  /* the last replacement has made a step */
};

struct hl_recovery_news hl_recovery_look(struct hl_recovery_seen *seen, uint32_t replaced,
                                         bool stepped);

#endif
