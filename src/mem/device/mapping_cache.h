/* mem/device/mapping_cache.h - inaccessible mappings that are kept for the next block at their
 * address.
 *
 * When a block comes and goes at one address of a range, as a gradient does, the kernel builds and
 * frees its page tables each time. A cached mapping stays, without access; if the same memory comes
 * back to that address, a change of protection suffices. A cached mapping does not hold its memory.
 * If another block got the memory meanwhile, the mapping is replaced.
 *
 * Owns:    a table of the mappings; the mappings are the caller's.
 * Threads: one at a time.
 * Errors:  none; mappings that find no room in the table are not cached.
 * Units:   bytes.
 * Limits:  HL_MAPPING_CACHE_MAX mappings.
 */
#ifndef HL_MEM_DEVICE_MAPPING_CACHE_H
#define HL_MEM_DEVICE_MAPPING_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_MAPPING_CACHE_MAX 4096 /* of the 65,530 mappings that Linux lets a process have */

struct hl_cached_mapping {
    uint64_t address, size, offset; /* of the memory in its descriptor */
};

struct hl_mapping_cache {
    struct hl_cached_mapping *all;
    size_t count, cap;
};

void hl_mapping_cache_fini(struct hl_mapping_cache *p);
/* False: the table is full. */
bool hl_mapping_cache_add(struct hl_mapping_cache *p, uint64_t address, uint64_t size,
                          uint64_t offset);
/* The mapping of exactly this size that is cached at the address; NULL: none. Valid until the next
 * call. */
const struct hl_cached_mapping *hl_mapping_cache_find(const struct hl_mapping_cache *p,
                                                      uint64_t address, uint64_t size);
/* Drops all mappings that overlap these addresses. */
void hl_mapping_cache_forget(struct hl_mapping_cache *p, uint64_t address, uint64_t size);

#endif
