/* maco/trace/trace.h - makes a trace from what a run recorded.
 *
 * Owns:    a trace copies the records and what it needs of the plan, so the plan may be freed
 *          first.
 * Threads: read-only once made; any.
 * Errors:  HL_EINVAL: a record of a task that the plan does not have, or one that ends before it
 *          starts; HL_ENOMEM.
 * Units:   nanoseconds of any clock, the same one in all records.
 * Limits:  worker and group numbers below 2^16.
 */
#ifndef HL_MACO_TRACE_TRACE_H
#define HL_MACO_TRACE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/maco.h"
#include "maco/plan/plan.h"

/* Records in any order; each task at most once as compute or comm. */
hl_status hl_maco_trace_new(const maco_plan *p, const struct hl_maco_record *r, size_t n,
                            maco_trace **out) HL_CHECK;

#endif
