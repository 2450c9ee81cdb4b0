/* CRCs for the tensors of a plan whose bytes a test does not make. */
#ifndef TESTS_UNIT_CORE_PLAN_CRC_H
#define TESTS_UNIT_CORE_PLAN_CRC_H

#include "base/crc32.h"
#include "core/model/partition.h"

/* A function of the bytes' sources: equal for replicas, different for all else. */
static inline uint32_t crc_of(const struct hl_partition_plan *p, uint32_t tensor)
{
    uint32_t crc = 0;
    for (uint32_t i = p->op_first[tensor]; i < p->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &p->ops[i];
        const uint64_t words[] = {op->kind, op->source, op->src,    op->dst, op->rows,
                                  op->cols, op->run,    op->stride, op->step};
        crc = hl_crc32(crc, words, sizeof(words));
    }
    return crc;
}

#endif
