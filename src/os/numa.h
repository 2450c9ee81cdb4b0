/* os/numa.h - NUMA: nodes with their memory and CPUs, binding memory, and where pages are.
 *
 * It makes the system calls directly, so no library needs to be installed. In a container they are
 * often forbidden; callers report that and continue.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EUNSUPPORTED (no such call here), HL_EPERM, HL_EINVAL (no such node).
 * Units:   bytes; nodes by the kernel's number.
 * Limits:  nodes 0 to 1023.
 */
#ifndef HL_OS_NUMA_H
#define HL_OS_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Nodes that have memory and that this process may use, ascending; 0 if the kernel lists none. */
size_t hl_numa_nodes(int *out, size_t max);
/* Bytes that can still be allocated on a node, including page cache; 0 = unknown. */
uint64_t hl_numa_available(int node);
/* CPUs of a node that this process may use; 0 = unknown. */
unsigned hl_numa_cpus(int node);

/* New pages of [ptr, ptr + len) come from that node: only from it while it has `len` bytes, else
 * preferably. Shared memory keeps this with the file. Pages that are there already stay. */
hl_status hl_numa_bind(void *ptr, uint64_t len, int node) HL_CHECK;
/* Whether sampled pages are on that node: 1 = yes, 0 = no, -1 = unknown. Touches the pages. */
int hl_numa_placed(const void *ptr, uint64_t len, int node);
/* Restricts the calling thread to that node's CPUs; false if that is impossible. */
bool hl_numa_run_on(int node);

#endif
