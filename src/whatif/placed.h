/* whatif/placed.h - runs a trace under the placement policy of the daemons: the code with which the
 * Controller decides (core/placement), in virtual time and with moves that use the links.
 *
 * Owns:    nothing.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, and what the policy returns.
 * Units:   as whatif.h.
 * Limits:  none of its own.
 */
#ifndef HL_WHATIF_PLACED_H
#define HL_WHATIF_PLACED_H

#include "whatif/whatif.h"

hl_status hl_placed_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                        struct hl_whatif_result *out) HL_CHECK;

#endif
