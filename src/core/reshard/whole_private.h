/* What the files of core/reshard/whole.h share. */
#ifndef HL_CORE_RESHARD_WHOLE_PRIVATE_H
#define HL_CORE_RESHARD_WHOLE_PRIVATE_H

#include "core/reshard/whole.h"

/* Stored tensors that are not planned join both plans, or HL_EUNSUPPORTED names one that can't. */
hl_status hl_whole_add_beside(struct hl_whole *w, const struct hl_whole_stored *stored) HL_CHECK;

#endif
