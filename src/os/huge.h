/* os/huge.h - memory in huge pages, for what is looked at here and there: with small ones the
 * processor looks for the page in tables that are in no cache, each time.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: it is a hint, and memory is as good without.
 * Units:   bytes.
 * Limits:  of `memory` that which lies in whole huge pages, 2 MiB on most machines.
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
