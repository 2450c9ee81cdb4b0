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

/* Everything but group, place and rank index. Keys, the newest first: ascend.kubectl.kubernetes.io/
 * ascend-910-configuration, ascend.kubectl.kubernetes.io/ascend-npu-configuration,
 * atlas.kubectl.kubernetes.io/ascend-910-configuration. */
hl_status hl_ranktable_annotation(const json_t *pod, struct hl_ranktable_instance *out) HL_CHECK;
/* hccl/rankIndex; -1 when there is none. HL_EINVAL when it is not a number up to 10000. */
hl_status hl_ranktable_wanted_index(const json_t *pod, int32_t *out) HL_CHECK;

#endif
