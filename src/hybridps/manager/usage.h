/* hybridps/manager/usage.h - the node's table, read by who only wants to know.
 *
 * Owns:    nothing.
 * Threads: any; no lock is taken, so nobody who holds one can keep the reader waiting.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  each number is right by itself, not at one moment with the others.
 */
#ifndef HL_HYBRIDPS_MANAGER_USAGE_H
#define HL_HYBRIDPS_MANAGER_USAGE_H

#include "hybridps/manager/table.h"

struct hl_manager_use {
    pid_t pid;
    uint64_t bytes;
};

/* Every process but this one, and what it has in use on a device (0 is the host), at most `max` of
 * them; how many. */
size_t hl_manager_usage(const struct hl_manager_table *t, uint32_t device,
                        struct hl_manager_use *out, size_t max);

#endif
