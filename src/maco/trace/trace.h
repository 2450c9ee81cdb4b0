/* maco/trace/trace.h - what a run recorded, as the runtimes hand it over.
 *
 * Owns:    a trace copies the records and what it needs of the plan, which may go before it.
 * Threads: read only once made, any.
 * Errors:  HL_EINVAL: a record of a task that the plan has not, or that ends before it starts;
 *          HL_ENOMEM.
 * Units:   nanoseconds of any clock, the same one in all records.
 * Limits:  worker and group numbers below 2^16.
 */
#ifndef HL_MACO_TRACE_TRACE_H
#define HL_MACO_TRACE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
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

/* Records in any order; each task at most once as compute or comm. */
hl_status hl_maco_trace_new(const maco_plan *p, const struct hl_maco_record *r, size_t n,
                            maco_trace **out) HL_CHECK;

#endif
