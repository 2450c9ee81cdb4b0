/* base/heap.h - a binary heap of (key, tie): the smallest comes out first.
 *
 * Owns:    its entries; zero-initialise, end with hl_heap_fini.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_BASE_HEAP_H
#define HL_BASE_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hl_heap_entry {
    uint64_t key, tie;
};

struct hl_heap {
    struct hl_heap_entry *e;
    size_t n, cap;
};

void hl_heap_fini(struct hl_heap *h);
hl_status hl_heap_push(struct hl_heap *h, uint64_t key, uint64_t tie) HL_CHECK;
/* Requires h->n > 0. */
struct hl_heap_entry hl_heap_pop(struct hl_heap *h);

#endif
