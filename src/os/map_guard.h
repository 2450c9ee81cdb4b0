/* os/map_guard.h - protects against mapped files that another program truncates.
 *
 * Loading from a mapped page that the file no longer has raises SIGBUS, which ends the process. In
 * a process that has installed the guard, such pages of guarded mappings read as zeros instead, and
 * the mapping counts as damaged: a reader that verifies its bytes sees an error. Every other SIGBUS
 * goes to the previous handler, or ends the process. Undamaged mappings cost nothing.
 *
 * Owns:    the action of SIGBUS, once installed. A guard borrows its mapping and descriptor.
 * Threads: any.
 * Errors:  none: a mapping that can't be guarded behaves as without a guard.
 * Units:   bytes.
 * Limits:  HL_MAP_GUARDS mappings at once. Files on hugetlbfs are not guarded.
 */
#ifndef HL_OS_MAP_GUARD_H
#define HL_OS_MAP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define HL_MAP_GUARDS 4608

/* For daemons, whose readers verify checksums. Not for a rank, which would continue with zeros. */
void hl_map_guard_install(void);
/* Guards [ptr, ptr+size), a mapping of fd from its beginning; -1: not guarded. */
int hl_map_guard_add(void *ptr, uint64_t size, int fd, bool writable);
/* Call it before unmapping; -1 is fine. */
void hl_map_guard_remove(int guard);
/* Whether a load has hit a missing page since the guard was added; false for -1. */
bool hl_map_guard_damaged(int guard);
/* The same, but also detects missing pages that were not loaded, from the file's length. */
bool hl_map_guard_check(int guard);

#endif
