/* os/huge.h - huge pages for memory with random access: with small pages, each access walks page
 * tables that are in no cache.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: it is only a hint.
 * Units:   bytes.
 * Limits:  only affects the part of `memory` that consists of whole huge pages, 2 MiB on most
 *          machines.
 */
#ifndef HL_OS_HUGE_H
#define HL_OS_HUGE_H

#include <stddef.h>
#include <sys/mman.h>

static inline void hl_huge_advise(void *memory, size_t bytes)
{
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

#endif
