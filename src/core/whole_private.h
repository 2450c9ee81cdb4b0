/* What the files of core/whole.h share. */
#ifndef HL_CORE_WHOLE_PRIVATE_H
#define HL_CORE_WHOLE_PRIVATE_H

#include "core/whole.h"

/* Stored tensors that are not planned join both plans, or HL_EUNSUPPORTED names one that can't. */
hl_status hl_whole_add_beside(struct hl_whole *w, const struct hl_whole_stored *stored) HL_CHECK;

#endif
