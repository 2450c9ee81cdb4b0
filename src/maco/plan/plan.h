/* maco/plan/plan.h - what only the back ends ask of a compiled plan, beside maco_plan_read.
 *
 * Owns:    a plan all it names; it keeps nothing of the graph but the caller's pointers.
 * Threads: read only, any.
 * Errors:  HL_EINVAL where an index is none of the plan's.
 * Units:   tasks are the plan's (maco_plan_view.tasks), not the graph's ids.
 * Limits:  none.
 */
#ifndef HL_MACO_PLAN_PLAN_H
#define HL_MACO_PLAN_PLAN_H

#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"

/* Never that of another plan of this process, freed ones included. */
uint64_t hl_maco_plan_serial(const maco_plan *p);
/* What CUSTOM_... calls: `user` of its task. */
hl_status hl_maco_plan_function(const maco_plan *p, uint64_t user, maco_function *f,
                                void **arg) HL_CHECK;
/* Tasks that must be done before `task`, joins looked through. Borrowed. */
const uint32_t *hl_maco_plan_parents(const maco_plan *p, uint32_t task, uint32_t *n);
const char *hl_maco_plan_name(const maco_plan *p, uint32_t task);

/* Hash of the first n collectives of a group, SEND and RECV left out; of all where n is UINT32_MAX.
 * What the members of a group compare; the least n where they differ is the task that differs. In
 * it goes of each: type, dtype, count, op, root, tag, ranks, the name that the caller gave, and how
 * many that are alike in all this were added before it. */
uint64_t hl_maco_plan_order_hash(const maco_plan *p, uint32_t group, uint32_t n);
/* The nth collective (0..) of a group; MACO_NONE. */
uint32_t hl_maco_plan_collective(const maco_plan *p, uint32_t group, uint32_t n);
/* How many that are alike were added before this collective. */
uint32_t hl_maco_plan_alike(const maco_plan *p, uint32_t task);

#endif
