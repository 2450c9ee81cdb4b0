/* ranktable/annotation.h - a pod's device annotation, as device plugins write it.
 *
 * Owns:    nothing; the instance it fills belongs to the caller.
 * Threads: any. Pure.
 * Errors:  HL_ENOENT: there is none (yet). HL_EINVAL: it can't be used, and why.
 * Units:   none.
 * Limits:  64 KiB.
 */
#ifndef HL_RANKTABLE_ANNOTATION_H
#define HL_RANKTABLE_ANNOTATION_H

#include "ranktable/table.h"

/* Into an instance that has its name and no devices: everything but group, place and rank index.
 * `text` has no 0 behind it; NULL = there is none. */
hl_status hl_ranktable_annotation(const char *text, size_t len,
                                  struct hl_ranktable_instance *out) HL_CHECK;
/* The value of hccl/rankIndex. HL_EINVAL when it is not a number up to 10000. */
hl_status hl_ranktable_wanted_index(const char *text, size_t len,
                                    struct hl_ranktable_instance *out) HL_CHECK;

#endif
