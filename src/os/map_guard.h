/* os/map_guard.h - mapped files that another program cuts short.
 *
 * A load from a mapped page that its file has no longer is a SIGBUS, which ends the process. In a
 * process that has installed the guard, memory of guarded mappings reads as zeros there instead,
 * and the mapping is damaged: a reader that checks its bytes sees an error. Every other SIGBUS goes
 * to the handler that was there before, or ends the process. A good path costs nothing.
 *
 * Owns:    the action of SIGBUS, once installed. A guard borrows its mapping and descriptor.
 * Threads: any.
 * Errors:  none: a mapping that can't be guarded is as without one.
 * Units:   bytes.
 * Limits:  HL_MAP_GUARDS mappings at once. Files on hugetlbfs are not guarded.
 */
#ifndef HL_OS_MAP_GUARD_H
#define HL_OS_MAP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define HL_MAP_GUARDS 4608

/* For daemons, whose readers check sums. Not for a rank, which would go on with zeros. */
void hl_map_guard_install(void);
/* A guard of [ptr, ptr+size), a mapping of fd from its beginning; -1 without one. */
int hl_map_guard_add(void *ptr, uint64_t size, int fd, bool writable);
/* Before the mapping goes; -1 is fine. */
void hl_map_guard_remove(int guard);
/* A load has found something of it lost since it was added; -1: no. */
bool hl_map_guard_damaged(int guard);
/* The same, also where nothing was loaded from what is lost: looks at the file's length. */
bool hl_map_guard_check(int guard);

#endif
