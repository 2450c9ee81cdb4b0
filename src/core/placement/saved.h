/* core/placement/saved.h - what of a shard's use and life outlives the process: it is taken from
 * one placement, and given to a later one.
 *
 * Its use holds wherever the shard is. Its life holds where it was left: at another place it
 * begins anew, as with any shard that is found there. A shard that was moving gets the life that it
 * had before.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOENT: the shard is not placed; HL_ECONFLICT: it has been used, or lived, since, and
 *          that holds. Foreign numbers are clamped, or left out.
 * Units:   ms of the receiver's clock: who keeps it over a restart translates.
 * Limits:  the HL_SAVED_CHANGES newest changes.
 */
#ifndef HL_CORE_PLACEMENT_SAVED_H
#define HL_CORE_PLACEMENT_SAVED_H

#include <stdbool.h>

#include "core/placement/placement.h"

#define HL_SAVED_CHANGES 8

struct hl_saved {
    struct hl_attributes use;
    int64_t window_ms; /* its counts are of that one */
    struct hl_place place;
    int64_t changed_ms; /* its life is as it is since then */
    unsigned change_count;
    struct hl_change changes[HL_SAVED_CHANGES]; /* the newest first */
};

/* Of a shard that is placed, which is kept from now on and not `unsaved` any more. */
void hl_saved_take(struct hl_placement *p, uint32_t index, struct hl_saved *out);
/* What was taken was not kept. */
void hl_saved_undo(struct hl_placement *p, struct hl_id id);
hl_status hl_saved_give_use(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                            int64_t now_ms) HL_CHECK;
/* HL_EBUSY: it is not at its place, or not yet. */
hl_status hl_saved_give_life(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                             int64_t now_ms) HL_CHECK;

#endif
