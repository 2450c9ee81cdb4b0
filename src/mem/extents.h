/* mem/extents.h - which units of an area (a pool's data, an emulated device) are free.
 *
 * The units may be divided into regions (the memory of one NUMA node each). A free extent lies in
 * one region; it is split at region borders. So each region finds its own best fit, and a request
 * that fits in no region is searched for across borders.
 *
 * Owns:    its nodes, allocated once: a free extent lies between used ones or borders, so there is
 *          at most one more of them than there are used extents and borders.
 * Threads: one at a time.
 * Errors:  HL_ENOSPC (no free extent is long enough), HL_ECONFLICT (claimed units are not free).
 * Units:   the area's own.
 * Limits:  2^32 - 64 used extents; 32 regions.
 */
#ifndef HL_MEM_EXTENTS_H
#define HL_MEM_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_EXTENTS_REGIONS 32
#define HL_EXTENTS_ANY     UINT32_MAX

struct hl_extents;

/* At first all of [0, units) is free. At most max_used extents may be in use at a time. */
hl_status hl_extents_create(uint64_t units, uint64_t max_used, struct hl_extents **out) HL_CHECK;
/* Call before anything is taken. Region i ends at ends[i], ascending; the last end is the whole
 * area. */
void hl_extents_divide(struct hl_extents *x, const uint64_t *ends, size_t count);
void hl_extents_destroy(struct hl_extents *x);

/* Best fit: from the start of the shortest free extent that is long enough, the lowest of equals;
 * every second region allocates from its end instead, so that the free parts of two neighbours meet
 * at their border. Across borders when it fits in no region. No error text on failure. */
hl_status hl_extents_take(struct hl_extents *x, uint64_t units, uint64_t *start) HL_CHECK;
/* The same, but first in the regions whose bits are set in `regions`, then in the others. */
hl_status hl_extents_take_in(struct hl_extents *x, uint64_t units, uint32_t regions,
                             uint64_t *start) HL_CHECK;
/* Takes exactly these units. No error text on failure. */
hl_status hl_extents_claim(struct hl_extents *x, uint64_t start, uint64_t units) HL_CHECK;
/* Frees units that were taken or claimed, and merges them with their free neighbours. */
void hl_extents_give(struct hl_extents *x, uint64_t start, uint64_t units);

uint64_t hl_extents_free(const struct hl_extents *x);
uint64_t hl_extents_free_in(const struct hl_extents *x, size_t region);
/* The longest extent that take can give now, including across borders. */
uint64_t hl_extents_largest(const struct hl_extents *x);
uint64_t hl_extents_count(const struct hl_extents *x);

#endif
