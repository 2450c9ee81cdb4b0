/* l3d/cut_plans.h - cache of the plans of cuts, for the next version of the same model.
 *
 * A cut is determined by the model's config, the wanted split and the tensors of the stored shards.
 * Training saves version after version of the same tensors, so the plan for the first one serves
 * them all. The key is a digest of those three.
 *
 *     cut_plans_get(key) --known--> users + 1
 *          '--else: make, one at a time--> kept, until room is needed
 *     cut_plans_put --> users - 1; unused ones go, the longest unused first, when all are too large
 *
 * Owns:    cut_plans owns its plans; a user borrows one from get to put.
 * Threads: any; one plan is made at a time, and only callers that need it or another new one wait
 *          for it. A plan does not change.
 * Errors:  those of `make`, which leave nothing; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  `limit` bytes of unused plans; 0: none is kept.
 */
#ifndef HL_L3D_CUT_PLANS_H
#define HL_L3D_CUT_PLANS_H

#include <stdbool.h>

#include "core/digest.h"
#include "core/reshard/reshard_state.h"
#include "core/reshard/whole.h"

struct cut_plan {
    struct hl_whole whole; /* parameters */
    struct hl_reshard_state state;
    struct hl_reshard_plan state_plan;
    bool has_state;
};

/* Fills a zeroed plan, which may be half made after a failure. */
typedef hl_status (*cut_plan_make)(void *arg, struct cut_plan *plan);

struct cut_plans_info {
    uint64_t made, reused; /* since the start */
    uint64_t bytes;        /* kept now */
};

struct cut_plans;

hl_status cut_plans_create(uint64_t limit, struct cut_plans **out) HL_CHECK;
/* No plan may be in use. NULL is fine. */
void cut_plans_destroy(struct cut_plans *c);
hl_status cut_plans_get(struct cut_plans *c, struct hl_digest key, cut_plan_make make, void *arg,
                        const struct cut_plan **out) HL_CHECK;
/* NULL is fine. */
void cut_plans_put(struct cut_plans *c, const struct cut_plan *plan);
void cut_plans_info(struct cut_plans *c, struct cut_plans_info *out);

#endif
