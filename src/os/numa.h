/* os/numa.h - which memory belongs to which processor: NUMA nodes, binding, where pages are.
 *
 * The system calls themselves, so that nothing has to be installed. In a container they are often
 * forbidden; callers say so and go on.
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

/* Nodes that have memory and that this process may use, ascending; 0 when the kernel tells none. */
size_t hl_numa_nodes(int *out, size_t max);
/* Bytes that can still be had on a node, caches included; 0 = unknown. */
uint64_t hl_numa_available(int node);
/* CPUs of a node that this process may use; 0 = unknown. */
unsigned hl_numa_cpus(int node);

/* New pages of [ptr, ptr + len) come from that node: only from it while it has `len` bytes, else
 * preferably. Shared memory keeps this with the file. Pages that are there already stay. */
hl_status hl_numa_bind(void *ptr, uint64_t len, int node) HL_CHECK;
/* Are sampled pages of it on that node? 1 yes, 0 no, -1 it can't be told. Touches them. */
int hl_numa_placed(const void *ptr, uint64_t len, int node);
/* The calling thread runs on that node's CPUs only; 0 when it can't be. */
bool hl_numa_run_on(int node);

#endif
