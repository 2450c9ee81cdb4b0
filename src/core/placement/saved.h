/* core/placement/saved.h - the part of a shard's use and life that outlives the process: taken from
 * one placement and given to a later one.
 *
 * The use is valid wherever the shard is. The life is valid only at the place where it was
 * recorded; at another place it starts again, as for any shard that is found there. What has been
 * noted of its copies since then follows the recorded history. A shard that was moving gets the
 * state that it had before the move.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOENT: the shard is not placed; HL_ECONFLICT: it has been used or changed since, and
 *          that takes precedence. Implausible numbers are clamped or left out.
 * Units:   ms of the receiver's clock; the caller translates times across a restart.
 * Limits:  the HL_SAVED_CHANGES newest changes.
 */
#ifndef HL_CORE_PLACEMENT_SAVED_H
#define HL_CORE_PLACEMENT_SAVED_H

#include <stdbool.h>

#include "core/placement/placement.h"

#define HL_SAVED_CHANGES 8

struct hl_saved {
    struct hl_attributes use;
    int64_t window_ms; /* the window for which its counts were made */
    struct hl_place place;
    int64_t changed_ms; /* time of the last change of its life */
    unsigned change_count;
    struct hl_change changes[HL_SAVED_CHANGES]; /* newest first */
};

/* Takes the data of a placed shard, which then counts as kept and no longer as `unsaved`. */
void hl_saved_take(struct hl_placement *p, uint32_t index, struct hl_saved *out);
/* The data taken could not be stored: the shard counts as unsaved again. */
void hl_saved_undo(struct hl_placement *p, struct hl_id id);
hl_status hl_saved_give_use(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                            int64_t now_ms) HL_CHECK;
/* HL_EBUSY: the shard is not at that place, or not yet. */
hl_status hl_saved_give_life(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                             int64_t now_ms) HL_CHECK;

#endif
