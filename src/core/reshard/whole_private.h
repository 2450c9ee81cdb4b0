/* core/reshard/whole_private.h - shared by the files that implement core/reshard/whole.h.
 *
 * Threads: one at a time per plan.
 */
#ifndef HL_CORE_RESHARD_WHOLE_PRIVATE_H
#define HL_CORE_RESHARD_WHOLE_PRIVATE_H

#include "core/reshard/whole.h"

/* Adds stored tensors that are not in the plan to both plans; HL_EUNSUPPORTED names one that can't
 * be added. */
hl_status hl_whole_add_beside(struct hl_whole *w, const struct hl_whole_stored *stored) HL_CHECK;

#endif
