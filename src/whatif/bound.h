/* whatif/bound.h - a lower bound of the waiting time of all loads of a trace, whatever is evicted
 * from each tier: even for a policy that knows the trace and can split shards, and whose loads
 * never queue behind each other. docs/sim.md says for which policies it holds and why.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure; the result is the same on every machine, because only + - * / and
 *          comparisons are used.
 * Errors:  HL_ENOMEM.
 * Units:   seconds.
 * Limits:  none of its own.
 */
#ifndef HL_WHATIF_BOUND_H
#define HL_WHATIF_BOUND_H

#include "whatif/whatif.h"

hl_status hl_bound_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                       struct hl_whatif_result *out) HL_CHECK;

#endif
