/* ranktable/annotation.h - reads a pod's device annotation, as device plugins write it.
 *
 * Owns:    nothing; the instance it fills belongs to the caller.
 * Threads: any. Pure.
 * Errors:  HL_ENOENT: there is no annotation (yet). HL_EINVAL says why it can't be used.
 * Units:   none.
 * Limits:  64 KiB.
 */
#ifndef HL_RANKTABLE_ANNOTATION_H
#define HL_RANKTABLE_ANNOTATION_H

#include "ranktable/table.h"

/* Fills in everything but group, place and rank index of an instance that has its name and no
 * devices yet. `text` is not NUL-terminated; NULL = there is no annotation. */
hl_status hl_ranktable_annotation(const char *text, size_t len,
                                  struct hl_ranktable_instance *out) HL_CHECK;
/* Reads the value of hccl/rankIndex. HL_EINVAL: it is not a number up to 10000. */
hl_status hl_ranktable_wanted_index(const char *text, size_t len,
                                    struct hl_ranktable_instance *out) HL_CHECK;

#endif
