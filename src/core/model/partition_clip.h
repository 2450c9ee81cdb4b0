/* core/model/partition_clip.h - derives a plan whose tensors are boxes of another plan's tensors.
 *
 * A distributed checkpoint consists of pieces of tensors, cut in whatever way its writer chose. If
 * each piece is treated as a tensor, such a checkpoint is a plan like any other.
 *
 * Owns:    the result owns its tables (hl_partition_fini); names are borrowed from the given plan.
 * Threads: any; pure.
 * Errors:  HL_EINVAL for a box that is not inside its tensor, HL_EUNSUPPORTED for a tensor whose
 *          operations don't write whole rows; both name the tensor.
 * Units:   rows and columns in elements. A vector has rows of one element; of more than two
 *          dimensions the last is the columns.
 * Limits:  2^24 operations.
 */
#ifndef HL_CORE_MODEL_PARTITION_CLIP_H
#define HL_CORE_MODEL_PARTITION_CLIP_H

#include "core/model/partition.h"

struct hl_clip_box {
    uint32_t tensor;
    uint64_t row, rows;
    uint64_t col, cols;
};

/* Tensor i of *out is boxes[i]; the boxes must be in the order of their tensors. */
hl_status hl_partition_clip(const struct hl_partition_plan *plan, const struct hl_clip_box *boxes,
                            size_t count, struct hl_partition_plan *out) HL_CHECK;

#endif
