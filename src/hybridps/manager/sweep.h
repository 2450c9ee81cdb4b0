/* hybridps/manager/sweep.h - tables that the dead have left in shared memory, taken away.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none; what can't be looked into stays where it is.
 * Units:   milliseconds.
 * Limits:  tables of this user, this layout and this PID namespace.
 */
#ifndef HL_HYBRIDPS_MANAGER_SWEEP_H
#define HL_HYBRIDPS_MANAGER_SWEEP_H

#include <stddef.h>

/* Those whose names begin and end so, whose processes have all ended, and in which nobody has
 * looked for the dead for idle_ms; how many they were. A table of the living is not written to. */
size_t hl_manager_sweep(const char *begin, const char *end, int idle_ms);

#endif
