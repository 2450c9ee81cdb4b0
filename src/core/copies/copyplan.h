/* core/copies/copyplan.h - plans an ordered copy of a shard: which source is nearest, and which
 * step is next.
 *
 * Some places take several steps: device memory is reached through the host memory beside it, the
 * archive through the pool. Each step is carried out by the daemon that owns the memory.
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

/* node: identifies the node, NULL for the L3 host. host: equal strings mean the same machine, "" =
 * unknown. device: "" = any. */
struct hl_copy_place {
    enum hl_api_tier tier;
    const void *node;
    const char *host;
    const char *device;
};

enum hl_copy_step {
    HL_COPY_DONE,    /* the copy has arrived at the goal */
    HL_COPY_READ,    /* the node of `lands` reads the bytes */
    HL_COPY_SEND,    /* the node that has the bytes sends them */
    HL_COPY_LOAD,    /* L3 loads them into its pool, from the archive if necessary */
    HL_COPY_ARCHIVE, /* L3 writes them into the archive */
};

struct hl_copy_move {
    enum hl_copy_step step;
    struct hl_copy_place lands; /* where the bytes are after it */
};

bool hl_copy_same_place(const struct hl_copy_place *a, const struct hl_copy_place *b);
/* Smaller is nearer. A copy can only be sent from an L2. */
int hl_copy_distance(const struct hl_copy_place *from, const struct hl_copy_place *goal,
                     enum hl_api_operation op);
/* The next step from `at` towards `goal`. copied: a step was already made, so arriving at the goal
 * is the end. */
struct hl_copy_move hl_copy_next(const struct hl_copy_place *at, const struct hl_copy_place *goal,
                                 enum hl_api_operation op, bool copied);

/* A step failed because of its source, so another source may work. What the target refuses (no
 * room, an invalid request) it would refuse from any source. */
bool hl_copy_blames_source(hl_status st);
/* A read failed, and another copy may help. False for invalid arguments or lack of memory: it would
 * fail in the same way. */
bool hl_copy_may_help(hl_status st);
/* The failure happened during a transfer. An invalid request, or one for a shard that does not
 * exist, never was a transfer. */
bool hl_copy_was_tried(hl_status st);

/* The copy at `other` remains when the one at `place` is dropped, and is durable; device memory is
 * not. Without such a copy none is dropped. */
bool hl_copy_outlives(const struct hl_copy_place *other, const struct hl_copy_place *place);
/* The holder of `other` must first confirm its copy. L3 need not, because it checks its archive
 * itself before it removes a shard from the pool. */
bool hl_copy_is_confirmed(const struct hl_copy_place *other, const struct hl_copy_place *place);

#endif
