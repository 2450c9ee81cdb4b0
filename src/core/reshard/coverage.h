/* core/reshard/coverage.h - the proof that a version is whole: what its ranks hold, taken together,
 * is every logical tensor once.
 *
 * It is checked that
 * - the operations of every held tensor fill it from its first byte to its last, in order, and
 *   each lies inside its logical tensor;
 * - no rank holds two tensors of one name, and ranks of equal (pp, tp, ep) hold the same ranges
 *   under one name, with equal CRCs: padding is compared here;
 * - every element of every logical tensor is held, and held once: tensors that share a box share
 *   all of them, in the same order, and are replicas with equal CRCs. Padding covers nothing;
 * - tensors of two stages that are the same padding of one logical tensor at one (tp, ep), as of a
 *   tied head, have equal CRCs.
 *
 * What a rank holds is believed to be where its plan says: two tensors of equal shape that were
 * swapped before their CRCs were made are found only where a replica was not.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL (missing, double, out of place) and HL_ECORRUPT (replicas differ) name tensor,
 *          range and ranks.
 * Units:   bytes; CRC-32 as in base/crc32.h, of all of a tensor's bytes.
 * Limits:  2^26 boxes. Time n log n in the boxes, and n times the boxes side by side in a row.
 */
#ifndef HL_CORE_RESHARD_COVERAGE_H
#define HL_CORE_RESHARD_COVERAGE_H

#include "core/model/partition.h"

/* A tensor of a rank; all is borrowed. */
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
    const unsigned char *optional; /* not 0: the logical tensor may be held by none; NULL = none */
    const struct hl_partition_equal *equal; /* one of each pair is enough, and both are replicas */
    size_t equal_count;
    const struct hl_coverage_tensor *held;
    size_t held_count;
};

hl_status hl_coverage_check(const struct hl_coverage *c) HL_CHECK;

#endif
