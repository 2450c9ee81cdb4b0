/* mem/pool_extents.h - which units of the pool's data area are free.
 *
 * Owns:    its nodes, allocated once: a free extent lies between used ones, so there is at most one
 *          more of them than there are used extents.
 * Threads: one at a time.
 * Errors:  HL_ENOSPC (no free extent is long enough), HL_ECONFLICT (claimed units are not free).
 * Units:   pool units.
 * Limits:  2^32 - 2 used extents.
 */
#ifndef HL_MEM_POOL_EXTENTS_H
#define HL_MEM_POOL_EXTENTS_H

#include <stdint.h>

#include "base/status.h"

struct hl_extents;

/* All of [0, units) is free. At most max_used extents will be used at a time. */
hl_status hl_extents_create(uint64_t units, uint64_t max_used, struct hl_extents **out) HL_CHECK;
void hl_extents_destroy(struct hl_extents *x);

/* Best fit: from the start of the shortest free extent that is long enough, the lowest of equals.
 * No text on failure. */
hl_status hl_extents_take(struct hl_extents *x, uint64_t units, uint64_t *start) HL_CHECK;
/* Exactly these units. No text on failure. */
hl_status hl_extents_claim(struct hl_extents *x, uint64_t start, uint64_t units) HL_CHECK;
/* Units that were taken or claimed are free again, as one with their free neighbours. */
void hl_extents_give(struct hl_extents *x, uint64_t start, uint64_t units);

uint64_t hl_extents_free(const struct hl_extents *x);
uint64_t hl_extents_largest(const struct hl_extents *x);
uint64_t hl_extents_count(const struct hl_extents *x);

#endif
