/* core/reshard/coverage.h - proves that a version is complete: together its ranks hold every
 * logical tensor exactly once.
 *
 * It checks that
 * - the operations of every held tensor fill it from its first byte to its last, in order, and
 *   each lies inside its logical tensor;
 * - no rank holds two tensors with the same name, and ranks with the same (pp, tp, ep) hold the
 *   same ranges under the same name, with equal CRCs; this includes padding;
 * - every element of every logical tensor is held exactly once. Tensors that share one box must
 *   share all boxes, in the same order; they are replicas and must have equal CRCs. Padding covers
 *   nothing;
 * - if two stages hold the same padding of one logical tensor at the same (tp, ep), as for a tied
 *   head, their CRCs are equal.
 *
 * It trusts that each rank's tensors are what its plan says: two tensors of the same shape that
 * were swapped before their CRCs were computed are only detected if a replica was not swapped.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL (missing, double, out of place) and HL_ECORRUPT (replicas differ) name tensor,
 *          range and ranks.
 * Units:   bytes; CRC-32 as in base/crc32.h, of all of a tensor's bytes.
 * Limits:  2^26 boxes. Time: n log n in the number of boxes, plus n times the number of boxes side
 *          by side in a row.
 */
#ifndef HL_CORE_RESHARD_COVERAGE_H
#define HL_CORE_RESHARD_COVERAGE_H

#include "core/model/partition.h"

/* A tensor that a rank holds; everything is borrowed. */
struct hl_coverage_tensor {
    const char *name;
    int rank;
    int pp;
    int tp;
    int ep;
    uint64_t size;
    uint32_t crc32;
    const struct hl_copy_op *ops;
    uint32_t op_count;
};

struct hl_coverage {
    const struct hl_tensor *logical;
    size_t logical_count;
    const unsigned char *optional; /* not 0: the logical tensor may be missing; NULL = none may */
    /* one of each pair suffices; if both are held, they are replicas */
    const struct hl_partition_equal *equal;
    size_t equal_count;
    const struct hl_coverage_tensor *held;
    size_t held_count;
};

hl_status hl_coverage_check(const struct hl_coverage *c) HL_CHECK;

#endif
