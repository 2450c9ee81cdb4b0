/* core/copies/copyplan.h - a copy of a shard on order: which source is the nearest, and which step
 * is next.
 *
 * A place that one step does not reach is reached in several: device memory through the host memory
 * beside it, the archive through the pool. Each step is carried out by the daemon that owns the
 * memory.
 *
 * Owns:    nothing; texts of places are borrowed.
 * Threads: any.
 * Errors:  none: every pair of places has a next step.
 * Units:   none.
 * Limits:  a copy takes at most HL_COPY_STEPS_MAX steps.
 */
#ifndef HL_CORE_COPIES_COPYPLAN_H
#define HL_CORE_COPIES_COPYPLAN_H

#include <stdbool.h>

#include "base/status.h"
#include "core/copies/route.h"

#define HL_COPY_STEPS_MAX 6

/* node: who it is, NULL at the L3 host. host: the same text = the same machine, "" = unknown.
 * device: "" = any. */
struct hl_copy_place {
    enum hl_api_tier tier;
    const void *node;
    const char *host;
    const char *device;
};

enum hl_copy_step {
    HL_COPY_DONE,    /* the copy is where it was to be */
    HL_COPY_READ,    /* the node of `lands` reads */
    HL_COPY_SEND,    /* the node that has the bytes sends them */
    HL_COPY_LOAD,    /* L3 brings them into its pool, from the archive where need be */
    HL_COPY_ARCHIVE, /* L3 writes them into the archive */
};

struct hl_copy_move {
    enum hl_copy_step step;
    struct hl_copy_place lands; /* where the bytes are after it */
};

bool hl_copy_same_place(const struct hl_copy_place *a, const struct hl_copy_place *b);
/* Small is near. A copy that is to be sent needs an L2 to be sent from. */
int hl_copy_distance(const struct hl_copy_place *from, const struct hl_copy_place *goal,
                     enum hl_api_operation op);
/* From `at` towards `goal`; `copied`: a step was made, so that being there is the end. */
struct hl_copy_move hl_copy_next(const struct hl_copy_place *at, const struct hl_copy_place *goal,
                                 enum hl_api_operation op, bool copied);

/* A step failed: another source may do where this one failed. What the target refuses (no room, a
 * wrong request) it would refuse of every source. */
bool hl_copy_blames_source(hl_status st);
/* A read failed: another copy may serve. Not with wrong arguments or no memory: it would fail
 * alike. */
bool hl_copy_may_help(hl_status st);
/* The failure was met on the way. What was asked wrongly, or is not there, never was a transfer. */
bool hl_copy_was_tried(hl_status st);

/* The copy at `other` is left when that at `place` is dropped, and lasts: a device forgets. Without
 * such a one no copy is dropped. */
bool hl_copy_outlives(const struct hl_copy_place *other, const struct hl_copy_place *place);
/* Its holder is asked first whether it is there. Not L3, which looks at its archive before it takes
 * a shard out of the pool. */
bool hl_copy_is_confirmed(const struct hl_copy_place *other, const struct hl_copy_place *place);

#endif
