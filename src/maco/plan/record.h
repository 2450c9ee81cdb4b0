/* maco/plan/record.h - what a run, real or simulated, notes of its tasks.
 *
 * Owns:    nothing.
 * Threads: each worker writes its own.
 * Errors:  none.
 * Units:   nanoseconds of any clock, the same one in all records of a run.
 * Limits:  worker and group numbers below 2^16.
 */
#ifndef HL_MACO_PLAN_RECORD_H
#define HL_MACO_PLAN_RECORD_H

#include <stdint.h>

#include "helios/maco.h"

enum hl_maco_record_kind {
    HL_MACO_COMPUTE = 0, /* task ran on `worker`; joins need no record */
    HL_MACO_COMM = 1,    /* task ran; worker is its group */
    HL_MACO_WAIT = 2,    /* worker had nothing to do; task it waited for or MACO_NONE, have, need */
    HL_MACO_SCHED = 3,   /* a scheduler's work for task; worker numbers the scheduler */
};

/* 32 bytes: a worker writes one or two a task. */
struct hl_maco_record {
    uint64_t start_ns, end_ns;
    uint32_t task; /* the plan's */
    uint16_t worker, kind;
    uint32_t have, need; /* of the event waited for; 0 in other kinds */
};

_Static_assert(sizeof(struct hl_maco_record) == 32, "half a cache line");

#endif
